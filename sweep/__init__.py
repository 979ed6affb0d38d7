"""Simulate LLM serving, thousands of configurations at once, before anybody touches a GPU.

The public names below are loaded when they are first used, so that the command line starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalogue import chip, chip_names, link, link_names, model, model_names
    from .config import ConfigError
    from .goodput import Goodput, SearchInterrupted, SearchStopped, find_goodput
    from .grid_run import Interrupted, Run, RunStopped
    from .hardware import IB_NDR, NVLINK_4, Chip, Link, Model
    from .metrics import attainment, max_rate, percentile
    from .placement import Placement, find_placement
    from .requests import Request, simulate
    from .results import Result
    from .runner import iter_run, run_grid
    from .runs import InstanceFacts, LaneResults, run_systems
    from .samples import conversation_workload
    from .scheduler import Lane, run_lanes, run_scheduler
    from .stages import ROUTERS
    from .steps import ConstantStepTime, StepModel, kv_transfer_time
    from .systems import (
        Colocated,
        DecodeOnly,
        Disaggregated,
        PrefillOnly,
        run_colocated,
        run_decode_only,
        run_disaggregated,
        run_prefill_only,
    )
    from .tables import load
    from .traces import load_trace, read_trace
    from .workloads import LognormalLen, Workload, lognormal_len, make_workload

_MODULES = {
    "catalogue": ("chip", "chip_names", "link", "link_names", "model", "model_names"),
    "config": ("ConfigError",),
    "goodput": ("Goodput", "SearchInterrupted", "SearchStopped", "find_goodput"),
    "grid_run": ("Interrupted", "Run", "RunStopped"),
    "hardware": ("IB_NDR", "NVLINK_4", "Chip", "Link", "Model"),
    "metrics": ("attainment", "max_rate", "percentile"),
    "placement": ("Placement", "find_placement"),
    "requests": ("Request", "simulate"),
    "results": ("Result",),
    "runner": ("iter_run", "run_grid"),
    "samples": ("conversation_workload",),
    "runs": ("InstanceFacts", "LaneResults", "run_systems"),
    "scheduler": ("Lane", "run_lanes", "run_scheduler"),
    "stages": ("ROUTERS",),
    "steps": ("ConstantStepTime", "StepModel", "kv_transfer_time"),
    "systems": (
        "Colocated",
        "DecodeOnly",
        "Disaggregated",
        "PrefillOnly",
        "run_colocated",
        "run_decode_only",
        "run_disaggregated",
        "run_prefill_only",
    ),
    "tables": ("load",),
    "traces": ("load_trace", "read_trace"),
    "workloads": ("LognormalLen", "Workload", "lognormal_len", "make_workload"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "IB_NDR",
    "NVLINK_4",
    "ROUTERS",
    "Chip",
    "Colocated",
    "ConfigError",
    "ConstantStepTime",
    "DecodeOnly",
    "Disaggregated",
    "Goodput",
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
