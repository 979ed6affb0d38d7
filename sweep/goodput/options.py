"""What a search for goodput is asked: the target, the rates between which it looks, the SLOs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..checks import nearest
from ..experiment.tables import ConfigError
from ..measures.latencies import SLOS
from .bisection import MOST_DOUBLINGS, Search

NO_SLO = 'slo: must be given, as --slo ttft:200 tpot:50, or by keys of [slo] such as "ttft_ms"'


@dataclass(frozen=True)
class GoodputOptions:
    """What is searched for. ConfigError names what is wrong, and what is allowed.

    attainment  share of the requests that must meet the SLOs
    lo, hi      rates searched between, requests/s, each from 1e-9 to 1e9
    iters       halvings; None: 14, or as many as `rel_tol` takes
    rel_tol     halve until the ends are this close, hi / lo - 1
    find_upper  double an upper end that passes until it fails, at most 20 times
    joint       a request must meet every SLO; otherwise each SLO must reach the attainment on its own
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
                problems.append(f"{name} = {value!r}: must be {allowed}")
        for name in ("find_upper", "joint"):
            if not isinstance(getattr(self, name), bool):
                problems.append(f"{name} = {getattr(self, name)!r}: must be True or False")
        if not problems and self.lo > self.hi:
            problems.append(f"lo = {self.lo!r}: must be at most hi, which is {self.hi!r}")
        if self.iters is not None and self.rel_tol is not None:
            problems.append(f"iters = {self.iters!r}: has no effect with rel_tol, which halves as often as needed")
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


def parse_slos(slo: Mapping[str, float] | Sequence[str]) -> dict[str, float]:
    """Limits in ms by name, from a mapping or from texts such as "ttft:200"; ConfigError for what is none."""
    if isinstance(slo, Mapping):
        pairs: list[tuple[str, Any]] = list(slo.items())
    elif isinstance(slo, Sequence) and not isinstance(slo, str) and all(isinstance(part, str) for part in slo):
        pairs = [(name, text) for name, _, text in (part.partition(":") for part in slo)]
    else:
        raise ConfigError([f'slo={slo!r}: must be limits in ms, {{"ttft": 200}} or ["ttft:200"]'])
    limits: dict[str, float] = {}
    problems = []
    for name, given in pairs:
        try:
            value = math.nan if isinstance(given, bool) else float(given)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if name not in SLOS:
            problems.append(f"slo {name!r}: is unknown{nearest(name, SLOS)}")
        elif name in limits:
            problems.append(f"slo {name!r}: is given twice")
        elif not 0 < value < math.inf:
            problems.append(f"slo {name}:{given}: must be a positive number of milliseconds, as in {name}:200")
        limits[name] = value
    if problems or not limits:
        raise ConfigError(problems or [NO_SLO])
    return limits
