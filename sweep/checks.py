"""Checks of single arguments: each returns the value in a plain Python type, or says what is allowed."""

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np

from .messages import listed, meant, nearest, shown

Called = TypeVar("Called", bound=Callable[..., Any])
Row = TypeVar("Row", bound="Named")
MAX_TOKENS = 2**31 - 1  # the longest prompt or output: the engine counts the tokens of a request in int32


def whole(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """An integer (NumPy's too, but no bool) of at least `at_least` and at most `at_most`; otherwise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < at_least:
        raise ValueError(f"{name}={shown(value)}: must be an integer of at least {at_least}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name}={shown(value)}: must be at most {at_most}")
    return int(value)


def between(name: str, value: Any, at_least: float, at_most: float) -> float:
    """A finite number in [at_least, at_most]; otherwise ValueError."""
    if not finite(value) or not at_least <= value <= at_most:
        raise ValueError(
            f"{name}={shown(value)}: must be a finite number of at least {at_least:g} and at most {at_most:g}"
        )
    return float(value)


def positive(name: str, value: Any) -> float:
    """A positive finite number; otherwise ValueError."""
    if not finite(value) or value <= 0:
        raise ValueError(f"{name}={shown(value)}: must be a positive finite number")
    return float(value)


def not_negative(name: str, value: Any) -> float:
    """A finite number of at least 0; otherwise ValueError."""
    if not finite(value) or value < 0:
        raise ValueError(f"{name}={shown(value)}: must be a finite number of at least 0")
    return float(value)


def share(name: str, value: Any) -> float:
    """A number in [0, 1); otherwise ValueError."""
    if not finite(value) or not 0 <= value < 1:
        raise ValueError(f"{name}={shown(value)}: must be at least 0 and below 1")
    return float(value)


def whether(name: str, value: Any) -> bool:
    """True or False (NumPy's too); otherwise ValueError: a text such as "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={shown(value)}: must be True or False")
    return bool(value)


def path(name: str, value: Any) -> Path:
    """A path that is not empty; otherwise ValueError."""
    given = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(given, str) or not given or "\0" in given:
        raise ValueError(f"{name}={shown(value)}: must be a path, as a str or a pathlib.Path")
    return Path(given)


def text(name: str, value: Any) -> str:
    """A string that is not empty; otherwise ValueError."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={shown(value)}: must be a string that is not empty")
    return value


def one_of(name: str, value: Any, known: Iterable[str], where: str = "") -> str:
    """A name of those that are known; otherwise ValueError, with the closest. What is no text is none of them."""
    known = list(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={shown(value)}: must be one of {', '.join(known)}{where}{meant(value, known)}")
    return value


class Named(Protocol):
    """A row of a registry."""

    @property
    def name(self) -> str: ...


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    """A registry of rows; ValueError for a name that is empty or taken."""
    found: dict[str, Row] = {}
    for row in rows:
        if text("name", row.name) in found:
            raise ValueError(f"name={row.name!r}: is registered already")
        found[row.name] = row
    return found


def spelt_out(called: Called) -> Called:
    """A function, or a class, that says how arguments are to be given: what goes by name, and the closest name."""
    function = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]
    given_self = isinstance(called, type)
    parameters = list(inspect.signature(function).parameters.values())
    most = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)
    names = {one.name for one in parameters[given_self:]}
    by_keyword = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if len(args) > most:
            raise TypeError(f"{called.__name__}: {_too_many(args[most:], most - given_self, by_keyword)}")
        for name in kwargs:
            if name not in names:
                unit = " in seconds" if name.endswith("_ms") and f"{name[:-3]}_s" in names else ""
                raise TypeError(f"{called.__name__}: {name}= is unknown{nearest(name, sorted(names))}{unit}")
        return function(*args, **kwargs)

    if isinstance(called, type):
        called.__init__ = checked  # type: ignore[misc]
        return called
    return checked  # type: ignore[return-value]


def _too_many(more: Sequence[Any], most: int, by_keyword: list[str]) -> str:
    kind = type(more[0]).__name__.lower()
    names = [kind] if kind in by_keyword else by_keyword
    how = f"pass {'it' if len(names) == len(more) == 1 else 'others by name'} as {listed(f'{name}=' for name in names)}"
    return f"takes at most {most} argument{'s' * (most != 1)} without a name, got {most + len(more)}" + (
        f"; {how}" if names else ""
    )


def finite(value: Any) -> bool:
    """Whether a value is a finite number (no bool)."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number (no bool), be it infinite or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool)
