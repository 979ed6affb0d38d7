"""The best way to split a number of GPUs between prefill and decode, searched as DistServe's placement search does.

Each role on its own first: the goodput of one prefill instance under the TTFT SLO, and of one decode instance under the
TPOT SLO, for every parallelism. Then the numbers of instances, by arithmetic, and one simulation of the whole system
under every SLO (Zhong et al., OSDI 2024, section 4.1; docs/placement.md says what differs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .. import checks
from ..experiment.plan import Plan
from ..experiment.tables import ConfigError, Experiment
from ..measures.slo import SLO
from ..runner.directory import as_json, environment, output_directory, prepare_directory
from ..runner.hold import Hold, holds, refuse_other
from ..streams import say
from ..tables.atomic_write import take_away, write_together
from ..tables.build import placement_table, write_parquet
from ..tables.filenames import GOODPUT_FILES, PLACEMENT_FACTS, PLACEMENT_FILES, table_file
from ..tables.reading import table_of
from ..tables.schemas import PLACEMENT_SCHEMA
from .options import GoodputOptions
from .placement_plans import (
    ROLE_SLOS,
    Row,
    gpus_to_split,
    joint_plan,
    parallelism_rows,
    placed_experiment,
    role_plan,
    split_plan,
)
from .search import Goodput, search_plan, writing
from .splits import Parallelism, Split, balanced_split, choose_split
from .verdict import placement_cautions, placement_verdict

if TYPE_CHECKING:
    import pandas as pd

PARTS = (*ROLE_SLOS, "joint")  # folders of the searches


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


@checks.spelt_out
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
    fresh: bool = False,
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
    warmup, cooldown, workers, out, trace, settings, progress, fresh
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
    checks.whether("fresh", fresh)
    options = GoodputOptions(attainment=attainment, lo=lo, hi=hi, rel_tol=rel_tol, find_upper=True)
    experiment = placed_experiment(
        config, options, slo=slo, warmup=warmup, cooldown=cooldown, trace=trace, settings=settings
    )
    n_gpus = gpus_to_split(experiment, n_gpus)
    plans = {role: role_plan(experiment, options, role, n_gpus) for role in ROLE_SLOS}
    known = {role: parallelism_rows(plan) for role, plan in plans.items()}
    joint = joint_plan(experiment, options, n_gpus, known) if exhaustive else None  # too large: before any search
    directory = prepare_directory(output_directory(experiment, out), PLACEMENT_FILES, PARTS)

    facts = {**options.tables(), "n_gpus": n_gpus, "exhaustive": exhaustive}
    tables = {key: value for key, value in experiment.tables().items() if key != "output"}
    del tables["workload"]["request_rate_rps"]
    asked = {**tables, "placement": dict(facts)}

    def search(part: str, plan: Plan) -> Goodput:
        return search_plan(plan, options, workers=workers, out=directory / part, progress=progress, fresh=True)

    with Hold(directory, "placement") as hold:
        refuse_other(directory, "placement", asked, fresh=fresh)
        for note in hold.notes if progress else ():
            say(note)
        if not holds(directory, "placement", asked):  # what is there is of another placement
            for folder, names in ((directory, PLACEMENT_FILES), *((directory / part, GOODPUT_FILES) for part in PARTS)):
                take_away(folder, names)
        found = {role: search(role, plan) for role, plan in plans.items()}
        parts: dict[str, list[Row]] = {role: _rows(found[role]) for role in ROLE_SLOS}
        prefills, decodes = (parallelisms(role, parts[role]) for role in ROLE_SLOS)
        split, balanced = choose_split(n_gpus, prefills, decodes), balanced_split(n_gpus, prefills, decodes)
        found["joint"] = search("joint", joint or split_plan(experiment, options, split))
        parts["joint"] = _rows(found["joint"])
        rows = placement_rows(parts, split)
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
        about = as_json({"experiment": tables, "placement": facts, **environment()})
        table = directory / table_file("placement")
        files: dict[Path, Callable[[BinaryIO], object]] = {
            table: lambda file: write_parquet(file, placement_table(rows, asked)),
            directory / PLACEMENT_FACTS: lambda file: file.write(about),
        }
        with writing(directory):
            write_together(files, key=table)
    return placement


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
