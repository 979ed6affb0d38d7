"""The table of phases: what one loop of the engine does, for each kind of instance.

Every phase is given the batch, chooses the lanes that it is about, and moves them on. Documents, the benchmark of
phases and the engine read this table. A new kind of instance is a new row of it, and a kind in rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .admitting import admit, admit_with_kv
from .arrays import Bools
from .batch import Batch, has_room
from .entering import enter_arrived, enter_decode, enter_decode_if_waiting, start_prefills
from .finishing import finish, finish_before_arrival
from .finishing_ahead import finish_ahead
from .growing import grow, grow_apart
from .leaping import leap
from .listed_steps import let_go, step
from .ordering import order
from .prefilling import (
    choose_all,
    choose_within_budget,
    hand_over_done,
    hand_over_to_decodes,
    hand_over_to_lane,
    prefill_phase,
)
from .routing import route
from .rules import LISTED
from .sharing import share_out
from .waking import wake

Phase = Callable[[Batch], None]


def _always(batch: Batch) -> bool:
    return True


class Step(NamedTuple):
    """A phase in its place: its name in documents and benchmarks, and whether it could do anything in a batch."""

    name: str
    phase: Phase
    needed: Callable[[Batch], bool] = _always


# With a router finishes come first in a loop, since what ends at the time of an arrival ends after it.
_ROUTE = Step("route", route, lambda batch: batch.router is not None)
_FINISH_BEFORE = Step("finish", finish_before_arrival, lambda batch: batch.router is not None)
_FINISH = Step("finish", finish, lambda batch: batch.router is None)
_WAKE = Step("wake", wake)
_ORDER = Step("order", order, lambda batch: batch.pool is not None)
# Step logs and times between tokens look at every leap: there every finish takes a loop of its own.
# So it does where clients wait for answers.
_FINISH_AHEAD = Step(
    "finish_ahead",
    finish_ahead,
    lambda batch: batch.log is None and not batch.keeps_itl and not batch.answers,
)
_LEAP = Step("leap", leap)


class Row(NamedTuple):
    """What one loop does for a kind of instance.

    steps      its phases, in order
    may_admit  lanes [L] in which somebody may be admitted, if he has arrived and fits. It may look at what only phases
               change, such as who runs, and at nothing that goes on in a leap
    """

    steps: tuple[Step, ...]
    may_admit: Callable[[Batch], Bools] = has_room


def _prefill(hand_over: Callable[..., None]) -> tuple[Step, Step]:
    """A prefill step with and without a token budget."""
    return (
        Step("prefill", prefill_phase(choose_all, hand_over), lambda batch: not batch.budgets),
        Step("prefill", prefill_phase(choose_within_budget, hand_over), lambda batch: batch.budgets),
    )


PHASES: dict[str, Row] = {
    # mixed, chunked and prefill_first, with blocks or unlimited memory. Lanes of all three share a batch; those under
    # prefill_first grow after prefill instead: prefill steps neither grow nor decode there.
    "scheduler": Row(
        (
            _ROUTE,
            _FINISH_BEFORE,
            _WAKE,
            Step("grow", grow, lambda batch: batch.paged and batch.any_mixed),
            _ORDER,
            Step("admit", admit),
            *_prefill(hand_over_to_decodes),
            Step("grow", grow_apart, lambda batch: batch.paged and batch.any_exclusive),
            _FINISH_AHEAD,
            _LEAP,
            _FINISH,
        )
    ),
    # Decode instances with blocks: only preempted requests are prefilled, again.
    "decode": Row(
        (
            _ROUTE,
            _FINISH_BEFORE,
            _WAKE,
            Step("grow", grow, lambda batch: batch.paged),
            Step("admit", admit_with_kv),
            Step("prefill", prefill_phase(choose_all, hand_over_to_decodes)),
            _FINISH_AHEAD,
            _LEAP,
            _FINISH,
        )
    ),
    # Where it matters who stands before whom: vllm with priorities, shares with a limit, or batches fixed ahead.
    LISTED: Row(
        (
            _ROUTE,
            Step("finish", let_go, lambda batch: batch.router is not None),
            _WAKE,
            Step("share_out", share_out),
            Step("step", step),
            Step("finish", let_go, lambda batch: batch.router is None),
        )
    ),
    "colocated, reserved": Row(
        (
            _ROUTE,
            _FINISH_BEFORE,
            _WAKE,
            Step("enter_decode", enter_decode_if_waiting),
            _ORDER,
            Step("start_prefills", start_prefills),
            *_prefill(hand_over_to_lane),
            Step("enter_decode", enter_decode),
            _FINISH_AHEAD,
            _LEAP,
            _FINISH,
        )
    ),
    "decode, reserved": Row(
        (
            _ROUTE,
            _FINISH_BEFORE,
            _WAKE,
            Step("enter_decode", enter_arrived),
            _FINISH_AHEAD,
            _LEAP,
            _FINISH,
        )
    ),
    "prefill": Row(
        (
            _ROUTE,
            _WAKE,
            _ORDER,
            Step("start_prefills", start_prefills),
            Step("prefill", prefill_phase(choose_all, hand_over_done)),
        )
    ),
}


NAMES = tuple(dict.fromkeys(step.name for row in PHASES.values() for step in row.steps))
"""Of all phases, those of schedulers first."""


def steps_of(batch: Batch) -> tuple[Step, ...]:
    """The phases of a loop over this batch, in order."""
    return tuple(step for step in PHASES[batch.rules.kind].steps if step.needed(batch))
