"""Experiments drawn at random, most of them sound, as tables."""

from servesweep.serving.system_kinds import SYSTEMS


def drawn_experiment(rng):
    """Tables with axes everywhere, of some kinds of systems; rng: `random.Random`."""

    def some(values, most=2):
        return rng.sample(values, rng.randint(1, min(most, len(values))))

    kinds = some(list(SYSTEMS), 3)
    tables = {
        "workload": {
            "kind": "synthetic",
            "prompt": 50,
            "output": 10,
            "n_requests": some([5, 7, 9]),
            "seed": some([0, 1, 2]),
            "request_rate_rps": some([1, 2, 4, 8], 3),
        },
        "system": {"kind": kinds},
        "instance": {
            "model": some(["llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b"]),
            "chip": some(["h100-sxm", "t4", "a100-80-sxm"]),
            "tp": some([1, 2, 4, 8]),
            "mem_reserve": some([0.1, 0.5]),
        },
        "scheduler": {},
    }
    system, scheduler = tables["system"], tables["scheduler"]
    if rng.random() < 0.3:
        tables["workload"] |= {"arrivals": ["poisson", "bursty"], "cv": some([2, 3])}
    if rng.random() < 0.3:
        tables["workload"]["urgent_share"] = some([0.1, 0.5])
        if set(kinds) != {"decode_only"}:
            scheduler["order"] = some(["arrival", "shortest_prompt", "priority"], 3)
    if kinds != ["disaggregated"]:
        system["n_instances"] = some([1, 2, 4])
    if "disaggregated" in kinds:
        system |= {"n_prefill": some([1, 2]), "n_decode": some([1, 3])}
        if rng.random() < 0.6:
            tables["prefill_instance"] = {"tp": some([1, 2, 8]), "pp": some([1, 2])}
        if rng.random() < 0.6:
            tables["decode_instance"] = {"tp": some([1, 2]), "kv_bytes": some([1.0, 2.0])}
        if rng.random() < 0.3:
            tables["instance"] |= {"link": ["nvlink4", "nvlink3"], "tp": [1, 2], "step_times": "roofline"}
            tables.setdefault("decode_instance", {})["link"] = "nvlink5"
            tables["decode_instance"]["tp"] = [1, 2]
    if rng.random() < 0.4 and kinds != ["disaggregated"]:
        system |= {"router": some(["least_loaded", "random", "round_robin"], 3), "n_instances": [2, 3]}
        if "random" in system["router"]:
            system["router_seed"] = some([0, 1, 2])
    if rng.random() < 0.4:
        system["n_gpus"] = some([2, 4, 8])
    if set(kinds) != {"prefill_only"}:
        scheduler["memory"] = some(["paged", "reserve"])
        if "paged" in scheduler["memory"]:
            scheduler["block_size"] = some([8, 16])
            if rng.random() < 0.5:
                scheduler["num_blocks"] = some([10, 100, 10**6])
        if "colocated" in kinds:
            scheduler["policy"] = some(["chunked", "prefill_first"])
            if "chunked" in scheduler["policy"] and "reserve" in scheduler["memory"]:
                scheduler["chunk_budget"] = some([256, 512])
    if "link" not in tables["instance"] and rng.random() < 0.5:
        tables["instance"] |= {"step_times": some(["operators", "roofline"]), "mfu": some([0.5, 0.6])}
        if "operators" in tables["instance"]["step_times"]:
            tables["instance"] |= {"layer_s": some([0, 1e-5]), "first_token_s": some([0, 0.1])}
            if max(tables["instance"]["tp"]) > 1:
                tables["instance"]["allreduce_s"] = some([1e-6, 1e-5])
        if "disaggregated" in kinds and rng.random() < 0.5:
            tables.setdefault("prefill_instance", {})["step_times"] = some(["operators", "roofline"])
            tables.setdefault("decode_instance", {})["mbu"] = some([0.7, 0.8])
    if rng.random() < 0.5 and not {"decode_only", "prefill_only"} & set(kinds):
        tables["slo"] = {"ttft_ms": [100, 200], "tpot_ms": [10, 20]}
    return tables
