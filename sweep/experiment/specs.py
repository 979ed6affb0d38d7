"""What serves the requests of a cell: the systems that the tables of an experiment multiply out to.

Everything about a cell but its requests, its rate and its SLOs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..hardware import catalogue
from ..hardware.steps import InstanceStep
from ..messages import MOST_PROBLEMS, listed, nearest_numbers
from ..serving.queue import NO_QUEUE
from ..serving.stages import Stage
from ..serving.system import System, default_num_blocks, streams_of
from ..serving.system_kinds import SYSTEMS
from ..workloads.workload import Workload
from .combinations import fits
from .instance_tables import ROLE_TABLES, has_effect
from .instances import Instances, given, name_of_instance
from .keys import key_of
from .tables import ConfigError, Experiment

SYSTEM_TABLES = ("system", "instance", *ROLE_TABLES, "scheduler")  # of an experiment
ELSEWHERE = ("request_rate_rps", "n_gpus", "preset")
"""Keys that multiply nothing: rates are the innermost axis, n_gpus selects, a preset gives defaults."""

NO_REQUESTS = Workload(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), priority=np.zeros(0, np.int64))
"""What any system can have."""


@dataclass(frozen=True, eq=False)
class SystemSpec:
    """A system: its instances, who routes to them, and how they schedule.

    kind        a name of `serving.systems.SYSTEMS`
    layout      keys of [system] but kind and n_gpus; those without effect are None
    step        of the instances; of the decode instances of a disaggregated system
    prefill_step    of the prefill instances of a disaggregated system, otherwise None
    options     keys of [scheduler]; those without effect are None
    n_gpus      of all instances
    infeasible  why it cannot run, or None
    """

    kind: str
    layout: Mapping[str, Any]
    step: InstanceStep
    prefill_step: InstanceStep | None
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
    def stages(self) -> tuple[Stage, ...]:
        """Its instances as the engine takes them, by role, with nothing to serve."""
        system = next(iter(self._made.values())) if self._made else self.system(NO_REQUESTS, 1.0)
        return tuple(system.stage(role, NO_QUEUE) for role in system.roles)

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
        steps: dict[str, Any] = {"step": self.step}
        if self.prefill_step is not None:
            steps = {"prefill_step": self.prefill_step, "decode_step": self.step}
            given["link"] = catalogue.link(given.pop("transfer_link"))
        return SYSTEMS[self.kind].system(workload=workload, rate=rate, **steps, **given)


def points(table: Any, given: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The product of the axes of a table. A key without effect at a point is None there and multiplies nothing.

    given  values of keys of other tables, by "table.key"
    """
    given = {} if given is None else given
    made: list[dict[str, Any]] = [{}]
    for name, held in vars(table).items():
        key = key_of(type(table), name)
        values = held if key.axis else (held,)
        if name not in ELSEWHERE:
            made = [
                {**point, name: value}
                for point in made
                for value in (values if key.needs is None or key.needs.met({**given, **point}) else (None,))
            ]
    return made


def make_specs(experiment: Experiment) -> list[SystemSpec]:
    """All systems of an experiment, in the order of the cells; ConfigError where none has the wanted `n_gpus`."""
    roles = {kind: [Instances(given) for given in _roles(experiment, kind)] for kind in experiment.system.kind}
    schedulers = {kind: schedulers_of(experiment, kind) for kind in experiment.system.kind}
    wanted = set(experiment.system.n_gpus)
    made: list[SystemSpec] = []
    known: set[int] = set()
    for layout in points(experiment.system):
        for instances in roles[layout["kind"]]:
            n_gpus = instances.n_gpus(layout)
            known.add(n_gpus)
            if wanted == {None} or n_gpus in wanted:
                try:
                    made += systems_of(layout, instances, schedulers[layout["kind"]])
                except ValueError as error:
                    raise ConfigError([f"{experiment.with_options('instance', *ROLE_TABLES)}: {error}"]) from None
    check_gpus(experiment, known)
    return made


def schedulers_of(experiment: Experiment, kind: str) -> list[dict[str, Any]]:
    """The points of [scheduler] that a kind of system can have."""
    found = points(experiment.scheduler, {"system.kind": kind})
    return [options for options in found if fits(kind, options["policy"], options["memory"])]


def check_gpus(experiment: Experiment, known: Collection[int]) -> None:
    """ConfigError for a wanted number of GPUs that no system has, of those that there are."""
    wanted = experiment.system.n_gpus
    place = experiment.place("system", "n_gpus")
    problems: list[str] = []
    for n in [n for n in wanted if n is not None and n not in known]:
        there = "" if len(problems) >= MOST_PROBLEMS else f"; there are systems of {listed(nearest_numbers(n, known))}"
        problems.append(f"{place}: system.n_gpus = {n}: no system of this experiment has so many GPUs{there}")
    if problems:
        raise ConfigError(problems)


def _roles(experiment: Experiment, kind: str) -> Iterator[dict[str, dict[str, Any]]]:
    """The kinds of instances that a system has, by role: values of the keys of [instance]; role "" if all are alike."""
    if len(SYSTEMS[kind].roles) == 1:
        yield from ({"": point} for point in points(experiment.instance, {"system.kind": kind}))
        return
    seen = set()
    own = [_product(vars(getattr(experiment, table))) for table in ROLE_TABLES]
    # Values of [instance] that both roles override make no difference: the first stands for all.
    shared_values = {
        key: values[:1] if all(own_values(experiment, table, key) for table in ROLE_TABLES) else values
        for key, values in vars(experiment.instance).items()
    }
    for shared in _product(shared_values):
        for prefill in own[0]:
            for decode in own[1]:
                roles = {"prefill": _override(shared, prefill), "decode": _override(shared, decode)}
                # Nor do links where there is nothing to link.
                key = tuple(tuple(role.items()) for role in roles.values())
                if key not in seen:
                    seen.add(key)
                    yield roles


def own_values(experiment: Experiment, table: str, key: str) -> tuple[Any, ...]:
    """The values of a key that a role has of its own; empty where it takes those of [instance]."""
    values: tuple[Any, ...] = getattr(getattr(experiment, table), key, (None,))
    return () if values == (None,) else values


def _product(axes: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The product of all axes of a table; None for a key without a value."""
    held = [values or (None,) for values in axes.values()]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*held)]


def _override(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of [instance], with those that a role has of its own; None for what has no effect there."""
    point = {**shared, **{key: value for key, value in own.items() if value is not None}}
    return {key: value if has_effect(key, point) else None for key, value in point.items()}


def systems_of(
    layout: Mapping[str, Any], instances: Instances, schedulers: Iterable[Mapping[str, Any]]
) -> Iterator[SystemSpec]:
    """The systems of one layout and one kind of instance for each role."""
    kind = layout["kind"]
    steps = instances.steps
    n_gpus = instances.n_gpus(layout)
    facts = {**instances.facts, "system": given(layout)}
    if layout["transfer_link"] is not None:
        facts["system"]["transfer_link"] = asdict(catalogue.link(layout["transfer_link"]))
    columns = {
        "system": kind,
        **{key: value for key, value in layout.items() if key != "kind"},
        **instances.columns,
        "n_gpus": n_gpus,
    }
    for scheduler in schedulers:
        options = dict(scheduler)
        reason = instances.unfit or _infeasible(kind, steps, options)
        yield SystemSpec(
            kind=kind,
            layout={key: value for key, value in layout.items() if key != "kind"},
            step=steps.get("decode") or steps[""],
            prefill_step=steps.get("prefill"),
            options=options,
            columns={**columns, **options},
            identity={**facts, "scheduler": given(options)},
            n_gpus=n_gpus,
            infeasible=reason,
        )


def _infeasible(kind: str, steps: Mapping[str, InstanceStep], options: dict[str, Any]) -> str | None:
    """Why a system of such instances cannot run. Puts in the number of KV blocks, where it is the default."""
    if options["memory"] is None:
        return None
    step = steps.get("decode") or steps[""]
    streams = streams_of(SYSTEMS[kind].roles[-1], step)
    room = step.kv_capacity_tokens() // streams
    where = f"{name_of_instance(step)} with {step.model.name} has room for {room:,} tokens" + (
        f" in each of its pp = {streams} streams" if streams > 1 else ""
    )
    if not room:
        return f"no KV fits: {where}"
    if options["memory"] != "paged":
        return None
    size = options["block_size"]
    asked = options["num_blocks"]
    if asked is None:
        options["num_blocks"] = default_num_blocks(step, size, streams) or streams
    blocks = options["num_blocks"] // streams  # of a stream
    fits_in = 1 <= blocks <= room // size
    blocks = max(blocks, 1)
    return None if fits_in else f"{blocks} x {size} tokens of KV blocks do not fit: {where}"
