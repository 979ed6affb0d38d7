"""The instances of a system: from values of [instance] to step times, what decides their answers, and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..hardware import catalogue
from ..hardware.operators import OperatorStepModel
from ..hardware.parts import Chip, Link, Model
from ..hardware.profile import TableStepTimes
from ..hardware.step_times import StepModel
from ..hardware.steps import InstanceStep, source_of
from ..hardware.table_steps import TableStepModel
from ..serving.policies import VLLM_OPTIONS
from ..serving.scheduler import Scheduler
from .combinations import no_layout
from .instance_tables import USED_BY, RoleTable, has_effect
from .keys import key_names
from .step_files import in_file, is_file

_SHAPE = ("tp", "pp", "weight_bytes", "kv_bytes", "mem_reserve")
_ROOFLINE = {name: getattr(StepModel, name) for name in ("mfu", "mbu", "overhead_s")}  # its defaults
_LATER = {name: getattr(Scheduler, name) for name in ("order", "enable_prefix_caching", *VLLM_OPTIONS)}


class Instances:
    """The kinds of instances of a system, by role: what every layout and scheduler shares."""

    def __init__(self, roles: Mapping[str, Mapping[str, Any]]) -> None:
        self.roles = roles
        self.sizes = {f"n_{role or 'instances'}": point["tp"] * point["pp"] for role, point in roles.items()}

    def n_gpus(self, layout: Mapping[str, Any]) -> int:
        """GPUs of all instances of a layout."""
        return sum(int(layout[key]) * size for key, size in self.sizes.items())

    @cached_property
    def steps(self) -> dict[str, InstanceStep]:
        """Their step times; ValueError for what there cannot be."""
        return {role: step_of(point) for role, point in self.roles.items()}

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What decides their answers. The figures behind a name count, and the name too: models with the same figures
        are still two rows."""
        return {
            f"{role}_instance".lstrip("_"): given(_facts(point, self.steps[role])) for role, point in self.roles.items()
        }

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Their columns."""
        first, *others = roles = [_columns(point) for point in self.roles.values()]
        columns = {key: value if all(other[key] == value for other in others) else None for key, value in first.items()}
        of_role = dict(zip(self.roles, roles, strict=True))
        for role in ("prefill", "decode"):
            columns |= {
                f"{role}_{key}": of_role[role][key] if role in of_role else None for key in key_names(RoleTable)
            }
        return {**columns, "step_times_source": self.source}

    @cached_property
    def source(self) -> str:
        """Where their step times come from, in a line."""
        texts = {role: source_of(step) for role, step in self.steps.items()}
        if len(set(texts.values())) == 1:
            return next(iter(texts.values()))
        return "; ".join(f"{role} {text}" for role, text in texts.items())

    @cached_property
    def unfit(self) -> str | None:
        """Why no system can have them."""
        for role, step in self.steps.items():
            reason = no_layout(step.model, step.tp, step.pp) or _of_others(self.roles[role])
            if reason is None and not step.kv_capacity_tokens():
                reason = _too_heavy(step)
            if reason is not None:
                return (f"{role} instance: " if role else "") + reason
        return None


def step_of(point: Mapping[str, Any]) -> InstanceStep:
    """The step times of an instance; ValueError for what there cannot be."""
    name, model, chip = point["step_times"], catalogue.model(point["model"]), catalogue.chip(point["chip"])
    shape = {key: point[key] for key in _SHAPE}
    own = {key: point[key] for key, known in USED_BY.items() if name in known and point[key] is not None}
    if name == "roofline" or no_layout(model, point["tp"], point["pp"]):  # the latter never runs
        own = {key: value for key, value in own.items() if "roofline" in USED_BY[key]}
        return StepModel(model, chip, **shape, **({**own, **_named_link(point)}))
    if name == "operators":
        return OperatorStepModel(model, chip, **shape, **own)
    profile = in_file(name)
    outside = {} if point["first_token_s"] is None else {"first_token_s": point["first_token_s"]}
    if isinstance(profile, TableStepTimes):
        return TableStepModel(replace(profile, **outside) if outside else profile, model=model, chip=chip, **shape)
    constants = {key: getattr(profile, key) for key, known in USED_BY.items() if known[0] == "operators"}
    if point["tp"] != profile.tp:  # its all-reduces are of others
        constants["allreduce_s"] = None
    return OperatorStepModel(model, chip, **shape, **{**constants, **outside})


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that have an effect: a key of a later version, None or its default in the cells of today, must not change
    their ids."""
    return {key: value for key, value in values.items() if value is not None and value != _LATER.get(key)}


def name_of_instance(step: InstanceStep) -> str:
    """Chips of an instance, for messages."""
    return f"{step.n_gpus} x {step.chip.name}"


def _facts(point: Mapping[str, Any], step: InstanceStep) -> dict[str, Any]:
    """What decides the answers of an instance. Of the roofline the name is left out, as in cells of before there was a
    choice."""
    named: dict[str, Model | Chip | Link] = {"model": step.model, "chip": step.chip, **_named_link(point)}
    facts = {**{key: point[key] for key in _SHAPE}, **{key: asdict(value) for key, value in named.items()}}
    if isinstance(step, StepModel):
        return {**facts, **{key: getattr(step, key) for key in _ROOFLINE}}
    if isinstance(step, TableStepModel):
        return {**facts, "step_times": step.times.content_id}
    unused = ("allreduce_s", "allreduce_bw") if step.tp == 1 else ()
    constants = {key: value for key, value in step.constants.items() if key not in unused}
    others = {"head_bytes": step.head_bytes, "compute_bytes": step.compute_bytes}
    others |= {"first_token_s": step.first_token_s or None}  # 0 as before it was a key
    return {**facts, **others, **constants, "step_times": "operators"}


def _columns(point: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an instance as columns: those of constants that are not given are the step times' own."""
    name = point["step_times"]
    if name == "roofline":
        return {**point, **{key: usual for key, usual in _ROOFLINE.items() if point[key] is None}}
    return {**point, "step_times": Path(name).name if is_file(name) else name}


def _named_link(point: Mapping[str, Any]) -> dict[str, Link]:
    return {"link": catalogue.link(point["link"])} if has_effect("link", point) and point["link"] is not None else {}


def _of_others(point: Mapping[str, Any]) -> str | None:
    """Why a file's step times are not those of an instance; None where they are, or it does not say."""
    name = point["step_times"]
    if not is_file(name):
        return None
    profile, file = in_file(name), Path(name).name
    if isinstance(profile, OperatorStepModel):
        other = profile.chip.name
        return None if other == point["chip"] else f"step_times = {file} is of {other}, not of {point['chip']}"
    gpus = point["tp"] * point["pp"]
    if profile.n_gpus == gpus or not name.lower().endswith(".toml"):
        return None
    return f"step_times = {file} is of {profile.n_gpus} GPUs, and tp x pp = {gpus}"


def _too_heavy(step: InstanceStep) -> str:
    weights = step.model.n_params() * step.weight_bytes
    memory = step.n_gpus * step.chip.mem_bytes
    room = memory * (1 - step.mem_reserve)
    return (
        f"the weights of {step.model.name} do not fit {name_of_instance(step)}: {weights / 1e9:.1f} GB, and room for "
        f"{room / 1e9:.1f} GB ({memory / 1e9:.1f}e9 bytes less mem_reserve = {step.mem_reserve:g})"
    )
