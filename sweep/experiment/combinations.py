"""Which system, batching policy and KV memory go together, which degrees a model can have, and the defaults that follow
(docs/experiment-keys.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..hardware import catalogue
from ..hardware.parts import Model
from ..messages import listed
from ..serving.policies import MEMORIES, POLICIES, server_limits
from ..serving.system_kinds import SYSTEMS
from .presets import preset_values, with_preset
from .tables import SchedulerTable, SystemTable

Row = TypeVar("Row")

_DEFAULT_POLICIES = ("mixed", "prefill_first")  # the first that goes with every memory; the last goes with all


def fits(kind: str, policy: str | None, memory: str | None) -> bool:
    """Whether a system of this kind can have this policy and memory; None where it has none."""
    system = SYSTEMS[kind]
    if memory is not None and memory not in system.memories:
        return False
    return policy is None or memory is None or memory in POLICIES[policy].memories


def clashes(system: SystemTable, scheduler: SchedulerTable) -> list[tuple[str, list[str], str]]:
    """Values of [scheduler] that no cell could have, or that leave a system without any, because of other keys.

    A value that some cells can have multiplies only those, which is no clash. Returns the key, its values and what is
    wrong with them.
    """
    possible = {
        (kind, policy, memory)
        for kind in system.kind
        for policy in (scheduler.policy if SYSTEMS[kind].has_policy else (None,))
        for memory in (scheduler.memory if SYSTEMS[kind].memories else (None,))
        if fits(kind, policy, memory)
    }
    kinds, policies, memories = (set(values) for values in zip(*possible, strict=True)) if possible else (set(),) * 3
    found = []
    for kind in [kind for kind in system.kind if kind not in kinds and not SYSTEMS[kind].has_policy]:
        allowed = " or ".join(SYSTEMS[kind].memories)
        found.append(("memory", list(scheduler.memory), f'must be {allowed} for system.kind = "{kind}"'))
    if any(SYSTEMS[kind].has_policy for kind in system.kind):
        able = [row.name for row in POLICIES.values() if set(row.memories) & set(scheduler.memory)]
        for policy in [policy for policy in scheduler.policy if policy not in policies]:
            words = f"cannot be with memory = {_quoted(scheduler.memory)}: must be {' or '.join(able)}"
            found.append(("policy", [policy], words))
    if not found and any(SYSTEMS[kind].memories for kind in system.kind):
        for memory in [memory for memory in scheduler.memory if memory not in memories]:
            some_kind = any(memory in SYSTEMS[kind].memories for kind in system.kind)
            other = f"policy = {_quoted(scheduler.policy)}" if some_kind else f"system.kind = {_quoted(system.kind)}"
            found.append(("memory", [memory], f"cannot be with {other}"))
    return found


def no_layout(model: Model, tp: int, pp: int) -> str | None:
    """Why no engine spreads a model over `tp` chips a stage and `pp` stages; None where they do."""
    if model.n_heads % tp:
        return f"tp = {tp} does not divide the {model.n_heads} attention heads of {model.name}"
    if pp > model.n_layers:
        return f"pp = {pp} is more than the {model.n_layers} layers of {model.name}"
    return None


def impossible_degrees(models: Sequence[Model], key: str, values: Sequence[int]) -> dict[int, str]:
    """Values of "tp" or "pp" that no layout of any of these models has, each with what it must be."""
    counts = [(model.name, model.n_heads if key == "tp" else model.n_layers) for model in models]
    what = "divide the attention heads" if key == "tp" else "be at most the layers"
    must = f"must {what} of the model: {listed(f'{name} has {count}' for name, count in counts)}"
    return {n: must for n in values if all(count % n if key == "tp" else n > count for _, count in counts)}


def defaults(table: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the keys of a table whose default depends on others, from the tables of a file as they are."""
    given = tables.get(table, {})
    if not isinstance(given, Mapping):
        return {}
    named = {key: (value,) for key, value in preset_values(table, tables).items() if key not in given}
    tables = with_preset(tables)
    entries, system = tables.get(table, {}), tables.get("system", {})
    if table == "workload" and entries.get("kind") == "trace":
        return {"n_requests": (None,), **({} if "spread_s" in entries else {"seed": (None,)})}
    if table != "scheduler":
        return named
    kinds = _listed(system.get("kind", "colocated")) if isinstance(system, Mapping) else []
    memory = "unlimited"
    if {"block_size", "num_blocks"} & entries.keys():
        memory = "paged"
    elif "chunk_budget" in entries or not all(memory in row.memories for row in _rows(SYSTEMS, kinds)):
        memory = "reserve"
    memories = [name for name in MEMORIES if name in _listed(entries.get("memory", memory))]
    able = [name for name in _DEFAULT_POLICIES if all(one in POLICIES[name].memories for one in memories)]
    found: dict[str, Any] = {"memory": (memory,), "policy": (able[0],)}
    if _listed(entries.get("policy")) == ["vllm"]:
        found |= vllm_defaults(entries, tables.get("instance", {}))
    return {**found, **named}


def vllm_defaults(entries: Mapping[str, Any], instance: Any) -> dict[str, Any]:
    """Those of vLLM's server, for the keys of [scheduler] when its policy is vllm alone: paged memory with a prefix
    cache, and limits by the chip's memory; of several chips the smaller ones (docs/vllm.md)."""
    names = _listed(instance.get("chip", [])) if isinstance(instance, Mapping) else []
    chips = [catalogue.chip(name) for name in names if isinstance(name, str) and name in catalogue.chip_names()]
    budget, running = min((server_limits(chip) for chip in chips), default=server_limits(None))
    found: dict[str, Any] = {"max_running": (running,), "token_budget": (budget,)}
    if "memory" not in entries:
        found["memory"] = ("paged",)
    if "memory" not in entries or "paged" in _listed(entries["memory"]):
        found["enable_prefix_caching"] = (True,)
    return found


def _rows(registered: Mapping[str, Row], names: list[Any]) -> list[Row]:
    """Those of these names that there are; a value of a file may be anything."""
    return [row for name, row in registered.items() if name in names]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _quoted(values: tuple[str, ...]) -> str:
    return " and ".join(f'"{value}"' for value in values)
