"""Engine and reference side by side: wherever the engine stops, both hold the same state."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from parity import assert_identical, lanes_of
from profiles import MANY_CASES
from servesweep import StepModel, chip, lognormal_len, make_workload, model
from servesweep.kernels.observation import observe
from servesweep.serving.orders import ORDERS
from servesweep.serving.reference import ReferenceScheduler, RequestState, reject
from servesweep.serving.reference_vllm import longest_of
from servesweep.serving.scheduler import Scheduler, new_engine, run_schedulers
from strategies import POLICIES, LaneCase, batches, lane_cases

STATUS = {"waiting": 0, "prefill": 1, "decode": 2, "finished": 3}


class Companion:
    """The reference of one lane, moved forward on demand; requests in order of service, less those that never fit."""

    def __init__(self, case: LaneCase) -> None:
        limits = case.limits()
        columns = (case.arrivals(), case.traffic.prompt_tokens, case.traffic.output_tokens)
        priorities = case.traffic.priorities or [0] * len(columns[0])
        requests = zip(*columns, priorities, strict=True)
        states = [RequestState(i, *request) for i, request in enumerate(requests)]
        served = reject(states, limits.get("block_size"), limits.get("num_blocks"), longest_of(limits))
        served.sort(key=lambda seq: (seq.arrival, seq.key))
        self.sequences = served
        self.scheduler = ReferenceScheduler(served, case.step_time(), **limits)
        self._boundaries: Iterator[ReferenceScheduler] = self.scheduler.boundaries()
        self.exhausted = next(self._boundaries, None) is None

    def move_to(self, steps: int) -> None:
        while self.scheduler.steps < steps and not self.exhausted:
            self.exhausted = next(self._boundaries, None) is None
        assert self.scheduler.steps == steps


@pytest.mark.parametrize("order", [None, *ORDERS])
@pytest.mark.parametrize("policy", POLICIES)
def test_state_agrees_wherever_the_engine_stops(policy: str, order: str | None) -> None:
    stops = {"running": 0, "queued": 0}

    @given(lane_cases(policy=policy, order=order))
    def check(case: LaneCase) -> None:
        lanes: list[Scheduler] = lanes_of([case])
        companion = Companion(case)
        engine = new_engine(lanes)
        going = True
        while going:
            seen = observe(engine.batch, 0)
            if seen is None:
                break
            companion.move_to(seen.steps)
            sequences = companion.sequences
            assert seen.emitted.tolist() == [seq.emitted for seq in sequences]
            assert seen.blocks.tolist() == [seq.blocks for seq in sequences]
            assert seen.status.tolist() == [STATUS[seq.status] for seq in sequences]
            if companion.scheduler.running:
                # An idle reference has already moved to the arrival that wakes it.
                np.testing.assert_allclose(seen.time_s, companion.scheduler.time, rtol=1e-9)
                companion.scheduler.waiting.age(companion.scheduler.time)
                places = {id(seq): place for place, seq in enumerate(sequences)}
                assert seen.queue.tolist() == [places[id(seq)] for seq in companion.scheduler.waiting]
                stops["running"] += 1
                stops["queued"] += bool(seen.queue.size)
            going = engine.advance()
        companion.move_to(companion.scheduler.steps)
        assert all(seq.status == "finished" for seq in companion.sequences)

    check()
    if MANY_CASES:
        assert stops["running"] > 100, "the cases are meant to stop between requests"
        assert stops["queued"] > 20, "the cases are meant to queue"


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_how_many_finishes_are_passed_at_once_makes_no_difference(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit the same, whether a lane takes a finish with others, or in a later loop."""

    @given(batches())
    def check(cases: list[LaneCase]) -> None:
        lanes = lanes_of(cases)
        usual = run_schedulers(lanes)
        with monkeypatch.context() as patch:
            patch.setattr("servesweep.kernels.finishing_ahead._EARLIER", np.arange(float(at_once))[:, None])
            other = run_schedulers(lanes)
        for i in range(len(lanes)):
            assert_identical(usual, i, other, i)

    check()


@pytest.mark.parametrize("at_once", [0, 1, 2, 9])
def test_nor_does_it_where_memory_is_tight(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of chat requests in seconds, where the last bit of a time tells whether a leap was cut; 0: none is
    passed, as where a step log is kept."""
    rng = np.random.default_rng(1)
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    lanes = []
    for seed in range(8):
        workload = make_workload(60, 1.0, lognormal_len(300, 0.8, 16, 2000), lognormal_len(60, 0.8, 1, 400), seed)
        for policy in POLICIES * 25:
            block_size, tokens = int(rng.choice([1, 8, 16, 64])), int(rng.choice([800, 1600, 4000]))
            lane = Scheduler(
                workload,
                step,
                rate=float(rng.choice([1, 4, 10, 20])),
                policy=policy,
                max_running=int(rng.choice([4, 32])),
                block_size=block_size,
                num_blocks=tokens // block_size,
                token_budget=int(rng.choice([64, 256, 512])) if policy in ("chunked", "vllm") else None,
            )
            lanes.append(lane)
    usual = run_schedulers(lanes)
    assert usual.preemptions.sum() > 200
    if at_once:
        monkeypatch.setattr("servesweep.kernels.finishing_ahead._EARLIER", np.arange(float(at_once))[:, None])
    other = run_schedulers(lanes, step_log=() if at_once else [0])
    for i in range(len(lanes)):
        assert_identical(usual, i, other, i)
