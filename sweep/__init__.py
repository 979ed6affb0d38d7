"""Simulate LLM serving, thousands of configurations at once, before anybody touches a GPU.

The public names below are loaded when they are first used, so that the command line starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalogue import chip, chip_names, link, link_names, model, model_names
    from .config import ConfigError
    from .hardware import IB_NDR, NVLINK_4, Chip, Link, Model
    from .metrics import attainment, max_rate, percentile
    from .requests import Request, simulate
    from .results import Result
    from .runner import Interrupted, Run, run_grid
    from .samples import conversation_workload
    from .scheduler import Lane, LaneResults, run_lanes, run_scheduler
    from .steps import ConstantStepTime, StepModel, kv_transfer_time
    from .tables import load
    from .traces import load_trace, read_trace
    from .workloads import LognormalLen, Workload, lognormal_len, make_workload

_MODULES = {
    "catalogue": ("chip", "chip_names", "link", "link_names", "model", "model_names"),
    "config": ("ConfigError",),
    "hardware": ("IB_NDR", "NVLINK_4", "Chip", "Link", "Model"),
    "metrics": ("attainment", "max_rate", "percentile"),
    "requests": ("Request", "simulate"),
    "results": ("Result",),
    "runner": ("Interrupted", "Run", "run_grid"),
    "samples": ("conversation_workload",),
    "scheduler": ("Lane", "LaneResults", "run_lanes", "run_scheduler"),
    "steps": ("ConstantStepTime", "StepModel", "kv_transfer_time"),
    "tables": ("load",),
    "traces": ("load_trace", "read_trace"),
    "workloads": ("LognormalLen", "Workload", "lognormal_len", "make_workload"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "IB_NDR",
    "NVLINK_4",
    "Chip",
    "ConfigError",
    "ConstantStepTime",
    "Interrupted",
    "Lane",
    "LaneResults",
    "Link",
    "LognormalLen",
    "Model",
    "Request",
    "Result",
    "Run",
    "StepModel",
    "Workload",
    "attainment",
    "chip",
    "chip_names",
    "conversation_workload",
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
    "run_grid",
    "run_lanes",
    "run_scheduler",
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
