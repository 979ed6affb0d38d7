"""KV memory in blocks, and the one answer to whether some fit.

Blocks of decoding requests are counted from the context instead of being kept (residues.py), and only in lanes where
bounds cannot tell whether they matter. Who asks does not see it: `fits` is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass

import numpy as np

from .arrays import ALL, ONE, ZERO, AnyFloats, Bools, Floats, Ints, Numbers
from .clock import Clock
from .decodes import Decodes
from .params import NO_LIMIT, Params
from .records import new_record
from .request_rows import blocks_for
from .residues import ResidueWeights, steps_until_full


@dataclass
class Memory:
    """Blocks of each lane. A step's blocks are those held while it runs; of lanes that decode in the step, `free` is
    what remains after growth."""

    free: Floats  # [L] free blocks: exact where blocks_exact, elsewhere a lower bound that allows for a step's growth
    used: Floats  # [L] blocks of decoding requests, valid where blocks_exact
    blocks_exact: Bools  # [L] lanes whose blocks are counted
    peak: Floats  # [L] most blocks held so far
    prefill_blocks: Floats  # [L] blocks of requests in prefill
    weights_begin: Ints  # [L] where the lane's block size begins in the residues' weights
    growing_at_residue: AnyFloats  # [L, B] decoding requests that need a block at ticks = b modulo the block size
    params: InitVar[Params]
    clock: InitVar[Clock]
    decodes: InitVar[Decodes]
    weights: InitVar[ResidueWeights]

    def __post_init__(self, params: Params, clock: Clock, decodes: Decodes, weights: ResidueWeights) -> None:
        self._params, self._clock, self._decodes, self._weights = params, clock, decodes, weights
        self._any_mixed = bool((params.mixes_prefill > 0).any())
        self._residues = np.array(self.growing_at_residue.shape[1])  # an array for the reason of arrays.ONE
        self._one = self.growing_at_residue.dtype.type(1)  # adding another type is ten times slower

    # Whether blocks fit.

    def fits(self, lanes: Bools, blocks: Floats) -> Bools:
        """Whether so many blocks are free, in those of `lanes`; elsewhere of no meaning. All [L]."""
        fits = blocks <= self.free
        unsure = (lanes > (fits | self.blocks_exact)).nonzero()[0]  # >: and not
        if unsure.size:
            self._count(unsure)
            fits = blocks <= self.free
        return fits

    def fits_at(self, lanes: Ints, blocks: Floats) -> Bools:
        """The same of the lanes `lanes`. All [n]."""
        self._count(lanes)
        fits: Bools = blocks <= self.free[lanes]
        return fits

    def fit_or_not(self, lanes: Ints, blocks: Floats) -> Bools:
        """As `fits_at`, counting only lanes where bounds do not tell. All [n]."""
        fits: Bools = blocks <= self.free[lanes]
        if np.count_nonzero(fits) < fits.size:
            self._count(lanes[~fits])
            fits = blocks <= self.free[lanes]
        return fits

    def may_fit(self, blocks: Floats) -> Bools:
        """False only where so many blocks are certain not to fit, for who may be too careful. [L]"""
        may: Bools = (blocks <= self.free) >= self.blocks_exact  # >=: or not
        return may

    def may_fit_at(self, lanes: Ints, blocks: Floats) -> Bools:
        """The same of the lanes `lanes`, before they are counted. All [n]."""
        p, decodes = self._params, self._decodes
        held = (decodes.context[lanes] - decodes.decoding[lanes]) * p.blocks_per_token[lanes]  # no fewer
        most = p.num_blocks[lanes] - self.prefill_blocks[lanes] - np.floor(held)
        may: Bools = blocks <= np.where(self.blocks_exact[lanes], self.free[lanes], most)
        return may

    def fitting(
        self, lanes: Ints, search: Callable[[Ints | slice], Ints], stopped_by_blocks: Callable[[Ints], Bools]
    ) -> Ints:
        """How many of a lane's next requests fit together. `search` finds how many pass in some rows of `lanes`, by
        `fit_together`; `stopped_by_blocks` says which of these numbers [n] it may be that blocks limit. [n]"""
        count = search(ALL)
        again = (stopped_by_blocks(count) > self.blocks_exact[lanes]).nonzero()[0]
        if again.size:
            self._count(lanes[again])
            count[again] = search(again)
        return count

    def fit_together(self, lanes: Ints, before: Floats) -> Callable[[Ints | slice, Floats], Bools]:
        """A test for `fitting`, of `before` [n] blocks of all requests before a lane's next ones: given rows of `lanes`
        and sums of blocks, including those before, which fit. [*, n]"""
        most = self.free[lanes] + before

        def test(rows: Ints | slice, blocks: Floats) -> Bools:
            fit: Bools = blocks <= most[rows]
            return fit

        return test

    def sure_to_fit(self, lanes: Ints, context: Floats, decoding: Floats) -> Bools:
        """Where requests that hold `context` tokens can reach neither the memory nor the peak, nor in one step more.
        [*, n]"""
        p = self._params
        bound = context * p.blocks_per_token[lanes] + decoding * p.blocks_in_doubt[lanes]
        sure: Bools = (bound <= self.peak[lanes]) & (p.num_blocks[lanes] - bound - decoding >= ZERO)
        return sure

    def sure_to_fit_beside(self, lanes: Ints, context: Floats, decoding: Floats, in_prefill: Floats) -> Bools:
        """Where requests that hold `context` tokens, or decode one step more, cannot reach the memory beside
        `in_prefill` blocks. All [n]."""
        p = self._params
        most = context * p.blocks_per_token[lanes] + decoding * (p.blocks_in_doubt[lanes] + ONE)
        sure: Bools = most + in_prefill <= p.num_blocks[lanes]
        return sure

    def _count(self, lanes: Ints) -> None:
        """Make `free` exact in `lanes` where it was a lower bound, before anything is admitted."""
        lanes = lanes[~self.blocks_exact[lanes]]
        if lanes.size:
            p = self._params
            tick = self._clock.tick[lanes].astype(np.int64)
            used = self.held(lanes, self._decodes.context[lanes], tick)
            self.used[lanes] = used
            free = p.num_blocks[lanes] - used - self.prefill_blocks[lanes]
            if self._any_mixed:
                free -= self.demand(lanes, tick) * p.mixes_prefill[lanes]
            self.free[lanes] = free
            self.blocks_exact[lanes] = True

    # What requests hold and ask for.

    def held(self, lanes: Ints, context: Floats, tick: Ints) -> Floats:
        """Blocks of the decoding requests of `lanes` at `tick`, before that step's growth. All [n]."""
        p = self._params
        size = p.block_size[lanes]
        weights = self._weights.rows(self.weights_begin[lanes] + size - tick % size)
        slack = np.einsum("ij,ij->i", self.growing_at_residue.take(lanes, axis=0), weights)
        # rint: the quotient is whole, but a division by 3 or 7 can print it as 2.9999...
        blocks: Floats = np.rint((context - self._decodes.decoding[lanes] + slack) / p.block_size_f[lanes])
        return blocks

    def demand(self, lanes: Ints, tick: Ints) -> Floats:
        """Blocks that decoding requests of `lanes` ask for in the step at `tick`. All [n]."""
        index = lanes * self._residues + tick % self._params.block_size[lanes]
        asked: Floats = self.growing_at_residue.ravel()[index].astype(np.float64)
        return asked

    def _residue_of(self, lanes: Ints, tick: Floats, tokens: Floats) -> Ints:
        """Index into growing_at_residue of requests of `lanes`: at ticks congruent to it they ask for a block.

        A request whose cache holds `tokens` at `tick`, but for the newest, asks when the others fill their last block.
        All [n].
        """
        index: Ints = (tick - tokens).astype(np.int64) % self._params.block_size[lanes]
        index += lanes * self._residues
        return index

    # Admission and prefill.

    def take(self, blocks: Floats, prefills: bool) -> None:
        """Admitted requests take `blocks` [L], for their prefill or as those of the coming step."""
        self.free -= blocks
        if prefills:
            self.prefill_blocks = self.prefill_blocks + blocks

    def take_at(self, lanes: Ints, blocks: Floats) -> None:
        """The same in `lanes`, for their prefill. All [n], different lanes."""
        self.prefill_blocks[lanes] += blocks
        self.free[lanes] -= blocks

    def keep_at(self, lanes: Ints, blocks: Floats) -> None:
        """Requests in prefill hold `blocks` at the end of a leap whose growth is known to fit. All [n]."""
        self.prefill_blocks[lanes] = blocks

    def end_prefills(self, blocks: Floats) -> None:
        """Requests in prefill that held `blocks` decode from now on. [L]"""
        self.prefill_blocks = self.prefill_blocks - blocks

    def end_prefills_at(self, lanes: Ints, blocks: Numbers) -> None:
        """The same in `lanes`. All [n], different lanes."""
        self.prefill_blocks[lanes] -= blocks

    def end_all_prefills(self) -> None:
        """Nobody is in prefill any more."""
        self.prefill_blocks = np.zeros(self.prefill_blocks.size)

    def start(self, lanes: Ints, tick: Floats, tokens: Floats) -> None:
        """Requests that hold `tokens` at `tick` decode from now on. All [n]."""
        np.add.at(self.growing_at_residue.ravel(), self._residue_of(lanes, tick, tokens), self._one)

    def waiting_decodes(self, lanes: Ints) -> Floats:
        """Blocks of decoding requests while they wait in `lanes`. [n]"""
        used = self.used[lanes]
        loose = (~self.blocks_exact[lanes]).nonzero()[0]
        if loose.size:
            lane = lanes[loose]
            used[loose] = self.held(lane, self._decodes.context[lane], self._clock.tick[lane].astype(np.int64))
        return used

    def end_exclusive_step(self, lanes: Ints, used: Floats) -> None:
        """Count the blocks of a step that only prefilled while they are known: all `used` are now held by decoding
        requests. All [n]."""
        self.used[lanes] = used
        self.free[lanes] = self._params.num_blocks[lanes] - used
        self.peak[lanes] = np.maximum(self.peak[lanes], used)
        self.blocks_exact[lanes] = True

    # Decoding.

    def grow(self, lanes: Ints) -> Ints:
        """Take the coming step's growth off in `lanes`, all counted; those that have too few blocks."""
        free = self.free[lanes] - self.demand(lanes, self._clock.tick[lanes].astype(np.int64))
        self.free[lanes] = free
        return lanes[(free < ZERO).nonzero()[0]]

    def short(self, lanes: Ints) -> Ints:
        """Those of `lanes` that have too few blocks."""
        return lanes[self.free[lanes] < ZERO]

    def preempt_prefill(self, lanes: Ints, blocks: Floats) -> None:
        """A request in prefill gives `blocks` back. All [n], different lanes."""
        self.prefill_blocks[lanes] -= blocks
        self.free[lanes] += blocks

    def preempt_decode(self, lanes: Ints, tick: Floats, tokens: Floats) -> None:
        """A decoding request gives the blocks of `tokens` back, and does not grow at `tick`. All [n], different
        lanes."""
        residue = self._residue_of(lanes, tick, tokens)
        asks = residue == self._residue_of(lanes, tick, ZERO)
        blocks = blocks_for(tokens, self._params.block_size_f[lanes])
        self.growing_at_residue.ravel()[residue] -= self._one
        self.used[lanes] -= blocks
        self.free[lanes] += blocks + asks

    def stop(self, lanes: Ints, tick: Floats, tokens: Floats) -> None:
        """Requests that hold `tokens` at `tick` no longer decode. All [n]."""
        np.subtract.at(self.growing_at_residue.ravel(), self._residue_of(lanes, tick, tokens), self._one)

    def give_back(self, lanes: Ints, tokens: Floats) -> None:
        """Requests that held `tokens` are done; counted where blocks are. All [n]."""
        exact = self.blocks_exact[lanes].nonzero()[0]
        if exact.size:
            lanes = lanes[exact]
            held = blocks_for(tokens[exact], self._params.block_size_f[lanes])
            blocks = np.bincount(lanes, held, self.free.size)
            self.used -= blocks
            self.free += blocks

    def forget(self, lanes: Ints) -> None:
        """Lanes have gone on for steps in which their blocks were `sure_to_fit`: they are no longer known. [n]"""
        self.blocks_exact[lanes] = False

    def leap(self, context: Floats, steps: Floats, budgets: bool) -> Ints:
        """Cut `steps` where blocks run out, keep the peak, and decide which lanes must count blocks exactly until the
        next leap. `context` is what decoding requests hold after the steps. Both [L]; with `budgets`, requests can be
        in prefill meanwhile.

        Returns the lanes that were cut. Where an upper bound of the blocks held is below the peak so far, and that of
        one step more below the memory, neither can be touched, and nothing is counted.
        """
        p, decoding = self._params, self._decodes.decoding
        # Every decoding request may have just begun its last block; `free` also allows each a further one in the next
        # step.
        bound = context * p.blocks_per_token + decoding * p.blocks_in_doubt
        if budgets:
            bound += self.prefill_blocks
        self.free = p.num_blocks - bound - decoding
        self.blocks_exact = (bound > self.peak) | (self.free < ZERO)
        lanes = self.blocks_exact.nonzero()[0]
        if not lanes.size:
            return lanes
        taken, begin = steps[lanes], self._clock.tick[lanes]
        used = self.held(lanes, context[lanes], (begin + taken).astype(np.int64))
        in_prefill = self.prefill_blocks[lanes]
        space = p.num_blocks[lanes] - in_prefill
        over = (used > space).nonzero()[0]
        cut = lanes[over]
        if cut.size:
            tick = begin[over].astype(np.int64)
            used_now = self.held(cut, self._decodes.context[cut], tick)
            fit, grown = self._steps_until_full(cut, tick, space[over] - used_now)
            used[over] = used_now + grown
            steps[cut] = fit
        self.used[lanes] = used
        self.free[lanes] = space - used
        self.peak[lanes] = np.maximum(self.peak[lanes], used + in_prefill)
        return cut

    def _steps_until_full(self, lanes: Ints, tick: Ints, free: Floats) -> tuple[Floats, Floats]:
        """Steps from `tick` on whose growth fits into `free` blocks, and the blocks that they take. All [n]."""
        p, residues = self._params, self.growing_at_residue.shape[1]
        places = self.weights_begin[lanes] + tick % p.block_size[lanes] + np.arange(residues)[:, None]
        growing = self.growing_at_residue.ravel()[self._weights.flat[places] + lanes * residues]
        return steps_until_full(growing, self._decodes.decoding[lanes], p.block_size_f[lanes], free)


def new_memory(
    params: Params, clock: Clock, decodes: Decodes, block_sizes: list[int], most_running: int, *, paged: bool
) -> Memory:
    """Empty memory. `block_sizes` are those that occur; `paged`: whether a lane counts blocks."""
    lanes = params.n.size
    # Sums over the residues stay exact in float32 while they are below 2**24.
    kind = np.float32 if most_running * max(block_sizes) < 2**24 else np.float64
    weights = ResidueWeights(block_sizes, kind)
    peak = np.zeros(lanes)
    if paged:
        peak[params.num_blocks == NO_LIMIT] = np.inf  # so that it is never counted
    return new_record(
        Memory,
        lanes,
        free=params.num_blocks.copy(),
        peak=peak,
        weights_begin=weights.begins[np.searchsorted(block_sizes, params.block_size)],
        growing_at_residue=np.zeros((lanes, max(block_sizes) if paged else 1), kind),
        params=params,
        clock=clock,
        decodes=decodes,
        weights=weights,
    )
