"""Experiments: the tables of a TOML file as frozen dataclasses, whose fields are the keys (docs/experiment-keys.md).

A key that is an *axis* takes one value or a list of values, and is kept as a tuple. How a file is read and checked is
in `experiment_file`; what the axes multiply to is in `plan`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..checks import MAX_TOKENS
from ..hardware import catalogue
from ..messages import MOST_PROBLEMS, clipped, listed
from ..serving.orders import DEFAULT_ORDER, ORDERS
from ..serving.policies import DEFAULTS, MEMORIES, POLICIES, SCHEDULED
from ..serving.routers import DEFAULT_ROUTER, ROUTERS
from ..serving.system_kinds import SYSTEMS
from ..serving.systems import MAX_INSTANCES
from ..workloads.trace_formats import FORMATS
from ..workloads.traces import ON_BAD
from ..workloads.workload import ARRIVALS, CV_RANGE, MAX_REQUESTS, LognormalLen
from .instance_tables import ROLE_TABLES, InstanceTable, RoleTable
from .keys import ANYWHERE, Needs, above_one, as_key, in_use, needs
from .presets import PRESETS
from .step_files import is_file

KINDS = ("conversation", "synthetic", "shared_prefix", "trace")
TRACE_COLUMNS = ("arrival_s", "arrival_ms", "prompt_tokens", "output_tokens", "priority")
DEFAULT_REQUESTS = 2000


class ConfigError(ValueError):
    """An experiment that cannot be run. The message has the first of its problems.

    Attributes
    ----------
    problems
        A text for each wrong thing, with its place, the value and what is allowed.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(clipped, problems))
        more = len(self.problems) - MOST_PROBLEMS
        super().__init__("\n".join([*self.problems[:MOST_PROBLEMS], *([f"... and {more:,} more"] if more > 0 else [])]))


_ONE_ROLE = tuple(row.name for row in SYSTEMS.values() if len(row.roles) == 1)  # whose instances are all alike
_ROLES = tuple(row.name for row in SYSTEMS.values() if len(row.roles) > 1)
_COUNT: dict[str, Any] = {"lowest": 1, "highest": 2**63 - 1}  # what a column of the tables holds
_SEED: dict[str, Any] = {"lowest": 0, "highest": 2**63 - 1}
_INSTANCES: dict[str, Any] = {"lowest": 1, "highest": MAX_INSTANCES}


def _limits(range_: tuple[float, float]) -> dict[str, Any]:
    return {"lowest": range_[0], "highest": range_[1]}


_SYNTHETIC = needs("kind", "synthetic", "shared_prefix")
_SHARED = needs("kind", "shared_prefix")
_TRACE = needs("kind", "trace")
_DRAWN = needs("kind", "conversation", "synthetic", "shared_prefix")
_BURSTY = needs("arrivals", "bursty")
_POLICY = needs("system.kind", *(row.name for row in SYSTEMS.values() if row.has_policy))
_PREFILLS = needs("system.kind", *(row.name for row in SYSTEMS.values() if row.prefills))
_DECODES = needs("system.kind", *(row.name for row in SYSTEMS.values() if row.decodes))
_HAS_TTFT = needs("system.kind", *(row.name for row in SYSTEMS.values() if row.has_ttft))
_SEEDED = tuple(row.name for row in ROUTERS.values() if row.seeded)
_SEVERAL = above_one("n_instances") | above_one("n_prefill") | above_one("n_decode")
_PAGED = needs("memory", "paged")
_SCHEDULED = needs("memory", *SCHEDULED)
_VLLM = needs("policy", "vllm")


def _option_of_policies(option: str) -> Needs:
    """Some policy uses the option, with the memory that it has."""
    by_memories: dict[tuple[str, ...], list[str]] = {}
    for row in POLICIES.values():
        memories = tuple(memory for memory in MEMORIES if option in row.options.get(memory, ()))
        if memories:
            by_memories.setdefault(memories, []).append(row.name)
    ways = [
        needs("policy", *policies) & (needs("memory", *memories) if len(memories) < len(MEMORIES) else ANYWHERE)
        for memories, policies in by_memories.items()
    ]
    return functools.reduce(Needs.__or__, ways)


@dataclass(frozen=True)
class WorkloadTable:
    """[workload]: which requests, and at which rates.

    `n_requests` None: the whole trace. `seed` None: nothing is drawn (a trace that is not spread).
    """

    kind: str = field(default="conversation", metadata=as_key(str, axis=False, names=KINDS))
    n_requests: tuple[int | None, ...] = field(
        default=(DEFAULT_REQUESTS,), metadata=as_key(int, lowest=1, highest=MAX_REQUESTS)
    )
    seed: tuple[int | None, ...] = field(default=(0,), metadata=as_key(int, lowest=0, highest=_COUNT["highest"]))
    prompt: int | LognormalLen | None = field(
        default=None, metadata=as_key(LognormalLen, axis=False, lowest=1, highest=MAX_TOKENS, needs=_SYNTHETIC)
    )
    prefix_tokens: tuple[int | None, ...] = field(
        default=(None,), metadata=as_key(int, lowest=1, highest=MAX_TOKENS, needs=_SHARED)
    )
    prefix_groups: tuple[int, ...] = field(
        default=(1,), metadata=as_key(int, lowest=1, highest=MAX_TOKENS, needs=_SHARED)
    )
    output: int | LognormalLen | None = field(
        default=None, metadata=as_key(LognormalLen, axis=False, lowest=1, highest=MAX_TOKENS, needs=_SYNTHETIC)
    )
    arrivals: tuple[str, ...] = field(default=("poisson",), metadata=as_key(str, names=ARRIVALS, needs=_SYNTHETIC))
    cv: tuple[float, ...] = field(default=(1.0,), metadata=as_key(float, **_limits(CV_RANGE), needs=_BURSTY))
    urgent_share: tuple[float | None, ...] = field(
        default=(None,), metadata=as_key(float, lowest=0, highest=1, needs=_DRAWN)
    )
    path: Path | None = field(default=None, metadata=as_key(str, axis=False, needs=_TRACE))
    format: str | None = field(default=None, metadata=as_key(str, axis=False, names=FORMATS, needs=_TRACE))
    columns: dict[str, str] | None = field(default=None, metadata=as_key(dict, axis=False, needs=_TRACE))
    start_s: float | None = field(default=None, metadata=as_key(float, axis=False, lowest=0, needs=_TRACE))
    end_s: float | None = field(default=None, metadata=as_key(float, axis=False, above=0, needs=_TRACE))
    spread_s: float | str | None = field(
        default=None, metadata=as_key(float, axis=False, above=0, names=("auto",), needs=_TRACE)
    )
    on_bad: str = field(default="error", metadata=as_key(str, axis=False, names=ON_BAD, needs=_TRACE))
    request_rate_rps: tuple[float, ...] = field(default=(), metadata=as_key(float, above=0, ranged=True))


@dataclass(frozen=True)
class SystemTable:
    """[system]: which instances serve the requests, and who gets which. `n_gpus` None: any number; it draws no axis.
    `preset` gives defaults."""

    preset: str | None = field(default=None, metadata=as_key(str, axis=False, names=tuple(PRESETS)))
    kind: tuple[str, ...] = field(default=("colocated",), metadata=as_key(str, names=tuple(SYSTEMS)))
    n_instances: tuple[int, ...] = field(
        default=(1,), metadata=as_key(int, **_INSTANCES, needs=needs("kind", *_ONE_ROLE))
    )
    n_prefill: tuple[int, ...] = field(default=(1,), metadata=as_key(int, **_INSTANCES, needs=needs("kind", *_ROLES)))
    n_decode: tuple[int, ...] = field(default=(1,), metadata=as_key(int, **_INSTANCES, needs=needs("kind", *_ROLES)))
    router: tuple[str, ...] = field(
        default=(DEFAULT_ROUTER,), metadata=as_key(str, names=tuple(ROUTERS), needs=_SEVERAL)
    )
    router_seed: tuple[int, ...] = field(
        default=(0,),
        metadata=as_key(int, **_SEED, needs=needs("router", *(row.name for row in ROUTERS.values() if row.seeded))),
    )
    transfer_link: tuple[str, ...] = field(
        default=("ib-ndr",), metadata=as_key(str, lookup=catalogue.link, needs=needs("kind", *_ROLES))
    )
    n_gpus: tuple[int | None, ...] = field(default=(None,), metadata=as_key(int, **_COUNT))


@dataclass(frozen=True)
class SchedulerTable:
    """[scheduler]: batching policy and KV memory. `num_blocks` None: all that the KV capacity holds."""

    policy: tuple[str, ...] = field(default=("mixed",), metadata=as_key(str, names=tuple(POLICIES), needs=_POLICY))
    memory: tuple[str, ...] = field(default=("unlimited",), metadata=as_key(str, names=tuple(MEMORIES), needs=_DECODES))
    max_running: tuple[int, ...] = field(default=(256,), metadata=as_key(int, **_COUNT, needs=_SCHEDULED))
    block_size: tuple[int, ...] = field(default=(16,), metadata=as_key(int, **_COUNT, needs=_PAGED))
    num_blocks: tuple[int | None, ...] = field(default=(None,), metadata=as_key(int, **_COUNT, needs=_PAGED))
    token_budget: tuple[int, ...] = field(
        default=(DEFAULTS["token_budget"],),
        metadata=as_key(int, **_COUNT, needs=_option_of_policies("token_budget")),
    )
    chunk_budget: tuple[int, ...] = field(
        default=(DEFAULTS["chunk_budget"],),
        metadata=as_key(int, **_COUNT, needs=_option_of_policies("chunk_budget")),
    )
    max_tokens: tuple[int, ...] = field(
        default=(DEFAULTS["max_tokens"],),
        metadata=as_key(int, **_COUNT, needs=_option_of_policies("max_tokens") | _PREFILLS),
    )
    long_prefill_token_threshold: tuple[int, ...] = field(
        default=(0,), metadata=as_key(int, lowest=0, highest=_COUNT["highest"], needs=_VLLM)
    )
    enable_chunked_prefill: tuple[bool, ...] = field(default=(True,), metadata=as_key(bool, needs=_VLLM))
    reserve_full_isl: tuple[bool, ...] = field(default=(True,), metadata=as_key(bool, needs=_VLLM & _PAGED))
    watermark: tuple[float, ...] = field(
        default=(0.0,), metadata=as_key(float, lowest=0, highest=1, needs=_VLLM & _PAGED)
    )
    max_model_len: tuple[int | None, ...] = field(
        default=(None,), metadata=as_key(int, lowest=2, highest=_COUNT["highest"], needs=_VLLM)
    )
    async_scheduling: tuple[bool, ...] = field(default=(False,), metadata=as_key(bool, needs=_VLLM))
    enable_prefix_caching: tuple[bool, ...] = field(default=(False,), metadata=as_key(bool, needs=_POLICY & _PAGED))
    order: tuple[str, ...] = field(
        default=(DEFAULT_ORDER,), metadata=as_key(str, names=tuple(ORDERS), needs=_POLICY | _PREFILLS)
    )
    max_wait_s: tuple[float | None, ...] = field(
        default=(None,),
        metadata=as_key(float, lowest=0, needs=needs("order", *(row.name for row in ORDERS.values() if row.ages))),
    )


@dataclass(frozen=True)
class SloTable:
    """[slo]: what a request must meet (None: not checked), and the shares of first and last requests not counted."""

    ttft_ms: tuple[float | None, ...] = field(default=(None,), metadata=as_key(float, above=0, needs=_HAS_TTFT))
    tpot_ms: tuple[float | None, ...] = field(default=(None,), metadata=as_key(float, above=0, needs=_DECODES))
    e2e_ms: tuple[float | None, ...] = field(default=(None,), metadata=as_key(float, above=0, needs=_DECODES))
    itl_max_ms: tuple[float | None, ...] = field(default=(None,), metadata=as_key(float, above=0, needs=_DECODES))
    warmup: float = field(default=0.2, metadata=as_key(float, axis=False, lowest=0, below=1))
    cooldown: float = field(default=0.2, metadata=as_key(float, axis=False, lowest=0, below=1))


@dataclass(frozen=True)
class OutputTable:
    """[output]: cells whose requests, steps and instances are written as tables of their own; see `Plan.select`."""

    requests: str | None = field(default=None, metadata=as_key(str, axis=False))
    steps: str | None = field(default=None, metadata=as_key(str, axis=False))
    instances: str | None = field(default=None, metadata=as_key(str, axis=False))


TABLES: dict[str, type] = {
    "workload": WorkloadTable,
    "system": SystemTable,
    "instance": InstanceTable,
    **dict.fromkeys(ROLE_TABLES, RoleTable),
    "scheduler": SchedulerTable,
    "slo": SloTable,
    "output": OutputTable,
}


@dataclass(frozen=True)
class Experiment:
    """A checked experiment: the tables of its file, whose attributes are the keys (docs/experiment-keys.md).

    Attributes
    ----------
    name
        Of the experiment.
    workload, instance, scheduler, slo, output, system, prefill_instance, decode_instance
        The tables. A key that can be an axis has a tuple of values.
    source
        The file that it came from, for messages.
    origins
        For keys that came from elsewhere, such as ("output", "steps"): from where, such as "--steps".
    """

    name: str
    workload: WorkloadTable
    instance: InstanceTable
    scheduler: SchedulerTable
    slo: SloTable = SloTable()
    output: OutputTable = OutputTable()
    system: SystemTable = SystemTable()
    prefill_instance: RoleTable = field(default_factory=RoleTable)
    decode_instance: RoleTable = field(default_factory=RoleTable)
    source: str = "config"
    origins: Mapping[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)

    def in_use(self, table: str, key: str) -> bool:
        """Whether a key has an effect on any cell."""
        return in_use(vars(self), table, key)

    def place(self, table: str, key: str) -> str:
        """Where the value of a key came from, for messages."""
        return self.origins.get((table, key), self.source)

    def with_options(self, *tables: str) -> str:
        """The source, and the keys of some tables that came from elsewhere, for messages about none in particular."""
        keys = [f"{origin} {'.'.join(path)}" for path, origin in self.origins.items() if path[0] in tables]
        return f"{self.source} with {listed(keys)}" if keys else self.source

    def tables(self) -> dict[str, Any]:
        """The experiment as plain tables, defaults filled in, which give the same experiment when they are read again.

        Of paths, to a trace or to step times, only the file's name is kept: where it lies is no part of an experiment.
        """
        tables: dict[str, Any] = {"name": self.name}
        for name in TABLES:
            table = getattr(self, name)
            entries = {f.name: _plain(getattr(table, f.name)) for f in fields(table) if self.in_use(name, f.name)}
            if any(value is not None for value in entries.values()):
                tables[name] = {key: value for key, value in entries.items() if value is not None}
        return tables


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return None if value == (None,) else _plain(value[0]) if len(value) == 1 else [_plain(item) for item in value]
    if isinstance(value, LognormalLen):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, str) and is_file(value):
        return Path(value).name
    return value.name if isinstance(value, Path) else value
