"""Service level objectives: the latencies that a request must keep to, in seconds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from .. import checks
from ..messages import nearest, shown

SLOS = ("ttft", "tpot", "e2e", "itl_max")  # latencies that can have a limit, in the order of their columns
LONGEST_S = {"ttft": 90.0, "tpot": 9.0, "e2e": 900.0, "itl_max": 30.0}
"""Limits in seconds above these are taken for milliseconds: no service would promise them. They get a warning."""
SHORTEST_MS = 1.0
"""Limits in milliseconds below this are taken for seconds: no chip is so fast. They get a warning."""


@checks.spelt_out
@dataclass(frozen=True)
class SLO:
    """Limits on the latencies of a request, each in seconds; it meets the SLO when it meets all that are set.

    A limit is inclusive: a time that is equal to it meets it.

    Parameters
    ----------
    ttft_s
        Of the time to first token. None: not checked.
    tpot_s
        Of the time per output token. None: not checked.
    e2e_s
        Of the end-to-end latency. None: not checked.
    itl_max_s
        Of the longest time between two tokens of the request. None: not checked.

    Raises
    ------
    ValueError
        For a limit that is not a positive finite number.

    Warns
    -----
    UserWarning
        For a limit above `LONGEST_S` (ttft 90 s, tpot 9 s, e2e 900 s, itl_max 30 s), probably meant in milliseconds.

    Examples
    --------
    >>> SLO(ttft_s=0.5, tpot_s=0.05)
    SLO(ttft_s=0.5, tpot_s=0.05, e2e_s=None, itl_max_s=None)
    >>> SLO.of({"ttft_ms": 500, "tpot_ms": 50}) == SLO(ttft_s=0.5, tpot_s=0.05)
    True
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    itl_max_s: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None:
                object.__setattr__(self, name, _positive(name, limit, "seconds"))
        for name, limit in self.limits.items():
            if (doubt := doubt_of_seconds(name, f"{name}_s", limit)) is not None:
                warnings.warn(doubt, UserWarning, stacklevel=4)  # where the SLO is made

    @classmethod
    def of(cls, value: SLO | Mapping[str, float | None]) -> SLO:
        """An SLO from what stands for one where an experiment's tables are taken.

        Parameters
        ----------
        value
            An SLO, or a dict with keys of an experiment's [slo] table, in milliseconds: `{"ttft_ms": 500}`.

        Returns
        -------
        SLO
            In seconds; what the dict leaves out, or has None for, is not checked.

        Raises
        ------
        ValueError
            For another type, an unknown key, or a limit that is not a positive finite number.

        Warns
        -----
        UserWarning
            For a limit below 1 ms, probably meant in seconds.
        """
        if isinstance(value, SLO):
            return value
        _check_keys(value)
        for doubt in doubts_of_milliseconds(value):
            warnings.warn(doubt, UserWarning, stacklevel=2)
        found = cls()
        for name in SLOS:
            if (
                limit := value.get(f"{name}_ms")
            ) is not None:  # set without a warning: many milliseconds are no mistake
                object.__setattr__(found, f"{name}_s", float(limit) / 1000)
        return found

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, in seconds, by latency: "ttft", "tpot", "e2e", "itl_max"."""
        limits = {name: getattr(self, f"{name}_s") for name in SLOS}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def milliseconds(self) -> dict[str, float | None]:
        """The limits by their keys in an experiment's [slo] table: what `SLO.of` makes this SLO from again.

        Exact for whole milliseconds; other limits can differ in the last bit.
        """
        # Moving the point of the shortest digits: 1000 * 0.035 is not 35.
        limits = self.limits
        return {f"{x}_ms": float(Decimal(repr(limits[x])) * 1000) if x in limits else None for x in SLOS}


def doubt_of_seconds(name: str, what: str, limit: float) -> str | None:
    """What is doubtful in a limit in seconds that was probably meant in milliseconds; None where nothing is.

    name  of the latency
    what  the name of the value
    """
    if not LONGEST_S[name] < limit < math.inf:
        return None
    return f"{what}={limit:g}: is above {LONGEST_S[name]:g} s: a limit in seconds; {limit:g} ms are {limit / 1000:g}"


def doubts_of_milliseconds(limits: Mapping[str, Any]) -> list[str]:
    """What is doubtful in limits in milliseconds, one or several a key: those probably meant in seconds."""
    return [
        f"{key}={limit:g}: is below {SHORTEST_MS:g} ms: a limit in milliseconds; {limit:g} s are {1000 * limit:g}"
        for key, value in limits.items()
        if key.removesuffix("_ms") in SLOS
        for limit in (value if isinstance(value, list | tuple) else [value])
        if limit is not None and 0 < limit < SHORTEST_MS
    ]


def check_slo(slo: object) -> SLO:
    """The SLO, if it is one; otherwise ValueError."""
    if not isinstance(slo, SLO):
        raise ValueError(
            f"slo={slo!r}: must be an SLO, as SLO(ttft_s=0.5); SLO.of makes one from the keys of an experiment"
        )
    return slo


def slo_table(value: SLO | Mapping[str, float | None]) -> dict[str, float | None]:
    """The keys of an experiment's [slo] table, in milliseconds, of what `SLO.of` takes; None: not checked."""
    if isinstance(value, SLO):
        return value.milliseconds()
    _check_keys(value)
    return {f"{name}_ms": value.get(f"{name}_ms") for name in SLOS}  # as they are: seconds and back may round


def _check_keys(value: Mapping[str, Any]) -> None:
    """ValueError for what is no dict of keys of [slo]."""
    if not isinstance(value, Mapping):
        raise ValueError(
            f"slo={shown(value)}: must be an SLO, as SLO(ttft_s=0.5), or a dict of milliseconds, as {{'ttft_ms': 500}}"
        )
    keys = [f"{name}_ms" for name in SLOS]
    for key, limit in value.items():
        if key not in keys:
            raise ValueError(f"slo={shown(value)}: {shown(key)} is unknown{nearest(key, keys)}")
        if limit is not None:
            _positive(key, limit, "milliseconds")


def _positive(name: str, value: Any, unit: str) -> float:
    if not checks.finite(value) or value <= 0:
        raise ValueError(f"{name}={value!r}: must be a positive finite number of {unit}, or None for no check")
    return float(value)
