"""What a placement search simulates: the plans of its parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..experiment.plan import Plan
from ..experiment.sizes import MAX_CELLS
from ..experiment.tables import TABLES, ConfigError, Experiment
from ..measures.slo import SLO
from ..messages import shown
from .options import GoodputOptions
from .search import searched_experiment, searched_plan
from .splits import Split

MAX_GPUS = 100_000  # to split: every number of instances is looked at
ROLE_SLOS = {"prefill": "ttft", "decode": "tpot"}

Row = Mapping[str, Any]  # of the goodput or the placement table
_SEARCHED = {  # keys that may have several values: what is searched, and what only colocated systems have
    *(("system", key) for key in ("kind", "n_instances", "n_prefill", "n_decode", "n_gpus")),
    *((table, key) for table in ("instance", "prefill_instance", "decode_instance") for key in ("tp", "pp")),
    *(("scheduler", key) for key in ("policy", "token_budget", "chunk_budget")),
}


def placed_experiment(
    config: str | Path | Mapping[str, Any] | Experiment,
    options: GoodputOptions,
    *,
    slo: SLO | Mapping[str, float | None] | None = None,
    warmup: float | None = None,
    cooldown: float | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
) -> Experiment:
    """An experiment of both kinds of system, so that every key of either may be given; ConfigError if it is no single
    question, or lacks an SLO.

    The rest is as `searched_experiment` takes it.
    """
    kinds = (["colocated", "disaggregated"], "placement")
    experiment = searched_experiment(
        config,
        options,
        slo=slo,
        warmup=warmup,
        cooldown=cooldown,
        trace=trace,
        settings=settings,
        further={"system.kind": kinds},
    )
    problems = []
    for table in TABLES:
        for key, values in vars(getattr(experiment, table)).items():
            several = isinstance(values, tuple) and len(values) > 1 and (table, key) not in _SEARCHED
            if several and experiment.in_use(table, key):
                problems.append(
                    f"{experiment.place(table, key)}: {table}.{key} = {shown(list(values))}: must be one value: a "
                    "placement is for one model, chip, link and traffic; it searches tp and pp"
                )
    for name in ROLE_SLOS.values():
        if getattr(experiment.slo, f"{name}_ms") == (None,):
            problems.append(
                f"{experiment.source}: slo: {name} must be limited too, as --slo ttft:500 tpot:50, or by ttft_ms and "
                "tpot_ms of [slo]: prefill instances are chosen by ttft, decode instances by tpot"
            )
    if problems:
        raise ConfigError(problems)
    return experiment


def role_plan(experiment: Experiment, options: GoodputOptions, role: str, n_gpus: int) -> Plan:
    """One instance of a role, in every parallelism that leaves a GPU for the other role; under its SLO alone."""
    own = {key: values for key, values in vars(getattr(experiment, f"{role}_instance")).items() if values != (None,)}
    held = {**vars(experiment.instance), **own}
    sizes = {tp * pp for tp in held["tp"] for pp in held["pp"]}
    fitting = sorted(size for size in sizes if size < n_gpus)
    if not fitting:
        raise ConfigError([f"n_gpus = {n_gpus}: a {role} instance takes {min(sizes)} GPUs: must be more than that"])
    name = ROLE_SLOS[role]
    return searched_plan(
        experiment,
        options,
        slo={f"{name}_ms": getattr(experiment.slo, f"{name}_ms")[0]},
        settings={
            **{f"instance.{key}": list(values) for key, values in own.items()},
            "system.kind": f"{role}_only",
            "system.n_instances": 1,
            "system.n_gpus": fitting,
        },
    )


def split_plan(experiment: Experiment, options: GoodputOptions, split: Split) -> Plan:
    """The system of a split, under every SLO."""
    settings: dict[str, Any] = {"system.kind": "disaggregated", "system.n_gpus": split.n_gpus}
    for role, count, one in (("prefill", split.n_prefill, split.prefill), ("decode", split.n_decode, split.decode)):
        settings |= {f"system.n_{role}": count, f"{role}_instance.tp": one.tp, f"{role}_instance.pp": one.pp}
    return searched_plan(experiment, options, settings=settings)


def joint_plan(
    experiment: Experiment, options: GoodputOptions, n_gpus: int, parts: Mapping[str, Sequence[Row]]
) -> Plan:
    """Every disaggregated system of at most `n_gpus`, and every colocated one that has no room for another instance.

    parts  rows of each role: parallelisms that cannot run there are left out
    """
    degrees = {
        role: {key: sorted({row[key] for row in parts[role] if row["status"] != "infeasible"}) for key in ("tp", "pp")}
        for role in ROLE_SLOS
    }
    sizes = {role: {tp * pp for tp in held["tp"] for pp in held["pp"]} for role, held in degrees.items()}
    least = {role: min(row["n_gpus"] for row in parts[role] if row["status"] != "infeasible") for role in ROLE_SLOS}
    counts = {
        role: range(1, max(1, (n_gpus - least[other]) // least[role]) + 1)
        for role, other in (("prefill", "decode"), ("decode", "prefill"))
    }
    alike = {tp * pp for tp in experiment.instance.tp for pp in experiment.instance.pp}
    colocated = range(1, max(1, n_gpus // min(alike)) + 1)
    splits = math.prod(map(len, (*counts.values(), *sizes.values())))
    if splits > MAX_CELLS:
        must = f"must be at most {MAX_CELLS:,}: fewer GPUs or parallelisms, or no exhaustive search"
        raise ConfigError([f"n_gpus = {n_gpus}: {splits:,} splits to compare: {must}"])
    totals = {n * size for n in colocated for size in alike}
    totals |= {
        n_prefill * prefill + n_decode * decode
        for n_prefill, n_decode in itertools.product(*counts.values())
        for prefill, decode in itertools.product(*sizes.values())
    }
    settings: dict[str, Any] = {
        "system.n_gpus": sorted(total for total in totals if total <= n_gpus),
        "system.n_instances": list(colocated),
    }
    for role in ROLE_SLOS:
        settings[f"system.n_{role}"] = list(counts[role])
        settings |= {f"{role}_instance.{key}": values for key, values in degrees[role].items()}
    plan = searched_plan(experiment, options, settings=settings)
    cells = [plan.cells[at] for at in plan.feasible]
    kept = [
        cell
        for cell in cells
        if cell.spec.prefill_step is not None or cell.spec.n_gpus + cell.spec.step.n_gpus > n_gpus
    ]
    return replace(plan, cells=tuple(kept))


def parallelism_rows(plan: Plan) -> list[Row]:
    """What is known of the parallelisms of a role before they are searched, as `joint_plan` takes it."""
    return [{**cell.columns(), "status": "infeasible" if cell.spec.infeasible else "ok"} for cell in plan.cells]


def gpus_to_split(experiment: Experiment, n_gpus: int | None) -> int:
    """The number of GPUs asked for, or that of the experiment."""
    values = experiment.system.n_gpus if n_gpus is None else (n_gpus,)
    number = values[0]
    if len(values) != 1 or isinstance(number, bool) or not isinstance(number, int) or not 2 <= number <= MAX_GPUS:
        given = "is missing" if values == (None,) else f"= {shown(number if len(values) == 1 else list(values))}"
        must = f"must be one number of at least 2 and at most {MAX_GPUS}"
        raise ConfigError([f"n_gpus {given}: {must}, as --n-gpus 8 or system.n_gpus"])
    return number
