"""The reference scheduler as tests compare it: its steps as rows, and whole steps in the words of `simulate`."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from servesweep.serving.reference import Observer, ReferenceScheduler, RequestState, Step

Row = tuple[Any, Any, int, int, int, int]  # one step: start, end, running, emitted, tokens processed, blocks held


class StepLog(Observer):
    """A row for each step."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def on_step(self, source: Any, step: Step) -> None:
        self.rows.append((step.start, step.end, len(step.running), step.emitted, step.tokens, step.blocks))


def simulate(
    requests: Iterable[tuple[str, int, int, int]], max_running: int, **limits: Any
) -> tuple[dict[str, dict[str, float]], list[tuple[int, ...]]]:
    """Result, and log as (step, running, emitted, tokens, blocks_used). Each step lasts 1: stamp s + 1 is step s."""
    served, log = [RequestState(*request) for request in requests], StepLog()
    deque(ReferenceScheduler(served, lambda *_: 1, "mixed", max_running, observer=log, **limits).boundaries(), maxlen=0)
    result = {
        request.key: {
            "first_token": request.first_token - 1,
            "finish": request.finish - 1,
            "preemptions": request.preemptions,
        }
        for request in served
    }
    busy = {start: tuple(counts) for start, _, *counts in log.rows}
    return result, [(step, *busy.get(step, (0, 0, 0, 0))) for step in range(max(busy, default=-1) + 1)]
