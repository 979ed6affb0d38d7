"""`python -m servesweep` is the command `servesweep`."""

from .commands.main import command_line

raise SystemExit(command_line())
