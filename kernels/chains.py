"""The full blocks of requests by the numbers of their contents, and the nodes of what several requests pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Int32s, Ints


@dataclass(frozen=True)
class Chains:
    """The full blocks of requests, laid end to end: those of request i from begin[i] to before begin[i + 1]."""

    begin: Ints  # [N + 1]
    content: Int32s
    count: int  # contents


@dataclass(frozen=True)
class JoinedChains:
    """Chains of several workloads, one behind the other, and their nodes; those of chain i from node_begin[i] on."""

    begin: Ints  # [R + 1] of chains in `content`
    content: Int32s
    node_at: Int32s  # the node of each block, -1 for none
    node_begin: Ints  # [R + 1]
    node: Int32s
    node_end: Ints  # place behind its last block
    count: int  # nodes of a workload, at most


def joined(chains: list[Chains]) -> JoinedChains:
    """Chains and their nodes laid end to end; those of a workload without a gap, and one place behind them."""
    begins: list[Ints] = [np.zeros(0, np.int64)]
    node_begins, contents, node_ats, nodes, ends = (list(begins) for _ in range(5))
    blocks = number = most = 0
    for one in chains:
        request = np.repeat(np.arange(one.begin.size - 1), np.diff(one.begin))
        place = np.arange(request.size) - one.begin[request]
        passing = np.bincount(one.content, minlength=one.count)[one.content]
        changes = np.concatenate([[True], passing[1:] != passing[:-1]])[: place.size] | (place == 0)
        starts = (changes & (passing > 1)).nonzero()[0]
        group = np.maximum.accumulate(np.where(changes, np.arange(place.size), 0))
        known, of_start = np.unique(one.content[starts], return_inverse=True)
        which = np.full(place.size, -1)
        which[starts] = of_start
        node_at = which[group] if place.size else which
        last = np.append(changes.nonzero()[0], place.size)
        node_end = place[last[np.searchsorted(last, starts, side="right")] - 1] + 1
        per_request = np.bincount(request[starts], minlength=one.begin.size - 1)
        begins.append(one.begin + blocks)
        node_begins.append(np.concatenate([[0], np.cumsum(per_request)]) + number)
        contents.append(one.content.astype(np.int64))
        node_ats.append(node_at)
        nodes.append(of_start)
        ends.append(node_end)
        blocks, number, most = blocks + place.size, number + starts.size, max(most, known.size)

    ends.append(np.zeros(1, np.int64))  # so that there is one to look at
    return JoinedChains(
        np.concatenate(begins),
        np.concatenate(contents).astype(np.int32),
        np.concatenate(node_ats).astype(np.int32),
        np.concatenate(node_begins),
        np.concatenate(nodes).astype(np.int32),
        np.concatenate(ends),
        most,
    )
