"""How many cells an experiment has, counted before any of them is built."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..messages import listed
from ..serving.system_kinds import SYSTEMS
from .axes import EVERY, Alike, Axis, Point, alike, axes_of
from .combinations import fits
from .instance_tables import STEP_TIMES, USED_BY, InstanceTable, has_effect
from .instances import Instances
from .keys import column_of, key_names
from .specs import ELSEWHERE, SYSTEM_TABLES, check_gpus, own_values
from .tables import TABLES, ConfigError, Experiment

MAX_CELLS = 1_000_000
"""Cells of an experiment. Their tables take gigabytes to write (docs/scaling.md)."""

_ROLES = {"prefill": "prefill_instance", "decode": "decode_instance"}  # and their tables
_KINDS = ("kind", "policy", "memory")  # what goes together is told apart
GPU_KEYS = (
    "n_instances",
    "n_prefill",
    "n_decode",
    *(f"{role}{key}" for role in ("", "prefill.", "decode.") for key in ("tp", "pp")),
)
_MOST_ALIKE = 50_000  # layouts, and kinds of instances, that are told apart


class SystemsAlike(NamedTuple):
    """Systems that are alike: one of them, and how many there are.

    layout     a point of [system]
    instances  their instances by role
    scheduler  a point of [scheduler]
    """

    layout: Point
    instances: Instances
    scheduler: Point
    number: int


def axes(experiment: Experiment) -> dict[str, tuple[Any, ...]]:
    """Keys with more than one value that have an effect, and their values."""
    entries = {
        column_of(table, key).replace("_slo_s", "_ms"): value
        for table in TABLES
        for key, value in vars(getattr(experiment, table)).items()
        if experiment.in_use(table, key)
    }
    return {key: value for key, value in entries.items() if isinstance(value, tuple) and len(value) > 1}


def check_size(experiment: Experiment) -> None:
    """ConfigError for more than MAX_CELLS cells, and where no system has the wanted number of GPUs."""
    count_cells(experiment, systems_alike(experiment))


def count_cells(experiment: Experiment, systems: Iterable[SystemsAlike]) -> int:
    """The cells of all systems of an experiment; ConfigError for more than MAX_CELLS."""
    slos = {kind: count_slos(experiment, kind) for kind in experiment.system.kind}
    per_workload = sum(slos[one.layout["kind"]] * one.number for one in systems)
    cells = count_workloads(experiment) * per_workload * len(experiment.workload.request_rate_rps)
    if cells > MAX_CELLS:
        raise _too_many(experiment, cells, "cells")
    return cells


def count_workloads(experiment: Experiment) -> int:
    """The workloads of an experiment."""
    return sum(one.number for one in workloads_alike(experiment))


def workloads_alike(experiment: Experiment, tell_apart: Mapping[str, int] | None = None) -> Iterator[Alike]:
    """The workloads of an experiment, those that are alike as one. The rate is no part of them."""
    return alike(axes_of(experiment.workload, skip=ELSEWHERE), tell_apart or {})


def count_slos(experiment: Experiment, kind: str) -> int:
    """The points of [slo] that a kind of system has."""
    return sum(one.number for one in alike(axes_of(experiment.slo, {"system.kind": kind}), {}))


def systems_alike(experiment: Experiment, tell_apart: Mapping[str, int] | None = None) -> Iterator[SystemsAlike]:
    """The systems of an experiment, those that are alike as one.

    tell_apart  keys of [system], [instance] and [scheduler] whose values are told apart, those of a role as
                "prefill.tp", and how many stand for all on a longer axis. Kind, policy and memory are told apart
                anyway, and where `n_gpus` selects what decides on the number of GPUs

    ConfigError where none has the wanted number of GPUs, and where there are too many to look through.
    """
    wanted = set(experiment.system.n_gpus)
    selects = wanted != {None}
    if selects and (layouts := count_layouts(experiment)) > MAX_CELLS:
        raise _too_many(experiment, layouts, "layouts from which system.n_gpus selects")
    by = {**(tell_apart or {}), **dict.fromkeys((*_KINDS, *(GPU_KEYS if selects else ())), EVERY)}
    instances = {kind: _instances(experiment, kind, by) for kind in experiment.system.kind}
    schedulers = {
        kind: [
            one
            for one in alike(axes_of(experiment.scheduler, {"system.kind": kind}), by)
            if fits(kind, one.point["policy"], one.point["memory"])
        ]
        for kind in experiment.system.kind
    }
    known = set()
    for layout, n_layouts in _layouts(experiment, by):
        for held, n_instances in instances[layout["kind"]]:
            if selects:
                n_gpus = held.n_gpus(layout)
                known.add(n_gpus)
                if n_gpus not in wanted:
                    continue
            for options, n_options in schedulers[layout["kind"]]:
                yield SystemsAlike(layout, held, options, n_layouts * n_instances * n_options)
    if selects:
        check_gpus(experiment, known)


def _layouts(experiment: Experiment, tell_apart: Mapping[str, int]) -> list[Alike]:
    """The layouts of all kinds of systems, those that are alike as one."""
    axes = axes_of(experiment.system, skip=ELSEWHERE)
    return _few(experiment, axes, tell_apart, "layouts to choose from")


def _instances(experiment: Experiment, kind: str, tell_apart: Mapping[str, int]) -> list[tuple[Instances, int]]:
    """The instances of a kind of system, those that are alike as one, each with its number."""
    found = _few(experiment, _role_axes(experiment, kind), tell_apart, "kinds of instances to choose from")
    if len(SYSTEMS[kind].roles) == 1:
        return [(Instances({"": one.point}), one.number) for one in found]
    keys = key_names(InstanceTable)
    return [
        (Instances({role: {key: _of_role(one.point, role, key) for key in keys} for role in _ROLES}), one.number)
        for one in found
    ]


def _few(experiment: Experiment, axes: Sequence[Axis], tell_apart: Mapping[str, int], what: str) -> list[Alike]:
    """`alike`; ConfigError for too many."""
    found = list(itertools.islice(alike(axes, tell_apart), _MOST_ALIKE + 1))
    if len(found) > _MOST_ALIKE:
        raise _too_many(experiment, sum(one.number for one in alike(axes, {})), what, _MOST_ALIKE)
    return found


def count_layouts(experiment: Experiment) -> int:
    """The kinds of instances in every number, before `n_gpus` selects and schedulers multiply."""
    instances = {
        kind: sum(one.number for one in alike(_role_axes(experiment, kind), {})) for kind in experiment.system.kind
    }
    return sum(one.number * instances[one.point["kind"]] for one in _layouts(experiment, {"kind": EVERY}))


def _too_many(experiment: Experiment, number: int, what: str, most: int = MAX_CELLS) -> ConfigError:
    """The error for too many of something, with the axes that multiply to it, the longest first."""
    lengths = sorted(((len(values), key) for key, values in axes(experiment).items()), reverse=True)
    product = listed(f"{key} has {length:,} values" for length, key in lengths)
    where = experiment.with_options("workload", *SYSTEM_TABLES, "slo")
    return ConfigError([f"{where}: {number:,} {what}: must be at most {most:,}: {product}"])


def _role_axes(experiment: Experiment, kind: str) -> list[Axis]:
    """The axes of the instances of a kind of system; those that a role has of its own as "prefill.tp"."""
    if len(SYSTEMS[kind].roles) == 1:
        return axes_of(experiment.instance, {"system.kind": kind})
    found, later = [], []
    for key, shared in vars(experiment.instance).items():
        own = {role: own_values(experiment, table, key) for role, table in _ROLES.items()}
        inherit = [role for role, values in own.items() if not values]
        held = [("", inherit, shared or (None,))] if inherit else []
        held += [(f"{role}.", [role], values) for role, values in own.items() if values]
        for prefix, roles, values in held:
            if key in USED_BY:
                later.append(Axis(f"{prefix}{key}", values, _used(key, roles)))
            else:
                found.append(Axis(f"{prefix}{key}", values, tests=_ASKED.get(key, ())))
    return found + later  # whether a role has a use for them depends on others


def _of_role(point: Mapping[str, Any], role: str, key: str) -> Any:
    """The value of a key for a role: its own, or that of all."""
    if key in USED_BY and not _has_use(point, role, key):
        return None
    value = point.get(f"{role}.{key}")  # which is never None: a key that a role lacks is no axis of its own
    return point[key] if value is None else value


def _used(key: str, roles: Sequence[str]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda point: any(_has_use(point, role, key) for role in roles)


def _has_use(point: Mapping[str, Any], role: str, key: str) -> bool:
    return has_effect(key, {name: _of_role(point, role, name) for name in _ASKED})


_ASKED = {  # keys that decide on the effect of others, and what these ask
    "step_times": tuple((lambda value, name=name: value == name) for name in STEP_TIMES),
    "tp": (lambda value: value > 1,),
}
