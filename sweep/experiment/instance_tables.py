"""[instance], [prefill_instance] and [decode_instance] of an experiment: GPUs, the model on them, and where the times
of their steps come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from ..hardware import catalogue
from ..hardware.operators import MAX_FACTOR
from ..hardware.step_times import BYTES_RANGE, EFFICIENCY_RANGE, MAX_DEGREE, MAX_OVERHEAD_S
from ..serving.system_kinds import SYSTEMS
from .keys import Condition, Key, Needs, above_one, as_key, left_out, needs
from .step_files import check_name

ROLE_TABLES = ("prefill_instance", "decode_instance")
STEP_TIMES = ("operators", "roofline")
"""Names of step times; anything else is a file."""
FILES = "any file"

USED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mfu", "mbu", "overhead_s"), STEP_TIMES),
    "link": ("roofline",),
    **dict.fromkeys(("head_bytes", "compute_bytes", "mbu_attention", "mfu_attention"), ("operators",)),
    **dict.fromkeys(("mixed_attention", "layer_s", "sequence_s", "allreduce_s", "allreduce_bw"), ("operators",)),
    "first_token_s": ("operators", FILES),
}
"""Keys that not all step times know, and those that do."""

_SHARDED = ("link", "allreduce_s", "allreduce_bw")  # keys of what chips of a stage send each other
_ALIKE = needs("system.kind", *(row.name for row in SYSTEMS.values() if len(row.roles) == 1))
_DISAGGREGATED = needs("system.kind", *(row.name for row in SYSTEMS.values() if len(row.roles) > 1))


def has_effect(key: str, point: Mapping[str, Any]) -> bool:
    """Whether a key has an effect on an instance with these values of others."""
    if key in USED_BY and _kind(point["step_times"]) not in USED_BY[key]:
        return False
    return key not in _SHARDED or point["tp"] > 1


def _kind(step_times: str) -> str:
    return step_times if step_times in STEP_TIMES else FILES


def _known(key: str, place: str) -> Needs:
    """The step times know the key."""
    names = USED_BY[key]
    if FILES not in names:
        return needs(place, *names)
    words = " or ".join(f"{place} = a file" if name == FILES else f'{place} = "{name}"' for name in names)
    return Needs(((Condition(place, lambda value: value is not None and _kind(value) in names, words),),))


def _limits(range_: tuple[float, float]) -> dict[str, Any]:
    return {"lowest": range_[0], "highest": range_[1]}


_SECONDS = _limits((0, MAX_OVERHEAD_S))
_KEYS: dict[str, tuple[type, dict[str, Any]]] = {
    "chip": (str, {"lookup": catalogue.chip}),
    "step_times": (str, {"lookup": check_name}),
    **dict.fromkeys(("tp", "pp"), (int, _limits((1, MAX_DEGREE)))),
    **dict.fromkeys(("weight_bytes", "kv_bytes", "head_bytes"), (float, _limits(BYTES_RANGE))),
    **dict.fromkeys(("mfu", "mbu", "mbu_attention", "mfu_attention"), (float, _limits(EFFICIENCY_RANGE))),
    **dict.fromkeys(("overhead_s", "layer_s", "sequence_s", "allreduce_s", "first_token_s"), (float, _SECONDS)),
    "mem_reserve": (float, {"lowest": 0, "below": 1}),
    "link": (str, {"lookup": catalogue.link}),
    "compute_bytes": (int, _limits((1, 2))),
    "mixed_attention": (float, _limits((0, MAX_FACTOR))),
    "allreduce_bw": (float, {"above": 0}),
}


def _on_instance(key: str) -> Needs | None:
    """What a key of [instance] needs of others there."""
    wanted = [_known(key, "step_times")] if key in USED_BY else []
    wanted += [above_one("tp")] if key in _SHARDED else []
    return reduce(Needs.__and__, wanted) if wanted else None


def _on_role(key: str, prefix: str) -> Needs:
    """What a key needs of the values that a role has of its own, named with `prefix`, or of [instance]."""
    wanted = _DISAGGREGATED
    if key in USED_BY:
        own, shared = (_known(key, f"{place}step_times") for place in (prefix, "instance."))
        wanted &= own | left_out(f"{prefix}step_times") & shared
    if key in _SHARDED:
        own, shared = (above_one(f"{place}tp") for place in (prefix, "instance."))
        wanted &= own | left_out(f"{prefix}tp") & shared
    return wanted


def _of_instances(key: str) -> dict[str, Key]:
    """A key of [instance], of effect on systems of one role, and on a role that does not have a value of its own."""
    kind, limits = _KEYS[key]
    here = _on_instance(key)
    wanted = _ALIKE if here is None else _ALIKE & here
    for role in ROLE_TABLES:
        wanted |= left_out(f"{role}.{key}") & _on_role(key, f"{role}.")
    return as_key(kind, **limits, needs=wanted)


def _of_role(key: str) -> Any:
    """The field of a key of a role; (None,) stands for the values of [instance]."""
    kind, limits = _KEYS[key]
    return field(default=(None,), metadata=as_key(kind, **limits, needs=_on_role(key, "")))


def _of_instance(key: str, default: Any = None) -> Any:
    """The field of a key of [instance] with a default; None: that of the step times."""
    return field(default=(default,), metadata=_of_instances(key))


@dataclass(frozen=True)
class InstanceTable:
    """[instance]: the GPUs of one instance and the model on them.

    Constants of step times that are None are those of the model of step times: the chip's for "operators".
    """

    model: tuple[str, ...] = field(default=(), metadata=as_key(str, lookup=catalogue.model))
    chip: tuple[str, ...] = field(default=(), metadata=_of_instances("chip"))
    step_times: tuple[str, ...] = _of_instance("step_times", "operators")
    tp: tuple[int, ...] = _of_instance("tp", 1)
    pp: tuple[int, ...] = _of_instance("pp", 1)
    weight_bytes: tuple[float, ...] = _of_instance("weight_bytes", 2.0)
    kv_bytes: tuple[float, ...] = _of_instance("kv_bytes", 2.0)
    mfu: tuple[float | None, ...] = _of_instance("mfu")
    mbu: tuple[float | None, ...] = _of_instance("mbu")
    overhead_s: tuple[float | None, ...] = _of_instance("overhead_s")
    mem_reserve: tuple[float, ...] = _of_instance("mem_reserve", 0.1)
    link: tuple[str, ...] = _of_instance("link", "nvlink4")
    head_bytes: tuple[float | None, ...] = _of_instance("head_bytes")
    compute_bytes: tuple[int | None, ...] = _of_instance("compute_bytes")
    mbu_attention: tuple[float | None, ...] = _of_instance("mbu_attention")
    mfu_attention: tuple[float | None, ...] = _of_instance("mfu_attention")
    mixed_attention: tuple[float | None, ...] = _of_instance("mixed_attention")
    layer_s: tuple[float | None, ...] = _of_instance("layer_s")
    allreduce_s: tuple[float | None, ...] = _of_instance("allreduce_s")
    allreduce_bw: tuple[float | None, ...] = _of_instance("allreduce_bw")
    sequence_s: tuple[float | None, ...] = _of_instance("sequence_s")
    first_token_s: tuple[float | None, ...] = _of_instance("first_token_s")


@dataclass(frozen=True)
class RoleTable:
    """[prefill_instance] and [decode_instance]: where the instances of this role differ from [instance].

    (None,) stands for the values of [instance].
    """

    chip: tuple[str | None, ...] = _of_role("chip")
    step_times: tuple[str | None, ...] = _of_role("step_times")
    tp: tuple[int | None, ...] = _of_role("tp")
    pp: tuple[int | None, ...] = _of_role("pp")
    weight_bytes: tuple[float | None, ...] = _of_role("weight_bytes")
    kv_bytes: tuple[float | None, ...] = _of_role("kv_bytes")
    mfu: tuple[float | None, ...] = _of_role("mfu")
    mbu: tuple[float | None, ...] = _of_role("mbu")
    overhead_s: tuple[float | None, ...] = _of_role("overhead_s")
    mem_reserve: tuple[float | None, ...] = _of_role("mem_reserve")
    link: tuple[str | None, ...] = _of_role("link")
    head_bytes: tuple[float | None, ...] = _of_role("head_bytes")
    compute_bytes: tuple[int | None, ...] = _of_role("compute_bytes")
    mbu_attention: tuple[float | None, ...] = _of_role("mbu_attention")
    mfu_attention: tuple[float | None, ...] = _of_role("mfu_attention")
    mixed_attention: tuple[float | None, ...] = _of_role("mixed_attention")
    layer_s: tuple[float | None, ...] = _of_role("layer_s")
    allreduce_s: tuple[float | None, ...] = _of_role("allreduce_s")
    allreduce_bw: tuple[float | None, ...] = _of_role("allreduce_bw")
    sequence_s: tuple[float | None, ...] = _of_role("sequence_s")
    first_token_s: tuple[float | None, ...] = _of_role("first_token_s")
