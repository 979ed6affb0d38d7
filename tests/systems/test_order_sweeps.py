"""Service orders as axes of a sweep: every cell is what the reference says, and what one system alone gives."""

import numpy as np
import pytest
from servesweep import SLO, load, run_grid, run_systems
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.serving.orders import ORDERS
from servesweep.serving.reference_answers import answer, disagreement

SWEEP = {
    "name": "orders",
    "workload": {
        "kind": "synthetic",
        "prompt": {"mean": 1500, "sigma": 1.0, "lo": 16, "hi": 8000},
        "output": {"mean": 30, "sigma": 0.5, "lo": 2, "hi": 90},
        "n_requests": 80,
        "urgent_share": 0.3,
        "request_rate_rps": [200],
    },
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm", "mem_reserve": 0.75},
    "slo": {"ttft_ms": 500},
}
SYSTEMS = [
    {"system": {"kind": "colocated", "n_instances": [1, 2]}, "scheduler": {"policy": "chunked", "block_size": 16}},
    {"system": {"kind": "colocated"}, "scheduler": {"policy": ["mixed", "prefill_first"], "max_running": 16}},
    {"system": {"kind": "colocated"}, "scheduler": {"policy": "prefill_first", "memory": "reserve"}},
    {"system": {"kind": "prefill_only"}, "scheduler": {}},
    {"system": {"kind": "disaggregated", "n_prefill": 2}, "scheduler": {}},
]


@pytest.mark.parametrize("system", SYSTEMS)
def test_orders_are_axes(system, tmp_path):
    orders = {"order": list(ORDERS), "max_wait_s": 1.0}
    config = {**SWEEP, **system, "scheduler": {**system["scheduler"], **orders}}
    run = run_grid(config, workers=1, out=tmp_path / "orders", progress=False)
    cells = expand(load_experiment(config)).cells
    assert set(run.df["order"]) == set(ORDERS)
    assert set(run.df["status"]) == {"ok"}
    for row, cell in zip(run.df.itertuples(), cells, strict=True):
        made = cell.system()
        alone = run_systems([made]).result(0)
        assert disagreement(alone, answer(made)) is None
        summary = alone.summary(slo=SLO(ttft_s=0.5), n_gpus=cell.spec.n_gpus)
        assert row.ttft_p99_s == summary["ttft_p99_s"]
        assert row.attainment == summary["attainment"]
    means = run.df.groupby("order", observed=True)["ttft_mean_s"].mean()
    assert means["shortest_prompt"] < means["arrival"]  # what the order is for


def test_priorities_of_a_trace_decide(tmp_path):
    """Two prompts wait behind a long one; the file's column says who is next."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,priority\n0,4000,2,1\n0.001,500,2,2\n0.002,500,2,-1\n")
    config = {
        "name": "trace",
        "workload": {"kind": "trace", "path": str(trace), "request_rate_rps": 1000},
        "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
        "scheduler": {"policy": "mixed", "max_running": 1, "order": "priority"},
        "output": {"requests": "all"},
    }
    run_grid(config, workers=1, out=tmp_path / "run", progress=False)

    first = load(tmp_path / "run", table="requests")["first_token_s"].to_numpy()
    assert first[2] < first[1]
    assert np.isfinite(first).all()
