"""Large experiments are counted, not built: the limit on cells, dry runs, and that both agree with the plan."""

import random
from collections import Counter

import pytest
from drawn_experiments import drawn_experiment
from servesweep.experiment import outlines as outline_module
from servesweep.experiment import plan as plan_module
from servesweep.experiment import specs, traffic
from servesweep.experiment.outlines import outline
from servesweep.experiment.plan import expand, make_plan
from servesweep.experiment.reader import load_experiment, ready_experiments
from servesweep.experiment.sizes import MAX_CELLS, count_cells, systems_alike
from servesweep.experiment.tables import ConfigError
from servesweep.goodput.placement import find_placement
from servesweep.goodput.search import find_goodput
from servesweep.hardware.step_times import StepModel
from servesweep.runner.batches import estimate, estimate_outline, make_batches
from servesweep.runner.runner import run_grid
from small_experiment import SMALL, changed
from system_plans import tables as system_tables


def numbers(n, begin=1):
    return list(range(begin, begin + n))


def error_of(config, function=outline, **options):
    with pytest.raises(ConfigError) as caught:
        function(load_experiment(config, **options))
    return str(caught.value)


LARGE = changed(
    workload={"request_rate_rps": numbers(100)},
    scheduler={
        "policy": "chunked",
        "token_budget": numbers(1000, 512),
        "block_size": numbers(1000),
        "max_running": [1, 2],
    },
)


# ------------------------------------------------------------------------------------------------------------ agreement


def ready():
    for name in ready_experiments():
        if not name.endswith("-conversation"):  # which need a trace
            yield name


def sound(seeds):
    """Experiments drawn with these seeds that can run."""
    for seed in seeds:
        try:
            yield expand(load_experiment(drawn_experiment(random.Random(seed))))
        except ConfigError:
            continue


def agree(plan, rel=0.3):
    found = outline(plan.experiment)
    assert found.is_exact
    assert (found.cells, found.feasible) == (len(plan.cells), len(plan.feasible))
    reasons = Counter(cell.spec.infeasible for cell in plan.cells if cell.spec.infeasible)
    assert found.infeasible == dict(reasons)
    assert found.simulated_requests == sum(len(plan.cells[at].traffic.workload) for at in plan.feasible)
    assert found.n_workloads == len({id(cell.traffic) for cell in plan.cells})
    for workers in (1, 3):
        said = estimate_outline(found, workers)
        from_batches = estimate(plan, make_batches(plan, plan.feasible, workers), workers)
        for name, value in vars(from_batches).items():
            assert getattr(said, name) == pytest.approx(value, rel=rel)


@pytest.mark.parametrize("name", list(ready()))
def test_an_outline_says_what_the_plan_of_a_ready_experiment_says(name):
    agree(expand(load_experiment(name, settings={"n_requests": 100})), rel=0.05)


def test_an_outline_says_what_the_plan_says():
    """Of experiments with every kind of condition on the effect of a key."""
    plans = list(sound(range(60)))
    assert len(plans) >= 20
    assert len({kind for plan in plans for kind in plan.experiment.system.kind}) == 4
    for plan in plans:
        agree(plan)


def test_an_outline_and_the_plan_refuse_the_same():
    refused = []
    for seed in range(60, 120):
        try:
            experiment = load_experiment(drawn_experiment(random.Random(seed)))
        except ConfigError:
            continue
        said = []
        for function in (outline, expand):
            try:
                function(experiment)
                said.append(None)
            except ConfigError as error:
                said.append(str(error))
        assert said[0] == said[1]
        refused += [said[0]] if said[0] else []
    assert len(refused) >= 4


# ------------------------------------------------------------------------------------------------------------ the limit


def test_above_the_limit_is_an_error_with_the_number_and_the_axes():
    text = (
        "config: 200,000,000 cells: must be at most 1,000,000: token_budget has 1,000 values, block_size has 1,000 "
        "values, request_rate_rps has 100 values, max_running has 2 values"
    )
    assert error_of(LARGE) == error_of(LARGE, expand) == text
    assert MAX_CELLS == 10**6


@pytest.mark.parametrize("run", [run_grid, find_goodput, find_placement])
def test_runs_and_searches_obey_the_limit(run, tmp_path):
    config = {**LARGE, "slo": {"ttft_ms": 100, "tpot_ms": numbers(100) if run is find_goodput else 10}}
    if run is find_placement:  # which searches layouts, and one value of all else
        config = {
            **system_tables(system={"n_gpus": 300}, slo=config["slo"]),
            "instance": {**SMALL["instance"], "tp": [1, 2, 4, 8], "pp": numbers(32)},
            "scheduler": {"memory": "reserve", "policy": ["chunked", "prefill_first"], "chunk_budget": numbers(1000)},
        }
    options = {"exhaustive": True} if run is find_placement else {}
    with pytest.raises(ConfigError, match="must be at most 1,000,000: ") as caught:
        run(config, out=tmp_path / "out", progress=False, **options)
    assert len(str(caught.value)) <= 600
    assert not (tmp_path / "out").exists()


def test_nothing_is_built_of_what_is_too_large(monkeypatch):
    def never(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr(specs, "points", never)
    monkeypatch.setattr(traffic, "points", never)
    monkeypatch.setattr(plan_module, "make_specs", never)
    error_of(LARGE)
    error_of(LARGE, expand)


def test_an_axis_without_effect_multiplies_nothing():
    """Ten budgets of the one policy that has them, ten block sizes of the one memory that has them."""
    held = {"policy": ["mixed", "chunked"], "memory": ["paged", "unlimited"], "block_size": numbers(10)}
    config = changed(scheduler={**held, "token_budget": numbers(10, 512)}, workload={"request_rate_rps": 1})
    experiment = load_experiment(config)
    assert count_cells(experiment, systems_alike(experiment)) == (1 + 10) * (1 + 10) == len(expand(experiment).cells)


def test_the_limit_is_on_what_n_gpus_leaves_and_on_what_it_looks_through():
    split = {"kind": "disaggregated", "n_prefill": numbers(200), "n_decode": numbers(200)}
    assert outline(load_experiment(system_tables(system={**split, "n_gpus": 8}))).cells == 7 * 2
    many = {**split, "n_prefill": numbers(2000), "n_gpus": 8}
    assert "config: 400,000 layouts to choose from: must be at most 50,000: n_prefill" in error_of(
        system_tables(system=many)
    )
    degrees = {"tp": [1, 2, 4, 8, 16, 32], "pp": numbers(32)}
    config = system_tables(
        system={**split, "n_gpus": 8}, prefill_instance=degrees, decode_instance=degrees, instance=SMALL["instance"]
    )
    text = error_of(config)
    assert "config: 1,474,560,000 layouts from which system.n_gpus selects: must be at most 1,000,000: " in text


# -------------------------------------------------------------------------------------------- a dry run builds no cells


def test_a_dry_run_of_many_cells_builds_few_systems_and_draws_nothing(monkeypatch):
    made = Counter()
    check = StepModel.__post_init__
    monkeypatch.setattr(StepModel, "__post_init__", lambda step: made.update(step=1) or check(step))
    monkeypatch.setattr(traffic, "_draw", None)
    monkeypatch.setattr(outline_module, "make_plan", None)
    shares = [i / 501 for i in range(1, 501)]
    for tables in (
        {"instance": {"mfu": shares, "mbu": shares}},
        {"instance": {"mem_reserve": shares, "kv_bytes": [1 + share for share in shares]}},
        {"workload": {"seed": numbers(500), "n_requests": numbers(500)}},
        {"workload": {"request_rate_rps": numbers(250_000)}},
        {"slo": {"ttft_ms": numbers(500), "tpot_ms": numbers(500)}},
        {"scheduler": {"block_size": numbers(500), "num_blocks": numbers(500)}},
    ):
        made.clear()
        found = outline(load_experiment(changed(**tables)))
        assert 5 * 10**5 <= found.cells <= MAX_CELLS
        assert sum(one.cells for one in found.systems) * found.n_workloads == found.cells
        assert len(found.systems) <= 1000
        assert made["step"] <= 1000
        assert len(found.lengths) <= 50
        assert len(found.workloads) <= 8


def test_neighbours_stand_for_each_other_where_there_are_too_many():
    """Some shares of the memory leave no room for the weights; how many cells can run is told to a few percent."""
    config = changed(
        instance={"mem_reserve": [i / 500 for i in range(500)], "weight_bytes": [1.0, 1.5, 2.0]},
        scheduler={"block_size": [16, 32, 64], "policy": "mixed"},
        workload={"request_rate_rps": 1},
    )
    found, plan = outline(load_experiment(config)), make_plan(load_experiment(config))
    assert not found.is_exact
    assert found.cells == len(plan.cells)
    assert found.feasible == pytest.approx(len(plan.feasible), rel=0.02)
    assert found.feasible < found.cells


def test_seeds_of_a_trace_are_read_once(tmp_path, monkeypatch):
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{10 + i},{5 + i}\n" for i in range(8)))
    workload = {"kind": "trace", "path": str(file), "spread_s": 1, "seed": numbers(3000), "request_rate_rps": [1, 2]}
    read = []
    original = traffic.Traces.read
    monkeypatch.setattr(traffic.Traces, "read", lambda self, seed: read.append(seed) or original(self, seed))
    found = outline(load_experiment({**SMALL, "workload": workload}))
    assert set(read) == {1}
    assert (found.cells, found.n_workloads, found.simulated_requests) == (3000 * 2 * 2, 3000, 3000 * 2 * 2 * 8)
    assert found.workloads[0].startswith(f"{file}: ") or "8" in found.workloads[0]
    more = {**workload, "n_requests": [4, 9]}
    assert "n_requests = 9: must be at most 8" in error_of({**SMALL, "workload": more})


def test_a_dry_run_of_few_cells_finds_what_only_cells_can_tell():
    assert "cells 1 and 3 are the same" in error_of(changed(slo={"ttft_ms": [63.0, 63.00000000000001]}))
    assert "chooses none of the 4 cells" in error_of(changed(output={"steps": "block_size=8"}))
    assert "no cell id begins with 'abc'" in error_of(changed(output={"steps": "abc"}))


def test_workloads_that_the_engine_cannot_take_are_told_without_drawing_them(monkeypatch):
    monkeypatch.setattr(traffic, "_draw", None)
    for workload in (
        {"output": 2**31 - 1},
        {"output": 30, "n_requests": 10**8},
        {"output": {"mean": 30, "sigma": 1, "lo": 1, "hi": 1000}, "n_requests": 10**8},
    ):
        assert "synthetic: workload: could take" in error_of(changed(workload=workload))
    assert outline(load_experiment(changed(workload={"output": 20, "n_requests": 10**8}))).cells == 4
    text = error_of(changed(workload={"request_rate_rps": [1, 1e-308]}))
    assert text == "config: workload.request_rate_rps = 1e-308: is so small that the last request never arrives"
    priority = {"scheduler": {"order": "priority"}}
    assert "the workload has no priorities" in error_of(changed(**priority))
    assert outline(load_experiment(changed(**priority, workload={"urgent_share": 0.1}))).cells == 4


def test_a_plan_is_checked_before_its_requests_are_drawn(monkeypatch):
    monkeypatch.setattr(traffic, "_draw", None)
    config = system_tables(system={"n_instances": [1, 2], "n_gpus": 3})
    assert "no system of this experiment has so many GPUs" in error_of(config, expand)
    assert len(make_plan(load_experiment(SMALL)).cells) == 4


def test_values_that_both_roles_replace_are_not_multiplied(monkeypatch):
    made = Counter()
    original = specs._override
    monkeypatch.setattr(specs, "_override", lambda *arguments: made.update(calls=1) or original(*arguments))
    shares = [i / 300 for i in range(1, 251)]
    config = system_tables(
        system={"kind": ["colocated", "disaggregated"]},
        instance={**SMALL["instance"], "mfu": shares},
        prefill_instance={"mfu": 0.5},
        decode_instance={"mfu": 0.6},
    )
    assert len(make_plan(load_experiment(config)).cells) == (250 + 1) * 2
    assert made["calls"] == 2
