"""The configurations of a sweep ranked by the request rate at which they keep the SLOs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..experiment.instance_tables import USED_BY
from ..measures.slo import SLOS
from .selection import BadTable, axes, need_columns, plain

if TYPE_CHECKING:
    import pandas as pd


SEEDS = ("seed", "router_seed")  # repetitions, which are averaged
TARGET = 0.9  # attainment that the best rate must keep
_ASSUMED = ("step_times", *(key for key in USED_BY if key != "link"), "mem_reserve")
# What is given, not chosen: configurations that differ in one of these are not compared, each value has its own best.
COMPARISON_GROUPS = (
    *("workload", "n_requests", "arrivals", "cv", "model", *(f"{name}_slo_s" for name in SLOS)),
    *(f"{role}{name}" for name in _ASSUMED for role in ("", "prefill_", "decode_")),
)
COMPETING_AXES = ("system", "policy", "router")  # each has a best of its own, and they are compared


@dataclass(frozen=True)
class BestRate:
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


def best_by_policy(df: pd.DataFrame, target: float = TARGET) -> list[BestRate]:
    """The best configuration of every system, policy and router of the sweep, the best first; see `ranked`.

    Configurations are not compared across workloads, models, SLOs, efficiencies or reserved memory: each of these has
    its own best.
    """
    best: dict[tuple[Any, ...], BestRate] = {}
    for one in ranked(df, target):
        best.setdefault(tuple(one.parameters.get(name) for name in (*COMPETING_AXES, *COMPARISON_GROUPS)), one)
    return list(best.values())


def ranked(df: pd.DataFrame, target: float = TARGET) -> list[BestRate]:
    """Every configuration of a sweep, the best first.

    Best is the highest request rate per GPU that keeps `target`: attainment, the mean over seeds, is at least that at
    this rate and at every lower rate of the sweep. Ties go to the higher attainment, then output throughput.

    df  the cells table of a run, as `load` or `Run.df` gives it: `attrs["config"]` tells the axes
    """
    need_columns(df, ("request_rate_rps", "n_gpus", *_SHOWN))
    ok = df[df["status"] == "ok"]
    _check_attainment(ok)
    varied = [name for name in axes(df) if name not in ("request_rate_rps", *SEEDS)]
    groups = [*competing_axes(ok), *(name for name in COMPARISON_GROUPS if name in varied)]
    names = list(dict.fromkeys([*groups, *varied]))
    found = []
    for key, cells in ok.groupby([*names, "n_gpus"], observed=True, dropna=False, sort=False):
        parameters = dict(zip(names, (plain(value) for value in key[:-1]), strict=True))
        found.append(_best_rate(parameters, int(key[-1]), cells, target))
    return sorted(found, key=_rank, reverse=True)


def competing_axes(df: pd.DataFrame) -> list[str]:
    """Those of system, policy and router that the sweep varies, and the policy where there is one."""
    varied = axes(df)
    has_policy = "policy" in df.columns and df["policy"].notna().any()
    return [name for name in COMPETING_AXES if name in varied or (name == "policy" and has_policy)]


def _check_attainment(ok: pd.DataFrame) -> None:
    """BadTable for cells without attainment that have requests to count: they would be as if they kept no SLO."""
    if "attainment_requests" in ok.columns:
        lacking = ok["attainment"].isna() & (ok["attainment_requests"] > 0).fillna(False)
        if lacking.any():
            raise BadTable(f"column attainment is missing in {int(lacking.sum()):,} of {len(ok):,} cells that are ok")


def _rank(one: BestRate) -> tuple[float, ...]:
    """Sorts the best last; what is missing, such as the attainment of a window without requests, first."""
    measures = (one.measures["attainment"], one.measures["output_throughput_tps"] / one.n_gpus)
    return (one.rate_per_gpu_rps, *(float(np.nan_to_num(x, nan=-1.0)) for x in measures))


def best_json(best: list[BestRate]) -> list[dict[str, Any]]:
    """The best configurations as plain data; what there is not is None."""

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


def _best_rate(parameters: dict[str, Any], n_gpus: int, cells: pd.DataFrame, target: float) -> BestRate:
    means = cells.groupby("request_rate_rps", sort=True)[list(_SHOWN)].mean().astype(float)
    kept = int((means["attainment"] >= target).cummin().sum())
    row = means.iloc[max(kept - 1, 0)]
    rate = float(means.index[kept - 1]) if kept else 0.0
    return BestRate(parameters, n_gpus, rate, kept == len(means), {name: float(row[name]) for name in _SHOWN})
