"""Systems that papers name: what a preset of [system] gives where the experiment says nothing (docs/presets.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import checks

_WHOLE_PROMPTS = 1_000_000  # a chunk in which every prompt fits


class Preset(NamedTuple):
    """A name, a line about it, and values of keys of [system] and [scheduler]."""

    name: str
    meaning: str
    system: Mapping[str, Any]
    scheduler: Mapping[str, Any]


PRESETS = checks.by_name(
    (
        Preset(
            "orca",
            "iteration-level batching, KV set aside at admission (OSDI '22)",
            {"kind": "colocated"},
            {"memory": "reserve", "policy": "chunked", "chunk_budget": _WHOLE_PROMPTS},
        ),
        Preset(
            "vllm-v0",
            "paged KV, prompts before decodes (SOSP '23)",
            {"kind": "colocated"},
            {"memory": "paged", "policy": "prefill_first", "block_size": 16, "max_running": 256, "max_tokens": 4096},
        ),
        Preset(
            "sarathi-serve",
            "paged KV, chunks of prompts beside decodes (OSDI '24)",
            {"kind": "colocated"},
            {"memory": "paged", "policy": "chunked", "block_size": 16, "max_running": 128, "token_budget": 512},
        ),
        Preset(
            "distserve",
            "prefill and decode instances of their own, over NVLink (OSDI '24)",
            {"kind": "disaggregated", "router": "least_loaded", "transfer_link": "nvlink3"},
            {"memory": "paged", "block_size": 16, "max_running": 256, "max_tokens": 2048},
        ),
        Preset(
            "splitwise",
            "prompt and token machines, over InfiniBand (ISCA '24)",
            {"kind": "disaggregated", "router": "least_tokens", "transfer_link": "ib-ndr"},
            {"memory": "paged", "block_size": 16, "max_running": 256, "max_tokens": 2048},
        ),
    )
)


def with_preset(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a file, with what its preset gives for keys of [system] that it does not hold.

    Only for defaults: what was given, and where, is told by the tables as they are.
    """
    found = dict(tables)
    for table in ("system", "scheduler"):
        entries = tables.get(table, {})
        if isinstance(entries, Mapping):
            found[table] = {**preset_values(table, tables), **entries}
    return found


def preset_values(table: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """What the preset of a file gives for the keys of a table; nothing without one, or with one that there is not."""
    system = tables.get("system", {})
    name = system.get("preset") if isinstance(system, Mapping) else None
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None or table not in ("system", "scheduler"):
        return {}
    values = dict(preset.system if table == "system" else preset.scheduler)
    return values if table == "system" else _of_policy(values, tables.get("scheduler", {}))


def _of_policy(values: dict[str, Any], entries: Any) -> dict[str, Any]:
    """Where the memory is another than the preset's, its policy and budgets say nothing."""
    other = isinstance(entries, Mapping) and entries.get("memory", values["memory"]) != values["memory"]
    return {} if other else values
