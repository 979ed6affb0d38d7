"""The prefix cache in the engine: the reference under every policy, in batches, and in systems of several instances."""

from random import Random
from typing import Any

import numpy as np
import pytest
from profiles import MANY_CASES
from reference_runs import StepLog
from servesweep import Colocated, ConstantStepTime, Workload, run_scheduler, run_systems
from servesweep.serving.policies import POLICIES
from servesweep.serving.reference import ReferenceScheduler, schedule
from servesweep.serving.reference_answers import answer, disagreement
from servesweep.serving.reference_cache import Contents
from servesweep.serving.reference_queue import RequestState
from servesweep.serving.scheduler import Scheduler, run_schedulers
from servesweep.workloads.contents import chains_of
from shared_texts import limits, requests
from strategies import LOG_COLUMNS

CASES = 150 if MANY_CASES else 15
COUNTED = ("prefill_tokens", "recomputed_tokens", "peak_blocks", "running_steps", "block_steps", "steps")


def workload(columns: dict[str, Any], *, shared: bool = True) -> Workload:
    return Workload(
        np.array(columns["arrivals"], np.float64),
        np.array(columns["prompts"]),
        np.array(columns["outputs"]),
        priority=np.array(columns["priorities"]),
        prompts=[text[:-1] for text in columns["texts"]] if shared else None,
    )


def drawn(seed: int, policy: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of requests, and options with scarce blocks."""
    rng = Random(seed)
    columns = requests(rng)
    options = limits(rng, columns, policy)
    if policy == "vllm":
        options |= {"async_scheduling": rng.random() < 0.4, "enable_chunked_prefill": rng.random() < 0.8}
    if rng.random() < 0.3:
        options["order"] = "shortest_prompt"
    return columns, options


def reference(columns: dict[str, Any], options: dict[str, Any], **more: Any) -> tuple[ReferenceScheduler, Any, StepLog]:
    log = StepLog()
    names = ("arrivals", "prompts", "outputs")
    scheduler, served = schedule(
        *(columns[name] for name in names),
        lambda *_: 1,
        priorities=columns["priorities"],
        enable_prefix_caching=True,
        observer=log,
        **options,
        **more,
    )
    return scheduler, served, log


def check(result: Any, scheduler: ReferenceScheduler, served: list[RequestState]) -> None:
    assert disagreement(result, served) is None
    for name in COUNTED:
        assert getattr(result, name) == getattr(scheduler, name), name


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy(policy: str) -> None:
    """Step by step as the reference, and beside each other as alone, to the last bit."""
    lanes, alone, found = [], [], 0
    for seed in range(CASES):
        columns, options = drawn(seed, policy)
        scheduler, served, log = reference(columns, options, texts=columns["texts"])
        lane = Scheduler(workload(columns), ConstantStepTime(1.0), enable_prefix_caching=True, **options)
        results = run_schedulers([lane], step_log=[0])
        result = results.result(0)
        check(result, scheduler, served)
        for i, name in enumerate(LOG_COLUMNS):
            np.testing.assert_array_equal(results.step_logs[0][name], [row[i] for row in log.rows], name)
        lanes.append(lane)
        alone.append(result)
        found += int(result.cached_tokens.sum())
    together = run_schedulers(lanes)
    for i, result in enumerate(alone):
        for name in ("first_token_s", "finish_s", "admitted_s", "preemptions", "cached_tokens"):
            np.testing.assert_array_equal(getattr(together.result(i), name), getattr(result, name))
    assert found > 20 * CASES, "the cases are meant to share text"


@pytest.mark.parametrize("policy", POLICIES)
def test_own_blocks_are_found_after_a_preemption(policy: str) -> None:
    """Nothing is shared: the run without a cache is done again where somebody is preempted."""
    again = 0
    for seed in range(CASES):
        columns, options = drawn(seed, policy)
        scheduler, served, _ = reference(columns, options)
        lane = Scheduler(workload(columns, shared=False), ConstantStepTime(1.0), enable_prefix_caching=True, **options)
        idle = Scheduler(workload(columns, shared=False), ConstantStepTime(3.0), policy="mixed", max_running=2)
        results = run_schedulers([idle, lane])
        check(results.result(1), scheduler, served)
        again += scheduler.refound_tokens > 0
    assert again > CASES / 10


@pytest.mark.parametrize("router", ["least_loaded", "round_robin", "power_of_two"])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_instance_has_its_own(policy: str, router: Any) -> None:
    systems = []
    for seed in range(CASES // 3):
        columns, options = drawn(seed, policy)
        systems.append(
            Colocated(
                workload(columns),
                ConstantStepTime(1.0),
                n_instances=2,
                memory="paged",
                router=router,
                enable_prefix_caching=True,
                **options,
            )
        )
    results = run_systems(systems)
    for i, system in enumerate(systems):
        assert disagreement(results.result(i), answer(system)) is None
    assert results.cached_tokens.sum() > 0


def test_batches_are_cut_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit the same, however few share a batch."""
    lanes = []
    for seed in range(12):
        columns, options = drawn(seed, "vllm")
        lanes.append(Scheduler(workload(columns), ConstantStepTime(1.0), enable_prefix_caching=True, **options))
    usual = run_schedulers(lanes, step_log=[3])
    for size in (1, 2000):
        monkeypatch.setattr("servesweep.serving.stage_runs.CACHE_BYTES", size)
        cut = run_schedulers(lanes, step_log=[3])
        for name in ("first_token_s", "finish_s", "preemptions", "cached_tokens", "prefill_tokens", "block_steps"):
            np.testing.assert_array_equal(getattr(cut, name), getattr(usual, name))
        np.testing.assert_array_equal(cut.step_logs[3]["tokens"], usual.step_logs[3]["tokens"])


def test_contents_are_those_of_the_reference() -> None:
    """Equal numbers for the same pairs of blocks."""
    for seed in range(40):
        columns = requests(Random(seed))
        served = workload(columns)
        for size in (1, 2, 3, 8):
            contents = Contents(size)
            numbers = []
            for i, texts in enumerate(columns["texts"]):
                state = RequestState(i, 0, columns["prompts"][i], columns["outputs"][i])
                state.texts = texts
                blocks = (state.prompt + state.output - 1) // size
                numbers += contents.of(state, blocks)[:blocks]
            chains = chains_of(served.texts, served.prompt_tokens, served.output_tokens, size)
            assert len(numbers) == chains.content.size
            pairs = set(zip(numbers, chains.content.tolist(), strict=True))
            assert len(pairs) == len(set(numbers)) == chains.count


def test_by_hand() -> None:
    """Blocks of 4. The second prompt finds all but its last block; the third, of the first's answer, all it can."""
    served = Workload(
        [0.0, 10.0, 20.0],
        [12, 12, 16],
        [5, 1, 1],
        prompts=[[("a", 12)], [("a", 12)], [("a", 12), ("o0", 4)]],
    )
    result = run_scheduler(
        served,
        ConstantStepTime(1.0),
        policy="vllm",
        max_num_seqs=4,
        max_num_batched_tokens=8,
        block_size=4,
        num_blocks=20,
        enable_prefix_caching=True,
    )
    assert result.cached_tokens.tolist() == [0, 8, 12]
    assert result.first_token_s.tolist() == [2.0, 11.0, 21.0]
    assert result.prefill_tokens == 12 + 4 + 4


def test_refused() -> None:
    served = Workload([0.0], [4], [4])
    with pytest.raises(ValueError, match="enable_prefix_caching=True: has no effect under unlimited memory"):
        run_scheduler(served, ConstantStepTime(1.0), policy="mixed", max_running=1, enable_prefix_caching=True)
    with pytest.raises(ValueError, match="enable_prefix_caching=True: has no effect under reserved memory"):
        Colocated(served, ConstantStepTime(1.0), enable_prefix_caching=True)
    with pytest.raises(ValueError, match="enable_prefix_caching='yes': must be True or False"):
        run_scheduler(served, ConstantStepTime(1.0), policy="mixed", max_running=1, enable_prefix_caching="yes")
