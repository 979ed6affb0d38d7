"""Everything registered, in every combination, against the reference: what is added to a registry is found here."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import check_against_reference, lanes_of
from parity_systems import SystemCase, assert_identical, check_log, check_results, systems_of
from servesweep.serving import (
    orders,
    policies,
    reference,
    reference_instances,
    reference_systems,
    routers,
    system_kinds,
)
from servesweep.serving.run import run_systems
from servesweep.serving.scheduler import Scheduler
from strategies import LaneCase, lane_cases
from strategies_steps import added_lanes, added_systems
from strategies_systems import system_batches

few = settings(max_examples=settings.default.max_examples // 5)  # an example is a batch


def orders_of(kind: type) -> list[str | None]:
    """None alone for what has no order of its own."""
    return [*orders.ORDERS] if "order" in {field.name for field in fields(kind)} else [None]


def policies_of(memory: str) -> list[str]:
    return [row.name for row in policies.POLICIES.values() if memory in row.memories]


SCHEDULERS = [(policy, memory) for memory in policies.SCHEDULED for policy in policies_of(memory)]
OF_SYSTEMS = [
    (kind.name, memory, policy, order)
    for kind in system_kinds.SYSTEMS.values()
    for memory in kind.memories or ("reserve",)
    for policy in (policies_of(memory) if kind.has_policy else [None])
    for order in orders_of(kind.system)
]


@pytest.mark.parametrize("order", orders_of(Scheduler))
@pytest.mark.parametrize(("policy", "memory"), SCHEDULERS)
def test_schedulers(policy: str, memory: str, order: str) -> None:
    """Batches of lanes, and each step of some."""

    @few
    @given(st.lists(lane_cases(policy=policy, paged=memory == "paged", order=order), min_size=1, max_size=5))
    def check(cases: list[LaneCase]) -> None:
        results = run_systems(lanes_of(cases), step_log=range(0, len(cases), 2))
        for i, case in enumerate(cases):
            check_against_reference(results.result(i), case, results.step_logs.get(i))

    check()


@pytest.mark.parametrize(("system", "memory", "policy", "order"), OF_SYSTEMS)
def test_systems(system: str, memory: str, policy: str | None, order: str | None) -> None:
    @few
    @given(system_batches(max_systems=4, system=system, memory=memory, policy=policy, order=order))
    def check(cases: list[SystemCase]) -> None:
        results = run_systems(systems_of(cases), step_log=range(0, len(cases), 2))
        check_results(results, cases)
        for i, log in results.step_logs.items():
            check_log(log, cases[i])

    check()


@pytest.mark.parametrize(("policy", "memory"), SCHEDULERS)
def test_schedulers_whose_steps_are_added_up(policy: str, memory: str) -> None:
    """Operators and knots, in one batch with rooflines and constants; each lane has the bits that it has alone."""

    @few
    @given(added_lanes(policy=policy, paged=memory == "paged"))
    def check(cases: list[LaneCase]) -> None:
        lanes = lanes_of(cases)
        results = run_systems(lanes, step_log=range(0, len(cases), 2))
        for i, case in enumerate(cases):
            check_against_reference(results.result(i), case, results.step_logs.get(i))
            assert_identical(results, i, run_systems([lanes[i]]), 0)

    check()


@pytest.mark.parametrize(("system", "memory", "policy", "order"), OF_SYSTEMS)
def test_systems_whose_steps_are_added_up(system: str, memory: str, policy: str | None, order: str | None) -> None:
    @few
    @given(added_systems(system=system, memory=memory, policy=policy, order=order))
    def check(cases: list[SystemCase]) -> None:
        systems = systems_of(cases)
        results = run_systems(systems, step_log=range(0, len(cases), 2))
        check_results(results, cases)
        for i, log in results.step_logs.items():
            check_log(log, cases[i])
        for i, one in enumerate(systems):
            assert_identical(results, i, run_systems([one]), 0)

    check()


def test_the_reference_knows_all_that_is_registered() -> None:
    assert set().union({"vllm"}, *map(policies_of, policies.SCHEDULED)) == set(reference.POLICIES)
    assert set(policies_of("reserve")) == set(reference_instances.RESERVED_POLICIES)
    assert set(routers.ROUTERS) == set(reference_systems.ROUTERS)
    assert {row.name: row.ages for row in orders.ORDERS.values()} == {
        name: row.ages for name, row in reference.ORDERS.items()
    }
