"""What step times that were fitted to measurements tell of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .. import checks


class WorstStep(NamedTuple):
    """A measured step that a fit misses.

    Attributes
    ----------
    line
        Of the file that it stands in; 0 where it was put together from several.
    decodes, context_tokens, prefill_tokens
        What was in it.
    step_s
        Measured seconds.
    error
        Fitted seconds / measured ones - 1.
    """

    line: int
    decodes: int
    context_tokens: int
    prefill_tokens: int
    step_s: float
    error: float


@checks.spelt_out
@dataclass(frozen=True)
class MeasuredSteps:
    """What fitted step times were fitted to, and how well: kept with them, and of no effect on a simulation.

    Attributes
    ----------
    source
        The file, or what it was put together from.
    steps
        How many were measured.
    median_error, p95_error
        Of the fit on these steps, as shares of the measured seconds.
    most_decodes, most_context_tokens, most_prefill_tokens, most_tokens
        The largest of any measured step: requests that decode, tokens in their caches, prompt tokens, and tokens
        processed in all. Steps beyond are extrapolated.
    worst
        The steps that the fit misses most.
    """

    source: str
    steps: int
    median_error: float
    p95_error: float
    most_decodes: int
    most_context_tokens: int
    most_prefill_tokens: int
    most_tokens: int
    worst: tuple[WorstStep, ...] = ()

    def __post_init__(self) -> None:
        checks.text("source", self.source)
        for name in ("steps", "most_decodes", "most_context_tokens", "most_prefill_tokens", "most_tokens"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), 0))
        for name in ("median_error", "p95_error"):
            object.__setattr__(self, name, checks.not_negative(name, getattr(self, name)))
        object.__setattr__(self, "worst", tuple(WorstStep(*one) for one in self.worst))

    def text(self) -> str:
        """The fit in a few lines: errors, range, and the worst steps."""
        lines = [
            f"{self.source}: {self.steps:,} steps, error of the fit {_percent(self.median_error)} in the median, "
            f"{_percent(self.p95_error)} at p95",
            f"measured up to {self.most_decodes:,} decodes, {self.most_context_tokens:,} tokens in caches, "
            f"{self.most_prefill_tokens:,} prompt tokens, {self.most_tokens:,} tokens a step",
        ]
        for one in self.worst:
            where = f"line {one.line}: " if one.line else ""
            lines.append(
                f"  worst: {where}{one.decodes:,} decodes, {one.context_tokens:,} in caches, {one.prefill_tokens:,} "
                f"prompt tokens: {1e3 * one.step_s:.4g} ms, fitted {100 * one.error:+.1f} %"
            )
        return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
