"""Batches: which cells are advanced together, and what they are expected to cost."""

from servesweep.runner.batches import default_workers, estimate, make_batches
from system_plans import ALL, WORKLOAD, plan_of


def test_batches_hold_cells_that_the_engine_advances_together():
    plan = plan_of(
        system={"kind": ALL, "n_instances": [1, 3], "n_decode": 2, "router": ["least_loaded", "round_robin"]},
        scheduler={"policy": ["prefill_first", "chunked"], "memory": ["reserve", "paged"]},
    )
    batches = make_batches(plan, plan.feasible, 2)
    assert sorted(at for batch in batches for at in batch) == plan.feasible
    for batch in batches:
        specs = [plan.cells[at].spec for at in batch]
        assert len({(spec.kind, spec.options["memory"] == "reserve") for spec in specs}) == 1
        assert len({spec.options["policy"] for spec in specs if spec.options["memory"] == "reserve"}) <= 1
        assert len({spec.n_instances > 1 and spec.layout["router"] == "least_loaded" for spec in specs}) == 1
    assert default_workers(plan, plan.feasible, 2) in (1, 2)
    assert estimate(plan, batches, 2).cpu_s > 0


def test_more_instances_are_expected_to_cost_more_only_where_they_are_tied_together():
    def cost(router, n):
        plan = plan_of(system={"n_instances": n, "router": router}, workload={**WORKLOAD, "n_requests": 10_000})
        return estimate(plan, make_batches(plan, plan.feasible, 1), 1).cpu_s

    assert cost("round_robin", 100) < cost("least_loaded", 2) < cost("least_loaded", 100)
