"""Progress of a run on stderr: a bar on a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

LINE_SECONDS = 10.0  # between progress lines where there is no terminal


class Silent:
    """Progress that shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, cells: int, failed: int, expected_s: float) -> None:
        """Count cells that have ended, and those of them that failed; the whole run should now take `expected_s`."""


class Progress(Silent):
    """Cells done, cells a second and time left, on stderr: a bar on a terminal, elsewhere a line every ten seconds."""

    def __init__(self, total: int, expected_s: float) -> None:
        self.total = total
        self.expected_s = expected_s
        self.done = 0
        self.failed = 0
        self.started = time.perf_counter()
        self._ended = threading.Event()
        self._bar: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("simulating", total=self.total, text=self._text())
            self._bar.start()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None:
            self._bar.stop()

    def advance(self, cells: int, failed: int, expected_s: float) -> None:
        self.expected_s = expected_s
        self.done += cells
        self.failed += failed
        self._show()

    def _tick(self) -> None:
        while not self._ended.wait(1.0 if self._bar is not None else LINE_SECONDS):
            self._show()
            if self._bar is None:
                print(self._text(), file=sys.stderr, flush=True)

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(0, completed=self.done, text=self._text())

    def _text(self) -> str:
        elapsed = time.perf_counter() - self.started
        parts = [f"{self.done}/{self.total} cells", f"{elapsed:.0f} s"]
        if self.done:
            parts.append(f"{self.done / elapsed:.1f} cells/s")
        if elapsed < self.expected_s:
            parts.append(f"about {self.expected_s - elapsed:.0f} s left")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)
