"""Experiments on systems of every kind, given as the tables that differ."""

import pytest
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError

WORKLOAD = {"kind": "synthetic", "prompt": 400, "output": 20, "n_requests": 30, "request_rate_rps": [5, 20]}
INSTANCE = {"model": "llama-3.1-8b", "chip": "h100-sxm"}
ALL = ["colocated", "disaggregated", "prefill_only", "decode_only"]


def tables(**more):
    return {"workload": WORKLOAD, "instance": INSTANCE, **more}


def plan_of(**more):
    return expand(load_experiment(tables(**more)))


def problems(**more):
    with pytest.raises(ConfigError) as caught:
        plan_of(**more)
    return list(caught.value.problems)


def columns(plan, *names):
    return [tuple(cell.columns()[name] for name in names) for cell in plan.cells[:: len(WORKLOAD["request_rate_rps"])]]
