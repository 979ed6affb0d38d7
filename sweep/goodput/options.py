"""What a search for goodput is asked: the target, and the rates between which it looks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..experiment.tables import ConfigError
from .bisection import MOST_DOUBLINGS, Search

NO_SLO = "slo: must be given, as --slo ttft:200 tpot:50, slo=SLO(ttft_s=0.2), or by keys of [slo] such as ttft_ms"


@dataclass(frozen=True, kw_only=True)
class GoodputOptions:
    """What a search for goodput asks.

    Parameters
    ----------
    attainment
        Share of the requests that must meet the SLOs.
    lo, hi
        Rates searched between, in requests/s, each from 1e-9 to 1e9.
    iters
        Halvings. None: 14, or as many as `rel_tol` takes.
    rel_tol
        Halve until the ends are this close, hi / lo - 1. None: halve `iters` times.
    find_upper
        Double an upper end that passes until it fails, at most 20 times.
    joint
        A request must meet every limit; otherwise each limit must reach the attainment on its own.

    Raises
    ------
    ConfigError
        Names everything that is wrong, and what is allowed.
    """

    attainment: float = 0.9
    lo: float = 0.05
    hi: float = 64.0
    iters: int | None = None
    rel_tol: float | None = None
    find_upper: bool = False
    joint: bool = True

    def __post_init__(self) -> None:
        problems = []
        for name, holds, allowed in (
            ("attainment", lambda x: 0 < x <= 1, "a share above 0 and at most 1"),
            ("lo", lambda x: 1e-9 <= x <= 1e9, "a rate from 1e-9 to 1e9"),
            ("hi", lambda x: 1e-9 <= x <= 1e9, "a rate from 1e-9 to 1e9"),
            ("rel_tol", lambda x: 1e-9 <= x < math.inf, "a number of at least 1e-9, such as 0.01"),
            ("iters", lambda x: isinstance(x, int) and 0 <= x <= 1000, "a whole number from 0 to 1000"),
        ):
            value = getattr(self, name)
            if value is None and name in ("rel_tol", "iters"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
                problems.append(f"{name}={value!r}: must be {allowed}")
        for name in ("find_upper", "joint"):
            if not isinstance(getattr(self, name), bool):
                problems.append(f"{name}={getattr(self, name)!r}: must be True or False")
        if not problems and self.lo > self.hi:
            problems.append(f"lo={self.lo!r}: must be at most hi, which is {self.hi!r}")
        if self.iters is not None and self.rel_tol is not None:
            problems.append(f"iters={self.iters!r}: has no effect with rel_tol, which halves as often as needed")
        if problems:
            raise ConfigError(problems)

    def start(self) -> Search:
        """A search before its first rate."""
        halvings = 14 if self.iters is None else self.iters
        doublings = MOST_DOUBLINGS if self.find_upper else 0
        return Search(float(self.lo), float(self.hi), halvings, self.rel_tol, doublings)

    def tables(self) -> dict[str, Any]:
        """The options as plain values, those that decide nothing left out."""
        iters = 14 if self.iters is None and self.rel_tol is None else self.iters
        return {key: value for key, value in {**asdict(self), "iters": iters}.items() if value is not None}
