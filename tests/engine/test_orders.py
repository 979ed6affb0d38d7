"""Service orders in the engine: the sets that find who is next, and schedulers in seconds against the reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity import assert_identical
from servesweep import StepModel, Workload, chip, lognormal_len, make_workload, model
from servesweep.kernels.bitset import Levels
from servesweep.kernels.steptime import step_seconds
from servesweep.serving.reference import schedule
from servesweep.serving.scheduler import Scheduler, run_schedulers

STEP = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
LANES = 3


@given(
    st.sampled_from([1, 2, 63, 64, 65, 4096, 4097, 300_000]),
    st.lists(st.tuples(st.integers(0, LANES - 1), st.integers(0, 300_000), st.booleans()), max_size=60),
)
def test_sets_find_their_smallest_number(size: int, changes: list[tuple[int, int, bool]]) -> None:
    levels = Levels(size)
    sets, expected = levels.empty(LANES), [set() for _ in range(LANES)]
    for lane, number, several in changes:
        numbers = np.unique([number % size, *([number // 2 % size, 0] if several else [])])
        levels.put(sets, np.full(numbers.size, lane), numbers)
        expected[lane].update(numbers.tolist())
        filled = np.array([i for i in range(LANES) if expected[i]])
        smallest = levels.smallest(sets, filled)
        assert smallest.tolist() == [min(expected[i]) for i in filled]
        if several:
            levels.take(sets, filled, smallest)
            for i, taken in zip(filled.tolist(), smallest.tolist(), strict=True):
                expected[i].remove(taken)


def schedulers(seed: int, number: int) -> list[Scheduler]:
    """Of chat requests, in memories of any tightness, from light load to far too much."""
    rng = np.random.default_rng(seed)
    base = make_workload(150, 1.0, lognormal_len(300, 0.8, 16, 2000), lognormal_len(120, 0.8, 1, 400), seed)
    work = Workload(base.arrival_s, base.prompt_tokens, base.output_tokens, priority=rng.integers(-2, 3, 150))
    lanes = []
    for _ in range(number):
        options: dict = {"policy": str(rng.choice(["mixed", "chunked", "prefill_first"]))}
        if options["policy"] == "chunked":
            options["token_budget"] = int(rng.choice([64, 256, 512]))
        if rng.random() < 0.8:
            options["block_size"] = int(rng.choice([1, 8, 16, 64]))
            options["num_blocks"] = int(rng.choice([2500, 2500, 5000])) // options["block_size"]
        options["order"] = str(rng.choice(["shortest_prompt", "priority"]))
        if options["order"] == "shortest_prompt" and rng.random() < 0.6:
            options["max_wait_s"] = float(rng.choice([0, 0.5, 2, 10]))
        rate, running = float(rng.choice([1, 4, 10, 20, 40])), int(rng.choice([4, 32, 64]))
        lanes.append(Scheduler(work, STEP, max_running=running, rate=rate, **options))
    return lanes


@pytest.mark.parametrize("seed", range(3))
def test_schedulers_in_seconds_are_those_of_the_reference(seed: int) -> None:
    lanes = schedulers(seed, 24)
    results = run_schedulers(lanes)
    assert results.preemptions.sum() > 50
    c = STEP.coefficients()
    limits = ("policy", "max_running", "block_size", "num_blocks", "token_budget", "max_tokens", "order", "max_wait_s")
    for i, lane in enumerate(lanes):
        work = lane.workload
        reference, served = schedule(
            [float(arrival) for arrival in work.arrival_s / lane.rate],
            work.prompt_tokens.tolist(),
            work.output_tokens.tolist(),
            lambda b, context, tokens, pairs, *_: float(step_seconds(c, b + tokens, context + pairs, context + tokens)),
            priorities=work.priority.tolist(),
            **{name: getattr(lane, name) for name in limits},
        )
        for name in ("steps", "recomputed_tokens", "peak_blocks", "running_steps", "block_steps"):
            assert getattr(results, name)[i] == getattr(reference, name), (lane.policy, name)
        assert results.preemptions[i].tolist() == [request.preemptions for request in served]
        for name in ("admitted", "first_token", "finish"):
            expected = [getattr(request, name) for request in served]
            np.testing.assert_allclose(getattr(results, f"{name}_s")[i], expected, rtol=1e-9)


def test_a_lane_is_what_it_is_alone() -> None:
    lanes = schedulers(7, 20)
    together = run_schedulers(lanes)
    for i, lane in enumerate(lanes):
        assert_identical(together, i, run_schedulers([lane]), 0)
