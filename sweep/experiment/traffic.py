"""The requests that the cells of an experiment meet: described by its keys at once, drawn when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..workloads.shared_prefix import shared_prefix_workload
from ..workloads.workload import LognormalLen, Workload, drawn_priority, make_workload
from .keys import key_names
from .specs import points
from .tables import ConfigError, Experiment, WorkloadTable


@dataclass(frozen=True, eq=False)
class SweepTraffic:
    """Requests at a mean rate of 1 request/s, shared by every cell that meets them.

    columns      values of their columns in the cells table
    identity     what decides these requests, for the content id
    make         draws them
    report       what was understood of a trace
    """

    columns: Mapping[str, Any]
    identity: Mapping[str, Any]
    make: Callable[[], Workload]
    report: str = ""

    @cached_property
    def workload(self) -> Workload:
        """The requests."""
        return self.make()

    @property
    def description(self) -> str:
        """What they are, in a few lines. The span and the rate at unit rate would only mislead."""
        head = heading(self.columns["workload"], self.columns["n_requests"], self.columns["seed"])
        return self.report or f"{head}\n" + self.workload.describe().partition("\n")[2]


class Traces:
    """The trace of an experiment, read once for each seed: as many requests as any cell needs, and what was
    understood."""

    def __init__(self, table: WorkloadTable) -> None:
        self._table = table
        self._read: dict[int | None, tuple[Workload, str]] = {}

    def read(self, seed: int | None) -> tuple[Workload, str]:
        """ValueError or OSError for a trace that cannot be used."""
        from ..workloads.traces import read_trace

        table = self._table
        if seed not in self._read:
            assert table.path is not None
            longest = None if None in table.n_requests else max(n for n in table.n_requests if n is not None)
            options = {
                key: getattr(table, key) for key in ("format", "columns", "on_bad", "spread_s", "start_s", "end_s")
            }
            workload, report = read_trace(table.path, limit=longest, seed=seed or 0, **options)
            self._read[seed] = workload, str(report)
        return self._read[seed]

    def first(self, seed: int | None, n: int | None) -> Workload:
        """Its first n requests; ValueError when there are fewer."""
        workload, _ = self.read(seed)
        if n is None or n == len(workload):
            return workload
        if n > len(workload):
            most = f"{len(workload)}, the requests of the trace after its cuts"
            raise ValueError(f"n_requests = {n}: must be at most {most}")
        priority = None if workload.priority is None else workload.priority[:n]
        return Workload(
            workload.arrival_s[:n],
            workload.prompt_tokens[:n],
            workload.output_tokens[:n],
            name=workload.name,
            priority=priority,
            texts=None if workload.texts is None else workload.texts.part(np.arange(n)),
        )


def heading(name: str, n: int, seed: int | None) -> str:
    """The first line of the description of requests that are drawn."""
    return f"{name}: {n:,} requests, seed {seed}"


def make_traffics(experiment: Experiment, traces: Traces | None = None) -> list[SweepTraffic]:
    """Every traffic of an experiment, in the order of the cells. Traces are read, nothing is drawn.

    ConfigError for a trace that cannot be used.
    """
    table = experiment.workload
    traces = Traces(table) if traces is None else traces
    try:
        return [_of_trace(traces, point) if table.kind == "trace" else _drawn(table, point) for point in points(table)]
    except (ValueError, OSError) as error:
        raise unusable(experiment, error) from None


def unusable(experiment: Experiment, error: Exception) -> ConfigError:
    """The error for traffic that there cannot be, with where the key came from that it is about; with none, where the
    trace came from."""
    text = str(error)
    key = "columns" if "columns names" in text else text.partition("=")[0].strip()
    place = experiment.place("workload", key if key in key_names(WorkloadTable) else "path")
    return ConfigError([f"{place}: workload: {text}"])


def _of_trace(traces: Traces, point: Mapping[str, Any]) -> SweepTraffic:
    recorded = traces.first(point["seed"], point["n_requests"])
    workload = recorded.at_unit_rate()
    # The seed counts although the requests do: where nothing is spread, all seeds give the same ones.
    facts = {"kind": "trace", "requests": _digest(workload), "seed": point["seed"]}
    report = traces.read(point["seed"])[1]
    return SweepTraffic(_columns(recorded.name, len(workload), point), facts, lambda: workload, report)


def _drawn(table: WorkloadTable, point: Mapping[str, Any]) -> SweepTraffic:
    n, seed = point["n_requests"], point["seed"]
    facts: dict[str, Any] = {"kind": table.kind, "n_requests": n, "seed": seed}
    if table.kind in ("synthetic", "shared_prefix"):
        lengths = {
            key: asdict(length) if isinstance(length, LognormalLen) else length
            for key, length in (("prompt", table.prompt), ("output", table.output))
        }
        facts |= {**lengths, "arrivals": point["arrivals"]}
        facts |= {key: point[key] for key in ("cv", "prefix_tokens", "prefix_groups") if point[key] is not None}
    if point["urgent_share"] is not None:
        facts["urgent_share"] = point["urgent_share"]
    return SweepTraffic(_columns(table.kind, n, point), facts, lambda: _draw(table, point))


def _draw(table: WorkloadTable, point: Mapping[str, Any]) -> Workload:
    n, seed = point["n_requests"], point["seed"]
    if table.kind == "conversation":
        from ..workloads.conversation import conversation_workload

        workload = conversation_workload(n, seed=seed)
    else:
        assert table.prompt is not None
        assert table.output is not None
        cv = {} if point["cv"] is None else {"cv": point["cv"]}
        prompt, output, arrivals = table.prompt, table.output, point["arrivals"]
        prefix, groups = point["prefix_tokens"], point["prefix_groups"]
        if prefix is None:
            workload = make_workload(n, 1.0, prompt, output, seed, arrivals, **cv)
        else:
            drawn = {"prompt": prompt, "output": output, "seed": seed, "arrivals": arrivals, **cv}
            workload = shared_prefix_workload(n, rate=1.0, prefix_tokens=prefix, prefix_groups=groups, **drawn)
    if point["urgent_share"] is not None:
        assert seed is not None
        workload = replace(workload, priority=drawn_priority(n, point["urgent_share"], seed))
    return workload


def _columns(name: str, n: int, point: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("prefix_tokens", "prefix_groups", "arrivals", "cv", "urgent_share", "seed")
    return {"workload": name, "n_requests": n, **{key: point[key] for key in keys}}


def _digest(workload: Workload) -> str:
    """sha256 of the requests themselves: whatever is done to read a trace, the same requests are the same traffic."""
    digest = hashlib.sha256()
    for array, kind in ((workload.arrival_s, "<f8"), (workload.prompt_tokens, "<i8"), (workload.output_tokens, "<i8")):
        digest.update(array.astype(kind).tobytes())
    if workload.texts is not None:
        for values in (workload.texts.start, workload.texts.segment, workload.texts.tokens, workload.texts.answer):
            digest.update(values.astype("<i8").tobytes())
    if workload.priority is not None:
        digest.update(workload.priority.astype("<i8").tobytes())
    return digest.hexdigest()
