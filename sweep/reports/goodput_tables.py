"""What a search for goodput tells: a table for the terminal, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..analysis.selection import plain_text
from ..analysis.verdicts import step_times_sources
from ..measures.slo import SLOS
from ..messages import number_text
from .frontier import SHORT_NAMES, BestGoodput, baseline_ratio, format_goodputs
from .text_tables import print_table

if TYPE_CHECKING:
    import pandas as pd

    from ..goodput.search import Goodput


def print_frontier(best: Sequence[BestGoodput], baseline: str, target: float, slo: str) -> None:
    """The table of the best configurations, on stdout."""
    if not best:
        return
    parameters = [SHORT_NAMES.get(name, name) for name in best[0].parameters]
    measured = ("attainment", "95 % interval", "binding", "tok/s/GPU", "ttft p99", "tpot p99")
    rows = []
    for row in best:
        m, times = row.measures, baseline_ratio(row, best, baseline)
        rows.append(
            [
                *(plain_text(value) for value in row.parameters.values()),
                f"{'>= ' if row.is_bound else ''}{number_text(row.goodput)}" if row.goodputs else "none",
                "-" if times is None else f"{times:.2f}",
                *(
                    (
                        f"{m['attainment']:.1%}",
                        f"{m['attainment_low']:.1%} - {m['attainment_high']:.1%}",
                        row.binding_slo or "-",
                        f"{m['output_throughput_per_gpu_tps']:,.0f}",
                        f"{1000 * m['ttft_p99_s']:,.0f} ms",
                        f"{1000 * m['tpot_p99_s']:,.1f} ms",
                    )
                    if row.goodputs
                    else ("-", "-", row.binding_slo or "-", "-", "-", "-")
                ),
                ", ".join(row.endings),
            ]
        )
    print_table(
        [*parameters, "req/s/GPU", f"x {baseline}", *measured, "ending"],
        rows,
        f"Best configuration by policy: highest request rate with {100 * target:.3g}% attainment ({slo})",
        left=len(parameters),
        last_is_text=True,
    )


def _limits_ms(df: pd.DataFrame) -> dict[str, list[float]]:
    """The SLOs of a search in ms, by name, one or several each; those that are not set left out."""
    limits = {name: (1000 * df[f"{name}_slo_s"].dropna()).round(9).unique().tolist() for name in SLOS}
    return {name: values for name, values in limits.items() if values}


def goodput_json(found: Goodput, best: Sequence[BestGoodput], baseline: str) -> dict[str, Any]:
    """The outcome as plain data; what there is not is null."""
    target = found.options.attainment
    return {
        "name": found.experiment.name,
        "directory": str(found.directory),
        "search": found.options.tables(),
        "slo_ms": _limits_ms(found.df),
        "step_times": step_times_sources(found.df),
        **found.counts,
        "rounds": found.rounds,
        "probes": found.probes,
        "wall_s": round(found.wall_s, 2),
        "baseline": baseline,
        "best": [
            {
                **row.parameters,
                "n_gpus": row.n_gpus,
                "goodput_per_gpu_rps": row.goodput or None,
                "goodput_per_gpu_rps_by_seed": list(row.goodputs),
                "is_lower_bound": row.is_bound,
                "ratio_to_baseline": baseline_ratio(row, best, baseline),
                "binding_slo": row.binding_slo,
                "endings": list(row.endings),
                "reasons": list(row.reasons),
                **{name: None if value != value else value for name, value in row.measures.items()},
            }
            for row in best
        ],
        "lines": format_goodputs(best, baseline, target),
        "warnings": list(found.warnings),
    }
