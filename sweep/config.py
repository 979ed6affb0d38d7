"""Experiments: the tables of a TOML file as frozen dataclasses, whose fields are the keys (docs/sweeps.md).

A key that is an *axis* takes one value or a list of values, and is kept as a tuple. How a file is read and checked is
in `experiment_file`; what the axes multiply to is in `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from . import catalogue
from .checks import MAX_TOKENS, nearest
from .scheduler import MEMORIES, POLICIES
from .steps import BYTES_RANGE, EFFICIENCY_RANGE, MAX_DEGREE, MAX_OVERHEAD_S
from .trace_formats import FORMATS
from .traces import ON_BAD
from .workloads import ARRIVALS, CV_RANGE, MAX_REQUESTS, LognormalLen

KINDS = ("conversation", "synthetic", "trace")
TRACE_COLUMNS = ("arrival_s", "arrival_ms", "prompt_tokens", "output_tokens")
DEFAULT_REQUESTS = 2000


class ConfigError(ValueError):
    """An experiment that cannot be run. `problems`: a text for each wrong thing, with its place and the value."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Needs:
    """A condition on another key of the same table: a value of `key` must satisfy `test` (in words: `words`)."""

    key: str
    test: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Key:
    """What a key may hold.

    kind      int, float or str; LognormalLen for a length: an integer, or a table of mean, sigma, lo, hi; dict for the
              names of a trace's columns
    axis      a list of values is allowed, and multiplies the cells
    lowest, highest    limits that are allowed themselves;  above, below    limits that are not
    names     for strings: the names that there are; for numbers: names allowed beside them
    lookup    for strings: finds what a name stands for, or raises ValueError
    needs     the key has an effect only for these values of another key
    ranged    {from, to, count, spacing} stands for a list
    """

    kind: type
    axis: bool = True
    lowest: float | None = None
    highest: float | None = None
    above: float | None = None
    below: float | None = None
    names: tuple[str, ...] | None = None
    lookup: Callable[[str], object] | None = None
    needs: Needs | None = None
    ranged: bool = False


def _key(kind: type, **limits: Any) -> dict[str, Key]:
    return {"key": Key(kind, **limits)}


_COUNT: dict[str, Any] = {"lowest": 1, "highest": 2**63 - 1}  # what a column of the tables holds


def key_of(table: type, name: str) -> Key:
    """The `Key` of one field of a table."""
    key: Key = next(f for f in fields(table) if f.name == name).metadata["key"]
    return key


def key_names(table: type) -> list[str]:
    """Keys of a table, in the order in which their axes multiply."""
    return [f.name for f in fields(table)]


def _needs(key: str, *values: str) -> Needs:
    return Needs(key, lambda value: value in values, " or ".join(f'{key} = "{value}"' for value in values))


def _limits(range_: tuple[float, float]) -> dict[str, float]:
    return {"lowest": range_[0], "highest": range_[1]}


_SYNTHETIC = _needs("kind", "synthetic")
_TRACE = _needs("kind", "trace")
_BURSTY = _needs("arrivals", "bursty")
_PAGED = _needs("memory", "paged")
_CHUNKED = _needs("policy", "chunked")
_PREFILL_FIRST = _needs("policy", "prefill_first")
_SHARDED = Needs("tp", lambda tp: bool(tp > 1), "tp above 1")


@dataclass(frozen=True)
class WorkloadTable:
    """[workload]: which requests, and at which rates.

    `n_requests` None: the whole trace. `seed` None: nothing is drawn (a trace that is not spread).
    """

    kind: str = field(default="conversation", metadata=_key(str, axis=False, names=KINDS))
    n_requests: tuple[int | None, ...] = field(
        default=(DEFAULT_REQUESTS,), metadata=_key(int, lowest=1, highest=MAX_REQUESTS)
    )
    seed: tuple[int | None, ...] = field(default=(0,), metadata=_key(int, lowest=0, highest=_COUNT["highest"]))
    prompt: int | LognormalLen | None = field(
        default=None, metadata=_key(LognormalLen, axis=False, lowest=1, highest=MAX_TOKENS, needs=_SYNTHETIC)
    )
    output: int | LognormalLen | None = field(
        default=None, metadata=_key(LognormalLen, axis=False, lowest=1, highest=MAX_TOKENS, needs=_SYNTHETIC)
    )
    arrivals: tuple[str, ...] = field(default=("poisson",), metadata=_key(str, names=ARRIVALS, needs=_SYNTHETIC))
    cv: tuple[float, ...] = field(default=(1.0,), metadata=_key(float, **_limits(CV_RANGE), needs=_BURSTY))
    path: Path | None = field(default=None, metadata=_key(str, axis=False, needs=_TRACE))
    format: str | None = field(default=None, metadata=_key(str, axis=False, names=FORMATS, needs=_TRACE))
    columns: dict[str, str] | None = field(default=None, metadata=_key(dict, axis=False, needs=_TRACE))
    start_s: float | None = field(default=None, metadata=_key(float, axis=False, lowest=0, needs=_TRACE))
    end_s: float | None = field(default=None, metadata=_key(float, axis=False, above=0, needs=_TRACE))
    spread_s: float | str | None = field(
        default=None, metadata=_key(float, axis=False, above=0, names=("auto",), needs=_TRACE)
    )
    on_bad: str = field(default="error", metadata=_key(str, axis=False, names=ON_BAD, needs=_TRACE))
    request_rate_rps: tuple[float, ...] = field(default=(), metadata=_key(float, above=0, ranged=True))


@dataclass(frozen=True)
class InstanceTable:
    """[instance]: the GPUs of one instance and the model on them. Defaults are those of `StepModel`."""

    model: tuple[str, ...] = field(default=(), metadata=_key(str, lookup=catalogue.model))
    chip: tuple[str, ...] = field(default=(), metadata=_key(str, lookup=catalogue.chip))
    tp: tuple[int, ...] = field(default=(1,), metadata=_key(int, lowest=1, highest=MAX_DEGREE))
    pp: tuple[int, ...] = field(default=(1,), metadata=_key(int, lowest=1, highest=MAX_DEGREE))
    weight_bytes: tuple[float, ...] = field(default=(2.0,), metadata=_key(float, **_limits(BYTES_RANGE)))
    kv_bytes: tuple[float, ...] = field(default=(2.0,), metadata=_key(float, **_limits(BYTES_RANGE)))
    mfu: tuple[float, ...] = field(default=(0.6,), metadata=_key(float, **_limits(EFFICIENCY_RANGE)))
    mbu: tuple[float, ...] = field(default=(0.8,), metadata=_key(float, **_limits(EFFICIENCY_RANGE)))
    overhead_s: tuple[float, ...] = field(default=(1e-3,), metadata=_key(float, lowest=0, highest=MAX_OVERHEAD_S))
    mem_reserve: tuple[float, ...] = field(default=(0.1,), metadata=_key(float, lowest=0, below=1))
    link: tuple[str, ...] = field(default=("nvlink4",), metadata=_key(str, lookup=catalogue.link, needs=_SHARDED))


@dataclass(frozen=True)
class SchedulerTable:
    """[scheduler]: batching policy and KV memory. `num_blocks` None: all that the KV capacity holds."""

    policy: tuple[str, ...] = field(default=("mixed",), metadata=_key(str, names=POLICIES))
    memory: tuple[str, ...] = field(default=("unlimited",), metadata=_key(str, names=MEMORIES))
    max_running: tuple[int, ...] = field(default=(256,), metadata=_key(int, **_COUNT))
    block_size: tuple[int, ...] = field(default=(16,), metadata=_key(int, **_COUNT, needs=_PAGED))
    num_blocks: tuple[int | None, ...] = field(default=(None,), metadata=_key(int, **_COUNT, needs=_PAGED))
    token_budget: tuple[int, ...] = field(default=(512,), metadata=_key(int, **_COUNT, needs=_CHUNKED))
    max_tokens: tuple[int, ...] = field(default=(4096,), metadata=_key(int, **_COUNT, needs=_PREFILL_FIRST))


@dataclass(frozen=True)
class SloTable:
    """[slo]: what a request must meet (None: not checked), and the shares of first and last requests not counted."""

    ttft_ms: tuple[float | None, ...] = field(default=(None,), metadata=_key(float, above=0))
    tpot_ms: tuple[float | None, ...] = field(default=(None,), metadata=_key(float, above=0))
    warmup: float = field(default=0.2, metadata=_key(float, axis=False, lowest=0, below=1))
    cooldown: float = field(default=0.2, metadata=_key(float, axis=False, lowest=0, below=1))


@dataclass(frozen=True)
class OutputTable:
    """[output]: cells whose requests and steps are written as tables of their own; see `Plan.select`."""

    requests: str | None = field(default=None, metadata=_key(str, axis=False))
    steps: str | None = field(default=None, metadata=_key(str, axis=False))


TABLES: dict[str, type] = {
    "workload": WorkloadTable,
    "instance": InstanceTable,
    "scheduler": SchedulerTable,
    "slo": SloTable,
    "output": OutputTable,
}


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    source   the file that it came from, for messages
    origins  for keys that came from elsewhere, such as ("output", "steps"): from where, such as "--steps"
    """

    name: str
    workload: WorkloadTable
    instance: InstanceTable
    scheduler: SchedulerTable
    slo: SloTable = SloTable()
    output: OutputTable = OutputTable()
    source: str = "config"
    origins: Mapping[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)

    def place(self, table: str, key: str) -> str:
        """Where the value of a key came from, for messages."""
        return self.origins.get((table, key), self.source)

    def with_options(self, *tables: str) -> str:
        """The source, and the keys of some tables that came from elsewhere, for messages about none in particular."""
        keys = [f"{origin} {'.'.join(path)}" for path, origin in self.origins.items() if path[0] in tables]
        return f"{self.source} with {', '.join(keys)}" if keys else self.source

    def tables(self) -> dict[str, Any]:
        """The experiment as plain tables, defaults filled in, which give the same experiment when they are read again.

        Of a trace's path only the file's name is kept: where it lies is no part of an experiment.
        """
        tables: dict[str, Any] = {"name": self.name}
        for name in TABLES:
            table = getattr(self, name)
            entries = {f.name: _plain(getattr(table, f.name)) for f in fields(table) if in_use(table, f.name)}
            if any(value is not None for value in entries.values()):
                tables[name] = {key: value for key, value in entries.items() if value is not None}
        return tables


def in_use(table: Any, name: str) -> bool:
    """Whether the key has an effect at all, given the values of the key that it depends on."""
    needs = key_of(type(table), name).needs
    if needs is None:
        return True
    held = getattr(table, needs.key)
    return in_use(table, needs.key) and any(
        needs.test(value) for value in (held if isinstance(held, tuple) else (held,))
    )


def conditions(selection: str) -> list[tuple[str, str]]:
    """Column and value of each condition of a choice of cells; empty where it is "all" or ids of cells."""
    parts = [part.partition("=") for part in selection.split(",")]
    return [(column.strip(), value.strip()) for column, _, value in parts] if all(part[1] for part in parts) else []


def check_columns(selection: str) -> None:
    """ValueError for a choice of cells by a column that is no parameter."""
    columns = [
        *("cell_id", "workload", "arrivals", "cv", "n_requests", "seed", "request_rate_rps", "system", "n_gpus"),
        *(f.name for table in (InstanceTable, SchedulerTable) for f in fields(table)),
        *("ttft_slo_s", "tpot_slo_s", "warmup", "cooldown"),
    ]
    for column, _ in conditions(selection):
        if column not in columns:
            raise ValueError(f"{selection!r}: unknown column {column!r}{nearest(column, columns)}")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return None if value == (None,) else _plain(value[0]) if len(value) == 1 else [_plain(item) for item in value]
    if isinstance(value, LognormalLen):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return value.name if isinstance(value, Path) else value
