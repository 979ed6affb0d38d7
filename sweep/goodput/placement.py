"""The best way to split a number of GPUs between prefill and decode, searched as DistServe's placement search does.

Each role on its own first: the goodput of one prefill instance under the TTFT SLO, and of one decode instance under the
TPOT SLO, for every parallelism. Then the numbers of instances, by arithmetic, and one simulation of the whole system
under every SLO (Zhong et al., OSDI 2024, section 4.1; docs/placement.md says what differs).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import checks
from ..experiment.plan import Plan
from ..experiment.sizes import MAX_CELLS
from ..experiment.tables import TABLES, ConfigError, Experiment
from ..measures.slo import SLO
from ..messages import shown
from ..runner.directory import environment, output_directory, prepare_directory, write_json
from ..tables.build import placement_table, write_table
from ..tables.filenames import PLACEMENT_FACTS, PLACEMENT_FILES, table_file
from ..tables.reading import table_of
from ..tables.schemas import PLACEMENT_SCHEMA
from .options import GoodputOptions
from .search import Goodput, search_plan, searched_experiment, searched_plan
from .splits import Parallelism, Split, balanced_split, choose_split
from .verdict import placement_cautions, placement_verdict

if TYPE_CHECKING:
    import pandas as pd

MAX_GPUS = 100_000  # to split: every number of instances is looked at
ROLE_SLOS = {"prefill": "ttft", "decode": "tpot"}

Row = Mapping[str, Any]  # of the goodput or the placement table
_SEARCHED = {  # keys that may have several values: what is searched, and what only colocated systems have
    *(("system", key) for key in ("kind", "n_instances", "n_prefill", "n_decode", "n_gpus")),
    *((table, key) for table in ("instance", "prefill_instance", "decode_instance") for key in ("tp", "pp")),
    *(("scheduler", key) for key in ("policy", "token_budget", "chunk_budget")),
}


@dataclass(frozen=True)
class Placement:
    """A placement search that has ended, as its directory holds it.

    Attributes
    ----------
    experiment, options
        What was asked.
    directory
        Where the tables are.
    n_gpus
        GPUs to split.
    split
        What was chosen, and what its roles on their own promised.
    balanced
        The split of all pairs of parallelisms that promises most, which need not be of the best ones.
    is_exhaustive
        Whether all systems were searched too.
    verdict
        The outcome in a line.
    warnings
        What to know before the numbers are used.
    failed
        Candidates whose simulation failed.
    wall_s
        Seconds that the search took.
    """

    experiment: Experiment
    options: GoodputOptions
    directory: Path
    n_gpus: int
    split: Split
    balanced: Split
    is_exhaustive: bool
    verdict: str
    warnings: tuple[str, ...]
    failed: int
    wall_s: float

    @cached_property
    def df(self) -> pd.DataFrame:
        """One row a candidate, the best of each part first; units and definitions in `df.attrs`."""
        from ..tables.reading import load

        return load(self.directory, "placement")

    @property
    def prefill(self) -> pd.DataFrame:
        """One prefill instance of each parallelism."""
        return self.df[self.df["part"] == "prefill"]

    @property
    def decode(self) -> pd.DataFrame:
        """One decode instance of each parallelism."""
        return self.df[self.df["part"] == "decode"]

    @property
    def chosen(self) -> pd.DataFrame:
        """The row of the system that was chosen."""
        return self.df[(self.df["part"] == "joint") & self.df["is_chosen"]]

    @property
    def exhaustive(self) -> pd.DataFrame | None:
        """All systems of the joint search, the chosen one among them; None when it was not asked for."""
        return self.df[self.df["part"] == "joint"] if self.is_exhaustive else None


def find_placement(
    config: str | Path | Mapping[str, Any] | Experiment,
    *,
    n_gpus: int | None = None,
    exhaustive: bool = False,
    slo: SLO | Mapping[str, float | None] | None = None,
    attainment: float = 0.9,
    lo: float = 0.05,
    hi: float = 64.0,
    rel_tol: float = 0.01,
    warmup: float | None = None,
    cooldown: float | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Placement:
    """Choose parallelism and number of prefill and decode instances for a number of GPUs; writes the tables.

    Parameters
    ----------
    config
        An experiment as for `find_goodput`. tp and pp of [instance], or of a role's own table, are what is searched;
        its system, numbers of instances and rates are not used; its policies and budgets are those of the colocated
        systems that `exhaustive` compares with.
    n_gpus
        GPUs to split, 2 to 100,000. None: system.n_gpus of the experiment.
    exhaustive
        Also search every split with every pair of parallelisms of at most n_gpus, and colocated systems.
    slo
        As for `find_goodput`; TTFT and TPOT must be limited.
    attainment, lo, hi, rel_tol
        See `GoodputOptions`; `lo` and `hi` are in requests/s, and an upper end that passes is doubled.
    warmup, cooldown, workers, out, trace, settings, progress
        As for `find_goodput`.

    Returns
    -------
    Placement
        What was chosen, and every candidate in its `df`.

    Raises
    ------
    ConfigError
        When something is wrong, no pair of instances fits, or a role meets its SLO with no parallelism.
    SearchInterrupted
        On Ctrl-C: the part that was stopped has its rates in a folder of its own.
    SearchStopped
        When the tables cannot be written.
    """
    started = time.perf_counter()
    checks.whether("exhaustive", exhaustive)
    options = GoodputOptions(attainment=attainment, lo=lo, hi=hi, rel_tol=rel_tol, find_upper=True)
    experiment = placed_experiment(
        config, options, slo=slo, warmup=warmup, cooldown=cooldown, trace=trace, settings=settings
    )
    n_gpus = _gpus(experiment, n_gpus)
    plans = {role: role_plan(experiment, options, role, n_gpus) for role in ROLE_SLOS}
    known = {role: _parallelism_rows(plan) for role, plan in plans.items()}
    joint = joint_plan(experiment, options, n_gpus, known) if exhaustive else None  # too large: before any search
    directory = prepare_directory(output_directory(experiment, out), PLACEMENT_FILES, (*ROLE_SLOS, "joint"))

    def search(part: str, plan: Plan) -> Goodput:
        return search_plan(plan, options, workers=workers, out=directory / part, progress=progress)

    found = {role: search(role, plan) for role, plan in plans.items()}
    parts: dict[str, list[Row]] = {role: _rows(found[role]) for role in ROLE_SLOS}
    prefills, decodes = (parallelisms(role, parts[role]) for role in ROLE_SLOS)
    split, balanced = choose_split(n_gpus, prefills, decodes), balanced_split(n_gpus, prefills, decodes)
    found["joint"] = search("joint", joint or split_plan(experiment, options, split))
    parts["joint"] = _rows(found["joint"])
    rows = placement_rows(parts, split)
    facts = {**options.tables(), "n_gpus": n_gpus, "exhaustive": exhaustive}
    tables = {key: value for key, value in experiment.tables().items() if key != "output"}
    del tables["workload"]["request_rate_rps"]
    write_table(directory / table_file("placement"), placement_table(rows, {**tables, "placement": facts}))

    placement = Placement(
        experiment,
        options,
        directory,
        n_gpus,
        split,
        balanced,
        exhaustive,
        placement_verdict(rows, exhaustive),
        (
            *dict.fromkeys(warning for part in found.values() for warning in part.warnings),
            *placement_cautions(rows, split, balanced),
        ),
        sum(part.counts["failed"] for part in found.values()),
        time.perf_counter() - started,
    )
    facts |= {"verdict": placement.verdict, "wall_s": round(placement.wall_s, 3)}
    write_json(directory / PLACEMENT_FACTS, {"experiment": tables, "placement": facts, **environment()})
    return placement


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


def _parallelism_rows(plan: Plan) -> list[Row]:
    """What is known of the parallelisms of a role before they are searched, as `joint_plan` takes it."""
    return [{**cell.columns(), "status": "infeasible" if cell.spec.infeasible else "ok"} for cell in plan.cells]


def parallelisms(role: str, rows: Sequence[Row]) -> list[Parallelism]:
    """Those at which a role meets its SLO at some rate; ConfigError, with the reasons, where there are none."""
    found = [Parallelism(row["tp"], row["pp"], row["max_rate_rps"]) for row in rows if row["max_rate_rps"] is not None]
    if not found:
        reasons = dict.fromkeys(f"tp {row['tp']}, pp {row['pp']}: {row['reason'] or row['error']}" for row in rows)
        raise ConfigError([f"no {role} instance meets the {ROLE_SLOS[role]} SLO: {reason}" for reason in reasons])
    return found


def placement_rows(parts: Mapping[str, Sequence[Row]], split: Split) -> list[dict[str, Any]]:
    """The rows of the placement table: by part, then by rate (of a role: per GPU), then fewer GPUs, the chosen."""
    rates = {role: {(row["tp"], row["pp"]): row["max_rate_rps"] for row in parts[role]} for role in ROLE_SLOS}
    made = []
    for part, rows in parts.items():
        by = "max_rate_rps" if part == "joint" else "goodput_per_gpu_rps"
        new = [
            {
                **{name: row[name] for name in PLACEMENT_SCHEMA.names if name in row},
                "part": part,
                "is_chosen": _is_chosen(part, row, split),
                "predicted_rps": _predicted(row, rates),
            }
            for row in rows
        ]
        made += sorted(new, key=lambda row: (-(row[by] or 0.0), row["n_gpus"], not row["is_chosen"]))
    return made


def _is_chosen(part: str, row: Row, split: Split) -> bool:
    if part == "joint":
        return all(row[name] == value for name, value in split.layout().items())
    one = split.prefill if part == "prefill" else split.decode
    return (one.tp, one.pp) == (row["tp"], row["pp"])


def _predicted(row: Row, rates: Mapping[str, Mapping[tuple[int, int], float | None]]) -> float | None:
    if row["system"] != "disaggregated":
        return None
    taken = [(row[f"n_{role}"], rates[role][row[f"{role}_tp"], row[f"{role}_pp"]]) for role in ROLE_SLOS]
    known = [count * rate for count, rate in taken if rate is not None]
    return min(known) if len(known) == len(taken) else None


def _rows(found: Goodput) -> list[Row]:
    rows: list[Row] = table_of(found.directory, "goodput").to_pylist()
    return rows


def _gpus(experiment: Experiment, n_gpus: int | None) -> int:
    """The number of GPUs asked for, or that of the experiment."""
    values = experiment.system.n_gpus if n_gpus is None else (n_gpus,)
    number = values[0]
    if len(values) != 1 or isinstance(number, bool) or not isinstance(number, int) or not 2 <= number <= MAX_GPUS:
        given = "is missing" if values == (None,) else f"= {shown(number if len(values) == 1 else list(values))}"
        must = f"must be one number of at least 2 and at most {MAX_GPUS}"
        raise ConfigError([f"n_gpus {given}: {must}, as --n-gpus 8 or system.n_gpus"])
    return number
