"""What a sweep will do: an experiment multiplied out to an ordered list of cells, each with a content id.

A cell is one configuration under one workload at one request rate. Its id is a hash of what changes its answer and of
nothing else, with the names of model, chip and link: not of paths, the number of workers, or the other cells of the
sweep. So a value that is added to an axis changes the id of no other cell, and the same cell has the same id in every
experiment. No two cells of a plan have the same id.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..measures.slo import SLOS
from ..messages import listed, shown
from ..serving.system import System
from .cell_selection import check_columns, conditions, is_written
from .sizes import axes, check_size
from .specs import SYSTEM_TABLES, SystemSpec, make_specs, points
from .tables import ConfigError, Experiment
from .traffic import SweepTraffic, Traces, make_traffics, unusable

RULES_VERSION = 1  # goes up when the simulator gives another answer for the same cell


@dataclass(frozen=True, eq=False, slots=True)
class Cell:
    """One row of the cells table, before it is simulated."""

    cell_id: str
    traffic: SweepTraffic
    spec: SystemSpec
    slo: Mapping[str, Any]
    request_rate_rps: float

    def columns(self) -> dict[str, Any]:
        """Values of the columns that say what the cell is."""
        return {
            "cell_id": self.cell_id,
            **self.traffic.columns,
            "request_rate_rps": self.request_rate_rps,
            **self.spec.columns,
            **self.slo,
        }

    def system(self) -> System:
        """The cell as the engine takes it."""
        return self.spec.system(self.traffic.workload, self.request_rate_rps)


@dataclass(frozen=True, eq=False)
class Plan:
    """The cells of an experiment, in the order of the rows of its table."""

    experiment: Experiment
    cells: tuple[Cell, ...]

    @property
    def feasible(self) -> list[int]:
        """Positions of the cells that can be simulated."""
        return [at for at, cell in enumerate(self.cells) if cell.spec.infeasible is None]

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Keys with more than one value, and their values."""
        return axes(self.experiment)

    def select(self, selection: str) -> list[int]:
        """Positions of the cells that a text chooses.

        selection  "all"; ids of cells or beginnings of ids, "3f2a,77c0"; or conditions on columns,
                   "policy=chunked,block_size=16": a column that is named twice may have either value

        ValueError for an unknown column, an id that fits no cell or several, and a choice of no cell.
        """
        parts = [part.strip() for part in selection.split(",")]
        if parts == ["all"]:
            return list(range(len(self.cells)))
        if conditions(selection):
            return self._where(selection)
        chosen = set()
        ids = sorted((cell.cell_id, at) for at, cell in enumerate(self.cells))
        for part in parts:
            begin, end = (bisect.bisect_left(ids, (part + last,)) for last in ("", "\U0010ffff"))
            found = [at for _, at in ids[begin:end]] if part else []
            if len(found) != 1:
                many = f"{len(found)} cell ids begin" if found else "no cell id begins"
                raise ValueError(
                    f"{shown(selection)}: {many} with {shown(part)}: must be "
                    '"all", cell ids, or conditions such as policy=chunked,block_size=16'
                )
            chosen.update(found)
        return sorted(chosen)

    def _where(self, selection: str) -> list[int]:
        check_columns(selection)
        wanted, found = conditions(selection), []
        for at, cell in enumerate(self.cells):
            values = cell.columns()
            if all(any(is_written(values[column], text) for text in texts) for column, texts in wanted.items()):
                found.append(at)
        if not found:
            raise ValueError(f"{shown(selection)}: chooses none of the {len(self.cells)} cells")
        return found


def expand(experiment: Experiment) -> Plan:
    """All cells of an experiment, workloads built.

    >>> from servesweep.experiment.reader import load_experiment
    >>> experiment = load_experiment({
    ...     "workload": {"kind": "synthetic", "prompt": 100, "output": 10, "request_rate_rps": [1, 2]},
    ...     "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm", "step_times": "roofline"},
    ...     "scheduler": {"policy": "mixed", "block_size": 16},
    ... })
    >>> [cell.cell_id for cell in expand(experiment).cells]
    ['7790e990733b0749', '4f5839f319e6a115']

    ConfigError for a trace that cannot be used, for a rate so small that requests would never arrive, for cells that
    come to the same, and when not a single cell can run.
    """
    plan = make_plan(experiment)
    traffics = list({id(cell.traffic): cell.traffic for cell in plan.cells}.values())
    _draw(experiment, traffics)
    problems = _refused(plan)
    if problems:
        raise ConfigError(problems)
    return plan


def make_plan(experiment: Experiment, traces: Traces | None = None) -> Plan:
    """The plan of `expand` with everything checked but the requests, of which none are drawn."""
    check_size(experiment)
    traffics = make_traffics(experiment, traces)
    specs, rates = make_specs(experiment), experiment.workload.request_rate_rps
    if all(spec.infeasible for spec in specs):
        raise no_cell_can_run(experiment, [spec.infeasible for spec in specs if spec.infeasible])
    slos = {kind: _slos(experiment, kind) for kind in experiment.system.kind}
    cells = tuple(
        Cell(cell_id[:16], traffic, spec, slo, rate)
        for traffic in traffics
        for spec in specs
        for slo in slos[spec.kind]
        for rate, cell_id in zip(
            rates, content_ids(identity(traffic, spec, slo), "request_rate_rps", rates), strict=True
        )
    )
    plan = Plan(experiment, cells)
    problems = _repeated(plan)
    for key, selection in vars(experiment.output).items():
        try:
            plan.select(selection if selection is not None else "all")
        except ValueError as error:
            problems.append(f"{experiment.place('output', key)}: output.{key} = {error}")
    if problems:
        raise ConfigError(problems)
    return plan


def identity(traffic: SweepTraffic, spec: SystemSpec, slo: Mapping[str, Any]) -> dict[str, Any]:
    """All that changes the answer of a cell, but its rate."""
    return {
        "rules": RULES_VERSION,
        "workload": traffic.identity,
        **spec.identity,
        # Of the SLOs, these two always count: an SLO that is added later changes no id where it is not set.
        "slo": {key: value for key, value in slo.items() if value is not None or key in ("ttft_slo_s", "tpot_slo_s")},
    }


def _slos(experiment: Experiment, kind: str) -> list[dict[str, Any]]:
    """Columns of the SLOs that a kind of system has."""
    return [
        {
            **{f"{x}_slo_s": None if point[f"{x}_ms"] is None else point[f"{x}_ms"] / 1000 for x in SLOS},
            "warmup": point["warmup"],
            "cooldown": point["cooldown"],
        }
        for point in points(experiment.slo, {"system.kind": kind})
    ]


def no_cell_can_run(experiment: Experiment, reasons: Iterable[str]) -> ConfigError:
    """The error for systems of which none can run."""
    where = experiment.with_options(*SYSTEM_TABLES)
    return ConfigError([f"{where}: no cell can run: {reason}" for reason in dict.fromkeys(reasons)])


def check_rates(experiment: Experiment, last_s: float) -> None:
    """ConfigError for rates at which a request would never arrive.

    last_s  when the last one arrives at 1 request/s
    """
    where = experiment.place("workload", "request_rate_rps")
    problems = [
        f"{where}: workload.request_rate_rps = {rate!r}: is so small that the last request never arrives"
        for rate in experiment.workload.request_rate_rps
        if not math.isfinite(last_s / rate)
    ]
    if problems:
        raise ConfigError(problems)


def _draw(experiment: Experiment, traffics: list[SweepTraffic]) -> None:
    """Draw all requests, and check the rates against them."""
    try:
        last_s = max(float(traffic.workload.arrival_s.max(initial=0.0)) for traffic in traffics)
    except ValueError as error:
        raise unusable(experiment, error) from None
    check_rates(experiment, last_s)


def _repeated(plan: Plan) -> list[str]:
    """The problem of two cells that are the same: values of an axis that differ, but come to the same."""
    first: dict[str, int] = {}
    for at, cell in enumerate(plan.cells):
        before = first.setdefault(cell.cell_id, at)
        if before != at:
            axes = listed(f"{key} = {shown(list(values))}" for key, values in plan.axes.items())
            where = plan.experiment.with_options("workload", *SYSTEM_TABLES, "slo")
            return [f"{where}: cells {before + 1} and {at + 1} are the same: must differ, in {axes}"]
    return []


def _refused(plan: Plan) -> list[str]:
    """What the engine refuses, for whole traffics and systems: with rates and SLOs it has nothing to do."""
    pairs = {(id(cell.traffic), id(cell.spec)): cell for cell in plan.cells if cell.spec.infeasible is None}
    problems = []
    for cell in pairs.values():
        try:
            cell.system()
        except ValueError as error:
            where = plan.experiment.with_options(*SYSTEM_TABLES)
            problems.append(f"{where}: {cell.traffic.columns['workload']}: {error}")
    return list(dict.fromkeys(problems))


def content_id(identity: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON: sorted keys, no spaces, the shortest digits that give a number back.

    >>> content_id({"rules": 1, "request_rate_rps": 0.1})
    'fde49daee98a8be77c34d54958893fdb03469a1a809c36cdb3aa8ea88cf08af9'
    """
    return hashlib.sha256(_canonical(identity).encode()).hexdigest()


def content_ids(identity: Mapping[str, Any], key: str, values: Iterable[Any]) -> list[str]:
    """`content_id` of an identity with each of these values of one more key. The rest becomes text once.

    >>> content_ids({"rules": 1}, "request_rate_rps", [0.1]) == [content_id({"rules": 1, "request_rate_rps": 0.1})]
    True
    """
    parts = [(name, f"{_canonical(name)}:{_canonical(value)}") for name, value in sorted(identity.items())]
    before = "".join(f"{part}," for name, part in parts if name < key)
    after = "".join(f",{part}" for name, part in parts if name > key)
    texts = (f"{{{before}{_canonical(key)}:{_canonical(value)}{after}}}" for value in values)
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
