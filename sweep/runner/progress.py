"""Progress of a run on stderr: a bar on a terminal, elsewhere a plain line every ten seconds.

Cells end by batch, so their number would jump: the bar shows the share of the expected time, its text the cells.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..analysis.ranking import TARGET
from ..streams import is_terminal, say, stderr

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..experiment.plan import Plan

LINE_SECONDS = 10.0  # between progress lines where there is no terminal
_AXES_SHOWN = 3  # of the best cell


class BestSoFar:
    """The cell with the highest request rate per GPU among those that attain the target. `text` says which, in short.

    The table at the end of a run is stricter: there, every lower rate must keep the target too.
    """

    def __init__(self, plan: Plan) -> None:
        self.text = ""
        self._plan = plan
        self._rank = (0.0, 0.0, 0.0)
        self._axes = [name for name in plan.axes if name not in ("request_rate_rps", "seed")]

    def add(self, positions: Sequence[int], measures: Mapping[str, NDArray[np.float64]]) -> None:
        """Take measures [cells] of cells that have ended, NaN where there is none."""
        attainment, throughput = measures["attainment"], measures["output_throughput_per_gpu_tps"]
        for i in (attainment >= TARGET).nonzero()[0].tolist():
            values = self._plan.cells[positions[i]].columns()
            rate = values["request_rate_rps"] / values["n_gpus"]
            rank = (rate, float(attainment[i]), float(throughput[i]))
            if rank > self._rank:
                self._rank = rank
                shown = [f"{values[name]}" for name in self._axes if values.get(name) is not None]
                self.text = f"best {rate:.4g} req/s per GPU ({', '.join(shown[:_AXES_SHOWN])})" if shown else ""


class Silent:
    """Progress that shows nothing."""

    note = ""  # in front of the counts

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, cells: int, failed: int, expected_s: float, best: str = "") -> None:
        """Count cells that have ended, and those of them that failed; the whole run should now take `expected_s`."""


class Progress(Silent):
    """Cells done, cells a second and time left, on stderr: a bar on a terminal, elsewhere a line every ten seconds."""

    unit = "cells"

    def __init__(self, total: int, reused: int, expected_s: float) -> None:
        self.total = total
        self.reused = reused
        self.expected_s = expected_s
        self.done = 0
        self.best = ""
        self.failed = 0
        self.started = time.perf_counter()
        self._ended = threading.Event()
        self._bar: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if is_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}", markup=False),  # values of an experiment
            )
            self._bar = Bar(
                *columns,
                console=Console(file=stderr()),
                transient=True,
                redirect_stdout=is_terminal(sys.stdout),  # of a file or a pipe it would take what is printed
            )
            self._bar.add_task("simulating", total=1.0, text=self._text())
        try:
            if self._bar is not None:
                self._bar.start()
            thread = threading.Thread(target=self._tick, daemon=True)
            thread.start()
            self._thread = thread
        except RuntimeError:  # no more threads can be had: nothing is shown
            pass
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            with suppress(RuntimeError):  # its own thread may not have started
                self._bar.stop()

    def advance(self, cells: int, failed: int, expected_s: float, best: str = "") -> None:
        self.best = best
        self.expected_s = expected_s
        self.done += cells
        self.failed += failed
        self._show()

    def _tick(self) -> None:
        while not self._ended.wait(1.0 if self._bar is not None else LINE_SECONDS):
            self._show()
            if self._bar is None:
                say(self._text())

    def _show(self) -> None:
        if self._bar is not None:
            elapsed = time.perf_counter() - self.started
            self._bar.update(0, completed=min(elapsed / max(self.expected_s, elapsed), 0.99), text=self._text())

    def _text(self) -> str:
        elapsed = time.perf_counter() - self.started
        parts = [f"{self.reused + self.done:,}/{self.total:,} {self.unit}", f"{elapsed:.0f} s"]
        if self.note:
            parts.insert(0, self.note)
        if self.reused:
            parts.insert(1, f"{self.reused:,} reused")
        if self.done and not self.note:
            parts.append(f"{self.done / elapsed:.1f} {self.unit}/s")
        if elapsed < self.expected_s:
            parts.append(f"about {self.expected_s - elapsed:.0f} s left")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.best:
            parts.append(self.best)
        return ", ".join(parts)
