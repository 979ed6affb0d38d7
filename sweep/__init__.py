"""Simulate LLM serving, thousands of configurations at once, before anybody touches a GPU.

The public names below are loaded when they are first used, so that the command line starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiment.tables import ConfigError
    from .goodput.options import GoodputOptions
    from .goodput.placement import Placement, find_placement
    from .goodput.search import Goodput, SearchInterrupted, SearchStopped, find_goodput
    from .hardware.catalogue import chip, chip_names, link, link_names, model, model_names
    from .hardware.parts import IB_NDR, NVLINK_4, Chip, Link, Model
    from .hardware.step_times import ConstantStepTime, StepModel, kv_transfer_time
    from .measures.instances import InstanceFacts
    from .measures.metrics import attainment, max_rate, percentile
    from .measures.result import LaneResults, Result
    from .measures.slo import SLO
    from .runner.run import Interrupted, Run, RunStopped
    from .runner.runner import iter_run, run_grid
    from .serving.routers import ROUTERS
    from .serving.run import run_systems
    from .serving.run_one import run_colocated, run_decode_only, run_disaggregated, run_prefill_only
    from .serving.scheduler import Lane, run_lanes, run_scheduler
    from .serving.systems import (
        Colocated,
        DecodeOnly,
        Disaggregated,
        PrefillOnly,
    )
    from .serving.whole_steps import Request, simulate
    from .tables.reading import load
    from .workloads.conversation import conversation_workload
    from .workloads.traces import load_trace, read_trace
    from .workloads.workload import LognormalLen, Workload, lognormal_len, make_workload

_MODULES = {
    "hardware.catalogue": ("chip", "chip_names", "link", "link_names", "model", "model_names"),
    "experiment.tables": ("ConfigError",),
    "goodput.options": ("GoodputOptions",),
    "goodput.search": ("Goodput", "SearchInterrupted", "SearchStopped", "find_goodput"),
    "runner.run": ("Interrupted", "Run", "RunStopped"),
    "hardware.parts": ("IB_NDR", "NVLINK_4", "Chip", "Link", "Model"),
    "measures.metrics": ("attainment", "max_rate", "percentile"),
    "goodput.placement": ("Placement", "find_placement"),
    "serving.whole_steps": ("Request", "simulate"),
    "measures.instances": ("InstanceFacts",),
    "measures.result": ("LaneResults", "Result"),
    "measures.slo": ("SLO",),
    "runner.runner": ("iter_run", "run_grid"),
    "workloads.conversation": ("conversation_workload",),
    "serving.run": ("run_systems",),
    "serving.scheduler": ("Lane", "run_lanes", "run_scheduler"),
    "serving.routers": ("ROUTERS",),
    "hardware.step_times": ("ConstantStepTime", "StepModel", "kv_transfer_time"),
    "serving.systems": (
        "Colocated",
        "DecodeOnly",
        "Disaggregated",
        "PrefillOnly",
    ),
    "tables.reading": ("load",),
    "serving.run_one": ("run_colocated", "run_decode_only", "run_disaggregated", "run_prefill_only"),
    "workloads.traces": ("load_trace", "read_trace"),
    "workloads.workload": ("LognormalLen", "Workload", "lognormal_len", "make_workload"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "IB_NDR",
    "NVLINK_4",
    "ROUTERS",
    "SLO",
    "Chip",
    "Colocated",
    "ConfigError",
    "ConstantStepTime",
    "DecodeOnly",
    "Disaggregated",
    "Goodput",
    "GoodputOptions",
    "InstanceFacts",
    "Interrupted",
    "Lane",
    "LaneResults",
    "Link",
    "LognormalLen",
    "Model",
    "Placement",
    "PrefillOnly",
    "Request",
    "Result",
    "Run",
    "RunStopped",
    "SearchInterrupted",
    "SearchStopped",
    "StepModel",
    "Workload",
    "attainment",
    "chip",
    "chip_names",
    "conversation_workload",
    "find_goodput",
    "find_placement",
    "iter_run",
    "kv_transfer_time",
    "link",
    "link_names",
    "load",
    "load_trace",
    "lognormal_len",
    "make_workload",
    "max_rate",
    "model",
    "model_names",
    "percentile",
    "read_trace",
    "run_colocated",
    "run_decode_only",
    "run_disaggregated",
    "run_grid",
    "run_lanes",
    "run_prefill_only",
    "run_scheduler",
    "run_systems",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("servesweep")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
