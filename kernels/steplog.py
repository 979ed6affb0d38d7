"""The step-by-step log of chosen lanes: leaps written out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .blocks import demand, held
from .state import NO_LIMIT, Bools, Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine

COLUMNS = ("start_s", "end_s", "running", "emitted", "tokens", "blocks_used")


class StepLog:
    """One row a step that is not idle, for the lanes in `wanted` [L of the batch as given]."""

    def __init__(self, wanted: Bools) -> None:
        self.wanted = wanted
        self._parts: list[tuple[Ints, tuple[npt.NDArray[np.generic], ...]]] = []

    def columns(self) -> dict[int, dict[str, npt.NDArray[np.generic]]]:
        """Columns of every wanted lane, each [steps]: times in seconds, the other values whole numbers."""
        types = (np.float64, np.float64, np.int64, np.int64, np.int64, np.int64)
        all_lanes = np.concatenate([np.zeros(0, np.int64), *(lanes for lanes, _ in self._parts)])
        order = np.argsort(all_lanes, kind="stable")
        wanted = self.wanted.nonzero()[0]
        begins = np.searchsorted(all_lanes[order], wanted)
        ends = np.searchsorted(all_lanes[order], wanted, side="right")
        result: dict[int, dict[str, npt.NDArray[np.generic]]] = {int(lane): {} for lane in wanted}
        for index, (name, dtype) in enumerate(zip(COLUMNS, types, strict=True)):
            column = np.concatenate([np.zeros(0), *(values[index] for _, values in self._parts)])[order].astype(dtype)
            for lane, begin, end in zip(wanted.tolist(), begins.tolist(), ends.tolist(), strict=True):
                result[lane][name] = column[begin:end]
        return result

    def prefill_step(
        self, engine: Engine, active: Bools, end: Floats, emitted: Floats, tokens: Floats, prefill_blocks: Floats
    ) -> None:
        """Called before the state moves on. All [L]; lanes that are not active take no step."""
        s = engine.state
        lane = (self.wanted[engine.params.lane] & active).nonzero()[0]
        if not lane.size:
            return
        blocks = prefill_blocks[lane]
        if engine.paged:
            tick = s.tick[lane].astype(np.int64)
            blocks = blocks + held(engine, lane, s.context[lane], tick)
            blocks = blocks + demand(engine, lane, tick) * engine.params.beside[lane]
            blocks = np.where(engine.params.num_blocks[lane] < NO_LIMIT, blocks, 0)
        elif engine.reserve:
            blocks = s.reserved[lane]
        columns = (s.now[lane], end[lane], _running(engine)[lane], emitted[lane], tokens[lane], blocks)
        self._parts.append((engine.params.lane[lane], columns))

    def leap(self, engine: Engine, steps: Floats, first: Floats, half: Floats, piece: Floats | float) -> None:
        """Called before the state moves on. All [L]."""
        s = engine.state
        lanes = (self.wanted[engine.params.lane] & (steps > 0)).nonzero()[0]
        if not lanes.size:
            return
        count = steps[lanes].astype(np.int64)
        lane = np.repeat(lanes, count)
        begins = np.repeat(np.cumsum(count) - count, count)
        step = (np.arange(lane.size) - begins).astype(np.float64)
        begin = s.now[lane] + step * (first[lane] + half[lane] * (step - 1))
        end = s.now[lane] + (step + 1) * (first[lane] + half[lane] * step)
        tick = s.tick[lane].astype(np.int64)
        blocks = np.zeros(lane.size)
        if engine.paged:
            asked = demand(engine, lane, tick + step.astype(np.int64))
            grown = np.cumsum(asked)
            blocks = (
                held(engine, lane, s.context[lane], tick) + s.prefill_blocks[lane] + grown - (grown - asked)[begins]
            )
            blocks = np.where(engine.params.num_blocks[lane] < NO_LIMIT, blocks, 0)
        elif engine.reserve:
            blocks = s.reserved[lane]
        tokens = s.decoding[lane] + np.broadcast_to(piece, steps.shape)[lane]
        columns = (begin, end, _running(engine)[lane], s.decoding[lane], tokens, blocks)
        self._parts.append((engine.params.lane[lane], columns))


def _running(engine: Engine) -> Floats:
    """Requests that decode or are in prefill. [L]"""
    s = engine.state
    if not engine.reserve:
        return s.running
    return s.decoding + (s.head - s.first_prefill) if engine.rules.prefills else s.decoding
