"""Who waits for the reference scheduler, and who is next, in plain Python; written from docs/scheduler.md.

A service order is a row of `ORDERS`.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class RequestState:
    """A request on its way; `key` breaks ties of arrival: the rid, or the position in the workload."""

    key: Any
    arrival: float
    prompt: int
    output: int
    priority: int = 0
    status: str = "waiting"  # -> prefill -> decode -> finished; back to waiting when preempted; or rejected
    emitted: int = 0
    done: int = 0  # tokens prefilled since the last admission, of prompt + emitted
    blocks: int = 0
    preemptions: int = 0
    admitted: float = math.nan  # beginning of the step of its first admission
    first_token: float = math.nan
    finish: float = math.nan
    # In systems of several instances or stages:
    ready: float = math.nan  # its arrival at the present stage
    kv_ready: float = math.nan
    served_by: list[int] = field(default_factory=list)  # instance of each stage


ORDERS: dict[str, Callable[[RequestState], tuple[Any, ...]]] = {
    "arrival": lambda request: (request.arrival, request.key),
}


class Queue(deque[RequestState]):
    """The preempted in front, the last of them first; behind them who was never admitted, in the order of service."""

    def __init__(self, order: str = "arrival") -> None:
        super().__init__()
        self.by = None if order == "arrival" else ORDERS[order]  # requests come in the order of arrival
        self.front = 0  # so many at the head keep their places, whoever comes

    def add(self, request: RequestState) -> None:
        """A request arrives."""
        if self.by is None:
            self.append(request)
        else:
            insort(self, request, self.front, key=self.by)

    def put_back(self, request: RequestState) -> None:
        """A request was preempted."""
        self.appendleft(request)
        self.front += 1

    def head(self, now: float) -> RequestState:
        """The next to be admitted in a step that begins now."""
        return self[0]

    def admit(self, now: float) -> RequestState:
        """Take the head out."""
        request = self.popleft()
        self.front = max(self.front - 1, 0)
        if math.isnan(request.admitted):
            request.admitted = now
        return request
