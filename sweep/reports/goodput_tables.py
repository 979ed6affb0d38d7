"""What a search for goodput tells: the best configuration of every policy, and how far it is ahead of the baseline."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..analysis.ranking import RIVALS, SEEDS, SEPARATE, rivals
from ..analysis.selection import axes, plain, plain_text
from ..checks import nearest
from ..experiment.tables import ConfigError
from ..goodput.bisection import UPPER_END_PASSES
from ..measures.latencies import SLOS

if TYPE_CHECKING:
    import pandas as pd

    from ..experiment.plan import Plan
    from ..goodput.search import Goodput

_SHORT = {"block_size": "block", "token_budget": "budget"}
_SHOWN = (
    "attainment",
    "attainment_low",
    "attainment_high",
    "output_throughput_per_gpu_tps",
    "ttft_p99_s",
    "tpot_p99_s",
)


@dataclass(frozen=True)
class Best:
    """The best configuration of one policy.

    parameters   values of the axes of the grid; policy first
    goodputs     per GPU, one a seed, ascending; empty when no rate was found for some seed
    is_bound     an upper end passed, so that the configuration may reach more
    endings      of its seeds, and reasons for other endings than converged
    measures     means over seeds
    """

    parameters: dict[str, Any]
    n_gpus: int
    goodputs: tuple[float, ...]
    is_bound: bool
    endings: tuple[str, ...]
    reasons: tuple[str, ...]
    binding_slo: str | None
    measures: dict[str, float]

    @property
    def goodput(self) -> float:
        """Requests/s per GPU, the mean over seeds; 0: none was found."""
        return sum(self.goodputs) / len(self.goodputs) if self.goodputs else 0.0


def frontier(df: pd.DataFrame) -> list[Best]:
    """The best configuration of every system, policy and router by goodput per GPU, the best first.

    Seeds count together. As in `reporting.best_by_policy`, what is given and not chosen has a best of its own.

    df  the goodput table
    """
    ok = df[df["status"] == "ok"]
    varied = [name for name in axes(df) if name not in SEEDS]
    groups = [*rivals(ok), *(name for name in SEPARATE if name in varied)]
    names = list(dict.fromkeys([*groups, *varied]))
    best: dict[tuple[Any, ...], Best] = {}
    for key, rows in ok.groupby([*names, "n_gpus"], observed=True, dropna=False, sort=False):
        found = _best(dict(zip(names, (plain(value) for value in key[:-1]), strict=True)), int(key[-1]), rows)
        group = tuple(found.parameters[name] for name in groups)
        if group not in best or found.goodput > best[group].goodput:
            best[group] = found
    return sorted(best.values(), key=lambda row: -row.goodput)


def _best(parameters: dict[str, Any], n_gpus: int, rows: pd.DataFrame) -> Best:
    rates = rows["goodput_per_gpu_rps"]
    binding = rows["binding_slo"].dropna()
    return Best(
        parameters,
        n_gpus,
        () if rates.isna().any() else tuple(sorted(float(rate) for rate in rates)),
        bool((rows["ending"] == UPPER_END_PASSES).any()),
        tuple(dict.fromkeys(str(ending) for ending in rows["ending"])),
        tuple(dict.fromkeys(str(reason) for reason in rows["reason"].dropna())),
        None if binding.empty else str(binding.value_counts().index[0]),
        {name: float(rows[name].astype(float).mean()) for name in _SHOWN},
    )


def check_baseline(plan: Plan, baseline: str | None) -> str:
    """What others are compared with: the policy, system or router asked for, or the experiment's first."""
    names = list(dict.fromkeys(name for cell in plan.cells for name in rivals_of(cell.columns())))
    if baseline is None:
        varied = [key for key in RIVALS if len({cell.columns()[key] for cell in plan.cells}) > 1]
        first = plan.cells[0].columns()
        return next((str(first[key]) for key in varied if first[key] is not None), names[0])
    if baseline not in names:
        problem = f"is no system, policy or router of the experiment{nearest(baseline, names)}"
        raise ConfigError([f"baseline = {baseline!r}: {problem}"])
    return baseline


def rivals_of(parameters: Mapping[str, Any]) -> list[str]:
    """The names that say which rival a configuration is: of its system, policy and router."""
    return [str(parameters[key]) for key in RIVALS if parameters.get(key) is not None]


def lines(best: Sequence[Best], baseline: str, target: float) -> list[str]:
    """A line for each policy: "chunked, block 16, budget 512: 21.4 req/s per GPU at 90% (1.6 x prefill_first)"."""
    return [f"{words(row)}: {_rate_words(row, target)}{_ratio_words(row, best, baseline)}" for row in best]


def words(row: Best) -> str:
    """A configuration in words."""
    return ", ".join(
        plain_text(value) if name in RIVALS else f"{_SHORT.get(name, name)} {plain_text(value)}"
        for name, value in row.parameters.items()
        if value is not None
    )


def _rate_words(row: Best, target: float) -> str:
    if not row.goodputs:
        return f"no rate reaches {100 * target:.3g}%: {row.reasons[0]}"
    spread = f" (seeds: {row.goodputs[0]:.3g} to {row.goodputs[-1]:.3g})" if len(row.goodputs) > 1 else ""
    at_least = "at least " if row.is_bound else ""
    return f"{at_least}{row.goodput:.3g} req/s per GPU at {100 * target:.3g}%{spread}"


def ratio(row: Best, best: Sequence[Best], baseline: str) -> float | None:
    """Goodput over that of the baseline's best; None where that has none, or only a lower bound."""
    for other in best:
        same = all(row.parameters.get(name) == other.parameters.get(name) for name in SEPARATE)
        if same and baseline in rivals_of(other.parameters) and other.goodput and row.goodput:
            return None if other.is_bound and other is not row else row.goodput / other.goodput
    return None


def _ratio_words(row: Best, best: Sequence[Best], baseline: str) -> str:
    times = ratio(row, best, baseline)
    if times is None or baseline in rivals_of(row.parameters):
        return ""
    return f" ({'at least ' if row.is_bound else ''}{times:.2g} x {baseline})"


def print_frontier(best: Sequence[Best], baseline: str, target: float, slo: str) -> None:
    """The table of the best configurations, on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not best:
        return
    title = f"Best configuration by policy: highest request rate with {100 * target:.3g}% attainment ({slo})"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in best[0].parameters:
        table.add_column(_SHORT.get(name, name))
    for label in (
        "req/s/GPU",
        f"x {baseline}",
        "attainment",
        "95 % interval",
        "binding",
        "tok/s/GPU",
        "ttft p99",
        "tpot p99",
    ):
        table.add_column(label, justify="right")
    table.add_column("ending")
    for row in best:
        m, times = row.measures, ratio(row, best, baseline)
        table.add_row(
            *(plain_text(value) for value in row.parameters.values()),
            f"{'>= ' if row.is_bound else ''}{row.goodput:.3g}" if row.goodputs else "none",
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
        )
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200).print(table)


def _limits_ms(df: pd.DataFrame) -> dict[str, list[float]]:
    """The SLOs of a search in ms, by name, one or several each; those that are not set left out."""
    limits = {name: (1000 * df[f"{name}_slo_s"].dropna()).round(9).unique().tolist() for name in SLOS}
    return {name: values for name, values in limits.items() if values}


def goodput_json(found: Goodput, best: Sequence[Best], baseline: str) -> dict[str, Any]:
    """The outcome as plain data; what there is not is null."""
    target = found.options.attainment
    return {
        "name": found.experiment.name,
        "directory": str(found.directory),
        "search": found.options.tables(),
        "slo_ms": _limits_ms(found.df),
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
                "ratio_to_baseline": ratio(row, best, baseline),
                "binding_slo": row.binding_slo,
                "endings": list(row.endings),
                "reasons": list(row.reasons),
                **{name: None if value != value else value for name, value in row.measures.items()},
            }
            for row in best
        ],
        "lines": lines(best, baseline, target),
        "warnings": list(found.warnings),
    }
