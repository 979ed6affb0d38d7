"""The running list of each lane, in the order of admission: where it matters who stands before whom.

Other kinds of instances keep decodes in slots and prefills in ranges, since order makes no difference there. Here it
does: several prompts may be part-way, victims may stand anywhere, batches may be fixed ahead, blocks may be shared.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, fields

import numpy as np

from .arrays import ONE, ZERO, Bools, Floats, Ints
from .params import Params
from .records import new_record
from .request_rows import blocks_for

_FEW = 8


@dataclass
class RunningList:
    """Who runs, from the left; behind the last all is 0, and `ends_at` is inf.

    *Tokens* of a request are prompt + sent ones; *computed* are those of them whose KV exists.
    """

    size: Ints  # [L] requests that run
    place: Ints  # [L, W] of the request in the lane's row
    tokens: Floats  # [L, W]
    computed: Floats  # [L, W]
    ends_at: Floats  # [L, W] prompt + output tokens: whoever has so many has sent the last
    held: Floats  # [L, W] blocks
    registered: Ints  # [L, W] of those, blocks known by their content, where there is a prefix cache
    whole_nodes: Ints  # [L, W] of the prefix cache, that it holds as a whole
    unknown: Bools  # [L, W] whether its last token is sent in the step under way
    share: Floats  # [L, W] tokens to compute in the next step
    level: Ints  # [L, W] the larger, the sooner preempted, where that is by priority
    is_decoding: Bools  # [L, W] whether it has sent a token since its admission
    blocks_free: Floats  # [L]
    left: Floats  # [L] tokens of the budget that the next step does not use
    most_held: Floats  # [L] most blocks held so far
    has_preempted: Bools  # [L] whether the batch made up last has preempted somebody
    seen: Floats  # [L] who had arrived by then had a chance to join since blocks were last freed
    stalls: Ints  # [L] such batches since a token was last sent
    ended: Ints  # [L] requests that have sent all their tokens and not left
    ended_tokens: Floats  # [L] prompt + output tokens of those
    number_done: Ints  # [L] requests that have left
    prefill_tokens: Floats  # [L] counters.Totals, as the others
    running_steps: Floats  # [L]
    block_steps: Floats  # [L]
    params: InitVar[Params]

    def __post_init__(self, params: Params) -> None:
        self._params = params

    @property
    def width(self) -> int:
        """Places that some lane uses."""
        return int(self.size.max(initial=0))

    # Making up a batch.

    def give(self, lanes: Bools, share: Floats, need: Floats) -> None:
        """The next step of `lanes` [L] computes `share`, for which `need` blocks are taken. Both [L, w]."""
        width = share.shape[1]
        rows = lanes[:, None]
        self.held[:, :width] += need * rows
        self.share[:, :width] = np.where(rows, share, self.share[:, :width])
        self.blocks_free -= need.sum(axis=1) * lanes
        self.left = np.where(lanes, self._params.budget - share.sum(axis=1), self.left)

    def keep(
        self, lanes: Ints, stay: Bools, share: Floats, held: Floats, registered: Ints, free: Floats, left: Floats
    ) -> None:
        """The same after somebody was preempted in `lanes`, all but those who `stay` [n, w]. Others [n, w], or [n]."""
        width = share.shape[1]
        self.share[lanes, :width], self.held[lanes, :width] = share, held
        self.registered[lanes, :width] = registered
        self.blocks_free[lanes], self.left[lanes] = free, left
        self._remove(lanes, stay)

    def note_made_up(self, lanes: Bools, preempting: Bools, seen: Floats) -> None:
        """The batch of `lanes` is made up, of who had been `seen`; whether it has preempted somebody. All [L]."""
        self.seen = np.where(lanes, seen, self.seen)
        self.has_preempted = np.where(lanes, preempting, self.has_preempted)
        self.stalls += lanes & preempting

    def admit(
        self,
        lanes: Ints,
        requests: Ints,
        tokens: Floats,
        total: Floats,
        found: Floats,
        share: Floats,
        held: Floats,
        registered: Ints,
        whole_nodes: Ints,
        taken: Floats,
        level: Ints,
    ) -> None:
        """Requests join behind the others; `found` of their tokens are computed, `registered` of the blocks that they
        hold are known, `whole_nodes` of them held as such, and `taken` were free. All [n], different lanes."""
        place = self.size[lanes]
        self._make_room(int(place.max()) + 1)
        at = lanes * self.place.shape[1] + place
        for array, values in (
            (self.place, requests),
            (self.tokens, tokens),
            (self.computed, found),
            (self.ends_at, total),
            (self.held, held),
            (self.registered, registered),
            (self.whole_nodes, whole_nodes),
            (self.unknown, False),
            (self.share, share),
            (self.level, level),
            (self.is_decoding, False),
        ):
            array.ravel()[at] = values
        self.size[lanes] += 1
        self.blocks_free[lanes] -= taken
        self.left[lanes] -= share

    def register(self, lanes: Ints, places: Ints, blocks: Ints) -> None:
        """So many blocks are known by their content. All [n]."""
        self.registered[lanes, places] = blocks

    def know(self, lanes: Bools) -> None:
        """The step under way has ended. [L]"""
        self.unknown[lanes] = False

    # Steps.

    def note_blocks(self, lanes: Bools, used: Floats) -> None:
        """A step begins in `lanes`, with so many blocks held. Both [L]."""
        self.most_held = np.maximum(self.most_held, used * lanes)
        self.block_steps += used * lanes

    def process(self, steps: Floats) -> Bools:
        """The shares have been computed, and decodes have sent a token in each of `steps` [L] steps; the first is the
        only one where a prompt is worked on. Returns who has sent a token. [L, w]"""
        width = self.width
        tokens, computed, running = self.tokens[:, :width], self.computed[:, :width], (steps > ZERO)[:, None]
        share = self.share[:, :width] * running
        computed += share
        ends: Bools = (computed == tokens) & (share > ZERO)
        computed += (steps - ONE)[:, None] * ends
        tokens += steps[:, None] * ends
        self.running_steps += steps * self.size
        self.share[:, :width] *= ~running
        self.unknown[:, :width] = ends
        self.stalls[ends.any(axis=1)] = 0
        return ends

    def start_decoding(self, lanes: Ints, places: Ints) -> None:
        """Their prefill has ended. Both [n]."""
        self.is_decoding[lanes, places] = True

    def count_prefill(self, lanes: Ints, tokens: Floats) -> None:
        """So many tokens were prefilled. Both [n]."""
        np.add.at(self.prefill_tokens, lanes, tokens)

    def grow(self, lanes: Ints, held: Floats, more: Floats, sums: Floats) -> None:
        """Decodes of `lanes` hold `held` [n, w] blocks at the end of a leap: `more` than at its first step, and `sums`
        more in all its steps together. Both [n]."""
        self.held[lanes, : held.shape[1]] = held
        self.blocks_free[lanes] -= more
        self.block_steps[lanes] += sums
        used = self._params.num_blocks[lanes] - self.blocks_free[lanes]
        self.most_held[lanes] = np.maximum(self.most_held[lanes], used)

    def end(self, lanes: Ints, total: Floats) -> None:
        """Requests of `total` tokens have sent their last. Both [n]."""
        np.add.at(self.ended, lanes, 1)
        np.add.at(self.ended_tokens, lanes, total)

    def count_done(self, lanes: Ints) -> Floats:
        """Those of `lanes` [n] that have ended are done; their tokens. [L]"""
        self.number_done[lanes] += self.ended[lanes]
        self.ended[lanes] = 0
        tokens = np.zeros(self.number_done.size)
        tokens[lanes] = self.ended_tokens[lanes]
        self.ended_tokens[lanes] = 0
        return tokens

    def leave(self, lanes: Ints, stay: Bools, blocks: Floats) -> None:
        """All but those who `stay` [n, w] leave `lanes`, and free `blocks` [n]."""
        self.blocks_free[lanes] += blocks
        self.seen[lanes] = -np.inf  # who was seen and did not fit may do so now
        self._remove(lanes, stay)

    def _remove(self, lanes: Ints, stay: Bools) -> None:
        width = stay.shape[1]
        order = np.argsort(~stay, axis=1, kind="stable")
        size = stay.sum(axis=1)
        beyond = np.arange(width) >= size[:, None]
        for field in fields(self):
            array = getattr(self, field.name)
            if array.ndim == 2:
                rows = np.take_along_axis(array[lanes, :width], order, axis=1)
                rows[beyond] = np.inf if field.name == "ends_at" else 0
                array[lanes, :width] = rows
        self.size[lanes] = size

    def _make_room(self, places: int) -> None:
        have = self.place.shape[1]
        if places <= have:
            return
        for field in fields(self):
            array = getattr(self, field.name)
            if array.ndim == 2:
                wider = np.zeros((array.shape[0], max(places, 2 * have)), array.dtype)
                if field.name == "ends_at":
                    wider[:] = np.inf
                wider[:, :have] = array
                setattr(self, field.name, wider)


def new_running_list(params: Params, lanes: int) -> RunningList:
    """Nobody runs in so many lanes: all, or none where no lists are kept."""
    return new_record(
        RunningList,
        lanes,
        place=np.zeros((lanes, _FEW), np.int64),
        tokens=np.zeros((lanes, _FEW)),
        computed=np.zeros((lanes, _FEW)),
        ends_at=np.full((lanes, _FEW), np.inf),
        held=np.zeros((lanes, _FEW)),
        registered=np.zeros((lanes, _FEW), np.int64),
        whole_nodes=np.zeros((lanes, _FEW), np.int64),
        unknown=np.zeros((lanes, _FEW), np.bool_),
        share=np.zeros((lanes, _FEW)),
        level=np.zeros((lanes, _FEW), np.int64),
        is_decoding=np.zeros((lanes, _FEW), np.bool_),
        blocks_free=params.num_blocks[:lanes].copy(),
        params=params,
    )


def lacking(computed: Floats, share: Floats, held: Floats, block_size: Floats) -> Floats:
    """Blocks that requests lack to compute their shares. All of one shape, or broadcast."""
    lacks: Floats = blocks_for(computed + share, block_size) - held
    return lacks


def full_blocks(tokens: Floats, block_size: Floats) -> Ints:
    """Blocks that so many tokens fill. All of one shape, or broadcast."""
    full: Ints = np.floor(tokens / block_size).astype(np.int64)  # floats: `//` takes ten times as long
    return full
