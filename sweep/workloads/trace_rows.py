"""From the values of a trace file to arrays of good rows, and a record of the bad ones.

R is the number of good rows. A block of values is converted at once, and value by value only when that fails.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Ints
from ..checks import MAX_TOKENS
from .texts import HASHED
from .workload import MAX_REQUESTS

MAX_ROWS = MAX_REQUESTS  # of a trace, good or bad
MAX_ARRIVAL = 1e20  # in the file's unit, either side of 0: beyond every clock of 64 bits, and differences stay finite
MAX_BROKEN = 100_000  # rows that cannot be taken apart, after which a file with few others is no trace
_BROKEN_A_GOOD = 100  # more is few others
_EXAMPLES = 3
_VOTES = 100  # arrivals that decide what the others should be


class Unread:
    """What a file holds where a number, a text or a time should be."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True)
class Stamps:
    """Arrivals that a file holds as times, neither as numbers nor as text."""

    ticks: Floats  # since the earliest of the file
    wrong: dict[int, str]  # position: what is wrong with it
    text: Callable[[int], Unread | None]  # each as the file has it
    kind: str  # in a word

    def __len__(self) -> int:
        return len(self.ticks)

    def __getitem__(self, i: int) -> Unread | None:
        return self.text(i)


@dataclass
class Rows:
    """The good rows of a trace in file order, filled block by block by `add`."""

    file: str
    format: str
    columns: dict[str, str]  # the file's own names for arrival_s, prompt_tokens, output_tokens
    unit: str  # what the numbers of rows count: "line" or "row", from 1
    ticks_per_s: float  # of arrivals that are numbers
    unit_told: bool  # whether somebody said so; else it is assumed
    stop_at_bad: bool  # read no further than the block with the first bad row
    enough: Callable[[Floats], bool]  # told the arrivals of each block in seconds, says when no more are needed

    most_rows: int = MAX_ROWS
    arrivals: str = ""  # "numbers", "stamps" (ISO 8601), or a word for Stamps; what most of the first arrivals are
    zoned: bool = False  # whether the stamps have a time zone
    unlike: str = "the first row"  # what a stamp with the other kind of zone differs from
    first: str = ""  # the first good arrival, as the file writes it
    read: int = 0  # rows looked at, good or bad; blank lines are no rows
    broken: int = 0  # of these, rows that `refuse` was told of
    stopped: bool = False  # before the end of the file
    refused: dict[str, int] = field(default_factory=dict)  # reason: number of rows
    examples: list[str] = field(default_factory=list)  # the first bad rows, in words

    hash_ids: list[list[int] | None] = field(default_factory=list)  # of good rows; empty: of none

    _bad: list[tuple[int, str, str]] = field(default_factory=list)  # of this block: number, reason, words
    _blocks: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)

    def refuse(self, number: int, reason: str, words: str) -> None:
        """Note a row of the block that the next `add` takes, which has no values that could be good."""
        self._bad.append((number, reason, words))
        self.broken += 1

    def add(
        self,
        numbers: Sequence[int],
        arrivals: Any,
        prompts: Any,
        outputs: Any,
        *priorities: Any,
        hash_ids: Sequence[Any] | None = None,
    ) -> bool:
        """Take a block of rows, given as their numbers and three columns, or four; True when reading can stop.

        `hash_ids` name blocks of HASHED tokens of each prompt; None of a row, or of all: are not told.
        """
        # Position in the block: reason, words. The first column that is bad wins.
        wrong: dict[int, tuple[str, str]] = {}
        ticks = self._arrivals(arrivals, wrong)
        whole = [self._whole("prompt_tokens", prompts, wrong), self._whole("output_tokens", outputs, wrong)]
        whole += [self._whole("priority", column, wrong, least=-MAX_TOKENS) for column in priorities]
        for i, ids in enumerate(hash_ids or ()):
            if ids is not None and i not in wrong and (why := _wrong_ids(ids, int(whole[0][i]))):
                wrong[i] = why
        good = np.ones(len(numbers), bool)
        good[list(wrong)] = False
        self._bad += [(numbers[i], *why) for i, why in wrong.items()]
        for number, reason, words in sorted(self._bad):
            self.refused[reason] = self.refused.get(reason, 0) + 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(f"{self.file}, {self.unit} {number}: {words}")
        self.read += int(good.sum()) + len(self._bad)
        self._bad = []
        if self.read > self.most_rows:
            raise ValueError(f"{self.file}: has more than {self.most_rows:,} rows: must be cut into smaller files")
        if not self.first and good.any():
            self.first = str(arrivals[int(good.argmax())])
        self._blocks.append((ticks[good], *(column[good] for column in whole)))
        if hash_ids is not None:
            self.hash_ids += [ids for ids, kept in zip(hash_ids, good.tolist(), strict=True) if kept]
        self.stopped = self.hopeless or self.enough(ticks[good] / self.ticks_per_s)
        return self.stopped

    @property
    def hopeless(self) -> bool:
        """Whether no further row can mend this."""
        return (self.stop_at_bad and bool(self.refused)) or self.is_no_trace

    @property
    def is_no_trace(self) -> bool:
        """Whether so many rows are broken that the file holds something else."""
        good = self.read - sum(self.refused.values())
        return self.broken >= MAX_BROKEN and self.broken > _BROKEN_A_GOOD * good

    def arrays(self) -> tuple[Floats, list[Ints]]:
        """Arrival in ticks, exact for stamps of microseconds; prompt and output lengths, and priorities where the file
        has them. [R] each."""
        if not self._blocks:
            return np.zeros(0), [np.zeros(0, np.int64)] * 2
        ticks, *whole = map(np.concatenate, zip(*self._blocks, strict=True))
        return ticks, whole

    def _whole(self, key: str, values: Any, wrong: dict[int, tuple[str, str]], least: int = 1) -> Ints:
        lengths = _all_whole(values)
        if lengths is None:
            lengths = np.ones(len(values), np.int64)
            for i, value in enumerate(values):
                try:
                    lengths[i] = _whole(value)
                except ValueError as error:
                    self._note(key, i, value, str(error), wrong)
        for i in np.flatnonzero(lengths < least).tolist():
            self._note(key, i, values[i], f"is below {least}", wrong)
        return lengths

    def _arrivals(self, values: Any, wrong: dict[int, tuple[str, str]]) -> Floats:
        if isinstance(values, Stamps):
            self.arrivals = values.kind
            for i, reason in values.wrong.items():
                self._note("arrival_s", i, values[i], reason, wrong)
            return values.ticks
        if not self.arrivals:
            self._choose(values)
        convert = {"numbers": _number, "stamps": self._stamp, "": _neither}[self.arrivals]
        ticks = _all_numbers(values) if self.arrivals == "numbers" else self._all_stamps(values)
        if ticks is None:
            ticks = np.zeros(len(values))
            for i, value in enumerate(values):
                try:
                    ticks[i] = convert(value)
                except ValueError as error:
                    self._note("arrival_s", i, value, str(error), wrong)
        for i in np.flatnonzero(~(np.abs(ticks) <= MAX_ARRIVAL)).tolist():
            reason = f"is beyond {MAX_ARRIVAL:g}" if math.isfinite(ticks[i]) else "is not finite"
            self._note("arrival_s", i, values[i], reason, wrong)
        return ticks

    def _choose(self, values: Iterable[Any]) -> None:
        """What most of the first arrivals are: where they differ, the first may be the bad one."""
        kinds = list(islice(filter(None, map(_kind, values)), _VOTES))
        if not kinds:
            return
        (most, _), *_ = Counter(kinds).most_common(1)  # on a tie, the first
        self.arrivals = "numbers" if most == "numbers" else "stamps"
        self.zoned = most == "zoned"
        if self.arrivals == "stamps":
            self.ticks_per_s = 1e6
        if kinds[0] != most:
            self.unlike = "most rows"

    def _all_stamps(self, values: Any) -> Floats | None:
        try:
            times = list(map(datetime.fromisoformat, values))
        except (TypeError, ValueError):
            return None
        if any((time.tzinfo is not None) != self.zoned for time in times):
            return None
        if self.zoned:  # seconds since 1970 in float64 are good to a fifth of a microsecond
            return np.rint(np.array([time.timestamp() for time in times]) * 1e6)
        return np.array(times, "datetime64[us]").astype(np.float64)

    def _stamp(self, value: Any) -> float:
        time = _time(value)
        if (time.tzinfo is not None) != self.zoned:
            raise ValueError(f"has {'no' if self.zoned else 'a'} time zone, unlike {self.unlike}")
        return round(time.timestamp() * 1e6) if self.zoned else float(np.datetime64(time, "us").astype(np.int64))

    def _note(self, key: str, i: int, value: Any, reason: str, wrong: dict[int, tuple[str, str]]) -> None:
        name = shortened(self.columns[key])
        wrong.setdefault(i, (f"{name} {reason}", f"{name} = {_shown(value)} {reason}"))


def _wrong_ids(ids: Any, prompt: int) -> tuple[str, str] | None:
    """Reason and words, where these are no names of the blocks of a prompt."""
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one <= MAX_TOKENS for one in ids):
        return "hash_ids are no list of whole numbers", f"hash_ids = {_shown(ids)} is no list of whole numbers"
    due = -(-prompt // HASHED)
    if len(ids) != due:
        words = f"has {len(ids)} hash_ids: {prompt} tokens have {due} blocks of {HASHED}"
        return "wrong number of hash_ids", words
    return None


def escaped(text: str) -> str:
    """A text for messages: what no terminal should get, such as control characters, is escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str, width: int = 60) -> str:
    """An escaped text, cut to a width."""
    text = escaped(text[: width + 1])
    return text if len(text) <= width else text[: width - 3] + "..."


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return shortened(repr(value[:100]))
    try:
        return shortened(repr(value.item() if isinstance(value, np.generic) else value))
    except RecursionError:  # lists in lists that JSON could just read
        return f"a {type(value).__name__}"


def _all_whole(values: Any) -> Ints | None:
    """Whole numbers, or None when one by one is the way to tell what is wrong; far below 0 they are not exact."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iuf":
            return None
        if values.dtype.kind == "u":
            values = np.minimum(values.astype(np.uint64), np.uint64(MAX_TOKENS + 1)).astype(np.int64)
        numbers = values.astype(np.int64 if values.dtype.kind == "i" else np.float64)
        if not np.all(np.isfinite(numbers) & (numbers <= MAX_TOKENS) & (numbers == np.floor(numbers))):
            return None
        clipped: Ints = np.maximum(numbers, -MAX_TOKENS - 1).astype(np.int64)
        return clipped
    if set(map(type, values)) not in ({str}, {int}, set()):
        return None
    try:
        lengths = np.array(list(map(int, values)), np.int64)
    except (ValueError, OverflowError):
        return None
    return lengths if np.all(lengths <= MAX_TOKENS) else None


def _all_numbers(values: Any) -> Floats | None:
    if isinstance(values, np.ndarray):
        return values.astype(np.float64) if values.dtype.kind in "iuf" else None
    if not (set(map(type, values)) <= {str} or set(map(type, values)) <= {int, float}):
        return None
    try:
        return np.array(values, np.float64)
    except (ValueError, OverflowError):
        return None


def _kind(value: Any) -> str:
    """Of an arrival: "numbers", "zoned" or "naive" for a stamp, or "" for what is neither."""
    try:
        _number(value)
        return "numbers"
    except ValueError:
        pass
    try:
        return "naive" if _time(value).tzinfo is None else "zoned"
    except ValueError:
        return ""


def _whole(value: Any) -> int:
    number = _number(value)
    if not math.isfinite(number):
        raise ValueError("is not finite")
    if number != math.floor(number):
        raise ValueError("is not a whole number")
    if number > MAX_TOKENS:
        raise ValueError("is too large")
    return max(int(number), -MAX_TOKENS - 1)  # what is far below 0 need not be exact


def _number(value: Any) -> float:
    if _is_empty(value):
        raise ValueError("is empty")
    if isinstance(value, bool | np.bool_ | Unread):
        raise ValueError("is not a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("is not a number") from None
    except OverflowError:
        raise ValueError("is too large") from None


def _time(value: Any) -> datetime:
    if _is_empty(value):
        raise ValueError("is empty")
    try:
        return datetime.fromisoformat(value.strip())
    except (AttributeError, TypeError, ValueError):
        raise ValueError("is not an ISO 8601 time") from None


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _neither(value: Any) -> float:
    raise ValueError("is empty" if _is_empty(value) else "is neither a number nor an ISO 8601 time")
