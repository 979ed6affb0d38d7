"""Makes the page of options from the parsers of the command: python docs/options.py writes docs/options.md."""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from servesweep.commands.main import make_parser

PAGE = Path(__file__).parent / "options.md"
HEAD = """# What does an option do?

Made from the command itself by `python docs/options.py`; `servesweep COMMAND --help` says the same. Results go to
stdout, everything else to stderr. Every command takes `--debug`. What an experiment's TOML file may hold is in
[keys](experiment-keys.md).
"""


def page() -> str:
    """The page as Markdown. Options that several commands share stand once, at the end."""
    parser = make_parser()
    (choices,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    rows = {
        name: [(what, _plain(action.help or "")) for action, what in _actions(one)] for name, one in choices.items()
    }
    counts = Counter(row for found in rows.values() for row in found)
    parts = [HEAD]
    for name, command in choices.items():
        own = "".join(f"- {what}: {text}\n" for what, text in rows[name] if counts[what, text] == 1)
        shared = ", ".join(what for what, text in rows[name] if 1 < counts[what, text] < len(rows))
        more = f"- [shared](#shared-options): {shared}\n" if shared else ""
        parts.append(f"## servesweep {name}\n\n{_plain(command.description or '')}\n\n{own}{more}")
    shared = "".join(f"- {what}: {text}\n" for (what, text), count in counts.items() if count > 1)
    parts.append(f"## Shared options\n\n{shared}")
    return "\n".join(parts)


def _actions(command: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, str]]:
    last = ("--json", "--debug")  # behind what the command is about
    for action in sorted(command._actions, key=lambda action: any(name in last for name in action.option_strings)):
        if isinstance(action, argparse._HelpAction):
            continue
        name = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        if not action.option_strings:
            optional = action.nargs in ("?", "*")
            yield action, f"`{name}`{' (optional)' if optional else ''}"
        else:
            yield action, f"`{', '.join(action.option_strings)}{f' {name}' if name else ''}`"


def _plain(text: str) -> str:
    return text.replace("%%", "%").replace("<", "\\<")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
