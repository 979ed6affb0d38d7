"""From the values of a trace file to arrays of good rows, and a record of the bad ones.

R is the number of good rows. A block of values is converted at once, and value by value only when that fails.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Ints
from ..checks import MAX_TOKENS

_EXAMPLES = 3


@dataclass
class Rows:
    """The good rows of a trace in file order, filled block by block by `add`."""

    file: str
    format: str
    columns: dict[str, str]  # the file's own names for arrival_s, prompt_tokens, output_tokens
    unit: str  # what the numbers of rows count: "line" or "row", from 1
    ticks_per_s: float  # of arrivals that are numbers
    stop_at_bad: bool  # read no further than the block with the first bad row
    enough: Callable[[Floats], bool]  # told the arrivals of each block in seconds, says when no more are needed

    arrivals: str = ""  # "numbers" or "stamps" (ISO 8601); decided by the first arrival that is one of them
    zoned: bool = False  # whether the stamps have a time zone
    first: str = ""  # the first good arrival, as the file writes it
    read: int = 0  # rows looked at, good or bad; blank lines are no rows
    stopped: bool = False  # before the end of the file
    refused: dict[str, int] = field(default_factory=dict)  # reason: number of rows
    examples: list[str] = field(default_factory=list)  # the first bad rows, in words

    _bad: list[tuple[int, str, str]] = field(default_factory=list)  # of this block: number, reason, words
    _blocks: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)

    def refuse(self, number: int, reason: str, words: str) -> None:
        """Note a bad row of the block that the next `add` takes."""
        self._bad.append((number, reason, words))

    def add(self, numbers: Sequence[int], arrivals: Any, prompts: Any, outputs: Any, *priorities: Any) -> bool:
        """Take a block of rows, given as their numbers and three columns, or four; True when reading can stop."""
        # Position in the block: reason, words. The first column that is bad wins.
        wrong: dict[int, tuple[str, str]] = {}
        ticks = self._arrivals(arrivals, wrong)
        whole = [self._whole("prompt_tokens", prompts, wrong), self._whole("output_tokens", outputs, wrong)]
        whole += [self._whole("priority", column, wrong, least=-MAX_TOKENS) for column in priorities]
        good = np.ones(len(numbers), bool)
        good[list(wrong)] = False
        self._bad += [(numbers[i], *why) for i, why in wrong.items()]
        for number, reason, words in sorted(self._bad):
            self.refused[reason] = self.refused.get(reason, 0) + 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(f"{self.file}, {self.unit} {number}: {words}")
        self.read += int(good.sum()) + len(self._bad)
        self._bad = []
        if not self.first and good.any():
            self.first = str(arrivals[int(good.argmax())])
        self._blocks.append((ticks[good], *(column[good] for column in whole)))
        self.stopped = (self.stop_at_bad and bool(self.refused)) or self.enough(ticks[good] / self.ticks_per_s)
        return self.stopped

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
        for i in np.flatnonzero(~np.isfinite(ticks)).tolist():
            self._note("arrival_s", i, values[i], "is not finite", wrong)
        return ticks

    def _choose(self, values: Iterable[Any]) -> None:
        for value in values:
            try:
                _number(value)
                self.arrivals = "numbers"
                return
            except ValueError:
                pass
            try:
                self.zoned = _time(value).tzinfo is not None
                self.arrivals, self.ticks_per_s = "stamps", 1e6
                return
            except ValueError:
                pass

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
            raise ValueError(f"has {'no' if self.zoned else 'a'} time zone, unlike the first row")
        return round((time if self.zoned else time.replace(tzinfo=UTC)).timestamp() * 1e6)

    def _note(self, key: str, i: int, value: Any, reason: str, wrong: dict[int, tuple[str, str]]) -> None:
        name = self.columns[key]
        wrong.setdefault(i, (f"{name} {reason}", f"{name} = {shortened(repr(value))} {reason}"))


def shortened(text: str, width: int = 60) -> str:
    """A text cut to a width, for messages; what no terminal should get, such as control characters, is escaped."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: width + 1])
    return text if len(text) <= width else text[: width - 3] + "..."


def _all_whole(values: Any) -> Ints | None:
    """Whole numbers, or None when one by one is the way to tell what is wrong."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iuf" or not np.all((values <= MAX_TOKENS) & (values == np.floor(values))):
            return None
        return np.maximum(values, -MAX_TOKENS).astype(np.int64)  # what is far below 0 need not fit
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


def _whole(value: Any) -> int:
    number = _number(value)
    if not math.isfinite(number):
        raise ValueError("is not finite")
    if number != math.floor(number):
        raise ValueError("is not a whole number")
    if number > MAX_TOKENS:
        raise ValueError("is too large")
    return int(number)


def _number(value: Any) -> float:
    if _is_empty(value):
        raise ValueError("is empty")
    if isinstance(value, bool | np.bool_):
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
    except (AttributeError, ValueError):
        raise ValueError("is not an ISO 8601 time") from None


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _neither(value: Any) -> float:
    raise ValueError("is empty" if _is_empty(value) else "is neither a number nor an ISO 8601 time")
