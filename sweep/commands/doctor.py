"""`servesweep doctor`: what this installation runs on, and whether it computes what it should."""

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
        "doctor",
        _doctor,
        "print versions and machine, and check that the simulator computes what it should",
        "Print versions and machine facts, and run a self-check. Exit code 1 if a check fails.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _doctor(options: argparse.Namespace) -> int:
    from ..runner.self_check import installation, run_checks

    facts = installation()
    checks = run_checks()
    failed = [check for check in checks if check.problem is not None]
    if options.json:
        print_json({**facts, "checks": [vars(check) for check in checks], "ok": not failed})
        return int(bool(failed))
    width = max(map(len, facts))
    for name, text in facts.items():
        tell(f"{name:<{width}}  {text}")
    tell("")
    for check in checks:
        tell(f"{'ok    ' if check.problem is None else 'FAILED'}  {check.name}  ({check.seconds:.1f} s)")
        if check.problem is not None:
            tell(f"        {check.problem}")
    tell(f"\n{len(checks) - len(failed)} of {len(checks)} checks passed")
    return int(bool(failed))
