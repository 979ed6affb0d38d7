"""Who waits for the reference scheduler, and who is next, in plain Python; written from docs/scheduler.md.

A service order is a row of `ORDERS`.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


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
    found: int = 0  # tokens that the last admission found in the prefix cache
    cached_tokens: int = 0  # those that the first one found
    texts: list[tuple[Any, int]] | None = None  # (text, so many tokens of it), the answer's last; None: its own alone
    admitted: float = math.nan  # beginning of the step of its first admission
    first_token: float = math.nan
    finish: float = math.nan
    # In systems of several instances or stages:
    ready: float = math.nan  # its arrival at the present stage
    kv_ready: float = math.nan
    served_by: list[int] = field(default_factory=list)  # instance of each stage


class Order(NamedTuple):
    """A service order: of those who were never admitted, the one with the smallest key is next.

    ages  whether `max_wait_s` may let those go first who have waited so long
    """

    key: Callable[[RequestState], tuple[Any, ...]]
    ages: bool = False


ORDERS: dict[str, Order] = {
    "arrival": Order(lambda request: (request.arrival, request.key)),
    "shortest_prompt": Order(lambda request: (request.prompt, request.arrival, request.key), ages=True),
    "priority": Order(lambda request: (request.priority, request.arrival, request.key)),
}


class Queue(deque[RequestState]):
    """The preempted in front, the last of them first; behind them who was never admitted, in a service order.

    Without `preempted_first` they too are in the service order. Requests are added in the order of arrival. ValueError
    for `max_wait_s` where the order has no use for it.
    """

    def __init__(
        self, order: str = "arrival", max_wait_s: float | None = None, *, preempted_first: bool = True
    ) -> None:
        super().__init__()
        if max_wait_s is not None and not ORDERS[order].ages:
            raise ValueError(f"max_wait_s={max_wait_s!r}: has no effect under order {order!r}")
        self.key, self.max_wait_s = ORDERS[order].key, max_wait_s
        self.preempted_first = preempted_first
        # A request arrives. In the order of arrival it is the last.
        self.add: Callable[[RequestState], None] = self.append if order == "arrival" else self.put_in
        self.front = 0  # so many at the head keep their places, whoever comes: preempted ones, then aged ones
        self.young: deque[RequestState] = deque()  # may age; those admitted meanwhile among them

    def put_in(self, request: RequestState) -> None:
        insort(self, request, self.front, key=self.key)
        if self.max_wait_s is not None:
            self.young.append(request)

    def put_back(self, request: RequestState) -> None:
        """A request was preempted."""
        if self.preempted_first:
            self.appendleft(request)
            self.front += 1
        else:
            self.put_in(request)

    def drop(self, request: RequestState) -> None:
        """A preempted request waits no longer."""
        self.remove(request)
        self.front -= self.preempted_first

    def age(self, now: float) -> None:
        """A step begins now: those of `young` who have waited long go first."""
        while self.max_wait_s is not None and self.young and self.young[0].arrival + self.max_wait_s <= now:
            aged = self.young.popleft()
            if math.isnan(aged.admitted):  # it still waits
                self.remove(aged)
                self.insert(self.front, aged)
                self.front += 1

    def admit(self, now: float) -> RequestState:
        """Take the head out."""
        request = self.popleft()
        if self.front:
            self.front -= 1
        if math.isnan(request.admitted):
            request.admitted = now
        return request
