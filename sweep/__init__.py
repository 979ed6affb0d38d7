"""Simulate LLM serving, thousands of configurations at once, before anybody touches a GPU.

The public names below are loaded when they are first used, so that the command line starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import plots
    from .calibration.benchmark_files import load_benchmark
    from .calibration.calibrating import Calibration, CalibrationError, HoldOut, calibrate
    from .calibration.measured_run import MeasuredRun
    from .calibration.telling_apart import CalibratedConstant
    from .experiment.reader import load_experiment, ready_experiments
    from .experiment.tables import ConfigError, Experiment
    from .goodput.options import GoodputOptions
    from .goodput.placement import Placement, find_placement
    from .goodput.search import Goodput, SearchInterrupted, SearchStopped, find_goodput
    from .goodput.splits import Parallelism, Split
    from .hardware.catalogue import chip, chip_names, link, link_names, model, model_names
    from .hardware.measured import MeasuredSteps, WorstStep
    from .hardware.operators import OperatorStepModel
    from .hardware.parts import IB_NDR, NVLINK_4, Chip, Link, Model
    from .hardware.profile import TableStepTimes
    from .hardware.step_times import ConstantStepTime, StepModel, kv_transfer_time
    from .hardware.table_steps import TableStepModel
    from .measures.instances import InstanceFacts
    from .measures.latencies import MetricName
    from .measures.metrics import attainment, max_rate, percentile
    from .measures.result import Result
    from .measures.slo import SLO
    from .measures.system_results import EarlyStopOutcome, StepColumns, SystemResults
    from .profiles.aiconfigurator import aiconfigurator_step_times
    from .profiles.measured_steps import measured_step_times
    from .profiles.profile_files import load_step_times, save_step_times, step_times_from
    from .profiles.published_fits import distserve_step_times, splitwise_step_times
    from .profiles.vidur import vidur_step_times
    from .runner.execution import BackendName
    from .runner.run import Interrupted, Run, RunStopped
    from .runner.runner import iter_run, run_grid
    from .serving.early_stop import EarlyStopCriterion, EarlyStopRequest
    from .serving.orders import ORDERS, OrderName
    from .serving.policies import MEMORIES, POLICIES, MemoryName, PolicyName
    from .serving.routers import ROUTERS, RouterName
    from .serving.run import run_systems
    from .serving.run_one import (
        OnReject,
        SchedulerMemoryName,
        run_colocated,
        run_decode_only,
        run_disaggregated,
        run_prefill_only,
        run_scheduler,
    )
    from .serving.scheduler import Scheduler, run_schedulers
    from .serving.system import System
    from .serving.system_kinds import SYSTEMS, SystemName
    from .serving.systems import Colocated, DecodeMemoryName, DecodeOnly, Disaggregated, PrefillOnly
    from .serving.timelines import Segment, SegmentKind, Timeline, timeline, timeline_of_requests
    from .serving.whole_steps import Request, simulate
    from .tables.reading import TableName, load
    from .workloads.conversation import conversation_workload
    from .workloads.shared_prefix import shared_prefix_workload
    from .workloads.texts import Texts
    from .workloads.trace_formats import FormatName
    from .workloads.trace_report import TraceReport
    from .workloads.traces import OnBad, load_trace, read_trace
    from .workloads.workload import ArrivalsName, LognormalLen, Workload, lognormal_len, make_workload

_MODULES = {
    "calibration.benchmark_files": ("load_benchmark",),
    "calibration.calibrating": (
        "Calibration",
        "CalibrationError",
        "HoldOut",
        "calibrate",
    ),
    "calibration.measured_run": ("MeasuredRun",),
    "calibration.telling_apart": ("CalibratedConstant",),
    "experiment.reader": (
        "load_experiment",
        "ready_experiments",
    ),
    "experiment.tables": (
        "ConfigError",
        "Experiment",
    ),
    "goodput.options": ("GoodputOptions",),
    "goodput.placement": (
        "Placement",
        "find_placement",
    ),
    "goodput.search": (
        "Goodput",
        "SearchInterrupted",
        "SearchStopped",
        "find_goodput",
    ),
    "goodput.splits": (
        "Parallelism",
        "Split",
    ),
    "hardware.catalogue": (
        "chip",
        "chip_names",
        "link",
        "link_names",
        "model",
        "model_names",
    ),
    "hardware.parts": (
        "IB_NDR",
        "NVLINK_4",
        "Chip",
        "Link",
        "Model",
    ),
    "hardware.measured": (
        "MeasuredSteps",
        "WorstStep",
    ),
    "hardware.operators": ("OperatorStepModel",),
    "hardware.profile": ("TableStepTimes",),
    "hardware.table_steps": ("TableStepModel",),
    "hardware.step_times": (
        "ConstantStepTime",
        "StepModel",
        "kv_transfer_time",
    ),
    "measures.instances": ("InstanceFacts",),
    "measures.latencies": ("MetricName",),
    "measures.metrics": (
        "attainment",
        "max_rate",
        "percentile",
    ),
    "measures.result": ("Result",),
    "measures.slo": ("SLO",),
    "measures.system_results": (
        "EarlyStopOutcome",
        "StepColumns",
        "SystemResults",
    ),
    "profiles.aiconfigurator": ("aiconfigurator_step_times",),
    "profiles.measured_steps": ("measured_step_times",),
    "profiles.profile_files": (
        "load_step_times",
        "save_step_times",
        "step_times_from",
    ),
    "profiles.published_fits": (
        "distserve_step_times",
        "splitwise_step_times",
    ),
    "profiles.vidur": ("vidur_step_times",),
    "runner.execution": ("BackendName",),
    "runner.run": (
        "Interrupted",
        "Run",
        "RunStopped",
    ),
    "runner.runner": (
        "iter_run",
        "run_grid",
    ),
    "serving.early_stop": (
        "EarlyStopCriterion",
        "EarlyStopRequest",
    ),
    "serving.orders": (
        "ORDERS",
        "OrderName",
    ),
    "serving.policies": (
        "MEMORIES",
        "POLICIES",
        "MemoryName",
        "PolicyName",
    ),
    "serving.routers": (
        "ROUTERS",
        "RouterName",
    ),
    "serving.run": ("run_systems",),
    "serving.run_one": (
        "OnReject",
        "SchedulerMemoryName",
        "run_colocated",
        "run_decode_only",
        "run_disaggregated",
        "run_prefill_only",
        "run_scheduler",
    ),
    "serving.scheduler": (
        "Scheduler",
        "run_schedulers",
    ),
    "serving.system": ("System",),
    "serving.system_kinds": (
        "SYSTEMS",
        "SystemName",
    ),
    "serving.systems": (
        "Colocated",
        "DecodeMemoryName",
        "DecodeOnly",
        "Disaggregated",
        "PrefillOnly",
    ),
    "serving.timelines": (
        "Segment",
        "SegmentKind",
        "Timeline",
        "timeline",
        "timeline_of_requests",
    ),
    "serving.whole_steps": (
        "Request",
        "simulate",
    ),
    "tables.reading": (
        "TableName",
        "load",
    ),
    "workloads.conversation": ("conversation_workload",),
    "workloads.trace_formats": ("FormatName",),
    "workloads.shared_prefix": ("shared_prefix_workload",),
    "workloads.texts": ("Texts",),
    "workloads.trace_report": ("TraceReport",),
    "workloads.traces": (
        "OnBad",
        "load_trace",
        "read_trace",
    ),
    "workloads.workload": (
        "ArrivalsName",
        "LognormalLen",
        "Workload",
        "lognormal_len",
        "make_workload",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "IB_NDR",
    "MEMORIES",
    "NVLINK_4",
    "ORDERS",
    "POLICIES",
    "ROUTERS",
    "SLO",
    "SYSTEMS",
    "ArrivalsName",
    "BackendName",
    "CalibratedConstant",
    "Calibration",
    "CalibrationError",
    "Chip",
    "Colocated",
    "ConfigError",
    "ConstantStepTime",
    "DecodeMemoryName",
    "DecodeOnly",
    "Disaggregated",
    "EarlyStopCriterion",
    "EarlyStopOutcome",
    "EarlyStopRequest",
    "Experiment",
    "FormatName",
    "Goodput",
    "GoodputOptions",
    "HoldOut",
    "InstanceFacts",
    "Interrupted",
    "Link",
    "LognormalLen",
    "MeasuredRun",
    "MeasuredSteps",
    "MemoryName",
    "MetricName",
    "Model",
    "OnBad",
    "OnReject",
    "OperatorStepModel",
    "OrderName",
    "Parallelism",
    "Placement",
    "PolicyName",
    "PrefillOnly",
    "Request",
    "Result",
    "RouterName",
    "Run",
    "RunStopped",
    "Scheduler",
    "SchedulerMemoryName",
    "SearchInterrupted",
    "SearchStopped",
    "Segment",
    "SegmentKind",
    "Split",
    "StepColumns",
    "StepModel",
    "System",
    "SystemName",
    "SystemResults",
    "TableName",
    "TableStepModel",
    "TableStepTimes",
    "Texts",
    "Timeline",
    "TraceReport",
    "Workload",
    "WorstStep",
    "aiconfigurator_step_times",
    "attainment",
    "calibrate",
    "chip",
    "chip_names",
    "conversation_workload",
    "distserve_step_times",
    "find_goodput",
    "find_placement",
    "iter_run",
    "kv_transfer_time",
    "link",
    "link_names",
    "load",
    "load_benchmark",
    "load_experiment",
    "load_step_times",
    "load_trace",
    "lognormal_len",
    "make_workload",
    "max_rate",
    "measured_step_times",
    "model",
    "model_names",
    "percentile",
    "plots",
    "read_trace",
    "ready_experiments",
    "run_colocated",
    "run_decode_only",
    "run_disaggregated",
    "run_grid",
    "run_prefill_only",
    "run_scheduler",
    "run_schedulers",
    "run_systems",
    "save_step_times",
    "shared_prefix_workload",
    "simulate",
    "splitwise_step_times",
    "step_times_from",
    "timeline",
    "timeline_of_requests",
    "vidur_step_times",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("servesweep")
    if name == "plots":
        return importlib.import_module(".plots", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
