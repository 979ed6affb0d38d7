"""The command `servesweep`. Each command imports what it needs when it runs, so that --help and --version are quick."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, TextIO

from .. import streams
from ..escapes import lines, shell_word
from ..messages import MOST_LISTED, MOST_NAMES, clipped, listed, meant
from ..streams import say
from . import calibrate as command_calibrate
from . import catalog as command_catalog
from . import compare as command_compare
from . import doctor as command_doctor
from . import export as command_export
from . import goodput as command_goodput
from . import init as command_init
from . import placement as command_placement
from . import plot as command_plot
from . import report as command_report
from . import run as command_run
from . import schema as command_schema
from . import show as command_show
from . import steps as command_steps
from . import timeline as command_timeline
from . import validate as command_validate
from . import verify as command_verify
from .options import EXIT_INTERRUPTED, EXIT_UNEXPECTED, EXIT_USAGE


def command_line(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 done; 1 unexpected error; 2 wrong usage or experiment; 3 some cells failed; 130 interrupted.
    """
    streams.open_closed()
    streams.encode_all()
    try:
        return _run(arguments)
    finally:
        streams.let_go()


def _run(arguments: Sequence[str] | None) -> int:
    debug = False
    try:
        with streams.guarded_stdout():
            options, unknown = make_parser().parse_known_args(arguments)
            if unknown:
                options.parser.error(_unknown(unknown, options.parser))
        debug = options.debug
        quiet = getattr(options, "quiet", False)
        with streams.guarded_stdout(alone=getattr(options, "json", False)), _warnings_in_a_line(quiet):
            code: int = options.command(options)
        return code
    except KeyboardInterrupt as interrupt:
        say(str(interrupt) or "interrupted")
        if hasattr(interrupt, "run"):
            say(_resume(arguments, fresh=not interrupt.run.any_ended))
        return EXIT_INTERRUPTED
    except streams.StdoutLost as error:
        say(str(error))
        return EXIT_UNEXPECTED
    except Exception as error:
        if debug:
            raise
        from ..experiment.tables import ConfigError
        from ..goodput.search import SearchStopped
        from ..runner.run import RunStopped

        if isinstance(error, RunStopped):
            say(str(error))
            say(_resume(arguments, error.alone, fresh=not error.run.any_ended))
            return EXIT_UNEXPECTED
        if isinstance(error, SearchStopped):
            say(str(error))
            if error.alone:
                say(_resume(arguments, alone=True, fresh=True))
            return EXIT_UNEXPECTED
        if isinstance(error, ConfigError):
            say(str(error))
            if len(error.problems) > 1:
                say(f"{len(error.problems):,} errors; nothing was run")
            return EXIT_USAGE
        say(f"unexpected error, {type(error).__name__}: {error} (--debug shows where)")
        return EXIT_UNEXPECTED


@contextmanager
def _warnings_in_a_line(quiet: bool) -> Iterator[None]:
    """In the block, what is a warning in Python is a line on stderr, once, without a place in the code."""
    told: set[str] = set()
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, UserWarning):
                before(message, category, filename, lineno, file, line)
            elif str(message) not in told and not quiet:
                told.add(str(message))
                say(f"Warning: {message}")

        warnings.showwarning = show
        yield


def _resume(arguments: Sequence[str] | None, alone: bool = False, *, fresh: bool) -> str:
    """How to go on after a run that stopped: the same command, which finds what is there; `alone`: with one worker;
    `fresh`: nothing of it is there."""
    given = [word for word in (sys.argv[1:] if arguments is None else arguments) if fresh or word != "--fresh"]
    if alone:
        words = iter(given)
        given = [w for w in words if not (w == "--workers" and next(words, "")) and not w.startswith("--workers=")]
        given += ["--workers", "1"]
    return f"go on with: {' '.join(map(shell_word, ['servesweep', *given]))}"


def _unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """What is wrong with words that a command does not take: an option has a close name, or all are listed."""
    known = re.findall(r"(?<![\w-])--[a-z][\w-]*", parser.format_usage())
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    hint = "" if option is None else meant(option, known) or f"; known: {listed(known, MOST_NAMES)}"
    return f"unrecognized arguments: {' '.join(map(clipped, words[:MOST_LISTED]))}{hint}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
        hint = "" if wrong is None else meant(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        super().error(lines(message) + hint)


def make_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="servesweep", description="Simulate LLM serving, thousands of configurations at once."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command_run.add(commands)
    command_goodput.add(commands)
    command_placement.add(commands)
    command_show.add(commands)
    command_plot.add(commands)
    command_report.add(commands)
    command_timeline.add(commands)
    command_export.add(commands)
    command_compare.add(commands)
    command_steps.add(commands)
    command_validate.add(commands)
    command_calibrate.add(commands)
    command_catalog.add(commands)
    command_schema.add(commands)
    command_init.add(commands)
    command_doctor.add(commands)
    command_verify.add(commands)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"servesweep {version('servesweep')}")
        parser.exit()
