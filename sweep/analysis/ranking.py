"""What a run tells: its plan before, and after it the best configurations by system and policy, and a verdict."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..measures.latencies import SLOS
from .selection import axes, plain

if TYPE_CHECKING:
    import pandas as pd

    from ..experiment.plan import Plan
    from ..runner.batches import Estimate

SEEDS = ("seed", "router_seed")  # repetitions, which are averaged
TARGET = 0.9  # attainment that the best rate must keep
_ASSUMED = ("mfu", "mbu", "overhead_s", "mem_reserve")
# What is given, not chosen: configurations that differ in one of these are not compared, each value has its own best.
SEPARATE = (
    *("workload", "n_requests", "arrivals", "cv", "model", *(f"{name}_slo_s" for name in SLOS)),
    *(f"{role}{name}" for name in _ASSUMED for role in ("", "prefill_", "decode_")),
)
RIVALS = ("system", "policy", "router")  # each has a best of its own, and they are compared


@dataclass(frozen=True)
class Best:
    """The best configuration of one system, policy and router.

    parameters    values of the axes of the sweep, without the rate; system, policy and router first
    n_gpus        of the configuration
    rate_rps      the highest rate at which this and every lower rate of the sweep keep the target; 0: none does
    is_top        it is the highest rate of the sweep, so that the configuration may reach more
    measures      means over seeds at that rate, or at the lowest rate
    """

    parameters: dict[str, Any]
    n_gpus: int
    rate_rps: float
    is_top: bool
    measures: dict[str, float]

    @property
    def rate_per_gpu_rps(self) -> float:
        return self.rate_rps / self.n_gpus


_SHOWN = ("attainment", "output_throughput_tps", "ttft_p99_s", "tpot_p99_s", "kv_utilization_peak", "preemptions")


def best_by_policy(df: pd.DataFrame, target: float = TARGET) -> list[Best]:
    """The best configuration of every system, policy and router of the sweep, the best first; see `ranked`.

    Configurations are not compared across workloads, models, SLOs, efficiencies or reserved memory: each of these has
    its own best.
    """
    best: dict[tuple[Any, ...], Best] = {}
    for one in ranked(df, target):
        best.setdefault(tuple(one.parameters.get(name) for name in (*RIVALS, *SEPARATE)), one)
    return list(best.values())


def ranked(df: pd.DataFrame, target: float = TARGET) -> list[Best]:
    """Every configuration of a sweep, the best first.

    Best is the highest request rate per GPU that keeps `target`: attainment, the mean over seeds, is at least that at
    this rate and at every lower rate of the sweep. Ties go to the higher attainment, then output throughput.

    df  the cells table of a run, as `load` or `Run.df` gives it: `attrs["config"]` tells the axes
    """
    ok = df[df["status"] == "ok"]
    varied = [name for name in axes(df) if name not in ("request_rate_rps", *SEEDS)]
    groups = [*rivals(ok), *(name for name in SEPARATE if name in varied)]
    names = list(dict.fromkeys([*groups, *varied]))
    found = []
    for key, cells in ok.groupby([*names, "n_gpus"], observed=True, dropna=False, sort=False):
        parameters = dict(zip(names, (plain(value) for value in key[:-1]), strict=True))
        found.append(_best_rate(parameters, int(key[-1]), cells, target))
    return sorted(found, key=_rank, reverse=True)


def rivals(df: pd.DataFrame) -> list[str]:
    """Those of system, policy and router that the sweep varies, and the policy where there is one."""
    varied = axes(df)
    return [name for name in RIVALS if name in varied or (name == "policy" and df["policy"].notna().any())]


def _rank(one: Best) -> tuple[float, ...]:
    """Sorts the best last; what is missing, such as the attainment of a window without requests, first."""
    measures = (one.measures["attainment"], one.measures["output_throughput_tps"] / one.n_gpus)
    return (one.rate_per_gpu_rps, *(float(np.nan_to_num(x, nan=-1.0)) for x in measures))


def verdict(best: list[Best], slo: str, target: float = TARGET) -> str:
    """One line: which system and policy is best, at which rate, and how far ahead of the others."""
    if not best:
        return "No cell could be simulated."
    first = best[0]
    if not first.rate_rps:
        return f"No configuration reaches {target:.0%} attainment ({slo}) at the lowest rate of the sweep."
    per_gpu = f", {first.rate_per_gpu_rps:.3g} per GPU," if first.n_gpus > 1 else ""
    top = "at least " if first.is_top else ""
    line = f"{_words(first.parameters)}: {top}{first.rate_rps:.4g} req/s{per_gpu} at {target:.0%} attainment ({slo})"
    return "; ".join([line, *(_ratio(first, other) for other in best[1:] if _comparable(first, other))]) + "."


def slo_words(df: pd.DataFrame) -> str:
    """The SLOs of a run in words."""
    parts = []
    for name in SLOS:
        column = f"{name}_slo_s"
        values = df[column].dropna().unique() if column in df else ()  # a run of an earlier version has fewer
        if len(values):
            parts.append(f"{name} <= {' or '.join(f'{1000 * value:g}' for value in values)} ms")
    return " and ".join(parts) or "no SLO set"


def print_best(best: list[Best], target: float = TARGET, title: str | None = None) -> None:
    """A table of configurations, on stdout; by default those that are the best of something."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not best:
        return
    if title is None:
        by = " and ".join(name for name in RIVALS if name in best[0].parameters)
        title = f"Best configuration by {by or 'workload'}"
    table = Table(
        title=f"{title} ({target:.0%} attainment)",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    headers, rows = best_rows(best)
    for place, header in enumerate(headers):
        table.add_column(header, justify="left" if place < len(best[0].parameters) else "right")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 200
    Console(file=sys.stdout, width=width).print(table)


def best_rows(best: list[Best]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of a table of configurations: the parameters, then the rate and the measures at it."""
    per_gpu = ["GPUs", "req/s/GPU"] if any(row.n_gpus > 1 for row in best) else []
    measures = ["attainment", "output tok/s", "ttft p99", "tpot p99", "KV peak", "preemptions"]
    rows = []
    for row in best:
        m = row.measures
        rows.append(
            [
                *(_text(value) for value in row.parameters.values()),
                f"{'>= ' if row.is_top else ''}{row.rate_rps:.4g}" if row.rate_rps else "none",
                *([str(row.n_gpus), f"{row.rate_per_gpu_rps:.3g}"] if per_gpu else []),
                _number(m["attainment"], ".1%"),
                _number(m["output_throughput_tps"], ",.0f"),
                _number(1000 * m["ttft_p99_s"], ",.0f", " ms"),
                _number(1000 * m["tpot_p99_s"], ",.1f", " ms"),
                _number(m["kv_utilization_peak"], ".0%"),
                _number(m["preemptions"], ",.0f"),
            ]
        )
    return [*best[0].parameters, "req/s", *per_gpu, *measures], rows


def rejections(df: pd.DataFrame) -> str | None:
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


def best_json(best: list[Best]) -> list[dict[str, Any]]:
    """The best configurations as plain data; what there is not is null."""

    def value(x: Any) -> Any:
        return None if x != x else x

    return [
        {
            **row.parameters,
            "n_gpus": row.n_gpus,
            "request_rate_rps": row.rate_rps or None,
            "is_top": row.is_top,
            **{name: value(x) for name, x in row.measures.items()},
        }
        for row in best
    ]


def workload_texts(plan: Plan) -> list[str]:
    """The descriptions of the workloads of a plan."""
    return list(dict.fromkeys(cell.traffic.description for cell in plan.cells))


def workloads_text(texts: list[str]) -> str:
    """The first workload's description, and how many others there are."""
    return texts[0] + (f"\nand {len(texts) - 1} more like it" if len(texts) > 1 else "")


def plan_json(plan: Plan, estimate: Estimate, workers: int) -> dict[str, Any]:
    """What a run would do, as plain data."""
    reasons: dict[str, int] = {}
    for cell in plan.cells:
        if cell.spec.infeasible is not None:
            reasons[cell.spec.infeasible] = reasons.get(cell.spec.infeasible, 0) + 1
    return {
        "name": plan.experiment.name,
        "axes": {key: list(values) for key, values in plan.axes.items()},
        "workloads": workload_texts(plan),
        "cells": len(plan.cells),
        "feasible": len(plan.feasible),
        "infeasible": reasons,
        "requests": sum(len(plan.cells[at].traffic.workload) for at in plan.feasible),
        "workers": workers,
        "estimated_cpu_s": round(estimate.cpu_s, 1),
        "estimated_wall_s": round(estimate.wall_s, 1),
        "estimated_memory_mb": round(estimate.memory_bytes / 1e6),
    }


def plan_text(facts: dict[str, Any]) -> str:
    """`plan_json` for people."""
    lines = [f"{facts['name']}: {facts['cells']:,} cells, {facts['feasible']:,} of them feasible"]
    for name, values in facts["axes"].items():
        shown = [_text(value) for value in values]
        if len(shown) > 12:
            shown = [*shown[:6], "...", *shown[-3:]]
        lines.append(f"  {name} ({len(values)}): {', '.join(shown)}")
    lines += [f"  infeasible, {count:,} cells: {reason}" for reason, count in facts["infeasible"].items()]
    lines += [f"  {line}" for line in workloads_text(facts["workloads"]).splitlines()]
    lines.append(
        f"Estimate: {facts['requests']:,} requests, {facts['estimated_cpu_s']:g} s of CPU, "
        f"{facts['estimated_wall_s']:g} s with {facts['workers']} worker{'s' if facts['workers'] > 1 else ''}, "
        f"{facts['estimated_memory_mb']:,} MB of memory"
    )
    return "\n".join(lines)


def _best_rate(parameters: dict[str, Any], n_gpus: int, cells: pd.DataFrame, target: float) -> Best:
    means = cells.groupby("request_rate_rps", sort=True)[list(_SHOWN)].mean().astype(float)
    kept = int((means["attainment"] >= target).cummin().sum())
    row = means.iloc[max(kept - 1, 0)]
    rate = float(means.index[kept - 1]) if kept else 0.0
    return Best(parameters, n_gpus, rate, kept == len(means), {name: float(row[name]) for name in _SHOWN})


def _ratio(first: Best, other: Best) -> str:
    """How far the first is ahead of another, rates per GPU compared."""
    name = _words({key: value for key, value in other.parameters.items() if key in RIVALS}) or "another"
    if not other.rate_rps:
        return f"{name} never reaches it"
    if first.is_top and other.is_top:
        return f"{name} at least {other.rate_rps:.4g} req/s too"
    if first.rate_per_gpu_rps == other.rate_per_gpu_rps:
        return f"{name} at the same rate"
    return f"{'at least ' if first.is_top else ''}{first.rate_per_gpu_rps / other.rate_per_gpu_rps:.2g} x {name}"


def _comparable(one: Best, other: Best) -> bool:
    return all(one.parameters.get(name) == other.parameters.get(name) for name in SEPARATE)


def _number(value: float, form: str, unit: str = "") -> str:
    return "-" if value != value else f"{value:{form}}{unit}"


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _words(parameters: dict[str, Any]) -> str:
    return ", ".join(
        _text(value) if name in RIVALS else f"{name} {_text(value)}"
        for name, value in parameters.items()
        if value is not None
    )
