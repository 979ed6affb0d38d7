"""Makes the page of options from the parsers of the command: python docs/options.py writes docs/options.md."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from servesweep.commands.main import _parser

PAGE = Path(__file__).parent / "options.md"
HEAD = """# Every option

Made from the command itself by `python docs/options.py`; `servesweep COMMAND --help` says the same. RUN is the
directory of a run, or its name under `results/`. Results go to stdout, everything else to stderr. What a
sweep's TOML file may hold is in [sweeps](sweeps.md).
"""


def page() -> str:
    """The page as Markdown."""
    parser = _parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = [HEAD]
    for name, command in commands.choices.items():
        rows = "\n".join(f"| {what} | {_plain(action.help or '')} |" for action, what in _actions(command))
        about = _plain(command.description or "")
        parts.append(f"## servesweep {name}\n\n{about}\n\n| option | what it does |\n|---|---|\n{rows}\n")
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
    return text.replace("%%", "%").replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
