"""The recipes of CONTRIBUTING.md, followed here: what they add is served as the reference says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import check_against_reference, lanes_of
from parity_systems import SystemCase, check_results, systems_of
from servesweep.kernels import phases
from servesweep.kernels.batch import Batch
from servesweep.kernels.router import FIRST_DRAWN
from servesweep.serving import orders, policies, reference, reference_queue, reference_systems, routers
from servesweep.serving.run import run_systems
from strategies import LaneCase, lane_cases
from strategies_systems import system_batches

few = settings(max_examples=settings.default.max_examples // 5)


def nobody_runs(batch: Batch) -> np.ndarray:
    """Lanes whose last batch is done. [L]"""
    return batch.decodes.running == 0


def one_batch_after_the_other(scheduler: reference.ReferenceScheduler) -> list[reference.RequestState]:
    """All grow; nobody is admitted until all of the last batch are done."""
    scheduler.grow()
    if not scheduler.running:
        scheduler.admit()
    return scheduler.running


@pytest.fixture(autouse=True, scope="module")
def added():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(phases.PHASES, "static", phases.Row(phases.PHASES["scheduler"].steps, nobody_runs))
        options = dict.fromkeys(policies.SCHEDULED, ())
        policy = policies.Policy("static", "one batch after the other", True, options, phases="static")
        patch.setitem(policies.POLICIES, "static", policy)
        patch.setitem(reference.POLICIES, "static", one_batch_after_the_other)

        def by_eight(_: np.random.Generator, n: int, instances: int) -> np.ndarray:
            drawn = np.zeros((n, 2), np.int32)
            drawn[:, 0] = np.arange(n) // 8 % instances
            return drawn

        def in_turn_by_eight(router: reference_systems.Router) -> object:
            return router.instances[next(router.routed) // 8 % len(router.instances)]

        order = orders.Order("longest_prompt", "the longest prompt first", lambda queue: -orders._prompt(queue))
        patch.setitem(orders.ORDERS, "longest_prompt", order)
        last = reference_queue.Order(lambda request: (-request.prompt, request.arrival, request.key))
        patch.setitem(reference_queue.ORDERS, "longest_prompt", last)

        kind = routers.RouterKind("by_eight", "eight to one", rule=FIRST_DRAWN, draw=by_eight, splits=True)
        patch.setitem(routers.ROUTERS, "by_eight", kind)
        patch.setitem(reference_systems.ROUTERS, "by_eight", reference_systems.Routing(in_turn_by_eight))
        yield


@pytest.mark.parametrize("paged", [True, False])
def test_a_policy(paged: bool) -> None:
    @few
    @given(st.lists(lane_cases(policy="static", paged=paged), min_size=1, max_size=5))
    def check(cases: list[LaneCase]) -> None:
        results = run_systems(lanes_of(cases), step_log=range(0, len(cases), 2))
        for i, case in enumerate(cases):
            check_against_reference(results.result(i), case, results.step_logs.get(i))

    check()


@pytest.mark.parametrize("memory", policies.SCHEDULED)
def test_a_policy_behind_routers(memory: str) -> None:
    @few
    @given(system_batches(max_systems=4, system="colocated", memory=memory, policy="static", order="arrival"))
    def check(cases: list[SystemCase]) -> None:
        check_results(run_systems(systems_of(cases)), cases)

    check()


@pytest.mark.parametrize("policy", ["mixed", "chunked", "prefill_first", "static"])
def test_an_order(policy: str) -> None:
    @few
    @given(st.lists(lane_cases(policy=policy, paged=True, order="longest_prompt"), min_size=1, max_size=5))
    def check(cases: list[LaneCase]) -> None:
        results = run_systems(lanes_of(cases), step_log=range(0, len(cases), 2))
        for i, case in enumerate(cases):
            check_against_reference(results.result(i), case, results.step_logs.get(i))

    check()


@few
@given(system_batches(max_systems=4, system="colocated", router="by_eight", order="arrival"))
def test_a_router(cases: list[SystemCase]) -> None:
    check_results(run_systems(systems_of(cases)), cases)
