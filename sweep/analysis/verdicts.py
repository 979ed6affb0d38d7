"""What a sweep comes to, in words: which configuration is best, how far ahead, and what to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..measures.slo import SLOS
from ..messages import number_text
from .ranking import COMPARISON_GROUPS, COMPETING_AXES, TARGET, BestRate
from .selection import need_columns, short_text

if TYPE_CHECKING:
    import pandas as pd

_SOURCES = 4  # that are shown


def format_verdict(best: list[BestRate], slo: str, target: float = TARGET) -> str:
    """One line: which system and policy is best, at which rate, and how far ahead of the others."""
    if not best:
        return "No cell could be simulated."
    first = best[0]
    if not first.rate_rps:
        return f"No configuration reaches {target:.0%} attainment ({slo}) at the lowest rate of the sweep."
    per_gpu = f", {number_text(first.rate_per_gpu_rps)} per GPU," if first.n_gpus > 1 else ""
    top = "at least " if first.is_top else ""
    reached = f"{top}{number_text(first.rate_rps, 4)} req/s{per_gpu} at {target:.0%} attainment ({slo})"
    line = f"{_format_parameters(first.parameters)}: {reached}"
    return "; ".join([line, *(_ratio(first, other) for other in best[1:] if _comparable(first, other))]) + "."


def format_slos(df: pd.DataFrame) -> str:
    """The SLOs of a run in words."""
    parts = []
    limits = df.attrs.get("config", {}).get("slo", {})
    for name in SLOS:
        column = f"{name}_slo_s"
        if isinstance(limits, dict) and limits.get(f"{name}_ms") is not None:
            need_columns(df, [column])
        values = df[column].dropna().unique() if column in df else ()  # a run of an earlier version has fewer
        if len(values):
            parts.append(f"{name} <= {' or '.join(f'{1000 * value:g}' for value in values)} ms")
    return " and ".join(parts) or "no SLO set"


def step_times_sources(df: pd.DataFrame) -> list[str]:
    """Where the step times of a table come from, each once; nothing where it does not tell."""
    column = "step_times_source"
    return [str(text) for text in df[column].dropna().unique()] if column in df else []


def format_step_times(sources: Sequence[str]) -> str:
    """A line about where step times come from."""
    shown = [*sources[:_SOURCES], *([f"and {len(sources) - _SOURCES:,} more"] if len(sources) > _SOURCES else [])]
    return f"Step times: {'; '.join(shown)}" if shown else ""


def format_rejections(df: pd.DataFrame) -> str | None:
    """A line about the cells that reject requests, which no SLO forgives; None when there are none."""
    ok = df[df["status"] == "ok"]
    some = ok[ok["rejected"] > 0]
    if some.empty:
        return None
    worst = some.loc[(some["rejected"] / some["n_requests"]).astype(float).idxmax()]
    rejected, n = int(worst["rejected"]), int(worst["n_requests"])
    cells = f"{len(some):,} of {len(ok):,} cells reject requests"
    return (
        f"{cells}; at worst {rejected:,} of {n:,} requests rejected ({rejected / n:.1%}): they need more than "
        f"num_blocks = {worst['num_blocks']:,} of {worst['block_size']:,} tokens."
    )


def _ratio(first: BestRate, other: BestRate) -> str:
    """How far the first is ahead of another, rates per GPU compared."""
    competing = {key: value for key, value in other.parameters.items() if key in COMPETING_AXES}
    name = _format_parameters(competing) or "another"
    if not other.rate_rps:
        return f"{name} never reaches it"
    if first.is_top and other.is_top:
        return f"{name} at least {number_text(other.rate_rps, 4)} req/s too"
    if first.rate_per_gpu_rps == other.rate_per_gpu_rps:
        return f"{name} at the same rate"
    return f"{'at least ' if first.is_top else ''}{first.rate_per_gpu_rps / other.rate_per_gpu_rps:.2g} x {name}"


def _comparable(one: BestRate, other: BestRate) -> bool:
    return all(one.parameters.get(name) == other.parameters.get(name) for name in COMPARISON_GROUPS)


def _format_parameters(parameters: dict[str, Any]) -> str:
    return ", ".join(
        short_text(value) if name in COMPETING_AXES else f"{name} {short_text(value)}"
        for name, value in parameters.items()
        if value is not None
    )
