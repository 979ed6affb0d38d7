"""Types of arrays, defined once, with the engine."""

from __future__ import annotations

from .kernels.arrays import AnyInts, Bools, Floats, Int32s, Ints

__all__ = ["AnyInts", "Bools", "Floats", "Int32s", "Ints"]
