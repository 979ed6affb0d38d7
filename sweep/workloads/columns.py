"""Columns of a workload as arrays that nobody can change, of what may stand in them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..checks import MAX_TOKENS
from ..messages import shown


def times(name: str, values: Any) -> npt.NDArray[np.float64]:
    array = _array(name, values)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} holds {array.dtype}: must hold numbers of seconds")
    with np.errstate(over="ignore"):  # of long doubles
        times = array.astype(np.float64, copy=_may_change(array))
    wrong = ~(np.isfinite(times) & (times >= 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"{name}[{at}]={times[at]}: must be finite and at least 0")
    times.flags.writeable = False
    return times


def whole_numbers(name: str, values: Any, least: int) -> npt.NDArray[np.int64]:
    array = _array(name, values)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} holds {array.dtype}: must hold integers")
    if array.dtype == np.float16:  # which cannot be compared with large numbers
        array = array.astype(np.float64)
    # A column that had a gap once is float in pandas: whole numbers are taken in any type.
    wrong = ~((array >= least) & (array <= MAX_TOKENS) & (array == np.floor(array)))
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"{name}[{at}]={array[at]}: must be an integer of at least {least}, and at most {MAX_TOKENS}")
    whole = array.astype(np.int64, copy=_may_change(array))
    whole.flags.writeable = False
    return whole


def _may_change(array: npt.NDArray[Any]) -> bool:
    """Whether somebody else could write to this memory; a read-only view of what pandas holds can change too."""
    return bool(array.flags.writeable or not array.flags.owndata)


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name}={shown(values)}: must be an array with one dimension") from None
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}: must be an array with one dimension")
    return array
