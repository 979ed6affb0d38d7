"""Service level objectives: the latencies that a request must keep to, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from .. import checks
from ..messages import nearest, shown

SLOS = ("ttft", "tpot", "e2e", "itl_max")  # latencies that can have a limit, in the order of their columns


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
        """
        if isinstance(value, SLO):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(
                f"slo={shown(value)}: must be an SLO, as SLO(ttft_s=0.5), "
                "or a dict of milliseconds, as {'ttft_ms': 500}"
            )
        keys = [f"{name}_ms" for name in SLOS]
        for key, limit in value.items():
            if key not in keys:
                raise ValueError(f"slo={shown(value)}: {shown(key)} is unknown{nearest(key, keys)}")
            if limit is not None:
                _positive(key, limit, "milliseconds")
        return cls(*(None if value.get(key) is None else float(value[key] or 0) / 1000 for key in keys))

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
    SLO.of(value)
    return {f"{name}_ms": value.get(f"{name}_ms") for name in SLOS}  # as they are: seconds and back may round


def _positive(name: str, value: Any, unit: str) -> float:
    if not checks.finite(value) or value <= 0:
        raise ValueError(f"{name}={value!r}: must be a positive finite number of {unit}, or None for no check")
    return float(value)
