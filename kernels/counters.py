"""The list of counters: what a run counts, and what it returns of each lane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from .arrays import Floats, Ints, Numbers
from .records import new_record


class Counter(NamedTuple):
    """One of `COUNTERS`.

    of_lanes   how the lanes of a system are put together: sum or max
    of_stages  the same of prefill and decode instances: sum, or last for that of the decode instances
    """

    name: str
    unit: str
    meaning: str
    of_lanes: str
    of_stages: str


def _about(unit: str, meaning: str, of_lanes: str = "sum", of_stages: str = "sum") -> dict[str, str]:
    return {"unit": unit, "meaning": meaning, "of_lanes": of_lanes, "of_stages": of_stages}


@dataclass
class Totals:
    """The counters of a whole run: one row a counter, with its unit and meaning. Every field [L], lanes as given.

    A new one is a line here, and a field of Counts with its name and a verb, which a phase calls. Results carry it in
    their `counters`. Where it is more than what phases count, totals.py says what it is at the end of a run.
    """

    steps: Floats = field(metadata=_about("steps", "steps that are not idle"))
    prefill_tokens: Floats = field(metadata=_about("tokens", "processed in prefill, rebuilding included"))
    recomputed_tokens: Floats = field(
        metadata=_about("tokens", "of those, by requests that had been preempted at least once")
    )
    peak_blocks: Floats = field(
        metadata=_about("blocks", "most held in any step; 0 under unlimited memory", "max", "last")
    )
    running_steps: Floats = field(metadata=_about("requests", "running requests, summed over steps", of_stages="last"))
    block_steps: Floats = field(
        metadata=_about("blocks", "blocks held, summed over steps; 0 under unlimited memory", of_stages="last")
    )
    busy_s: Floats = field(metadata=_about("s", "inside steps; prefill instances: until the next batch can start"))

    def rows(self) -> Iterator[tuple[Counter, Floats]]:
        """Each counter and its values."""
        for counter in COUNTERS:
            yield counter, getattr(self, counter.name)


COUNTERS = tuple(Counter(row.name, **row.metadata) for row in fields(Totals))


def new_totals(lanes: int, value: float = 0.0) -> Totals:
    """Totals of lanes that are all `value`."""
    return Totals(*(np.full(lanes, value) for _ in COUNTERS))


@dataclass
class Counts:
    """What phases count as they go. Most of a run's totals are decided by the requests alone (totals.py): only what a
    run adds to them is counted."""

    repeated_tokens: Floats  # [L] prefilled again, or lost half-way: what prefill did beyond every prompt once
    recomputed_tokens: Floats  # [L] prefilled by requests that had been preempted before
    non_emitting_request_steps: Floats  # [L] running requests that emit no token in a step, summed over steps
    non_emitting_block_steps: Floats  # [L] blocks that they hold, summed over steps
    itl_counts: Floats  # [L, BINS] times between tokens of all requests, by length (itl_bins.py); [L, 0] unless kept

    def wait(self, request_steps: Floats) -> None:
        """Running requests emit nothing. [L]"""
        self.non_emitting_request_steps += request_steps

    def wait_at(self, lanes: Ints, request_steps: Floats) -> None:
        """The same in `lanes`. Both [n], different lanes."""
        self.non_emitting_request_steps[lanes] += request_steps

    def emit_after_all(self, lanes: Ints) -> None:
        """Of the requests counted by `wait` one an entry of `lanes` does emit. [n]"""
        np.subtract.at(self.non_emitting_request_steps, lanes, 1.0)

    def hold(self, block_steps: Floats) -> None:
        """Blocks are held by requests that emit nothing. [L]"""
        self.non_emitting_block_steps += block_steps

    def hold_at(self, lanes: Ints, block_steps: Floats) -> None:
        """The same in `lanes`. Both [n], different lanes."""
        self.non_emitting_block_steps[lanes] += block_steps

    def repeat(self, lanes: Ints, tokens: Numbers) -> None:
        """Tokens are processed, or were, beyond those of each prompt once. Both [n], different lanes."""
        self.repeated_tokens[lanes] += tokens

    def recompute(self, lanes: Ints, tokens: Floats) -> None:
        """Requests that had been preempted process tokens. Both [n]."""
        np.add.at(self.recomputed_tokens, lanes, tokens)

    def count_itl(self, lanes: Ints, bins: Ints, number: Floats | int) -> None:
        """So many times between tokens have lengths of `bins`. All [n]."""
        np.add.at(self.itl_counts, (lanes, bins), number)


def new_counts(lanes: int, bins: int) -> Counts:
    """Nothing is counted yet; `bins` 0: times between tokens are not kept."""
    return new_record(Counts, lanes, itl_counts=np.zeros((lanes, bins)))
