"""Which rows of a batch a watch follows, and what becomes of the verdicts: the way between systems and engines.

C systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Ints
from ..measures.result import EarlyStopOutcome
from .early_stop import Verdicts, Watch, Window, limited

if TYPE_CHECKING:
    from .run import Queues
    from .stages import Batch
    from .system import System


class Watches:
    """What follows the systems of each engine: those that it serves from the first token to the last."""

    def __init__(self, verdicts: Verdicts, systems: Sequence[System], queues: Queues) -> None:
        self.verdicts, self.queues = verdicts, queues
        self.followed = np.array(
            [
                len(system.roles) == 1 and system.roles[0] != "prefill" and not system.skips_one_token
                for system in systems
            ],
            np.bool_,
        )
        self.watches: list[tuple[Watch, Ints, Ints]] = []  # rows of a watch, and which systems they are

    def __call__(self, batch: Batch, places: Ints) -> Watch:
        rows = np.arange(len(batch.stages)) if batch.routed else np.cumsum(batch.counts) - batch.counts
        alone = self.followed[places] & ((batch.counts == 1) | batch.routed)
        rows, systems = rows[alone], places[alone]
        windows: list[Window | None] = [None] * len(batch.queues)
        for row, which in dict(zip(batch.queue_of[rows].tolist(), self.queues.of_system[systems], strict=True)).items():
            windows[row] = self.queues.window(which, self.verdicts.criterion)
        asked = self.verdicts
        all_rows = len(batch.stages) if batch.routed else batch.stage_of_lane.size
        watch = Watch(asked.criterion.joint, limited(asked.limits), batch, all_rows, windows)
        rate = np.array([stage.rate for stage in batch.stages])[alone]
        limits = {name: limit[systems] for name, limit in asked.limits.items()}
        watch.follow(rows, batch.queue_of[rows], rate, limits, asked.on_pass[systems], asked.on_fail[systems])
        self.watches.append((watch, rows, systems))
        return watch

    def decided(self) -> EarlyStopOutcome:
        """The verdicts by system, when all has run."""
        found = EarlyStopOutcome.none_stopped(self.followed.size)
        for watch, rows, systems in self.watches:
            for name in vars(found):
                getattr(found, name)[systems] = getattr(watch.decided, name)[rows]
        return found
