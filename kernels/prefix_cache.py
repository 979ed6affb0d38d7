"""The prefix cache of each lane: which full blocks are known by their content, who owns them, who goes first.

A *slot* is a block with content: the first registered one of each content has the content's number, further ones, the
*copies*, numbers behind. Blocks without content are alike, and counted. The rules are in docs/vllm.md.

Contents that the same requests pass, two at least, are a *node*. Who finds all of a node holds it as a whole: that is
one count, as long as somebody else holds it so, however many blocks it has.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import numpy as np
import numpy.typing as npt

from .arrays import Int32s, Ints
from .chains import Chains, JoinedChains, joined
from .ranges import spread
from .records import new_record

_UNKNOWN = -(2**31)
_HELD, _OWNED = -1, -2  # a slot with n owners holds -1 - n, beside those that hold its whole node
_FEW = 64


@dataclass
class PrefixCache:
    """Of `state`, or of a copy: _UNKNOWN, not there; less, owned; else free, and its place in `freed`."""

    holders: Int32s  # [L, nodes] requests that hold all of a node
    state: Int32s  # [L, C] of the first registered block of each content
    freed: Int32s  # [L, T] the free queue: slots in the order of release, stale entries among them
    freed_begin: Ints  # [L] the next to be taken
    freed_end: Ints  # [L]
    blank: Ints  # [L] free blocks without content: the front of the queue
    chain_row: Ints  # [L] of the lane's first request, in the chains
    copy_state: Int32s  # [L, K]
    copy_content: Int32s  # [L, K] -1: the place is free
    copy_owner: Int32s  # [L, K] request that made it and holds it, of those that do
    copy_order: Ints  # [L, K] number of its registration
    copies_made: Ints  # [L]
    chains: InitVar[JoinedChains]

    def __post_init__(self, chains: JoinedChains) -> None:
        self._begin, self._content, self._node_at = chains.begin, chains.content, chains.node_at
        self._node_begin, self._node, self._node_end = chains.node_begin, chains.node, chains.node_end
        self._any_copies = False

    # What is known of requests. `lanes` are different ones where they are only [n].

    def find(self, lanes: Ints, requests: Ints, most: Ints) -> tuple[Ints, Ints]:
        """How many blocks are known from a request's start, at most `most`; and how many of them nobody owns. [n]"""
        at = self.chain_row[lanes] + requests
        # Nodes that somebody holds are known, and owned.
        row, place, _ = spread(self._node_begin[at], self._node_begin[at + 1] - self._node_begin[at])
        first = self._node_begin[at + 1]
        free = (self.holders[lanes[row], self._node[place]] == 0).nonzero()[0]
        np.minimum.at(first, row[free], place[free])
        known = np.minimum(self._ends(at, first - self._node_begin[at]), most)
        row, content, place = self._blocks(lanes, requests, known, most - known)
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

    def share(self, lanes: Ints, requests: Ints, found: Ints) -> Ints:
        """Requests own the first `found` blocks from now on. How many nodes they hold as a whole. [n]"""
        at = self.chain_row[lanes] + requests
        whole = self._nodes_within(lanes, requests, found)
        row, place, _ = spread(self._node_begin[at], whole)
        lane, node = lanes[row], self._node[place]
        new = (self.holders[lane, node] == 0).nonzero()[0]
        self.holders[lane, node] += 1
        if new.size:
            slots = self._slots_of_nodes(lanes, requests, row[new], place[new])[1]
            state = self.state.ravel()[slots]
            self.state.ravel()[slots] = np.where(state >= 0, _HELD, state)
        begin = self._ends(at, whole)
        row, content, _ = self._blocks(lanes, requests, begin, found - begin)
        slots = lanes[row] * self.state.shape[1] + content
        state = self.state.ravel()[slots]
        self.state.ravel()[slots] = np.where(state >= 0, _OWNED, state - 1)
        return whole

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

    def release(self, lanes: Ints, requests: Ints, registered: Ints, held: Ints, whole: Ints) -> Ints:
        """Requests leave their blocks, `registered` of which have content, one after the other; `whole` nodes they hold
        as such. Returns how many blocks are free then. [n], of any lanes; those of a lane side by side."""
        freed = held - registered
        np.add.at(self.blank, lanes, freed)
        first = np.concatenate([[True], lanes[1:] != lanes[:-1]])[: lanes.size]
        turn = np.arange(lanes.size) - np.maximum.accumulate(np.where(first, np.arange(lanes.size), 0))
        for number in range(int(turn.max(initial=-1)) + 1):  # requests of a lane
            rows = (turn == number).nonzero()[0]
            freed[rows] += self._release(lanes[rows], requests[rows], registered[rows], whole[rows])
        return freed

    def _release(self, lanes: Ints, requests: Ints, registered: Ints, whole: Ints) -> Ints:
        """The same of blocks with content, in different lanes."""
        width = self.state.shape[1]
        at = self.chain_row[lanes] + requests
        row, node_place, _ = spread(self._node_begin[at], whole)
        lane, node = lanes[row], self._node[node_place]
        left = self.holders[lane, node] - 1
        self.holders[lane, node] = left
        begin = self._ends(at, whole)
        own, content, place = self._blocks(lanes, requests, begin, np.maximum(registered - begin, 0))
        slot = content
        if self._any_copies:
            slot = self._held(lanes[own], content, requests[own])
        free = slot >= width  # copies have one owner
        mine = (~free).nonzero()[0]
        slots = lanes[own[mine]] * width + slot[mine]
        state = self.state.ravel()[slots] + 1
        self.state.ravel()[slots] = state
        last = state == _HELD
        in_node = self._node_at[self._begin[at[own[mine]]] + place[mine]]
        last &= (in_node < 0) | (self.holders[lanes[own[mine]], np.maximum(in_node, 0)] == 0)
        free[mine[last]] = True
        own, place, slot = own[free], place[free], slot[free]
        gone = (left == 0).nonzero()[0]
        if gone.size:
            of, slots, where = self._slots_of_nodes(lanes, requests, row[gone], node_place[gone])
            idle = (self.state.ravel()[slots] == _HELD).nonzero()[0]
            own, place = np.concatenate([own, of[idle]]), np.concatenate([place, where[idle]])
            slot = np.concatenate([slot, slots[idle] % width])
        order = np.lexsort((-place, own))  # from the last block to the first
        self._append(lanes[own[order]], slot[order])
        freed: Ints = np.bincount(own, minlength=lanes.size)
        return freed

    # How.

    def _ends(self, at: Ints, nodes: Ints) -> Ints:
        """The blocks in the first `nodes` of chains, which have them. [n]"""
        ends: Ints = np.where(nodes > 0, self._node_end.take(self._node_begin[at] + nodes - 1, mode="clip"), 0)
        return ends

    def _nodes_within(self, lanes: Ints, requests: Ints, blocks: Ints) -> Ints:
        """How many nodes of a request lie within its first `blocks`. [n]"""
        at = self.chain_row[lanes] + requests
        row, place, _ = spread(self._node_begin[at], self._node_begin[at + 1] - self._node_begin[at])
        within: Ints = np.bincount(row, self._node_end[place] <= blocks[row], lanes.size).astype(np.int64)
        return within

    def _slots_of_nodes(self, lanes: Ints, requests: Ints, row: Ints, node_place: Ints) -> tuple[Ints, Ints, Ints]:
        """Of nodes [m] of requests `row` of [n]: the row, the flattened place in `state`, and the place in the request
        of each block."""
        at = self.chain_row[lanes] + requests
        begin = self._ends(at[row], node_place - self._node_begin[at[row]])
        which, place, _ = spread(begin, self._node_end[node_place] - begin)
        of = row[which]
        slots = lanes[of] * self.state.shape[1] + self._contents(lanes, requests, of, place)
        return of, slots, place

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
    all_chains = joined(chains)
    sizes = np.array([c.begin.size for c in chains], np.int64)
    rows = np.cumsum(sizes) - sizes
    width = max((c.count for c in chains), default=0) + 1
    return new_record(
        PrefixCache,
        lanes,
        holders=np.zeros((lanes, max(all_chains.count, 1)), np.int32),
        state=np.full((lanes, width), _UNKNOWN, np.int32),
        freed=np.zeros((lanes, _FEW), np.int32),
        blank=num_blocks.astype(np.int64),
        chain_row=rows[chain_of],
        copy_state=np.zeros((lanes, 0), np.int32),
        copy_content=np.zeros((lanes, 0), np.int32),
        copy_owner=np.zeros((lanes, 0), np.int32),
        copy_order=np.zeros((lanes, 0), np.int64),
        chains=all_chains,
    )
