"""Checks of single arguments: each returns the value in a plain Python type, or says what is allowed."""

import math
import os
from numbers import Real
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from .messages import shown

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


def finite(value: Any) -> bool:
    """Whether a value is a finite number (no bool)."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number (no bool), be it infinite or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool)
