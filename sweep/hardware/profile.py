"""Step times as tables, of an instance whose steps were measured."""

import hashlib
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from .. import checks
from ..arrays import Floats
from ..kernels.step_tables import LAST, StepTables
from .measured import MeasuredSteps
from .tabled import TabledSteps

Knots = tuple[tuple[int, float], ...]
"""Whole numbers that grow, and seconds that do not fall; between two of them a straight line."""

_MAX_S = 1e6  # of any part of a step
_COSTS = ("context_s", "mixed_context_s", "pair_s", "done_s", "prefill_s", "overhead_s")


@checks.spelt_out
@dataclass(frozen=True)
class TableStepTimes(TabledSteps):
    """Step times looked up: F(tokens) + G(emitting requests) + context, pairs and a fixed time. No KV capacity.

        decodes only   t = F(T) + G(E) + context_s context + overhead_s
        with prefill   t = F(T) + G(E) + mixed_context_s context + pair_s pairs + done_s done + prefill_s + overhead_s

    Parameters
    ----------
    tokens_s
        Knots of F, (tokens, seconds): tokens that grow from at least 0, seconds that do not fall. Straight lines
        between knots, the last slope behind the last one, the first value before the first.
    emitting_s
        The same of G, over requests that emit a token in the step; G(0) = 0 unless 0 is a knot.
    context_s, mixed_context_s
        Seconds for each token in the caches of requests that decode, in steps that only decode, and in others.
    pair_s, done_s
        Seconds for each pair of a prompt token and one that it attends to, and for each prompt token processed before.
    prefill_s, overhead_s
        Seconds of every step with prefill, and of every step.
    n_gpus
        Chips of the instance, for measures per GPU.
    first_token_s
        Seconds of a request outside the engine before its first token, of no step: part of TTFT and of end-to-end
        latency.
    measured
        What they were fitted to, as `measured_step_times` keeps it; of no effect on times. None: nothing is known.

    Raises
    ------
    ValueError
        For knots that do not grow, seconds that fall, and anything negative; and for a step of one token of 0 s.
    """

    tokens_s: Knots
    _: KW_ONLY
    emitting_s: Knots = ()
    context_s: float = 0.0
    mixed_context_s: float = 0.0
    pair_s: float = 0.0
    done_s: float = 0.0
    prefill_s: float = 0.0
    overhead_s: float = 0.0
    n_gpus: int = 1
    first_token_s: float = 0.0
    measured: MeasuredSteps | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("tokens_s", "emitting_s"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if not self.tokens_s:
            raise ValueError("tokens_s=(): must hold at least one knot")
        for name in (*_COSTS, "first_token_s"):
            object.__setattr__(self, name, checks.between(name, getattr(self, name), 0, _MAX_S))
        object.__setattr__(self, "n_gpus", checks.whole("n_gpus", self.n_gpus, 1))
        if self.measured is not None and not isinstance(self.measured, MeasuredSteps):
            raise ValueError(f"measured={self.measured!r}: must be MeasuredSteps, or None")
        if not self.step_time(1, 0) > 0:
            raise ValueError("tokens_s, overhead_s: a step of one token takes 0 s, must be more")

    @cached_property
    def content_id(self) -> str:
        """Twelve digits that only equal step times have."""
        numbers = [(name, getattr(self, name)) for name in ("tokens_s", "emitting_s", *_COSTS, "n_gpus")]
        numbers += [("first_token_s", self.first_token_s)] if self.first_token_s else []
        return hashlib.sha256(repr(numbers).encode()).hexdigest()[:12]

    def coefficients(self) -> StepTables:
        """The step time as tables and numbers, for the engine: `step_time` looks up the same ones."""
        return StepTables(
            _table(self.tokens_s),
            _emitting(self.emitting_s),
            self.context_s,
            self.mixed_context_s,
            self.pair_s,
            self.done_s,
            self.overhead_s,
            self.prefill_s,
        )


def _checked(name: str, knots: object) -> Knots:
    if not isinstance(knots, list | tuple):
        raise ValueError(f"{name}={knots!r}: must be pairs of a whole number and seconds")
    found: list[tuple[int, float]] = []
    for i, knot in enumerate(knots):
        if not isinstance(knot, list | tuple) or len(knot) != 2:
            raise ValueError(f"{name}[{i}]={knot!r}: must be a whole number and seconds")
        number = checks.whole(f"{name}[{i}]", knot[0], 0)
        seconds = checks.between(f"{name}[{i}]", knot[1], 0, _MAX_S)
        if found and number <= found[-1][0]:
            raise ValueError(f"{name}[{i}]={knot!r}: must come after {found[-1][0]}")
        if found and seconds < found[-1][1]:
            raise ValueError(f"{name}[{i}]={knot!r}: must take at least the {found[-1][1]!r} s of the knot before")
        found.append((number, seconds))
    return tuple(found)


@lru_cache(maxsize=64)
def _emitting(knots: Knots) -> Floats:
    """Of the requests that emit a token: none costs nothing, unless it is a knot."""
    table = _table(knots)
    if not knots or knots[0][0] == 0:
        return table
    table = table.copy()
    table[0] = 0.0
    return table


@lru_cache(maxsize=64)
def _table(knots: Knots) -> Floats:
    """The seconds of every whole number; 0 without knots. Not to be written to."""
    if not knots:
        return np.zeros(LAST + 1)
    x = np.array([knot[0] for knot in knots], np.float64)
    y = np.array([knot[1] for knot in knots])
    last = max(LAST, int(x[-1]))
    table: Floats = np.interp(np.arange(last + 1, dtype=np.float64), x, y)
    if x.size > 1 and last > x[-1]:
        beyond = np.arange(int(x[-1]) + 1, last + 1)
        table[beyond] = y[-1] + (beyond - x[-1]) * ((y[-1] - y[-2]) / (x[-1] - x[-2]))
    return table
