"""The driver: owns time, the lanes that are still running, and what is handed back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .admit import admit
from .blocks import block_ramp
from .finish import finish
from .gaps import BINS
from .grow import grow
from .leap import leap
from .passing import pass_finishes
from .prefill import prefill
from .queue import set_head, spread
from .reserve import join, take
from .router import Router
from .slots import new_slots, widened
from .state import (
    NO_LIMIT,
    ZERO,
    Bools,
    Floats,
    Ints,
    Outcome,
    Params,
    Rules,
    State,
    Traffic,
    compact,
    new_state,
)
from .steplog import StepLog
from .steptime import StepCoefficients

_FEW_SLOTS = 16
_AT_A_TIME = 2**15  # requests whose sums are taken together
_LOOK = 32  # loops between two looks of a watch: a look costs about as much as one loop
_FEW_RAMPS = 2**18  # numbers that may be written out so that they are found faster
_STALL = 1000  # loops of the driver without a step in any lane: far more than any rule can take


@dataclass
class Totals:
    """Sums over a lane's whole run; every field [L], lanes as given."""

    steps: Floats
    prefill_tokens: Floats
    recomputed_tokens: Floats
    peak_blocks: Floats  # 0 under unlimited memory
    running_steps: Floats
    block_steps: Floats  # 0 under unlimited memory
    busy_s: Floats


class Engine:
    """A batch of lanes of one kind. Those of all policies without reserved memory are of one kind: Params.beside says
    which of the first two rows holds.

    ======================  ============================================================
    kind of instance        phases of a loop, after *route* (with a router) and *wake*; *pass* comes before each leap
    ======================  ============================================================
    mixed, chunked          grow, admit, prefill, leap, finish
    prefill_first           admit, prefill, grow, leap, finish: only steps that decode ask for blocks
    colocated, reserved     join, take, prefill, join, leap, finish
    decode, reserved        join, leap, finish
    prefill                 take, prefill
    ======================  ============================================================

    Every loop moves every lane by as many steps as it can take without a decision, so lanes are at different steps and
    times. None looks at another, but through the router, which sends each request of a group of lanes to one of them:
    with a router, *finish* comes first in a loop, since what ends at the time of an arrival ends after it.

    `watch`, if set, is asked every few loops which lanes [L] to stop, with a router whole groups.

    `ramps` comes from the block sizes that occur, `params.ramp` points into it. Without a router, requests of lane l
    are rows `params.out[l] + request` of `outcome`.
    """

    def __init__(
        self,
        traffic: Traffic,
        params: Params,
        outcome: Outcome,
        block_sizes: list[int],
        rules: Rules,
        *,
        router: Router | None = None,
        gaps: bool = False,
        log: StepLog | None = None,
    ) -> None:
        lanes = params.n.size
        most_running = int(np.minimum(params.max_running, params.n).max(initial=1))
        self._most_running = most_running
        self.traffic, self.params, self.outcome, self.log = traffic, params, outcome, log
        self.rules, self.router = rules, router
        self.watch: Callable[[Engine], Bools] | None = None
        self.gaps = gaps and rules.decodes  # whether gaps between tokens are kept
        self.reserve = rules.reserve
        # Facts about the whole batch, so that what nobody needs is not computed.
        self.some_beside, self.some_apart = bool((params.beside > 0).any()), bool((params.beside == 0).any())
        self.paged = not rules.reserve and bool((params.num_blocks < NO_LIMIT).any())
        self.budgets = bool((params.budget < NO_LIMIT).any())
        self.communicates = bool(params.coefficients[:, 5:].any())
        c = StepCoefficients(*params.coefficients.T)
        most_compute = c.compute_per_token_s * np.minimum(params.max_running, params.n)
        at_memory = (most_compute <= c.memory_fixed_s) & (c.compute_per_context_s <= c.memory_per_token_s)
        self.memory_bound = not self.communicates and bool(np.all(at_memory))  # all steps that only decode
        self.preempted = False  # whether a request was ever preempted
        self.waits = False  # whether a prefilled request waits for room in its lane, under reserved memory
        # Sums over the residues stay exact in float32 while they are below 2**24.
        residue_type = np.float32 if most_running * max(block_sizes) < 2**24 else np.float64
        self.ramp, ramp_begins = block_ramp(block_sizes)
        windows = np.lib.stride_tricks.sliding_window_view(self.ramp.astype(residue_type), max(block_sizes))
        self._ramps = windows.copy() if windows.size < _FEW_RAMPS else windows
        params.ramp = np.asarray(ramp_begins)[np.searchsorted(block_sizes, params.block_size)]
        self.one = residue_type(1)  # of the type of State.growth: adding another one is ten times slower
        residues = max(block_sizes) if self.paged else 1
        stack = most_running if self.paged else 0
        bins = BINS if self.gaps else 0
        slots = new_slots(lanes, min(most_running, _FEW_SLOTS))
        self.state: State = new_state(slots, stack, residues, residue_type, bins)
        self.slots = np.array(slots.shape[1])  # of a row of State.slots; arrays for the reason of state.ONE
        self.residues = np.array(residues)
        self.gap_counts = np.zeros((lanes, bins))  # of lanes that are done
        if not rules.reserve:
            self.state.peak[params.num_blocks == NO_LIMIT] = np.inf
        self.state.free[:] = params.num_blocks
        self.state.known = np.zeros(lanes, np.int64) if router else params.n.copy()
        if router is not None:
            router.start(self)
        set_head(self)
        self._columns = params.coefficients.T.copy()  # [9, L]
        alike = lanes > 0 and bool((self._columns == self._columns[:, :1]).all())
        self._alike = StepCoefficients(*map(np.array, self._columns[:, 0])) if alike else None  # as state.ONE
        self._totals = np.full((7, lanes), np.nan)
        self._position, self._loops = (0, 0.0), 0

    def stop(self, lanes: Bools) -> None:
        """Leave out lanes in the middle of their run; their totals are 0. [L]"""
        if np.count_nonzero(lanes):
            self._totals[:, self.params.lane[lanes]] = 0
            self._compact(~lanes)

    def run(self) -> Totals:
        """Advance until every lane has served all its requests."""
        while self.advance():
            pass
        return self.totals()

    def advance(self) -> bool:
        """One loop over the phases; False when nothing is left to do. Afterwards every lane is between two steps."""
        if self.watch is not None and self._loops % _LOOK == 0:
            self.stop(self.watch(self))
        s = self.state
        if self.router is not None:
            self.router.route(self)
            if self.rules.decodes:
                finish(self, self.due(s.next_end == s.tick).nonzero()[0])
        if self._wake():
            return False
        if self.reserve:
            self._reserved_phases()
        else:
            self._block_phases()
        self._check_progress()
        return True

    def due(self, lanes: Bools) -> Bools:
        """Those of `lanes` that may go on: all without a router, else those before their group's next arrival. [L]"""
        if self.router is None:
            return lanes
        s = self.state
        return lanes & ((s.now < s.horizon) | s.woken)

    def cells(self, lanes: Ints, requests: Ints) -> Ints:
        """Rows of `outcome`. All [n]."""
        if self.router is None:
            return self.params.out[lanes] + requests
        cells: Ints = self.router.cell[self.params.row[lanes] + requests]
        return cells

    def _block_phases(self) -> None:
        s, p = self.state, self.params
        if self.paged and self.some_beside:
            decodes = s.tight & (s.decoding > ZERO)
            if self.some_apart:
                decodes &= p.beside > ZERO
            grow(self, self.due(decodes).nonzero()[0])
        admit(self)
        prefill(self)
        if self.paged and self.some_apart:
            decodes = s.tight & (s.decoding > ZERO) & (s.next_end > s.tick)
            decodes &= ~((s.head_arrival <= s.now) & (s.running < p.max_running) & (s.head_blocks <= s.free))
            if self.some_beside:
                decodes &= p.beside == ZERO
            grow(self, self.due(decodes).nonzero()[0])
        self._decode()

    def _reserved_phases(self) -> None:
        if self.rules.decodes and (self.waits or self.router is not None or not self.rules.prefills):
            join(self)
        if self.rules.prefills:
            take(self)
            prefill(self)
        if self.rules.decodes:
            if self.rules.prefills:
                join(self)
            self._decode()

    def _decode(self) -> None:
        s = self.state
        if self.log is None and not self.gaps:  # which look at every leap
            pass_finishes(self)
        leap(self)
        if self.router is None:
            finish(self, (s.next_end == s.tick).nonzero()[0])

    def totals(self) -> Totals:
        """Of the lanes that are done, 0 of those that were stopped; NaN elsewhere."""
        return Totals(*self._totals)

    def make_room(self, places: Ints) -> None:
        """Have all of these places for decoding requests in every lane, from 1."""
        have = self.state.slots.shape[1] - 1
        if have < self._most_running and places.size:
            needed = int(places.max())
            if needed > have:
                self.state.slots = widened(self.state.slots, max(needed, 2 * have))
                self.slots = np.array(self.state.slots.shape[1])

    def ramps(self, begin: Ints) -> npt.NDArray[np.floating]:
        """Rows of `ramp` from `begin` [n] on, [n, B]."""
        if self._ramps.flags.c_contiguous:
            return self._ramps.take(begin, axis=0)  # a third of the time
        rows: npt.NDArray[np.floating] = self._ramps[begin]
        return rows

    def coefficients_of(self, lanes: Ints | slice) -> StepCoefficients:
        """Step-time coefficients of some lanes, each [n]; single numbers where all lanes have one model on one chip."""
        if self._alike is not None:
            return self._alike
        return StepCoefficients(*self._columns[:, lanes])

    def _wake(self) -> bool:
        """Move idle lanes to the arrival that wakes them; retire lanes without work. True when no lane is left."""
        s = self.state
        idle = s.running == ZERO
        if not np.count_nonzero(idle):
            return s.running.size == 0
        arrival = s.head_arrival
        done = idle & (arrival == np.inf)
        asleep = idle & (arrival > s.now) & ~done
        now = np.where(asleep, arrival, s.now)
        s.idle_s += now - s.now
        s.now = now
        if self.reserve:
            s.woken = asleep | (idle & s.resting & ~done)
            s.resting &= ~s.woken
        retiring = done if self.router is None else self.router.done(self, done)
        count = np.count_nonzero(retiring)
        if count and 2 * count >= s.running.size:
            self._retire(retiring.nonzero()[0])
        return self.state.running.size == 0

    def _retire(self, lanes: Ints) -> None:
        s, p = self.state, self.params
        counted = (p.num_blocks[lanes] < NO_LIMIT) & self.rules.decodes
        tokens, emitted, blocks = self._without_preemption(lanes)
        steps = s.tick[lanes] + s.prefill_steps[lanes]
        self._totals[:, p.lane[lanes]] = [
            steps,
            tokens + s.repeated_tokens[lanes],
            s.recomputed_tokens[lanes],
            np.where(counted, s.peak[lanes], 0),
            emitted + s.silent_steps[lanes],
            np.where(counted, blocks + s.silent_blocks[lanes], 0),
            np.where(steps > 0, s.now[lanes] - s.idle_s[lanes], 0),
        ]
        self.gap_counts[p.lane[lanes]] = s.gap_counts[lanes]
        keep = np.ones(s.running.size, np.bool_)
        keep[lanes] = False
        self._compact(keep)

    def _compact(self, keep: Bools) -> None:
        kept = keep.nonzero()[0]
        compact(self.state, kept)
        compact(self.params, kept)
        if self.router is not None:
            self.router.compact(keep)
        self._columns = self.params.coefficients.T.copy()

    def _without_preemption(self, lanes: Ints) -> Floats:
        """Sums that only the requests decide: prompt tokens, tokens emitted, and blocks held by requests in the steps
        that emit their tokens: ceil(t / block_size) with t tokens before, t = prompt ... prompt + output - 1. A
        preempted request emits each token once all the same, from as many tokens. [3, n]"""
        p, s = self.params, self.state
        queues, which = np.unique(
            np.stack([p.row[lanes], p.block_size[lanes], s.known[lanes]]), axis=1, return_inverse=True
        )
        sums = np.zeros((3, queues.shape[1]))
        # Some requests at a time: what is computed of them is larger than what is kept.
        part = np.cumsum(queues[2]) // _AT_A_TIME
        for number in range(int(part.max(initial=0)) + 1):
            chosen = (part == number).nonzero()[0]
            sums[:, chosen] = self._sums(*queues[:, chosen])
        per_lane: Floats = sums[:, which.ravel()]
        return per_lane

    def _sums(self, row: Ints, block_size: Ints, known: Ints) -> Floats:
        """The same of queues of `known` requests from `row` on. [3, n]"""
        t, count = self.traffic, row.size
        queue, place, _ = spread(row, known)
        prompt, total, size = t.prompt[place], t.total[place], block_size[queue]
        tokens = np.bincount(queue, prompt * self.rules.prefills, count)
        sent = total - prompt - (not self.rules.prefills) if self.rules.decodes else np.ones(queue.size)
        emitted = np.bincount(queue, sent, count)
        held = _ceil_sum(total - 1, size) - _ceil_sum(prompt - self.rules.prefills, size)
        blocks = np.bincount(queue, held * self.paged, count)
        sums: Floats = np.array([tokens, emitted, blocks], np.float64)
        return sums

    def _check_progress(self) -> None:
        """Fail loudly rather than loop for ever if the rules ever disagree with each other."""
        self._loops += 1
        if self._loops % _STALL:
            return
        position = (self.state.running.size, float(self.state.tick.sum() + self.state.prefill_steps.sum()))
        if position == self._position:
            stuck = self.params.lane[self.state.running > 0]
            raise RuntimeError(
                f"no step in {_STALL} rounds of the engine; lanes {stuck[:5].tolist()} hold unfinished requests"
            )
        self._position = position


def _ceil_sum(tokens: Floats, size: Ints) -> Floats:
    """Sum of ceil(u / size) over u = 1 ... tokens."""
    turns: Floats = np.floor(tokens / size)
    return size * turns * (turns + 1) / 2 + (tokens - turns * size) * (turns + 1)


def new_outcome(cells: int, *, routed: bool = False, gaps: bool = False) -> Outcome:
    """Outcome of `cells` requests, none of which has happened."""
    first, finish, admitted = (np.full(cells, np.nan) for _ in range(3))
    gap, last = (np.full(cells * gaps, np.nan) for _ in range(2))
    lane = np.full(cells * routed, -1, np.int32)
    return Outcome(first, finish, admitted, np.zeros(cells, np.int32), lane, gap, last)


def prefix_sums(values: npt.NDArray[np.float64]) -> Floats:
    """Exclusive sums along rows [W, N]: place i holds the sum before i; one place more than values, [W, N + 1]."""
    out = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=out[:, 1:])
    return out
