"""What serves the requests of a cell: the systems that the tables of an experiment multiply out to.

Everything about a cell but its requests, its rate and its SLOs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ..hardware import catalogue
from ..hardware.parts import Chip, Link, Model
from ..hardware.step_times import StepModel
from ..serving.systems import Colocated, DecodeOnly, Disaggregated, PrefillOnly
from ..workloads.workload import Workload
from .combinations import fits
from .keys import key_names, key_of
from .tables import ROLE_TABLES, ConfigError, Experiment, RoleTable

System = Colocated | Disaggregated | PrefillOnly | DecodeOnly

SETUP_TABLES = ("system", "instance", *ROLE_TABLES, "scheduler")  # of an experiment
_ALIKE: dict[str, type[Colocated | PrefillOnly | DecodeOnly]] = {
    "colocated": Colocated,
    "prefill_only": PrefillOnly,
    "decode_only": DecodeOnly,
}


@dataclass(frozen=True, eq=False)
class Setup:
    """A system: its instances, who routes to them, and how they schedule.

    kind        one of `config.SYSTEMS`
    layout      keys of [system] but kind and n_gpus; those without effect are None
    step        of the instances; of the decode instances of a disaggregated system
    prefill_step    of the prefill instances of a disaggregated system, otherwise None
    options     keys of [scheduler]; those without effect are None
    n_gpus      of all instances
    infeasible  why it cannot run, or None
    """

    kind: str
    layout: Mapping[str, Any]
    step: StepModel
    prefill_step: StepModel | None
    options: Mapping[str, Any]
    columns: Mapping[str, Any]
    identity: Mapping[str, Any]
    n_gpus: int
    infeasible: str | None
    _made: dict[int, System] = field(default_factory=dict, init=False, repr=False)  # by id of their workload

    @cached_property
    def n_instances(self) -> int:
        """Instances of every role."""
        return sum(self.layout[key] or 0 for key in ("n_instances", "n_prefill", "n_decode"))

    @cached_property
    def n_lanes(self) -> int:
        """Lanes of the engine: a decode instance has one for each of its pipeline stages."""
        decoding = {"disaggregated": "n_decode", "decode_only": "n_instances"}.get(self.kind)
        return self.n_instances + (0 if decoding is None else self.layout[decoding] * (self.step.pp - 1))

    def system(self, workload: Workload, rate: float) -> System:
        """The system as the engine takes it, serving `workload` at `rate` times its own rate.

        ValueError for what the engine refuses. Systems that differ by their rate alone share the checks, which are most
        of the work.
        """
        if id(workload) not in self._made:
            self._made[id(workload)] = self._make(workload, rate)
        system = copy(self._made[id(workload)])
        object.__setattr__(system, "rate", rate)  # frozen for everybody else
        return system

    def _make(self, workload: Workload, rate: float) -> System:
        given = {key: value for key, value in {**self.layout, **self.options}.items() if value is not None}
        if self.prefill_step is None:
            return _ALIKE[self.kind](workload, self.step, rate=rate, **given)
        link = catalogue.link(given.pop("transfer_link"))
        return Disaggregated(workload, self.prefill_step, self.step, link=link, rate=rate, **given)


def points(table: Any, given: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The product of the axes of a table. A key without effect at a point is None there and multiplies nothing.

    given  values of keys of other tables, by "table.key"
    """
    given = {} if given is None else given
    made: list[dict[str, Any]] = [{}]
    for name, held in vars(table).items():
        key = key_of(type(table), name)
        values = held if key.axis else (held,)
        if name not in ("request_rate_rps", "n_gpus"):  # rates are the innermost axis; n_gpus selects
            made = [
                {**point, name: value}
                for point in made
                for value in (values if key.needs is None or key.needs.met({**given, **point}) else (None,))
            ]
    return made


def make_setups(experiment: Experiment) -> list[Setup]:
    """All systems of an experiment, in the order of the cells; ConfigError where none has the wanted `n_gpus`."""
    made = [
        setup
        for layout in points(experiment.system)
        for roles in _roles(experiment, layout["kind"])
        for setup in _setups(
            layout,
            roles,
            [
                options
                for options in points(experiment.scheduler, {"system.kind": layout["kind"]})
                if fits(layout["kind"], options["policy"], options["memory"])
            ],
        )
    ]
    wanted = experiment.system.n_gpus
    if wanted == (None,):
        return made
    known = sorted({setup.n_gpus for setup in made})
    problems = [
        f"{experiment.place('system', 'n_gpus')}: system.n_gpus = {n}: no system of this experiment has so many GPUs; "
        f"there are systems of {', '.join(map(str, known))}"
        for n in wanted
        if n not in known
    ]
    if problems:
        raise ConfigError(problems)
    return [setup for setup in made if setup.n_gpus in wanted]


def _roles(experiment: Experiment, kind: str) -> Iterator[dict[str, dict[str, Any]]]:
    """The kinds of instances that a system has, by role: values of the keys of [instance]; role "" if all are alike."""
    if kind != "disaggregated":
        yield from ({"": point} for point in points(experiment.instance, {"system.kind": kind}))
        return
    seen = set()
    own = [_product(getattr(experiment, table)) for table in ROLE_TABLES]
    for shared in _product(experiment.instance):
        for prefill in own[0]:
            for decode in own[1]:
                roles = {"prefill": _override(shared, prefill), "decode": _override(shared, decode)}
                # Values of [instance] that both roles override make no difference.
                key = tuple(tuple(role.items()) for role in roles.values())
                if key not in seen:
                    seen.add(key)
                    yield roles


def _product(table: Any) -> list[dict[str, Any]]:
    """The product of all axes of a table; None for a key without a value."""
    axes = [values or (None,) for values in vars(table).values()]
    return [dict(zip(vars(table), values, strict=True)) for values in itertools.product(*axes)]


def _override(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of [instance], with those that a role has of its own."""
    point = {**shared, **{key: value for key, value in own.items() if value is not None}}
    return {**point, "link": point["link"] if point["tp"] > 1 else None}


def _setups(
    layout: Mapping[str, Any], roles: Mapping[str, Mapping[str, Any]], schedulers: list[dict[str, Any]]
) -> Iterator[Setup]:
    """The systems of one layout and one kind of instance for each role."""
    kind = layout["kind"]
    named = {role: _named(point) for role, point in roles.items()}
    steps = {
        role: StepModel(**{**{key: value for key, value in point.items() if value is not None}, **named[role]})
        for role, point in roles.items()
    }
    if kind == "disaggregated":
        n_gpus = layout["n_prefill"] * steps["prefill"].n_gpus + layout["n_decode"] * steps["decode"].n_gpus
    else:
        n_gpus = layout["n_instances"] * steps[""].n_gpus
    # The figures behind a name count, and the name too: models with the same figures are still two rows.
    facts: dict[str, Any] = {
        f"{role}_instance".lstrip("_"): _given({**point, **{key: asdict(value) for key, value in named[role].items()}})
        for role, point in roles.items()
    }
    facts["system"] = _given(layout)
    if layout["transfer_link"] is not None:
        facts["system"]["transfer_link"] = asdict(catalogue.link(layout["transfer_link"]))
    columns = {
        "system": kind,
        **{key: value for key, value in layout.items() if key != "kind"},
        **_instance_columns(roles),
        "n_gpus": n_gpus,
    }
    for scheduler in schedulers:
        options = dict(scheduler)
        reason = _infeasible(kind, steps, options)
        yield Setup(
            kind=kind,
            layout={key: value for key, value in layout.items() if key != "kind"},
            step=steps.get("decode") or steps[""],
            prefill_step=steps.get("prefill"),
            options=options,
            columns={**columns, **options},
            identity={**facts, "scheduler": _given(options)},
            n_gpus=n_gpus,
            infeasible=reason,
        )


def _named(point: Mapping[str, Any]) -> dict[str, Model | Chip | Link]:
    """What the names at a point of [instance] stand for."""
    named: dict[str, Model | Chip | Link] = {
        "model": catalogue.model(point["model"]),
        "chip": catalogue.chip(point["chip"]),
    }
    if point["link"] is not None:
        named["link"] = catalogue.link(point["link"])
    return named


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that have an effect: a key of a later version, None in the cells of today, must not change their ids."""
    return {key: value for key, value in values.items() if value is not None}


def _instance_columns(roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of the instances: what all roles share, and what each role of a disaggregated system has."""
    first, *others = roles.values()
    columns = {key: value if all(other[key] == value for other in others) else None for key, value in first.items()}
    for role in ("prefill", "decode"):
        columns |= {f"{role}_{key}": roles[role][key] if role in roles else None for key in key_names(RoleTable)}
    return columns


def _infeasible(kind: str, steps: Mapping[str, StepModel], options: dict[str, Any]) -> str | None:
    """Why a system cannot run. Puts in the number of KV blocks, where it is the default."""
    for role, step in steps.items():
        if not step.kv_capacity_tokens():
            return (f"{role} instance: " if role else "") + _too_heavy(step)
    if options["memory"] is None:
        return None
    step = steps.get("decode") or steps[""]
    lanes = 1 if kind == "colocated" else step.pp  # the pipeline stages of a decode instance work on different batches
    room = step.kv_capacity_tokens() // lanes
    where = f"{_instance(step)} with {step.model.name} has room for {room:,} tokens" + (
        f" in each of its pp = {lanes} lanes" if lanes > 1 else ""
    )
    if not room:
        return f"no KV fits: {where}"
    if options["memory"] != "paged":
        return None
    size = options["block_size"]
    blocks = room // size if options["num_blocks"] is None else options["num_blocks"] // lanes  # of a lane
    fits_in = blocks >= 1 and blocks * size <= room
    blocks = max(blocks, 1)
    options["num_blocks"] = options["num_blocks"] or blocks * lanes
    return None if fits_in else f"{blocks} x {size} tokens of KV blocks do not fit: {where}"


def _too_heavy(step: StepModel) -> str:
    weights = step.model.n_params() * step.weight_bytes
    memory = step.n_gpus * step.chip.mem_bytes
    room = memory * (1 - step.mem_reserve)
    return (
        f"the weights of {step.model.name} do not fit {_instance(step)}: {weights / 1e9:.1f} GB, and room for "
        f"{room / 1e9:.1f} GB ({memory / 1e9:.1f} GB less mem_reserve = {step.mem_reserve:g})"
    )


def _instance(step: StepModel) -> str:
    return f"{step.n_gpus} x {step.chip.name}"
