"""Step times that are looked up: what a step costs by its tokens and by the requests that emit one, as tables over
whole numbers, and what its attention costs, as straight lines.

    decodes only   t = F(T) + G(E) + a context + o
    with prefill   t = F(T) + G(E) + a' context + c pairs + e done + g + o

While the decoding requests of a lane stay the same, T and E do too: steps of a leap are on one line, that crosses no
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import HALF, ZERO, Floats, Ints
from .request_rows import pairs_of

LAST = 2**15
"""Tables of a configuration end at so many; beyond, their last slope goes on."""


class StepTables(NamedTuple):
    """What a step of one configuration costs, in seconds. Tables are [LAST + 1], or longer."""

    tokens_s: Floats  # F, of T tokens
    emitting_s: Floats  # G, of E requests that emit a token
    context_s: float  # a, a token of context of a step that only decodes
    mixed_context_s: float  # a', of one with prefill
    pair_s: float  # c, a pair of a prompt token and a token that it attends to
    done_s: float  # e, a prompt token processed before
    overhead_s: float  # o, a step
    prefill_s: float  # g, a step with prefill on top


def look_up(table: Floats, number: Any) -> Any:
    """The values of a table at whole numbers of at least 0; beyond its end its last slope goes on."""
    last = table.size - 1
    at = np.minimum(number, last)
    return table[at] + (number - at) * (table[last] - table[last - 1])


def table_seconds(c: StepTables, decoding: Any, context: Any, chunk: Any, pairs: Any, done: Any, emitting: Any) -> Any:
    """Seconds of steps that have at least one token; arguments are numbers or [n], counts are integers."""
    base = look_up(c.tokens_s, decoding + chunk) + look_up(c.emitting_s, emitting) + c.overhead_s
    mixed = base + c.prefill_s + (c.mixed_context_s * context + c.pair_s * pairs + c.done_s * done)
    return np.where(np.asarray(chunk) > 0, mixed, base + c.context_s * context)


class LaneTables(NamedTuple):
    """Where a lane finds its tables among those of the batch, and its lines; each a float or [n]."""

    tokens_at: Any  # begins of the three tables: F, G, and F + G + o of decodes alone
    tokens_last: Any  # the last number in it
    tokens_slope: Any
    emitting_at: Any
    emitting_last: Any
    emitting_slope: Any
    decoding_at: Any
    decoding_last: Any
    decoding_slope: Any
    context_s: Any
    mixed_context_s: Any
    pair_s: Any
    done_s: Any
    overhead_s: Any
    prefill_s: Any
    there: Any  # 1 in lanes with tables, 0 in others


class JoinedTables:
    """The tables of a batch, one behind the other; those of equal numbers once."""

    def __init__(self) -> None:
        self._parts: list[Floats] = []
        self._end = 0
        self._known: dict[bytes, tuple[float, float, float]] = {}

    def add(self, c: StepTables, most_tokens: int, most_emitting: int) -> Sequence[float]:
        """The columns of LaneTables of a configuration whose steps hold at most so many tokens and emit so many."""
        decoding = c.tokens_s[: LAST + 1] + c.emitting_s[: LAST + 1] + c.overhead_s
        places = (
            *self._put(c.tokens_s, most_tokens),
            *self._put(c.emitting_s, most_emitting),
            *self._put(decoding, most_emitting),
        )
        return (*places, *c[2:], 1.0)

    def join(self) -> Floats | None:
        """All of them; None without any."""
        return np.concatenate(self._parts) if self._parts else None

    def _put(self, table: Floats, most: int) -> tuple[float, float, float]:
        slope = float(table[-1] - table[-2])
        part = table[: min(most, table.size - 1) + 1]
        key = part.tobytes()
        if key not in self._known:
            self._known[key] = (float(self._end), float(part.size - 1), slope)
            self._parts.append(part)
            self._end += part.size
        return self._known[key]


NO_TABLES = (0.0,) * len(LaneTables._fields)


class Lookup:
    """The tables of a batch, and where its lanes find theirs."""

    def __init__(self, values: Floats, columns: Floats) -> None:
        self._values = values
        self.columns = columns  # [16, L]
        self.there = columns[-1] > 0
        self.everywhere = bool(self.there.all())
        found = LaneTables(*columns)
        # Whether a step may be beyond the end of a table: those that end earlier hold all that their lane can need.
        self._beyond = [
            bool((last >= LAST).any()) for last in (found.tokens_last, found.emitting_last, found.decoding_last)
        ]
        alike = columns.shape[1] > 0 and bool((columns == columns[:, :1]).all())
        self._alike = LaneTables(*map(np.array, columns[:, 0])) if alike else None

    def of(self, lanes: Ints | slice) -> LaneTables:
        """Those of some lanes, each [n]; single numbers where all are alike."""
        return LaneTables(*self.columns[:, lanes]) if self._alike is None else self._alike

    def decode_line(self, c: LaneTables, decoding: Floats, context: Floats) -> tuple[Floats, Floats]:
        """The first step of decodes alone, and half of what each further one takes more. [*, n]"""
        number, beyond = np.maximum(decoding, ZERO), self._beyond[2]
        first = self._read(c.decoding_at, c.decoding_last, c.decoding_slope, number, beyond)
        first += c.context_s * context
        return first, c.context_s * decoding * HALF

    def piece_line(
        self, c: LaneTables, decoding: Floats, context: Floats, piece: Floats, done: Floats
    ) -> tuple[Floats, Floats]:
        """The same of steps that take a piece of a prompt on top, and end no prompt. [n]"""
        first = self.seconds(c, decoding, context, piece, piece * done + pairs_of(piece), done, decoding)
        growth = c.mixed_context_s * decoding + c.pair_s * (piece * piece) + c.done_s * piece
        return first, growth * HALF

    def seconds(
        self,
        c: LaneTables,
        decoding: Floats,
        context: Floats,
        chunk: Floats,
        pairs: Floats,
        done: Floats,
        emitting: Floats,
    ) -> Floats:
        """Seconds of steps with prefill. [n]"""
        tokens = self._read(c.tokens_at, c.tokens_last, c.tokens_slope, decoding + chunk, self._beyond[0])
        emitted = self._read(c.emitting_at, c.emitting_last, c.emitting_slope, emitting, self._beyond[1])
        attention = c.mixed_context_s * context + c.pair_s * pairs + c.done_s * done
        seconds: Floats = tokens + emitted + c.overhead_s + c.prefill_s + attention
        return seconds

    def _read(self, at: Floats, last: Floats, slope: Floats, number: Floats, beyond: bool) -> Floats:
        if not beyond:  # clip: lanes that take no such step may have any number, and mean nothing
            return self._values.take((at + number).astype(np.int64), mode="clip")
        place = np.minimum(number, last)
        values = self._values.take((at + place).astype(np.int64))
        values += (number - place) * slope
        return values
