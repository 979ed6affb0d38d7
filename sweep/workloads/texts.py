"""What prompts and answers say, as far as a prefix cache can tell: texts by number, and how much of each.

A text is known by a name. Its k-th token is the same token wherever the text occurs, whatever stands before it; two
texts share no token. A prompt is a list of segments, each the first tokens of a text; the answer of request i is the
text `o<i>`, so a later prompt that holds `("o3", 20)` goes on from the answer of request 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from .. import checks
from ..arrays import Ints
from ..checks import MAX_TOKENS
from ..messages import shown
from .columns import whole_numbers

HASHED = 512  # tokens of a block that a hash id of a trace names
_ANSWER = re.compile("o[0-9]+")

TextSegment = tuple[str, int]
Prompts = Sequence[int | Sequence[TextSegment]]
"""One entry a request: its segments in order, or a number of tokens, which are a text of their own."""


@checks.spelt_out
@dataclass(frozen=True, eq=False, kw_only=True)
class Texts:
    """The texts of N requests; the arrays are read-only.

    Parameters
    ----------
    start
        int64 [N + 1]: the segments of request i are those from start[i] to before start[i + 1].
    segment
        int64 [S]: which text a segment is the beginning of.
    tokens
        int64 [S]: how many tokens of it, at least 1.
    answer
        int64 [N]: which text the answer of a request is.

    Raises
    ------
    ValueError
        Names the array that is not allowed.
    """

    start: Ints
    segment: Ints
    tokens: Ints
    answer: Ints

    def __post_init__(self) -> None:
        for name in ("start", "segment", "tokens", "answer"):
            object.__setattr__(self, name, whole_numbers(name, getattr(self, name), least=int(name == "tokens")))
        starts = len(self.answer) + 1
        if len(self.start) != starts or self.start[0] != 0 or (np.diff(self.start) < 1).any():
            raise ValueError(f"start={shown(self.start)}: must be {starts} numbers that rise from 0")
        for name in ("segment", "tokens"):
            length = len(getattr(self, name))
            if length != self.start[-1]:
                raise ValueError(f"{name} has {length} entries: must have the {self.start[-1]} that start ends with")

    def __len__(self) -> int:
        return len(self.answer)

    def part(self, rows: Ints) -> Texts:
        """Those of some requests, in this order. [n]"""
        count = np.diff(self.start)[rows]
        begin = np.concatenate([[0], np.cumsum(count)])
        at = np.arange(begin[-1]) + np.repeat(self.start[rows] - begin[:-1], count)
        return Texts(start=begin, segment=self.segment[at], tokens=self.tokens[at], answer=self.answer[rows])

    def check(self, prompt_tokens: Ints) -> None:
        """ValueError where the segments are not those of requests with so many tokens. [N]"""
        if len(self) != len(prompt_tokens):
            raise ValueError(f"texts are of {len(self)} requests: must be of {len(prompt_tokens)}")
        sums = np.concatenate([[0], self.tokens.cumsum()])[self.start]
        wrong = np.diff(sums) != prompt_tokens
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(
                f"prompts[{i}]: its segments have {int(sums[i + 1] - sums[i])} tokens: must have as many as "
                f"prompt_tokens[{i}], {int(prompt_tokens[i])}"
            )


def texts_of(prompts: Any, prompt_tokens: Ints) -> Texts:
    """Texts by number from `prompts` by name.

    Parameters
    ----------
    prompts
        See `Prompts`; one entry for each of `prompt_tokens`.
    prompt_tokens
        [N] what the segments of each prompt must add up to.

    Raises
    ------
    ValueError
        Names the request, and the segment, that is not allowed.
    """
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence | np.ndarray):
        raise ValueError(f"prompts={shown(prompts)}: must be a list with an entry for each request")
    number = len(prompt_tokens)
    if len(prompts) != number:
        raise ValueError(f"prompts has {len(prompts)} entries: must have one for each of {number} requests")
    texts = {f"o{i}": i for i in range(number)}
    count, segment, tokens = [0], [], []
    # Here requests go one by one: names are what people write, and what is drawn or read has numbers already.
    for i, prompt in enumerate(prompts):
        for name, length in _segments(i, prompt, texts):
            segment.append(texts.setdefault(name, len(texts)))
            tokens.append(length)
        count.append(len(segment))
    known = Texts(start=np.array(count), segment=np.array(segment), tokens=np.array(tokens), answer=np.arange(number))
    known.check(prompt_tokens)
    return known


def texts_of_blocks(hash_ids: Sequence[list[int] | None], prompt_tokens: Ints) -> Texts | None:
    """Texts of prompts whose blocks of HASHED tokens have numbers; None of one: it is like no other; None if all are.

    A block is a text of its own number. That all before it is the same too, need not be said: so it is in the file.
    """
    if all(ids is None for ids in hash_ids):
        return None
    number = len(prompt_tokens)
    unlike = 1 + max(max(ids, default=0) for ids in hash_ids if ids is not None)
    count = np.array([1 if ids is None else len(ids) for ids in hash_ids])
    start = np.concatenate([[0], np.cumsum(count)])
    named = chain.from_iterable([unlike + i] if ids is None else ids for i, ids in enumerate(hash_ids))
    tokens = np.full(int(start[-1]), HASHED)
    told = np.array([ids is not None for ids in hash_ids])
    tokens[start[1:] - 1] = np.where(told, prompt_tokens - (count - 1) * HASHED, prompt_tokens)
    return Texts(start=start, segment=np.array(list(named)) + number, tokens=tokens, answer=np.arange(number))


def _segments(i: int, prompt: Any, texts: dict[str, int]) -> list[TextSegment]:
    """The checked segments of request `i`; of `texts` the answers are known."""
    if isinstance(prompt, int | np.integer) and not isinstance(prompt, bool):
        return [(f"p{i}", _length(f"prompts[{i}]", prompt))]
    if not isinstance(prompt, list | tuple) or not prompt:
        raise ValueError(f"prompts[{i}]={shown(prompt)}: must be a list of (text, tokens), or a number of tokens")
    segments = []
    for place, pair in enumerate(prompt):
        where = f"prompts[{i}][{place}]"
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f"{where}={shown(pair)}: must be (text, tokens), such as ('sys', 100)")
        name, length = pair
        if _ANSWER.fullmatch(name) and name not in texts:
            raise ValueError(f"{where}={shown(pair)}: is named as an answer, and there is no such request")
        segments.append((name, _length(where, length)))
    return segments


def _length(where: str, length: Any) -> int:
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or not 1 <= length <= MAX_TOKENS:
        raise ValueError(f"{where}={shown(length)}: tokens must be an integer from 1 to {MAX_TOKENS}")
    return int(length)
