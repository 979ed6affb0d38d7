"""Plans: which cells there are, in which order, and what their ids depend on."""

import doctest
import itertools
import json

import numpy as np
import pytest
import servesweep.experiment.plan as plan_module
from servesweep.experiment.plan import content_id, expand, identity
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError
from servesweep.runner.batches import BATCH_BYTES, BYTES_PER_REQUEST, default_workers, estimate, make_batches

LENGTH = {"mean": 50, "sigma": 0.5, "lo": 1, "hi": 200}


def config(**tables):
    result = {
        "workload": {"kind": "synthetic", "prompt": LENGTH, "output": 10, "n_requests": 20, "request_rate_rps": [1, 2]},
        "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
        "scheduler": {"policy": "mixed"},
    }
    for name, keys in tables.items():
        result[name] = {**result.get(name, {}), **keys}
    return result


def plan_of(**tables):
    return expand(load_experiment(config(**tables)))


def ids(plan):
    return [cell.cell_id for cell in plan.cells]


def test_the_doctests_pin_ids():
    failures, attempts = doctest.testmod(plan_module)
    assert attempts > 0
    assert failures == 0


# --------------------------------------------------------------------------------------------------------------- cells


def test_cells_are_the_product_in_the_order_of_the_keys_with_the_rate_innermost():
    plan = plan_of(workload={"seed": [0, 1]}, scheduler={"policy": ["mixed", "prefill_first"], "block_size": [8, 16]})
    columns = [cell.columns() for cell in plan.cells]
    order = [(c["seed"], c["policy"], c["block_size"], c["request_rate_rps"]) for c in columns]
    assert order == [(s, p, b, r) for s in (0, 1) for p in ("mixed", "prefill_first") for b in (8, 16) for r in (1, 2)]
    assert len(set(ids(plan))) == 16
    assert list(plan.axes) == ["seed", "request_rate_rps", "policy", "block_size"]


def test_an_axis_multiplies_only_the_cells_that_it_has_an_effect_on():
    plan = plan_of(
        workload={"request_rate_rps": 1, "arrivals": ["poisson", "bursty"], "cv": [2, 4]},
        instance={"step_times": "roofline", "tp": [1, 2], "link": ["nvlink4", "ib-ndr"]},
        scheduler={
            "policy": ["mixed", "chunked", "prefill_first"],
            "memory": ["paged", "unlimited"],
            "block_size": [16, 32],
            "token_budget": [256, 512],
            "max_tokens": [2048, 4096, 8192],
        },
    )
    # arrivals and cv: 1 + 2;  tp and link: 1 + 2;  memory and block size: 2 + 1;  policies: 1 + 2 + 3
    assert len(plan.cells) == 3 * 3 * 3 * 6
    assert len(set(ids(plan))) == len(plan.cells)
    for cell in plan.cells:
        c = cell.columns()
        assert (c["token_budget"] is not None) == (c["policy"] == "chunked")
        assert (c["max_tokens"] is not None) == (c["policy"] == "prefill_first")
        assert (c["block_size"] is not None) == (c["num_blocks"] is not None) == (c["memory"] == "paged")
        assert (c["link"] is not None) == (c["tp"] > 1)
        assert (c["cv"] is not None) == (c["arrivals"] == "bursty")
        system = cell.system()  # the engine refuses options without effect
        assert system.rate == c["request_rate_rps"]


def test_blocks_default_to_the_kv_capacity():
    plan = plan_of(scheduler={"block_size": [16, 100]})
    for cell in plan.cells:
        columns = cell.columns()
        assert columns["num_blocks"] == cell.spec.step.kv_capacity_tokens() // columns["block_size"]
    assert {cell.columns()["num_blocks"] for cell in plan_of(scheduler={"num_blocks": 7}).cells} == {7}


def test_workloads_are_shared_and_independent_of_everything_but_their_own_keys():
    plan = plan_of(scheduler={"policy": ["mixed", "chunked"]}, workload={"seed": [3, 4]})
    by_seed = {}
    for cell in plan.cells:
        by_seed.setdefault(cell.columns()["seed"], set()).add(id(cell.traffic.workload))
    assert [len(workloads) for workloads in by_seed.values()] == [1, 1]
    other = plan_of(workload={"seed": [9, 4], "request_rate_rps": 30}, scheduler={"policy": "prefill_first"})
    one, two = (next(c for c in p.cells if c.columns()["seed"] == 4).traffic.workload for p in (plan, other))
    assert np.array_equal(one.arrival_s, two.arrival_s)
    assert np.array_equal(one.prompt_tokens, two.prompt_tokens)
    assert one.mean_rate_rps == 1.0


# ----------------------------------------------------------------------------------------------------------------- ids


def test_the_id_is_that_of_the_canonical_json():
    cell = plan_of().cells[0]
    content = identity(cell.traffic, cell.spec, cell.slo) | {"request_rate_rps": cell.request_rate_rps}
    assert content_id(content)[:16] == cell.cell_id
    shuffled = json.loads(json.dumps(content), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert content_id(shuffled) == content_id(content)


def test_a_new_value_on_an_axis_changes_no_other_id():
    small = plan_of(scheduler={"policy": ["mixed", "chunked"], "block_size": 16})
    large = plan_of(
        workload={"seed": [5, 0], "request_rate_rps": [9, 1, 2]},
        scheduler={
            "policy": ["prefill_first", "chunked", "mixed"],
            "block_size": [32, 16],
            "token_budget": [1024, 512],
        },
    )
    assert set(ids(small)) < set(ids(large))


@pytest.mark.parametrize(
    "tables",
    [
        {"workload": {"seed": 1}},
        {"workload": {"n_requests": 21}},
        {"workload": {"prompt": 50}},
        {"workload": {"output": 11}},
        {"workload": {"arrivals": "uniform"}},
        {"workload": {"request_rate_rps": [1.5, 2.5]}},
        {"instance": {"model": "llama-3.2-3b"}},
        {"instance": {"chip": "h200-sxm"}},
        {"instance": {"tp": 2}},
        {"instance": {"model": "llama-3-8b"}},  # the figures of llama-3.1-8b, and another name
        {"instance": {"mfu": 0.5}},
        {"scheduler": {"max_running": 100}},
        {"scheduler": {"memory": "paged"}},
        {"slo": {"ttft_ms": 100}},
        {"slo": {"warmup": 0.1}},
    ],
)
def test_what_changes_the_answer_changes_the_id(tables):
    assert not set(ids(plan_of())) & set(ids(plan_of(**tables)))


@pytest.fixture
def short_trace(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0.25,5,2\n1.5,6,3\n4,7,1\n")
    return {"kind": "trace", "path": str(path), "request_rate_rps": [1, 2]}


def test_no_two_cells_have_the_same_id(short_trace):
    """Even where they have the same answer."""
    same_figures = {"model": ["llama-3-8b", "llama-3.1-8b"]}
    plan = plan_of(instance=same_figures)
    assert len(set(ids(plan))) == 4
    assert [plan.select(cell.cell_id) for cell in plan.cells] == [[0], [1], [2], [3]]
    for workload in ({"n_requests": [2, 3]}, {"spread_s": "auto", "seed": [0, 1]}):  # fine times: nothing to spread
        traced = expand(load_experiment({**config(instance=same_figures), "workload": {**short_trace, **workload}}))
        assert len(set(ids(traced))) == len(traced.cells) == 8


def test_values_that_come_to_the_same_cell_are_an_error():
    one, other = 63.0, 63.00000000000001
    assert one != other
    assert one / 1000 == other / 1000
    with pytest.raises(ConfigError, match=r"cells 1 and 3 are the same: must differ, in .*ttft_ms = \[63.0, "):
        plan_of(slo={"ttft_ms": [one, other]})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"workload": {"request_rate_rps": [1, 1e-308]}}, "workload.request_rate_rps = 1e-308: is so small that"),
        ({"workload": {"output": 2**31 - 1}}, "synthetic: workload: could take"),
    ],
)
def test_what_the_engine_would_refuse_is_an_error_before_the_run(tables, words):
    with pytest.raises(ConfigError) as caught:
        plan_of(**tables)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(f"config: {words}")


def test_what_does_not_change_the_answer_does_not_change_the_id(monkeypatch):
    before = ids(plan_of())
    assert ids(plan_of(output={"steps": "all"})) == before
    assert ids(expand(load_experiment({**config(), "name": "other"}))) == before
    assert ids(plan_of(instance={"mbu": 0.885}, slo={"cooldown": 0.2})) == before  # defaults, written out
    roofline = {"step_times": "roofline"}
    assert ids(plan_of(instance={**roofline, "mbu": 0.8})) == ids(plan_of(instance=roofline))
    monkeypatch.setattr(plan_module, "RULES_VERSION", plan_module.RULES_VERSION + 1)
    assert not set(ids(plan_of())) & set(before)


def test_a_trace_is_known_by_its_requests(tmp_path):
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{10 + i},{5 + i}\n" for i in range(8))
    first, second = tmp_path / "a.csv", tmp_path / "elsewhere.csv"
    first.write_text(text)
    second.write_text(text)
    workload = {"kind": "trace", "request_rate_rps": 1}
    traced = {**config(), "workload": {**workload, "path": str(first)}}
    before = ids(expand(load_experiment(traced)))
    assert ids(expand(load_experiment(traced, trace=second))) == before
    cut = {**config(), "workload": {**workload, "path": str(first), "n_requests": 5}}
    assert ids(expand(load_experiment(cut))) != before
    second.write_text(text.replace("3,13,8", "3,13,9"))
    assert ids(expand(load_experiment(traced, trace=second))) != before


# --------------------------------------------------------------------------------------------------------- feasibility


def test_cells_that_do_not_fit_are_marked_with_the_reason():
    plan = plan_of(instance={"chip": ["t4", "h100-sxm"]}, scheduler={"block_size": 16})
    reasons = [cell.spec.infeasible for cell in plan.cells]
    assert plan.feasible == [2, 3]
    assert reasons[0].startswith("the weights of llama-3.1-8b do not fit 1 x t4: 16.1 GB, and room for 14.4 GB")


def test_blocks_beyond_the_memory_are_infeasible():
    plan = plan_of(
        scheduler={"block_size": [16, 500_000], "num_blocks": [10, 100_000]}, workload={"request_rate_rps": 1}
    )
    assert [cell.spec.infeasible is None for cell in plan.cells] == [True, False, False, False]
    plan = plan_of(scheduler={"block_size": [16, 500_000]}, workload={"request_rate_rps": 1})
    assert plan.feasible == [0]
    assert "1 x 500000 tokens of KV blocks do not fit" in plan.cells[1].spec.infeasible


def test_a_sweep_without_a_cell_that_fits_is_an_error():
    with pytest.raises(ConfigError, match=r"no cell can run: the weights of llama-3\.1-70b do not fit 1 x t4"):
        plan_of(instance={"model": "llama-3.1-70b", "chip": "t4"})


@pytest.mark.parametrize(
    ("text", "n", "words"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n", None, "e.csv"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n", 3, "n_requests = 3: must be at most 2"),
        ("arrival_s,prompt_tokens,output_tokens\n1,1,1\n1,1,1\n", None, "no mean rate"),
    ],
)
def test_traces_that_cannot_be_scaled_are_errors(tmp_path, text, n, words):
    (tmp_path / "e.csv").write_text(text)
    workload = {"kind": "trace", "request_rate_rps": 1, "path": str(tmp_path / "e.csv")}
    workload |= {} if n is None else {"n_requests": n}
    with pytest.raises(ConfigError, match=words):
        expand(load_experiment({**config(), "workload": workload}))


# ----------------------------------------------------------------------------------------------------------- selection


def test_cells_are_selected_by_condition_or_id():
    plan = plan_of(scheduler={"policy": ["mixed", "chunked"], "block_size": [8, 16]})
    assert plan.select("all") == list(range(8))
    assert plan.select("policy=chunked, block_size=16") == [6, 7]
    assert plan.select("policy=chunked,policy=mixed,request_rate_rps=2.0,block_size=8") == [1, 5]
    assert plan.select(f"{plan.cells[3].cell_id},{plan.cells[1].cell_id[:9]}") == [1, 3]


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("polcy=mixed", "unknown column 'polcy'; did you mean .policy."),
        ("policy=chunked", "chooses none of the 2 cells"),
        ("zzz", "no cell id begins with 'zzz': must be"),
        ("", "no cell id begins with ''"),
        ("block_size=many", "chooses none"),
    ],
)
def test_selections_that_cannot_be(selection, words):
    plan = plan_of(scheduler={"block_size": 16})
    with pytest.raises(ValueError, match=words):
        plan.select(selection)
    with pytest.raises(ConfigError, match=r"output\.requests"):
        plan_of(scheduler={"block_size": 16}, output={"requests": selection or "?"})


# ------------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(("workers", "max_batch_cells"), [(1, 1000), (2, 1000), (2, 3), (3, 7)])
def test_batches_hold_every_cell_once_and_share_kind_and_length(workers, max_batch_cells):
    plan = plan_of(
        workload={"n_requests": [10, 20], "request_rate_rps": [1, 2, 3, 4, 5, 6]},
        scheduler={"policy": ["mixed", "chunked", "prefill_first"]},
    )
    batches = make_batches(plan, plan.feasible, workers, max_batch_cells)
    assert sorted(at for batch in batches for at in batch) == plan.feasible
    for batch in batches:
        assert len(batch) <= max_batch_cells
        assert len({len(plan.cells[at].traffic.workload) for at in batch}) == 1


def test_batches_of_two_workers_meet_the_same_rates():
    plan = plan_of(workload={"request_rate_rps": list(range(1, 101))}, scheduler={"block_size": [1, 2, 4, 8, 16]})
    rates = [[plan.cells[at].request_rate_rps for at in batch] for batch in make_batches(plan, plan.feasible, 2)]
    assert [len(batch) for batch in rates] == [250, 250]
    assert sum(rates[0]) == pytest.approx(sum(rates[1]), rel=0.01)


def test_many_batches_have_neighbouring_rates():
    plan = plan_of(workload={"request_rate_rps": list(range(1, 101))}, scheduler={"block_size": [1, 2, 4, 8, 16]})
    batches = make_batches(plan, plan.feasible, 2, max_batch_cells=60)
    assert sorted(at for batch in batches for at in batch) == plan.feasible
    assert sorted(map(len, batches)) == [55] * 4 + [56] * 5
    rates = sorted(sorted(plan.cells[at].request_rate_rps for at in batch) for batch in batches)
    assert all(one[-1] <= two[0] for one, two in itertools.pairwise(rates))


def test_groups_are_split_only_where_that_ends_the_run_sooner():
    """All policies are one batch for one worker, and one a worker for two; two lengths are one batch a worker."""
    rates = list(range(1, 101))
    plan = plan_of(workload={"request_rate_rps": rates}, scheduler={"policy": ["mixed", "prefill_first"]})
    assert [len(make_batches(plan, plan.feasible, workers)) for workers in (1, 2)] == [1, 2]
    plan = plan_of(workload={"request_rate_rps": rates, "n_requests": [20, 19]})
    assert [len(make_batches(plan, plan.feasible, workers)) for workers in (1, 2)] == [2, 2]


def test_policies_share_a_batch_but_under_reserved_memory():
    policies = {"policy": ["prefill_first", "chunked"], "memory": "reserve", "chunk_budget": 512}
    plan = plan_of(system={"kind": "colocated"}, scheduler=policies)
    assert len(make_batches(plan, plan.feasible, 1)) == 2


def test_batches_keep_to_the_memory_limit(monkeypatch):
    plan = plan_of(workload={"request_rate_rps": list(range(1, 41))})
    monkeypatch.setattr("servesweep.runner.batches.BATCH_BYTES", 10 * 20 * BYTES_PER_REQUEST)
    assert max(map(len, make_batches(plan, plan.feasible, 1))) == 10
    assert BATCH_BYTES >= 1000 * 2000 * BYTES_PER_REQUEST  # the usual batch is not cut


def test_workers_are_started_only_where_they_end_the_run_sooner():
    def workers(rates, n, **tables):
        plan = plan_of(workload={"request_rate_rps": rates, "n_requests": n}, **tables)
        return default_workers(plan, plan.feasible, 4)

    assert workers([1, 2, 3], 100) == 1  # starting them takes longer
    assert workers([1], 20_000) == 1  # nothing to share
    assert workers([1, 2], 20_000) == 2
    assert workers([1], 20_000, scheduler={"policy": ["mixed", "prefill_first"]}) == 2
    assert workers(list(range(1, 2001)), 8000) == 4


def test_the_estimate_of_the_quickstart_is_near_what_it_took():
    """Of the fit: seconds of CPU, measured when nothing else ran."""
    plan = expand(load_experiment("quickstart"))
    for workers, cpu_s in ((1, 10.9), (2, 15.8)):
        batches = make_batches(plan, plan.feasible, workers)
        assert [len(batch) for batch in batches] == [576 // workers] * workers
        assert estimate(plan, batches, workers).cpu_s == pytest.approx(cpu_s, rel=0.15)


def test_estimates_grow_with_the_work_and_shrink_with_workers():
    plan = plan_of(workload={"request_rate_rps": list(range(1, 41))})
    one = estimate(plan, make_batches(plan, plan.feasible, 1), 1)
    assert one.cpu_s > 0
    assert one.memory_bytes > 0
    longer = plan_of(workload={"request_rate_rps": list(range(1, 41)), "n_requests": 20000})
    assert estimate(longer, make_batches(longer, longer.feasible, 1), 1).cpu_s > one.cpu_s
    assert estimate(longer, make_batches(longer, longer.feasible, 2), 2).wall_s < 60
