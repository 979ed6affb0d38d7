"""What `import servesweep` offers can be read, checked by a type checker, and extended without forgetting a name."""

import dataclasses
import inspect
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import matplotlib.axes
import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
import servesweep
from patience import HANGS_S
from servesweep import plots
from servesweep.calibration.calibrating import HOLD_OUT
from servesweep.measures.latencies import LATENCIES
from servesweep.plots.figures import _DRAWN
from servesweep.runner.execution import BACKENDS
from servesweep.serving import timelines
from servesweep.serving.policies import SCHEDULED
from servesweep.tables.schemas import SCHEMAS
from servesweep.workloads.trace_formats import FORMATS
from servesweep.workloads.traces import ON_BAD
from servesweep.workloads.workload import ARRIVALS

PUBLIC = {name: getattr(servesweep, name) for name in servesweep.__all__ if name != "plots"}
PLOTS = {f"plots.{name}": getattr(plots, name) for name in plots.__all__}
CALLED = {
    name: value for name, value in {**PUBLIC, **PLOTS}.items() if inspect.isroutine(value) or inspect.isclass(value)
}
# Made by functions, and never by users: what their constructors take is their own affair.
HANDED_OUT = {"Experiment", "Goodput", "InstanceFacts", "Interrupted", "Placement", "Run", "RunStopped"}
HANDED_OUT |= {"ConfigError", "EarlyStopOutcome", "SearchInterrupted", "SearchStopped", "Segment", "SystemResults"}
HANDED_OUT |= {"Split", "Parallelism", "Timeline", "TraceReport", "System"}
HANDED_OUT |= {"CalibratedConstant", "Calibration", "CalibrationError", "MeasuredRun", "MeasuredSteps", "WorstStep"}
INTERNAL = {"coefficients", "stage", "start"}  # methods that no user calls


# --------------------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("names", "registered"),
    [
        (servesweep.PolicyName, servesweep.POLICIES),
        (servesweep.MemoryName, servesweep.MEMORIES),
        (servesweep.SchedulerMemoryName, SCHEDULED),
        (servesweep.DecodeMemoryName, servesweep.SYSTEMS["decode_only"].memories),
        (servesweep.DecodeMemoryName, servesweep.SYSTEMS["disaggregated"].memories),
        (servesweep.MemoryName, servesweep.SYSTEMS["colocated"].memories),
        (servesweep.OrderName, servesweep.ORDERS),
        (servesweep.RouterName, servesweep.ROUTERS),
        (servesweep.SystemName, servesweep.SYSTEMS),
        (servesweep.ArrivalsName, ARRIVALS),
        (servesweep.MetricName, LATENCIES),
        (servesweep.BackendName, BACKENDS),
        (servesweep.TableName, SCHEMAS),
        (servesweep.FormatName, FORMATS),
        (servesweep.OnBad, ON_BAD),
        (servesweep.SegmentKind, timelines.KINDS),
        (servesweep.HoldOut, HOLD_OUT),
        (plots.PlotKind, _DRAWN),
    ],
)
def test_the_names_that_a_checker_knows_are_those_that_are_registered(names: Any, registered: Any) -> None:
    assert sorted(get_args(names)) == sorted(registered)


def hints_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Types of what a public function takes and returns, of attributes, properties and methods of a public class."""
    known = {"pd": pd, "Axes": matplotlib.axes.Axes, "Figure": matplotlib.figure.Figure, "np": np}
    if not inspect.isclass(value):
        for where, hint in typing.get_type_hints(value, localns=known).items():
            yield f"{name}({where})", hint
        return
    if name != "Experiment":  # its tables are the keys of an experiment, each of a plain type
        if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
            for where, hint in typing.get_type_hints(value, localns=known).items():
                yield f"{name}.{where}", hint
        else:
            for where, hint in typing.get_type_hints(value.__init__, localns=known).items():
                yield f"{name}({where})", hint
    for method, function in vars(value).items():
        function = getattr(function, "func", getattr(function, "fget", getattr(function, "__func__", function)))
        if not method.startswith("_") and method not in INTERNAL and inspect.isfunction(function):
            for where, hint in typing.get_type_hints(function, localns=known).items():
                yield f"{name}.{method}({where})", hint


def ours(hint: Any) -> Iterator[type]:
    """The classes of this package in a type."""
    if inspect.isclass(hint) and hint.__module__.partition(".")[0] == "servesweep":
        yield hint
    for part in get_args(hint) if get_origin(hint) is not Literal else ():
        yield from ours(part)


@pytest.mark.parametrize("name", CALLED)
def test_types_that_the_interface_takes_or_gives_are_public(name: str) -> None:
    hints = list(hints_of(name, CALLED[name]))
    hidden = {where: one.__name__ for where, hint in hints for one in ours(hint) if one not in PUBLIC.values()}
    assert hidden == {}


SNIPPET = """
import servesweep as ss

step = ss.StepModel(ss.model("llama-3.1-8b"), ss.chip("h100-sxm"))
traffic: ss.Workload = ss.make_workload(10, 1.0, 100, 10, arrivals={arrivals})
result = ss.run_scheduler(traffic, step, policy={policy}, memory={memory}, max_running=8, order={order})
system = ss.Colocated(traffic, step, policy={policy}, router={router}, memory="reserve")
results: ss.SystemResults = ss.run_systems([system, ss.DecodeOnly(traffic, step, memory={decode_memory})])
p99: float = ss.percentile(result, {metric}, 99)
share: float = ss.attainment(result, slo=ss.SLO(ttft_s=0.5))
rejected = ss.run_colocated(traffic, step, 2, {policy}, on_reject={on_reject})
lines: list[ss.Segment] = ss.timeline(system).segments[0]
run: ss.Run = ss.run_grid("quickstart", backend={backend})
found: ss.Goodput = ss.find_goodput("quickstart", slo={slo})
cells = ss.load("results/quickstart", {table})
ax = ss.plots.curves(cells, "ttft_p99_s")
figure, numbers = ss.plots.panels(cells, {kind}, panel="tp")
"""
RIGHT = {
    "arrivals": '"bursty"',
    "policy": '"chunked"',
    "memory": '"unlimited"',
    "order": '"shortest_prompt"',
    "router": '"round_robin"',
    "decode_memory": '"reserve"',
    "metric": '"queue_delay"',
    "on_reject": '"error"',
    "backend": '"dask"',
    "slo": '{"ttft_ms": 500}',
    "table": '"requests"',
    "kind": '"heatmap"',
}
WRONG = {
    "arrivals": '"burst"',
    "policy": '"chunkd"',
    "memory": '"reserve"',
    "order": '"shortest"',
    "router": '"roundrobin"',
    "decode_memory": '"unlimited"',
    "metric": '"itl"',
    "on_reject": '"raise"',
    "backend": '"spark"',
    "slo": '["ttft:500"]',
    "table": '"cell"',
    "kind": '"curve"',
}


@pytest.mark.slow
@pytest.mark.process
def test_a_checker_finds_what_is_misspelt_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    where = Path(servesweep.__file__).parents[1]
    (tmp_path / "right.py").write_text(SNIPPET.format(**RIGHT), encoding="utf-8")
    for name, value in WRONG.items():
        (tmp_path / f"wrong_{name}.py").write_text(SNIPPET.format(**{**RIGHT, name: value}), encoding="utf-8")
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", ".mypy", *files]
    command += ["--follow-imports", "silent", "--ignore-missing-imports"]
    # Installed packages are found by themselves, and must not be on this path.
    environment = {} if where.name == "site-packages" else {"MYPYPATH": str(where)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=HANGS_S)
    complaints = set(
        re.findall(r"^(\w+)\.py:\d+: error: .*(?:incompatible type|No overload)", done.stdout, re.MULTILINE)
    )
    assert complaints == {f"wrong_{name}" for name in WRONG}, done.stdout + done.stderr
    assert "right.py" not in done.stdout


# ----------------------------------------------------------------------------------------------------------- signatures

# Those of spec section 9, and what a call is about: everything else is a keyword.
POSITIONAL = {
    "Chip": 5,
    "Colocated": 2,
    "ConstantStepTime": 1,
    "DecodeOnly": 2,
    "Disaggregated": 3,
    "EarlyStopCriterion": 4,
    "EarlyStopRequest": 4,
    "Link": 3,
    "LognormalLen": 4,
    "Model": 10,
    "OperatorStepModel": 2,
    "PrefillOnly": 2,
    "Request": 4,
    "Result": 5,
    "SLO": 4,
    "Scheduler": 2,
    "StepModel": 11,
    "Workload": 3,
    "aiconfigurator_step_times": 3,
    "attainment": 5,
    "calibrate": 2,
    "kv_transfer_time": 4,
    "load": 2,
    "lognormal_len": 4,
    "make_workload": 7,
    "max_rate": 5,
    "percentile": 3,
    "run_colocated": 6,
    "run_decode_only": 3,
    "run_disaggregated": 7,
    "run_prefill_only": 4,
    "run_scheduler": 2,
    "save_step_times": 2,
    "simulate": 6,
    "vidur_step_times": 2,
    "plots.curves": 2,
    "plots.frontier": 2,
    "plots.heatmap": 3,
    "plots.over_time": 2,
    "plots.over_time_figure": 2,
    "plots.panels": 2,
}


@pytest.mark.parametrize("name", sorted(set(CALLED) - HANDED_OUT))
def test_options_are_keywords_and_spelt_out(name: str) -> None:
    parameters = inspect.signature(CALLED[name]).parameters.values()
    assert not [one.name for one in parameters if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert len(positional) == POSITIONAL.get(name, min(len(positional), 1)), positional


# ---------------------------------------------------------------------------------------------------------- docstrings


def sections(text: str) -> dict[str, str]:
    """The sections of a docstring in NumPy's style, by their titles; what comes first is under ""."""
    parts = re.split(r"^([A-Z][a-z]+)\n-{3,}\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(section: str) -> dict[str, str]:
    """What a section says of each name; names that share a text stand together."""
    found = {}
    for names, text in re.findall(r"^(\S[^\n]*)\n((?:(?: {4}[^\n]*)?\n?)+)", section, flags=re.MULTILINE):
        found |= dict.fromkeys(re.split(r",\s*", names), text)
    return found


@pytest.mark.parametrize("name", sorted(CALLED))
def test_docstrings_say_what_is_taken_returned_and_raised(name: str) -> None:
    value = CALLED[name]
    assert value.__doc__
    found = sections(value.__doc__)
    assert not re.search(r"^\s*(Args|Returns|Raises):", value.__doc__, re.MULTILINE)
    if name in HANDED_OUT:
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        members = list(getattr(value, "_fields", fields))
        assert not members or sorted(entries(found.get("Attributes", ""))) == sorted(members)
        return
    parameters = inspect.signature(value).parameters
    described = entries(found.get("Parameters", ""))
    assert set(described) == set(parameters)
    for one in parameters.values():
        if one.default is None and not described[one.name].lstrip().startswith(("See ", "As ")):
            assert "None" in described[one.name], one.name
    if inspect.isroutine(value):
        told = {"Returns", "Yields"} & set(found)
        assert told or name in RETURNS_WHAT_THE_NAME_SAYS
    assert "Raises" in found or name in NEVER_RAISES


RETURNS_WHAT_THE_NAME_SAYS = {"chip", "chip_names", "conversation_workload", "link", "link_names", "load_trace"}
RETURNS_WHAT_THE_NAME_SAYS |= {"lognormal_len", "make_workload", "model", "model_names", "ready_experiments"}
NEVER_RAISES = {
    "Request",
    "EarlyStopCriterion",
    "EarlyStopRequest",
    "chip_names",
    "link_names",
    "model_names",
    "ready_experiments",
}
NEVER_RAISES |= {"plots.blocks_in_use", "plots.gantt", "plots.over_time_figure", "plots.timeline_figure"}
NEVER_RAISES |= {"ready_experiments"}


@pytest.mark.parametrize("name", [name for name, value in CALLED.items() if inspect.isclass(value)])
def test_methods_and_properties_are_documented(name: str) -> None:
    for method, function in vars(CALLED[name]).items():
        if not method.startswith("_") and (callable(function) or hasattr(function, "__get__")):
            plain = isinstance(function, types.MemberDescriptorType) or method in getattr(CALLED[name], "_fields", ())
            assert plain or inspect.getdoc(function), method
