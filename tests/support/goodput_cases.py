"""A small grid to search for goodput in, and the search on a single configuration of it."""

from servesweep import find_goodput

GRID = {
    "name": "grid",
    "workload": {
        "kind": "synthetic",
        "n_requests": 200,
        "prompt": {"mean": 400, "sigma": 0.8, "lo": 16, "hi": 4000},
        "output": {"mean": 60, "sigma": 0.8, "lo": 2, "hi": 300},
    },
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    "scheduler": {
        "policy": ["mixed", "chunked", "prefill_first"],
        "block_size": 16,
        "num_blocks": [400, 4000],
        "max_running": 64,
    },
    "slo": {"ttft_ms": [60, 200], "tpot_ms": 12},
}
SEARCH = {"lo": 0.5, "hi": 40.0}
QUIET = {"workers": 1, "progress": False}


def searched(tmp_path, slo, search=None, **workload):
    """The only row of a search on one configuration, whose step times are the roofline."""
    single = {
        **GRID,
        "instance": {**GRID["instance"], "step_times": "roofline"},
        "workload": {**GRID["workload"], **workload},
        "scheduler": {"policy": "mixed", "max_running": 64},
        "slo": {},
    }
    found = find_goodput(single, slo=slo, **{**SEARCH, **(search or {})}, **QUIET, out=tmp_path, fresh=True)
    assert len(found.df) == 1
    return found.df.iloc[0]
