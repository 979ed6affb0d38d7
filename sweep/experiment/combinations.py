"""Which system, batching policy and KV memory go together, and the defaults that follow (docs/experiment-keys.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tables import SchedulerTable, SystemTable


def fits(kind: str, policy: str | None, memory: str | None) -> bool:
    """Whether a system of this kind can have this policy and memory; None where it has none."""
    if memory == "unlimited":
        return kind == "colocated"
    return memory != "reserve" or policy != "mixed"


def clashes(system: SystemTable, scheduler: SchedulerTable) -> list[tuple[str, list[str], str]]:
    """Values of [scheduler] that no cell could have, or that leave a system without any, because of other keys.

    A value that some cells can have multiplies only those, which is no clash. Returns the key, its values and what is
    wrong with them.
    """
    possible = {
        (kind, policy, memory)
        for kind in system.kind
        for policy in (scheduler.policy if kind == "colocated" else (None,))
        for memory in ((None,) if kind == "prefill_only" else scheduler.memory)
        if fits(kind, policy, memory)
    }
    kinds, policies, memories = (set(values) for values in zip(*possible, strict=True)) if possible else (set(),) * 3
    found = []
    for kind in [kind for kind in system.kind if kind not in kinds and kind != "colocated"]:
        found.append(("memory", list(scheduler.memory), f'must be reserve or paged for system.kind = "{kind}"'))
    if "colocated" in system.kind:
        for policy in [policy for policy in scheduler.policy if policy not in policies]:
            words = f"cannot be with memory = {_quoted(scheduler.memory)}: must be prefill_first or chunked"
            found.append(("policy", [policy], words))
    if not found and system.kind != ("prefill_only",):
        for memory in [memory for memory in scheduler.memory if memory not in memories]:
            other = f"system.kind = {_quoted(system.kind)}"
            if memory == "reserve":
                other = f"policy = {_quoted(scheduler.policy)}"
            found.append(("memory", [memory], f"cannot be with {other}"))
    return found


def defaults(table: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the keys of a table whose default depends on others, from the tables of a file as they are."""
    entries, system = tables.get(table, {}), tables.get("system", {})
    if not isinstance(entries, Mapping):
        return {}
    if table == "workload" and entries.get("kind") == "trace":
        return {"n_requests": (None,), **({} if "spread_s" in entries else {"seed": (None,)})}
    if table != "scheduler":
        return {}
    kinds = _listed(system.get("kind", "colocated")) if isinstance(system, Mapping) else []
    memory = "unlimited"
    if {"block_size", "num_blocks"} & entries.keys():
        memory = "paged"
    elif "chunk_budget" in entries or any(kind != "colocated" for kind in kinds):
        memory = "reserve"  # unlimited memory is for colocated systems only
    # mixed is no policy of reserved memory
    policy = "prefill_first" if "reserve" in _listed(entries.get("memory", memory)) else "mixed"
    return {"memory": (memory,), "policy": (policy,)}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _quoted(values: tuple[str, ...]) -> str:
    return " and ".join(f'"{value}"' for value in values)
