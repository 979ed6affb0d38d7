"""What full blocks of requests hold, by number: equal numbers for equal tokens with equal tokens before them."""

from __future__ import annotations

import numpy as np

from ..arrays import Floats, Int32s, Ints
from ..kernels.arrays import Words
from ..kernels.chains import Chains
from ..kernels.ranges import spread
from .texts import Texts


def chains_of(texts: Texts | None, prompt: Ints, output: Ints, block_size: int) -> Chains:
    """The full blocks of N requests, of prompt and answer; the last token is sent and never kept. Without texts no two
    hold the same."""
    blocks = (prompt + output - 1) // block_size
    begin = np.concatenate([[0], np.cumsum(blocks)])
    if texts is None:
        return Chains(begin, np.arange(begin[-1], dtype=np.int32), int(begin[-1]))
    request, _, place = spread(np.zeros(len(prompt), np.int64), blocks)
    content, count = _numbers(_hashes(texts, output, begin, blocks, block_size), request, place, begin)
    return Chains(begin, content, count)


def found_tokens(texts: Texts | None, prompt: Ints, output: Ints, arrival: Floats, block_size: int) -> Ints:
    """Prompt tokens of each request that a prefix cache without limits would find, if all before it had ended. [N]"""
    chains = chains_of(texts, prompt, output, block_size)
    request = np.repeat(np.arange(len(prompt)), np.diff(chains.begin))
    place = np.arange(request.size) - chains.begin[request]
    turn = np.empty(len(prompt), np.int64)
    turn[np.argsort(arrival, kind="stable")] = np.arange(len(prompt))
    first = np.full(chains.count, len(prompt))
    np.minimum.at(first, chains.content, turn[request])
    seen = (first[chains.content] < turn[request]) & (place < ((prompt - 1) // block_size)[request])
    # Who has a block has all before it: known ones are a beginning.
    return np.bincount(request, seen, len(prompt)).astype(np.int64) * block_size


def _hashes(texts: Texts, output: Ints, begin: Ints, blocks: Ints, size: int) -> Words:
    """Two numbers for each block that tell its own tokens. [2, blocks]

    A block is made of pieces of segments: (text, first token, tokens, place in the block). Equal blocks have equal
    pieces, as each segment begins with the first token of its text. Sums of mixed 64-bit words stand for them: two of
    them coincide by chance once in 2**128 pairs.
    """
    requests = len(output)
    segments = np.diff(texts.start) + 1  # and the answer
    owner = np.repeat(np.arange(requests), segments)
    first = np.cumsum(segments) - segments
    last = first + segments - 1
    text, tokens = np.zeros(owner.size, np.int64), np.zeros(owner.size, np.int64)
    inner = np.ones(owner.size, np.bool_)
    inner[last] = False
    text[inner], tokens[inner] = texts.segment, texts.tokens
    text[last], tokens[last] = texts.answer, output
    end = np.cumsum(tokens)
    from_begin = end - tokens - (end - tokens)[first][owner]  # token of the request at which the segment begins
    until = np.minimum(from_begin + tokens, blocks[owner] * size)  # what stands in full blocks
    there = (until > from_begin).nonzero()[0]
    text, from_begin, until, owner = text[there], from_begin[there], until[there], owner[there]
    one = from_begin // size
    number = (until - 1) // size - one + 1
    row, block, _ = spread(one, number)
    begins = np.maximum(block * size, from_begin[row])
    ends = np.minimum((block + 1) * size, until[row])
    columns = (text[row], begins - from_begin[row], ends - begins, begins - block * size)
    hashed = np.zeros((2, int(begin[-1])), np.uint64)
    for salt in range(2):
        mixed = np.full(row.size, salt + 1, np.uint64)
        for column in columns:
            mixed = _mix(mixed ^ column.astype(np.uint64))
        np.add.at(hashed[salt], begin[owner[row]] + block, mixed)
    return hashed


def _numbers(hashed: Words, request: Ints, place: Ints, begin: Ints) -> tuple[Int32s, int]:
    """Numbers of contents, from what tells blocks alone. [blocks], and how many there are"""
    sums = np.cumsum(_mix(hashed ^ _mix(place.astype(np.uint64))), axis=1, dtype=np.uint64)
    before = np.concatenate([np.zeros((2, 1), np.uint64), sums], axis=1)[:, begin[:-1]]
    chained = sums - before[:, request]
    order = np.lexsort((chained[1], chained[0], place))
    sorted_ = np.concatenate([chained[:, order], place[order].astype(np.uint64)[None]])
    new = np.any(sorted_[:, 1:] != sorted_[:, :-1], axis=0)
    number = np.zeros(place.size, np.int32)
    number[order[1:]] = np.cumsum(new)
    return number, int(number.max(initial=-1)) + 1


def _mix(word: Words) -> Words:
    """The finaliser of SplitMix64: all bits of a word depend on all of it."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
