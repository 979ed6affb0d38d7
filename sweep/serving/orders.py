"""The service orders: one row each. Who is admitted next among those that wait; the rules are in docs/scheduler.md.

A new order is a row here, its name in `OrderName`, and its row in the reference (reference_queue.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .. import checks
from ..arrays import Ints
from ..workloads.workload import Workload
from .queue import Queue

OrderName = Literal["arrival", "shortest_prompt", "priority"]


@dataclass(frozen=True)
class Order:
    """Who is admitted next.

    Parameters
    ----------
    name, meaning
        What it is called, and a line about it.
    key
        A number for each request of a queue, the smallest first, ties by arrival: [n]. None: by arrival alone.
    ages
        `max_wait_s` is an option: who has waited so long goes first.
    needs_priority
        The workload must have priorities.
    """

    name: OrderName
    meaning: str
    key: Callable[[Queue], Ints] | None = None
    ages: bool = False
    needs_priority: bool = False


def _prompt(queue: Queue) -> Ints:
    return queue.prompt_tokens.astype(np.int64)


def _priority(queue: Queue) -> Ints:
    assert queue.priority is not None  # checked where the order is chosen
    return queue.priority.astype(np.int64)


ORDERS: dict[str, Order] = checks.by_name(
    (
        Order("arrival", "first come, first served"),
        Order(
            "shortest_prompt",
            "the shortest prompt first; with max_wait_s, who waited longer before",
            _prompt,
            ages=True,
        ),
        Order("priority", "the smallest priority first", _priority, needs_priority=True),
    )
)
DEFAULT_ORDER: OrderName = "arrival"


def check_order(order: str, max_wait_s: float | None, workload: Workload) -> None:
    """ValueError for an unknown order, one that these requests cannot have, and an option without effect."""
    checks.one_of("order", order, ORDERS)
    if ORDERS[order].needs_priority and workload.priority is None:
        raise ValueError(
            f"order={order!r}: the workload has no priorities: must have `priority`, an array of the Workload (in an "
            "experiment: a column of the trace, or urgent_share)"
        )
    if max_wait_s is not None:
        checks.not_negative("max_wait_s", max_wait_s)
        if not ORDERS[order].ages:
            raise ValueError(f"max_wait_s={max_wait_s!r}: has no effect under order {order!r}")


def by_rank(queue: Queue, order: str) -> Ints:
    """The requests of a queue, which is sorted by arrival, in the order in which they would be served if all waited.

    [n], places in the queue.
    """
    key = ORDERS[order].key
    if key is None:
        return np.arange(len(queue))
    return np.argsort(key(queue), kind="stable")


def levels(queue: Queue, order: str) -> Ints:
    """The same as places of groups: equals, but for their positions, share one. [n], by place in the queue."""
    served, key = by_rank(queue, order), ORDERS[order].key
    compared = [queue.arrival_s[served], *([] if key is None else [key(queue)[served]])]
    level = np.zeros(len(queue), np.int64)
    level[served[1:]] = np.cumsum(np.any([column[1:] != column[:-1] for column in compared], axis=0))
    return level
