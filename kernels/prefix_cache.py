"""The prefix cache of each lane: which full blocks are known by their content, who owns them, who goes first.

A *slot* is a block with content: the first registered one of each content has the content's number, further ones, the
*copies*, numbers behind. Blocks without content are alike, and counted. The rules are in docs/vllm.md.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import numpy as np
import numpy.typing as npt

from .arrays import Int32s, Ints
from .ranges import spread
from .records import new_record

_UNKNOWN, _OWNED = -1, -2  # a slot with n owners holds -1 - n
_FEW = 64


@dataclass(frozen=True)
class Chains:
    """The full blocks of requests, laid end to end: those of request i from begin[i] to before begin[i + 1]."""

    begin: Ints  # [N + 1]
    content: Int32s
    count: int  # contents


@dataclass
class PrefixCache:
    """Of `state`, or of a copy: _UNKNOWN, not there; less, owned; else free, and its place in `freed`."""

    state: Int32s  # [L, C] of the first registered block of each content
    freed: Int32s  # [L, T] the free queue: slots in the order of release, stale entries among them
    freed_begin: Ints  # [L] the next to be taken
    freed_end: Ints  # [L]
    blank: Ints  # [L] free blocks without content: the front of the queue
    evicted: Ints  # [L] blocks that were forgotten
    chain_row: Ints  # [L] of the lane's first request, in the chains
    copy_state: Int32s  # [L, K]
    copy_content: Int32s  # [L, K] -1: the place is free
    copy_owner: Int32s  # [L, K] request that made it and holds it, of those that do
    copy_order: Ints  # [L, K] number of its registration
    copies_made: Ints  # [L]
    chains: InitVar[tuple[Ints, Int32s]]

    def __post_init__(self, chains: tuple[Ints, Int32s]) -> None:
        self._begin, self._content = chains
        self._any_copies = False

    # What is known of requests. `lanes` are different ones where they are only [n].

    def find(self, lanes: Ints, requests: Ints, most: Ints) -> tuple[Ints, Ints]:
        """How many blocks are known from a request's start, at most `most`; and how many of them nobody owns. [n]"""
        row, content, place = self._blocks(lanes, requests, np.zeros(lanes.size, np.int64), most)
        state = self.state[lanes[row], content]
        found = most.copy()
        unknown = (state == _UNKNOWN).nonzero()[0]
        np.minimum.at(found, row[unknown], place[unknown])
        idle = np.bincount(row, (state >= 0) & (place < found[row]), lanes.size).astype(np.int64)
        return found, idle

    def block_at(self, lanes: Ints, requests: Ints, place: Ints) -> Ints:
        """The content of a block of a request, -1 behind the last. All of one shape, of any lanes."""
        at = self.chain_row[lanes] + requests
        begin = self._begin[at]
        there = begin + place < self._begin[at + 1]
        content: Ints = np.where(there, self._content.take(begin + place, mode="clip"), -1).astype(np.int64)
        return content

    # What happens to blocks.

    def share(self, lanes: Ints, requests: Ints, found: Ints) -> None:
        """Requests own the first `found` blocks from now on. [n]"""
        row, content, _ = self._blocks(lanes, requests, np.zeros(lanes.size, np.int64), found)
        at = lanes[row] * self.state.shape[1] + content
        state = self.state.ravel()[at]
        self.state.ravel()[at] = np.where(state >= 0, _OWNED, state - 1)

    def take(self, lanes: Ints, number: Ints) -> None:
        """So many new blocks are taken from the front of the free queue. [n]"""
        blank = np.minimum(number, self.blank[lanes])
        self.blank[lanes] -= blank
        number = number - blank
        rows = number.nonzero()[0]
        if rows.size:
            self._evict(lanes[rows], number[rows])

    def register(
        self, lanes: Ints, requests: Ints, first: Ints, end: Ints, decoded: tuple[Ints, Ints] | None = None
    ) -> None:
        """Blocks `first` to before `end` of requests, that these have taken, become known: of one request after the
        other, or as they were filled by a token a step: `decoded` are block sizes, and tokens of each request when the
        steps began. [n], of any lanes"""
        row, content, place = self._blocks(lanes, requests, first, np.maximum(end - first, 0))
        if not row.size:
            return
        at = lanes[row] * self.state.shape[1] + content
        if decoded is not None and lanes.size > 1:
            size, tokens = decoded
            order = np.argsort((place + 1) * size[row] - tokens[row], kind="stable")
            row, at, content = row[order], at[order], content[order]
        known = self.state.ravel()[at] != _UNKNOWN
        if lanes.size > 1:  # several of a lane may make the same content
            _, once = np.unique(at, return_index=True)
            if once.size < at.size:
                again = np.ones(at.size, np.bool_)
                again[once] = False
                known |= again
        self.state.ravel()[at[~known]] = _OWNED
        copies = known.nonzero()[0]
        if copies.size:
            self._copy(lanes[row[copies]], content[copies], requests[row[copies]])

    def release(self, lanes: Ints, requests: Ints, registered: Ints, held: Ints) -> Ints:
        """Requests leave their blocks, `registered` of which have content, one after the other. Returns how many are
        free then. [n], of any lanes; those of a lane side by side."""
        row, _, place = spread(np.zeros(lanes.size, np.int64), registered)
        content = self._contents(lanes, requests, row, registered[row] - 1 - place)  # from the last to the first
        lane, blank = lanes[row], held - registered
        slot = content
        width = self.state.shape[1]
        if self._any_copies:
            slot = self._held(lane, content, requests[row])
        gone = slot >= width  # copies have one owner
        mine = (~gone).nonzero()[0]
        at = lane[mine] * width + slot[mine]
        if lanes.size > 1 and (lanes[1:] == lanes[:-1]).any():
            unique, back, count = np.unique(at[::-1], return_index=True, return_counts=True)
            left = self.state.ravel()[unique] + count
            self.state.ravel()[unique] = left
            free = left == _UNKNOWN
            gone[mine[at.size - 1 - back[free]]] = True
        else:
            left = self.state.ravel()[at] + 1
            self.state.ravel()[at] = left
            gone[mine[left == _UNKNOWN]] = True
        rows = gone.nonzero()[0]
        self._append(lane[rows], slot[rows])
        np.add.at(self.blank, lanes, blank)
        freed_of: Ints = np.bincount(row[rows], minlength=lanes.size) + blank
        return freed_of

    def bytes_per_lane(self) -> float:
        """What a lane holds."""
        lanes = max(self.blank.size, 1)
        arrays = (self.state, self.freed, self.copy_state, self.copy_content, self.copy_owner, self.copy_order)
        return sum(array.nbytes for array in arrays) / lanes

    # How.

    def _blocks(self, lanes: Ints, requests: Ints, first: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
        """Row of `lanes`, content, and place in the request of `count` blocks from `first` on."""
        row, place, _ = spread(first, count)
        return row, self._contents(lanes, requests, row, place), place

    def _contents(self, lanes: Ints, requests: Ints, row: Ints, place: Ints) -> Ints:
        begin = self._begin[self.chain_row[lanes] + requests]
        content: Ints = self._content[begin[row] + place].astype(np.int64)
        return content

    def _evict(self, lanes: Ints, number: Ints) -> None:
        """Forget the `number` blocks of each lane that were freed first. [n]"""
        self.evicted[lanes] += number
        width = self.state.shape[1]
        while lanes.size:
            begin = self.freed_begin[lanes]
            window = np.minimum(number + number // 4 + 4, self.freed_end[lanes] - begin)
            row, place, _ = spread(begin, window)
            lane = lanes[row]
            slot = self.freed[lane, place].astype(np.int64)
            valid = self._state_of(lane, slot) == place
            count = np.cumsum(valid)
            before = np.concatenate([[0], count])[np.cumsum(window) - window]
            rank = count - before[row]  # of valid ones in the row, this one included
            gone = (valid & (rank <= number[row])).nonzero()[0]
            last = (valid & (rank == number[row])).nonzero()[0]
            begin = begin + window
            begin[row[last]] = place[last] + 1
            self.freed_begin[lanes] = begin
            number = number - np.bincount(row[gone], minlength=lanes.size)
            self._forget(lane[gone], slot[gone], width)
            more = number.nonzero()[0]
            lanes, number = lanes[more], number[more]

    def _forget(self, lane: Ints, slot: Ints, width: int) -> None:
        copies = slot >= width
        rows = copies.nonzero()[0]
        if rows.size:
            self.copy_content[lane[rows], slot[rows] - width] = -1
        rows = (~copies).nonzero()[0]
        lane, slot = lane[rows], slot[rows]
        self.state[lane, slot] = _UNKNOWN
        if not self._any_copies:
            return
        # The copy that was registered first takes the place of the first registered block.
        of_content = self.copy_content[lane] == slot[:, None]
        rows = of_content.any(axis=1).nonzero()[0]
        if not rows.size:
            return
        lane, slot = lane[rows], slot[rows]
        order = np.where(of_content[rows], self.copy_order[lane], np.iinfo(np.int64).max)
        oldest = order.argmin(axis=1)
        state = self.copy_state[lane, oldest]
        self.state[lane, slot] = state
        self.copy_content[lane, oldest] = -1
        free = (state >= 0).nonzero()[0]
        self.freed[lane[free], state[free]] = slot[free]

    def _state_of(self, lane: Ints, slot: Ints) -> Int32s:
        width = self.state.shape[1]
        if not self._any_copies:
            return self.state[lane, slot]
        copy = slot - width
        state: Int32s = self.state[lane, np.minimum(slot, width - 1)]
        rows = (copy >= 0).nonzero()[0]
        there = self.copy_content[lane[rows], copy[rows]] >= 0
        state[rows] = np.where(there, self.copy_state[lane[rows], copy[rows]], _UNKNOWN)
        return state

    def _copy(self, lanes: Ints, content: Ints, requests: Ints) -> None:
        """Requests own further blocks of contents, in this order. [n], of any lanes"""
        self._any_copies = True
        order = np.argsort(lanes, kind="stable")
        lanes, content, requests = lanes[order], content[order], requests[order]
        first = np.concatenate([[True], lanes[1:] != lanes[:-1]]).nonzero()[0]
        count = np.diff(np.concatenate([first, [lanes.size]]))
        rank = np.arange(lanes.size) - np.repeat(first, count)
        vacant = (self.copy_content[lanes[first]] < 0).sum(axis=1)
        missing = int((count - vacant).max(initial=0))
        if missing > 0:
            have = self.copy_content.shape[1]
            more = max(missing, have, 4)
            lanes_all = self.copy_content.shape[0]
            self.copy_state = np.concatenate([self.copy_state, np.zeros((lanes_all, more), np.int32)], axis=1)
            self.copy_owner = np.concatenate([self.copy_owner, np.zeros((lanes_all, more), np.int32)], axis=1)
            self.copy_order = np.concatenate([self.copy_order, np.zeros((lanes_all, more), np.int64)], axis=1)
            self.copy_content = np.concatenate([self.copy_content, np.full((lanes_all, more), -1, np.int32)], axis=1)
        places = np.argsort(self.copy_content[lanes[first]] >= 0, axis=1, kind="stable")  # vacant ones first
        place = places[np.repeat(np.arange(first.size), count), rank]
        self.copy_content[lanes, place] = content
        self.copy_state[lanes, place] = _OWNED
        self.copy_owner[lanes, place] = requests
        self.copy_order[lanes, place] = self.copies_made[lanes] + rank
        self.copies_made[lanes[first]] += count

    def _held(self, lane: Ints, content: Ints, request: Ints) -> Ints:
        """The slots in which requests hold contents: their own copies, else the first registered ones. [n]"""
        mine = (
            (self.copy_content[lane] == content[:, None])
            & (self.copy_owner[lane] == request[:, None])
            & (self.copy_state[lane] < 0)
        )
        has = mine.any(axis=1)
        slot: Ints = np.where(has, self.state.shape[1] + mine.argmax(axis=1), content)
        return slot

    def _append(self, lane: Ints, slot: Ints) -> None:
        """Slots that nobody owns go to the end of the free queue, in this order. [n]; those of a lane side by side"""
        if not lane.size:
            return
        first = np.concatenate([[True], lane[1:] != lane[:-1]]).nonzero()[0]
        count = np.diff(np.concatenate([first, [lane.size]]))
        rank = np.arange(lane.size) - np.repeat(first, count)
        self._make_room(lane[first], count)
        place = self.freed_end[lane] + rank
        self.freed[lane, place] = slot
        self.freed_end[lane[first]] += count
        width = self.state.shape[1]
        rows = (slot < width).nonzero()[0]
        self.state[lane[rows], slot[rows]] = place[rows]
        rows = (slot >= width).nonzero()[0]
        self.copy_state[lane[rows], slot[rows] - width] = place[rows]

    def _make_room(self, lanes: Ints, count: Ints) -> None:
        """Logs have room for `count` entries more. Both [n]"""
        full = self.freed_end[lanes] + count > self.freed.shape[1]
        lanes, count = lanes[full], count[full]
        if not lanes.size:
            return
        begin, width = self.freed_begin[lanes], self.state.shape[1]
        row, place, _ = spread(begin, self.freed_end[lanes] - begin)
        lane = lanes[row]
        slot = self.freed[lane, place].astype(np.int64)
        valid = (self._state_of(lane, slot) == place).nonzero()[0]
        row, lane, slot = row[valid], lane[valid], slot[valid]
        left = np.bincount(row, minlength=lanes.size)
        new = np.arange(row.size) - np.repeat(np.cumsum(left) - left, left)
        needed = int((left + count).max())
        if 2 * needed > self.freed.shape[1]:  # half empty, so that this is rare
            wider = np.zeros((self.freed.shape[0], 2 * needed), np.int32)
            wider[:, : self.freed.shape[1]] = self.freed
            self.freed = wider
        self.freed[lane, new] = slot
        self.freed_begin[lanes], self.freed_end[lanes] = 0, left
        rows = (slot < width).nonzero()[0]
        self.state[lane[rows], slot[rows]] = new[rows]
        rows = (slot >= width).nonzero()[0]
        self.copy_state[lane[rows], slot[rows] - width] = new[rows]


def new_prefix_cache(
    lanes: int, chains: list[Chains], chain_of: Ints, num_blocks: npt.NDArray[np.float64]
) -> PrefixCache:
    """Nothing is known. `chain_of` [L] are the chains of each lane, `num_blocks` [L]."""
    begins = np.concatenate([np.zeros(0, np.int64), *(c.begin for c in chains)])
    sizes = np.array([c.begin.size for c in chains], np.int64)
    offsets = np.concatenate([[0], np.cumsum([c.content.size for c in chains])])[: len(chains)].astype(np.int64)
    begins = begins + np.repeat(offsets, sizes)
    rows = np.cumsum(sizes) - sizes
    contents = np.concatenate([np.zeros(0, np.int32), *(c.content for c in chains)])
    width = max((c.count for c in chains), default=0) + 1
    return new_record(
        PrefixCache,
        lanes,
        state=np.full((lanes, width), _UNKNOWN, np.int32),
        freed=np.zeros((lanes, _FEW), np.int32),
        blank=num_blocks.astype(np.int64),
        chain_row=rows[chain_of],
        copy_state=np.zeros((lanes, 0), np.int32),
        copy_content=np.zeros((lanes, 0), np.int32),
        copy_owner=np.zeros((lanes, 0), np.int32),
        copy_order=np.zeros((lanes, 0), np.int64),
        chains=(begins, contents),
    )
