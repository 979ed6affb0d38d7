"""`python -m servesweep` is the command `servesweep`."""

from .commands import main

raise SystemExit(main())
