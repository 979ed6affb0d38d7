"""`servesweep catalog`: the names that an experiment can use, with a line about each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..streams import tell
from .options import add_command, print_json

if TYPE_CHECKING:
    from .options import Commands


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "catalog",
        _catalog,
        "list models, chips, links, systems, policies, routers, ready experiments",
    )
    parser.add_argument("kinds", metavar="KIND", nargs="*", help="only these: models, chips, links, systems, ...")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _catalog(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names
    from ..experiment.names import listed
    from ..experiment.tables import ConfigError

    found = listed()
    try:
        check_names(options.kinds, list(found), "kind of name")
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    found = {kind: found[kind] for kind in options.kinds or found}
    if options.json:
        print_json(found)
        return 0
    for place, (kind, lines) in enumerate(found.items()):
        tell(f"{'' if not place else chr(10)}{kind} ({len(lines)})")
        width = max(map(len, lines))
        for name, line in lines.items():
            tell(f"  {name:<{width}}  {line}")
    return 0
