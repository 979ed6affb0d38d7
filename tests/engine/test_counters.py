"""The list of counters, and the table of phases, as others read them."""

from pathlib import Path

import numpy as np
from servesweep import ConstantStepTime, make_workload
from servesweep.kernels.counters import COUNTERS
from servesweep.kernels.phases import NAMES, PHASES, steps_of
from servesweep.kernels.rules import LISTED, Rules
from servesweep.serving.policies import POLICIES
from servesweep.serving.run import run_systems
from servesweep.serving.scheduler import Scheduler, new_engine

DOCS = Path(__file__).parents[2] / "docs"


def lanes() -> list[Scheduler]:
    step = ConstantStepTime(0.1)
    work = make_workload(30, 1.0, 10, 5)
    return [
        Scheduler(work, step, policy=policy, max_running=8, block_size=4, num_blocks=24, token_budget=budget, rate=20.0)
        for policy, budget in (("mixed", None), ("chunked", 8), ("prefill_first", None))
    ]


def test_every_counter_has_a_unit_and_a_meaning() -> None:
    assert len({counter.name for counter in COUNTERS}) == len(COUNTERS)
    for counter in COUNTERS:
        assert counter.unit
        assert counter.meaning
        assert counter.of_lanes in ("sum", "max")
        assert counter.of_stages in ("sum", "last")


def test_results_carry_every_counter() -> None:
    results = run_systems(lanes())
    assert list(results.counters) == [counter.name for counter in COUNTERS]
    for name, values in results.counters.items():
        if hasattr(results, name):  # those that the interface names
            np.testing.assert_array_equal(values, getattr(results, name), err_msg=name)
    one = results.result(1)
    assert one.counters == {name: float(values[1]) for name, values in results.counters.items()}


def test_each_kind_of_instance_has_its_phases() -> None:
    kinds = {
        Rules(reserve=reserve, prefills=prefills, decodes=decodes).kind
        for reserve in (False, True)
        for prefills, decodes in ((True, True), (False, True), (True, False))
    }
    own = {row.phases for row in POLICIES.values() if row.phases is not None}
    assert kinds | own | {LISTED} == set(PHASES)
    assert {step.name for row in PHASES.values() for step in row.steps} == set(NAMES)


def test_a_batch_runs_the_phases_that_it_needs() -> None:
    one = [[step.name for step in steps_of(new_engine([lane]).batch)] for lane in lanes()]
    assert one[0] == one[1] == ["wake", "grow", "admit", "prefill", "finish_ahead", "leap", "finish"]
    assert one[2] == ["wake", "admit", "prefill", "grow", "finish_ahead", "leap", "finish"]
    together = [step.name for step in steps_of(new_engine(lanes()).batch)]
    assert together == ["wake", "grow", "admit", "prefill", "grow", "finish_ahead", "leap", "finish"]


def test_the_page_of_the_engine_says_what_every_phase_does() -> None:
    text = (DOCS / "engine.md").read_text()
    for name in NAMES:
        assert f"*{name.replace('_', ' ')}*" in text
