"""What a search for goodput tells: the best configuration of every policy, and how far it is ahead of the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..analysis.ranking import COMPARISON_GROUPS, COMPETING_AXES, SEEDS, competing_axes
from ..analysis.selection import axes, plain, plain_text
from ..experiment.tables import ConfigError
from ..goodput.bisection import UPPER_END_PASSES
from ..messages import nearest, number_text

if TYPE_CHECKING:
    import pandas as pd

    from ..experiment.plan import Plan

SHORT_NAMES = {"block_size": "block", "token_budget": "budget"}
_SHOWN = (
    "attainment",
    "attainment_low",
    "attainment_high",
    "output_throughput_per_gpu_tps",
    "ttft_p99_s",
    "tpot_p99_s",
)


@dataclass(frozen=True)
class BestGoodput:
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


def best_goodputs(df: pd.DataFrame) -> list[BestGoodput]:
    """The best configuration of every system, policy and router by goodput per GPU, the best first.

    Seeds count together. As in `ranking.best_by_policy`, what is given and not chosen has a best of its own.

    df  the goodput table
    """
    ok = df[df["status"] == "ok"]
    varied = [name for name in axes(df) if name not in SEEDS]
    groups = [*competing_axes(ok), *(name for name in COMPARISON_GROUPS if name in varied)]
    names = list(dict.fromkeys([*groups, *varied]))
    best: dict[tuple[Any, ...], BestGoodput] = {}
    for key, rows in ok.groupby([*names, "n_gpus"], observed=True, dropna=False, sort=False):
        found = _best(dict(zip(names, (plain(value) for value in key[:-1]), strict=True)), int(key[-1]), rows)
        group = tuple(found.parameters[name] for name in groups)
        if group not in best or found.goodput > best[group].goodput:
            best[group] = found
    return sorted(best.values(), key=lambda row: -row.goodput)


def _best(parameters: dict[str, Any], n_gpus: int, rows: pd.DataFrame) -> BestGoodput:
    rates = rows["goodput_per_gpu_rps"]
    binding = rows["binding_slo"].dropna()
    return BestGoodput(
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
    names = list(dict.fromkeys(name for cell in plan.cells for name in competitors(cell.columns())))
    if baseline is None:
        varied = [key for key in COMPETING_AXES if len({cell.columns()[key] for cell in plan.cells}) > 1]
        first = plan.cells[0].columns()
        return next((str(first[key]) for key in varied if first[key] is not None), names[0])
    if baseline not in names:
        problem = f"is no system, policy or router of the experiment{nearest(baseline, names)}"
        raise ConfigError([f"baseline = {baseline!r}: {problem}"])
    return baseline


def competitors(parameters: Mapping[str, Any]) -> list[str]:
    """The names that say what a configuration competes as: of its system, policy and router."""
    return [str(parameters[key]) for key in COMPETING_AXES if parameters.get(key) is not None]


def format_goodputs(best: Sequence[BestGoodput], baseline: str, target: float) -> list[str]:
    """A line for each policy: "chunked, block 16, budget 512: 21.4 req/s per GPU at 90% (1.6 x prefill_first)"."""
    return [
        f"{format_configuration(row)}: {_format_rate(row, target)}{_format_ratio(row, best, baseline)}" for row in best
    ]


def format_configuration(row: BestGoodput) -> str:
    """A configuration in words."""
    return ", ".join(
        plain_text(value) if name in COMPETING_AXES else f"{SHORT_NAMES.get(name, name)} {plain_text(value)}"
        for name, value in row.parameters.items()
        if value is not None
    )


def _format_rate(row: BestGoodput, target: float) -> str:
    if not row.goodputs:
        return f"no rate reaches {100 * target:.3g}%: {row.reasons[0]}"
    spread = (
        f" (seeds: {number_text(row.goodputs[0])} to {number_text(row.goodputs[-1])})" if len(row.goodputs) > 1 else ""
    )
    at_least = "at least " if row.is_bound else ""
    return f"{at_least}{number_text(row.goodput)} req/s per GPU at {100 * target:.3g}%{spread}"


def baseline_ratio(row: BestGoodput, best: Sequence[BestGoodput], baseline: str) -> float | None:
    """Goodput over that of the baseline's best; None where that has none, or only a lower bound."""
    for other in best:
        same = all(row.parameters.get(name) == other.parameters.get(name) for name in COMPARISON_GROUPS)
        if same and baseline in competitors(other.parameters) and other.goodput and row.goodput:
            return None if other.is_bound and other is not row else row.goodput / other.goodput
    return None


def _format_ratio(row: BestGoodput, best: Sequence[BestGoodput], baseline: str) -> str:
    times = baseline_ratio(row, best, baseline)
    if times is None or baseline in competitors(row.parameters):
        return ""
    return f" ({'at least ' if row.is_bound else ''}{times:.2g} x {baseline})"
