"""The step-by-step log of chosen lanes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .arrays import Bools, Floats, Ints

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

    def write(self, lanes: Ints, columns: tuple[Floats, ...]) -> None:
        """Add rows of `lanes`, as given, with a value of each of COLUMNS. All [n]."""
        self._parts.append((lanes, columns))
