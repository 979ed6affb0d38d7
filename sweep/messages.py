"""Values and lists in messages: whatever a file or a caller gives, a message stays short enough to read.

A message may quote anything: a list of a million numbers, an integer of as many digits, a dict that holds itself.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import reprlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from .escapes import one_line

MOST_PROBLEMS = 10  # of an error
MOST_VALUES = 5  # of one key, each told as a problem
MOST_LISTED = 8  # values of a list
MOST_NAMES = 40  # known names: all of a catalogue
MOST_CHARACTERS = 600  # of a problem
_OF_A_VALUE = 100
_BARE = re.compile(r"[A-Za-z0-9_-]{1,100}")  # a key that needs no quotes
_OF_A_NAME = 100  # comparing longer ones takes long, and no name is so long
_COMPARED = 1000  # names with another: each takes some microseconds


def shown(value: Any) -> str:
    """The `repr` of a value, cut to a line.

    >>> shown([1, 2.5, "x"])
    "[1, 2.5, 'x']"
    >>> shown(list(range(1000)))
    '[0, 1, 2, 3, 4, 5, 6, 7, ...]'
    """
    return _cut(" ".join(_PYTHON.repr(value).split()), _OF_A_VALUE)


def shown_as_toml(value: Any) -> str:
    """A value as TOML writes it, cut to a line; "nothing" for None, which TOML has no word for.

    >>> shown_as_toml({"lo": True, "hi": [1, "x"]})
    '{ lo = true, hi = [1, "x"] }'
    """
    return _cut(_TOML.repr(value), _OF_A_VALUE)


def number_text(value: float, digits: int = 3) -> str:
    """A number with so many digits as people write it: without an exponent from 1e-4 to 1e15.

    >>> number_text(67108864.0), number_text(14.96), number_text(1e-9)
    ('67,100,000', '15', '1e-09')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e" in text and 1 <= abs(value) < 1e15 else text


def listed(items: Iterable[Any], most: int = MOST_LISTED) -> str:
    """Items with commas between them: the first of them, and how many more there are.

    >>> listed(range(4321 + 8))
    '0, 1, 2, 3, 4, 5, 6, 7, ... and 4,321 more'
    """
    items = list(items)
    more = [f"... and {len(items) - most:,} more"] if len(items) > most else []
    return ", ".join([*map(str, items[:most]), *more])


def nearest_numbers(wanted: int, known: Collection[int]) -> list[int]:
    """Known numbers as they are to be listed: in order, or where they are too many the nearest first."""
    return sorted(known) if len(known) <= MOST_LISTED else sorted(known, key=lambda one: (abs(one - wanted), one))


def nearest(name: Any, known: Iterable[str], usual: str = "") -> str:
    """The end of a message about an unknown name: the closest one (of several, the usual one), and those there are,
    each once, the closest first.
    """
    return closest(name, known, usual)[1]


def closest(name: Any, known: Iterable[str], usual: str = "") -> tuple[str | None, str]:
    """The name that was probably meant by an unknown one, None when none is close, and `nearest`."""
    close, others = _by_likeness(name, known, usual)
    names = listed([*close, *others], MOST_NAMES)
    return (close[0], f'; did you mean "{close[0]}"? Known: {names}') if close else (None, f"; known: {names}")


def likeness(one: str, other: str) -> float:
    """How much two names are alike, from 0 to 1."""
    return difflib.SequenceMatcher(None, one, other).ratio()


def _by_likeness(name: Any, known: Iterable[str], usual: str) -> tuple[list[str], list[str]]:
    """Names that are close to another, the closest first, and the others."""
    known = list(dict.fromkeys(known))
    text = (name if isinstance(name, str) else shown(name))[:_OF_A_NAME].lower()
    try:
        wanted, _ = float(text), list(map(float, known))
    except ValueError:
        compared = known[:_COMPARED]
        close = difflib.get_close_matches(text, compared, n=max(len(compared), 1), cutoff=0.5)
        if close and usual in known and len({likeness(x, text) for x in (close[0], usual)}) == 1:
            close = [usual, *(one for one in close if one != usual)]
        there = set(close)
        return close, [one for one in known if one not in there]
    return sorted(known, key=lambda one: abs(float(one) - wanted)), []


def meant(name: Any, known: Iterable[str]) -> str:
    """The end of a message that has listed the known names already: the closest one, if any is close.

    >>> meant("chunkd", ["mixed", "chunked"])
    '; did you mean "chunked"?'
    >>> meant(["chunked"], ["mixed", "chunked"])
    ''
    """
    close = _by_likeness(name, known, "")[0] if isinstance(name, str) else []
    return f'; did you mean "{close[0]}"?' if close else ""


def clipped(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text in at most so many characters, its middle left out, and written so that a terminal shows all of it.

    >>> clipped("a tab\\t, a bell\\a, and the rest" + "." * 400, 40)
    'a tab\\\\t, a bell\\\\x07, and  ... ..........'
    """
    if not text.isprintable():
        text = one_line(_cut(text, 2 * most))
    return _cut(text, most)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 5]} ... {text[-end:]}"


class _Python(reprlib.Repr):
    """Short forms of values as Python writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = self.maxarray = MOST_LISTED
        self.maxstring = self.maxlong = self.maxother = _OF_A_VALUE

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write integers of more than some thousands of digits.
        return repr(x) if x.bit_length() < 400 else f"<an integer of {x.bit_length():,} bits>"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        items = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in itertools.islice(x.items(), self.maxdict)
        ]
        return f"{{{', '.join([*items, '...'] if len(x) > self.maxdict else items)}}}"

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            return _cut(self._other(x), self.maxother)
        except Exception:  # a value of the caller's own type, which may raise anything
            return f"<{type(x).__name__}>"

    def _other(self, x: Any) -> str:
        return repr(x)


class _Toml(_Python):
    """Short forms of values as TOML writes them."""

    def repr_str(self, x: str, level: int) -> str:
        return json.dumps(_cut(x, self.maxstring), ensure_ascii=False)

    def repr_bool(self, x: bool, level: int) -> str:
        return str(x).lower()

    def repr_NoneType(self, x: None, level: int) -> str:
        return "nothing"

    def repr_list(self, x: Sequence[Any], level: int) -> str:
        if level <= 0:
            return "[...]"
        items = [self.repr1(item, level - 1) for item in x[: self.maxlist]]
        return f"[{', '.join([*items, '...'] if len(x) > self.maxlist else items)}]"

    repr_tuple = repr_list

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{ ... }"
        items = [
            f"{self._key(key, level)} = {self.repr1(value, level - 1)}"
            for key, value in itertools.islice(x.items(), self.maxdict)
        ]
        return f"{{ {', '.join([*items, '...'] if len(x) > self.maxdict else items)} }}"

    def _key(self, key: Any, level: int) -> str:
        return key if isinstance(key, str) and _BARE.fullmatch(key) else self.repr1(key, level - 1)

    def _other(self, x: Any) -> str:
        return " ".join(str(x).split())


_PYTHON, _TOML = _Python(), _Toml()
