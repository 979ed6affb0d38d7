"""What a sweep tells: the table of its best configurations."""

from __future__ import annotations

from ..analysis.ranking import COMPETING_AXES, TARGET, BestRate
from ..analysis.selection import short_text
from ..messages import number_text
from .text_tables import print_table


def print_best(best: list[BestRate], target: float = TARGET, title: str | None = None) -> None:
    """A table of configurations, on stdout; by default those that are the best of something."""
    if not best:
        return
    if title is None:
        by = " and ".join(name for name in COMPETING_AXES if name in best[0].parameters)
        title = f"Best configuration by {by or 'workload'}"
    headers, rows = best_rows(best)
    print_table(headers, rows, f"{title} ({target:.0%} attainment)", left=len(best[0].parameters))


def best_rows(best: list[BestRate]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of a table of configurations: the parameters, then the rate and the measures at it."""
    per_gpu = ["GPUs", "req/s/GPU"] if any(row.n_gpus > 1 for row in best) else []
    measures = ["attainment", "output tok/s", "ttft p99", "tpot p99", "KV peak", "preemptions"]
    rows = []
    for row in best:
        m = row.measures
        rows.append(
            [
                *(short_text(value) for value in row.parameters.values()),
                f"{'>= ' if row.is_top else ''}{number_text(row.rate_rps, 4)}" if row.rate_rps else "none",
                *([str(row.n_gpus), number_text(row.rate_per_gpu_rps)] if per_gpu else []),
                _number(m["attainment"], ".1%"),
                _number(m["output_throughput_tps"], ",.0f"),
                _number(1000 * m["ttft_p99_s"], ",.0f", " ms"),
                _number(1000 * m["tpot_p99_s"], ",.1f", " ms"),
                _number(m["kv_utilization_peak"], ".0%"),
                _number(m["preemptions"], ",.0f"),
            ]
        )
    return [*best[0].parameters, "req/s", *per_gpu, *measures], rows


def _number(value: float, form: str, unit: str = "") -> str:
    return "-" if value != value else f"{value:{form}}{unit}"
