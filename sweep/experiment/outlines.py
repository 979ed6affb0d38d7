"""What a sweep will be, without its cells: counted, with one system for all that are alike, and nothing drawn.

A dry run answers from it, in time and memory that do not grow with the experiment.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..kernels.slots import NEVER_FINISHES
from ..workloads.expected import ExpectedLength, expected_conversation, expected_length
from ..workloads.workload import Workload
from .axes import EVERY
from .instance_tables import ROLE_TABLES
from .plan import check_rates, make_plan, no_cell_can_run
from .sizes import (
    GPU_KEYS,
    SystemsAlike,
    axes,
    count_cells,
    count_layouts,
    count_slos,
    count_workloads,
    systems_alike,
    workloads_alike,
)
from .specs import NO_REQUESTS, SYSTEM_TABLES, SystemSpec, systems_of
from .tables import ConfigError, Experiment
from .traffic import Traces, heading, unusable

BUILT_CELLS = 20_000
"""Up to so many cells are also built, for what only they can tell."""

_BUILT_SYSTEMS = 4_000
_BUILT_TRACES = 10  # each is read again for every seed
_SYSTEMS = 1_000  # that are looked at; each takes some tenths of a millisecond
_LENGTHS = 50  # numbers of requests that are told apart
_SHOWN = 8  # workloads that are described
_COARSER = (EVERY, 300, 100, 30, 10, 5, 3, 2, 1)  # values that stand for all of a longer axis
_SURE = 1.05  # drawn outputs are longer than the expectation divided by this

# Keys that decide on whether a system can run, and on what runs together.
_OF_INSTANCES = ("model", "chip", "tp", "pp", "weight_bytes", "kv_bytes", "mem_reserve", "step_times")
_DECISIVE = (
    *("n_instances", "n_prefill", "n_decode", "router", "block_size", "num_blocks", "order"),
    *("enable_prefix_caching", "async_scheduling", "long_prefill_token_threshold"),  # how the engine runs it
    *(f"{role}{key}" for role in ("", "prefill.", "decode.") for key in _OF_INSTANCES),
)


@dataclass(frozen=True)
class OfKind:
    """Systems that are alike: one of them, and in how many cells they are under each workload."""

    spec: SystemSpec
    cells: int


@dataclass(frozen=True)
class Outline:
    """An experiment in numbers.

    Attributes
    ----------
    experiment
        What was asked.
    cells
        How many there are.
    systems
        Those that are alike as one.
    is_exact
        Whether all that differ in what they take were told apart; otherwise some stand for their neighbours.
    n_workloads, workloads
        How many workloads there are; what the first of them are, in a few lines each.
    requests
        Of all workloads together.
    lengths
        Numbers of requests, and how many workloads have each; of very many, some stand for their neighbours.
    """

    experiment: Experiment
    cells: int
    systems: tuple[OfKind, ...]
    is_exact: bool
    n_workloads: int
    workloads: tuple[str, ...]
    requests: int
    lengths: Mapping[int, int]

    @property
    def runs(self) -> list[OfKind]:
        """Systems that can be simulated."""
        return [one for one in self.systems if one.spec.infeasible is None]

    @property
    def feasible(self) -> int:
        """Cells that can be simulated."""
        return self.n_workloads * sum(one.cells for one in self.runs)

    @property
    def infeasible(self) -> dict[str, int]:
        """Why cells cannot run, and how many, the most first."""
        reasons: Counter[str] = Counter()
        for one in self.systems:
            if one.spec.infeasible is not None:
                reasons[one.spec.infeasible] += one.cells * self.n_workloads
        return dict(reasons.most_common())

    @property
    def step_times(self) -> tuple[str, ...]:
        """Where the step times of the systems that can be simulated come from, each once."""
        return tuple(dict.fromkeys(one.spec.columns["step_times_source"] for one in self.runs))

    @property
    def simulated_requests(self) -> int:
        """Requests of all cells that can be simulated."""
        return self.requests * sum(one.cells for one in self.runs)


def outline(experiment: Experiment) -> Outline:
    """An experiment in numbers.

    ConfigError as `plan.expand`; but what only the requests can tell, and of more than `BUILT_CELLS` what only the
    cells can, is left to the run.
    """
    alike, is_exact = _systems_alike(experiment)
    cells, n_workloads = count_cells(experiment, alike), count_workloads(experiment)
    traffic = _Traffic(experiment)
    check_rates(experiment, traffic.last_s)
    systems = _of_kinds(experiment, alike)
    if is_exact and all(one.spec.infeasible for one in systems):
        raise no_cell_can_run(experiment, [one.spec.infeasible for one in systems if one.spec.infeasible])
    found = Outline(
        experiment,
        cells,
        tuple(systems),
        is_exact,
        n_workloads,
        traffic.descriptions,
        traffic.requests * n_workloads // len(experiment.workload.n_requests),
        dict(traffic.lengths()),
    )
    _check_engine(found, traffic)
    few = cells <= BUILT_CELLS and max(sum(one.number for one in alike), count_layouts(experiment)) <= _BUILT_SYSTEMS
    if few and (experiment.workload.kind != "trace" or found.n_workloads <= _BUILT_TRACES):
        make_plan(experiment, traffic.traces)
    return found


class _Traffic:
    """The requests of an experiment, as far as its keys tell; of a trace those of its first seed."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._table = experiment, experiment.workload
        self.traces = Traces(experiment.workload)
        self.trace: Workload | None = None
        if self._table.kind == "trace":
            wanted = [n for n in self._table.n_requests if n is not None]
            try:
                self.trace = self.traces.first(self._table.seed[0], None).at_unit_rate()
                if wanted:
                    self.traces.first(self._table.seed[0], max(wanted)).at_unit_rate()
            except (ValueError, OSError) as error:
                raise unusable(experiment, error) from None

    def lengths(self) -> Iterator[tuple[int, int]]:
        """Numbers of requests, and how many workloads have each."""
        for one in workloads_alike(self._experiment, {"n_requests": _LENGTHS}):
            yield self._length(one.point["n_requests"]), one.number

    @property
    def requests(self) -> int:
        """Requests of a workload of each length."""
        return sum(map(self._length, self._table.n_requests))

    @cached_property
    def descriptions(self) -> tuple[str, ...]:
        """The first workloads in a few lines each."""
        if self.trace is not None:
            return (self.traces.read(self._table.seed[0])[1],)
        points = (one.point for one in workloads_alike(self._experiment, dict.fromkeys(vars(self._table), EVERY)))
        lengths = f"\nprompt tokens: {self._expected[0]}\noutput tokens: {self._expected[1]}"
        return tuple(
            f"{heading(self._table.kind, point['n_requests'], point['seed'])}, in expectation:{lengths}"
            for point in itertools.islice(points, _SHOWN)
        )

    @property
    def last_s(self) -> float:
        """When the last request arrives at 1 request/s, about."""
        if self.trace is not None:
            return float(self.trace.arrival_s.max(initial=0.0))
        return float(max(n for n in self._table.n_requests if n is not None))

    @property
    def tokens(self) -> float:
        """Output tokens of the longest workload, at least, as far as one can be sure of it."""
        if self.trace is not None:
            return float(self.trace.output_tokens.sum())
        mean = self._expected[1].mean
        return self.last_s * (mean if mean == self._expected[1].p50 else max(1.0, mean / _SURE))

    @property
    def none(self) -> Workload:
        """A workload without requests that has what these have."""
        drawn = self._table.urgent_share != (None,)
        has_priority = drawn if self.trace is None else self.trace.priority is not None
        return NO_REQUESTS if has_priority else replace(NO_REQUESTS, priority=None)

    def _length(self, n: int | None) -> int:
        return n if n is not None else 0 if self.trace is None else len(self.trace)

    @cached_property
    def _expected(self) -> tuple[ExpectedLength, ExpectedLength]:
        if self._table.kind == "conversation":
            return expected_conversation()
        assert self._table.prompt is not None
        assert self._table.output is not None
        prompt, output = expected_length(self._table.prompt), expected_length(self._table.output)
        if self._table.kind == "shared_prefix":
            prefix = max(n or 0 for n in self._table.prefix_tokens)
            prompt = ExpectedLength(*(value + prefix for value in prompt))
        return prompt, output


def _systems_alike(experiment: Experiment) -> tuple[list[SystemsAlike], bool]:
    """At most `_SYSTEMS` systems that stand for all, and whether they tell all apart that differ in what they take."""
    selecting = () if experiment.system.n_gpus == (None,) else GPU_KEYS  # told apart however many there are
    names = {key.replace(".", "_") for key in _DECISIVE if key not in selecting}
    lengths = [len(values) for key, values in axes(experiment).items() if key in names]
    most = next(most for most in _COARSER if math.prod(min(length, most) for length in lengths) <= 10 * _SYSTEMS)
    found = list(systems_alike(experiment, dict.fromkeys(_DECISIVE, most)))
    is_exact = len(found) <= _SYSTEMS and all(length <= most for length in lengths)
    if len(found) > _SYSTEMS:
        ends = [len(found) * place // _SYSTEMS for place in range(_SYSTEMS + 1)]
        parts = [found[begin:end] for begin, end in itertools.pairwise(ends)]
        found = [part[len(part) // 2]._replace(number=sum(one.number for one in part)) for part in parts]
    return found, is_exact


def _of_kinds(experiment: Experiment, systems: Iterable[SystemsAlike]) -> list[OfKind]:
    """One system of those that are alike."""
    rates = len(experiment.workload.request_rate_rps)
    slos = {kind: count_slos(experiment, kind) for kind in experiment.system.kind}
    found = []
    for one in systems:
        try:
            (spec,) = systems_of(one.layout, one.instances, [one.scheduler])
        except ValueError as error:
            raise ConfigError([f"{experiment.with_options('instance', *ROLE_TABLES)}: {error}"]) from None
        found.append(OfKind(spec, one.number * rates * slos[spec.kind]))
    return found


def _check_engine(found: Outline, traffic: _Traffic) -> None:
    """ConfigError for what the engine refuses, as far as it is known without requests."""
    where = found.experiment.with_options(*SYSTEM_TABLES)
    name = found.experiment.workload.kind
    problems = []
    if traffic.tokens >= NEVER_FINISHES:
        most = f"must be fewer than {NEVER_FINISHES:.0f}"
        problems.append(f"{where}: {name}: workload: could take {traffic.tokens:.0f} steps, {most}")
    nothing = traffic.none
    for one in found.runs:
        try:
            one.spec.system(nothing, 1.0)
        except ValueError as error:
            problems.append(f"{where}: {name}: {error}")
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
