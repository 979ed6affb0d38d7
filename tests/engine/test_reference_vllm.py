"""The reference's policy `vllm`: recorded decisions of vLLM, step by step, and what holds on any run."""

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from servesweep.serving.reference import POLICIES, schedule
from servesweep.serving.reference_answers import texts_of
from servesweep.serving.reference_cache import pieces
from servesweep.serving.reference_steps import ConstantTimes
from servesweep.serving.reference_systems import run_system
from servesweep.serving.reference_vllm import STALLS
from shared_texts import boundaries, check_boundary, limits, requests
from strategies import golden
from vllm_decisions import decide

FILES = ("fcfs", "options", "prefix-caching", "more")
CASES = [pytest.param(case, id=f"{name}: {case['name']}") for name in FILES for case in golden(f"vllm/{name}")]


def test_all_recorded_cases_are_here() -> None:
    assert len(CASES) == 70


@pytest.mark.parametrize("case", CASES)
def test_it_decides_as_vllm_did(case: dict[str, Any]) -> None:
    decided = decide(case["inputs"])
    for step, recorded in zip(decided["steps"], case["outputs"]["steps"], strict=False):
        assert step == recorded
    assert decided == case["outputs"]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_holds_at_every_boundary(policy: str, caching: bool) -> None:
    met = {"preemptions": 0, "hits": 0}
    for seed in range(150):
        rng = Random(seed)
        columns = requests(rng)
        options = {**limits(rng, columns, policy), "enable_prefix_caching": caching}
        for state in boundaries(columns, options):
            check_boundary(state, policy)
            met["preemptions"] += sum(request.preemptions for request in state.running)
            met["hits"] += sum(request.cached_tokens for request in state.running)
    assert met["preemptions"] > 0
    assert (met["hits"] > 0) == caching


@pytest.mark.parametrize("caching", [False, True])
def test_without_a_budget_it_is_mixed(caching: bool) -> None:
    for seed in range(300):
        rng = Random(seed)
        columns = requests(rng)
        options = {**limits(rng, columns, "mixed"), "order": "arrival", "enable_prefix_caching": caching}
        assert answers(columns, options) == answers(columns, {**options, "policy": "vllm"})


def test_with_plentiful_memory_it_is_chunked() -> None:
    for seed in range(300):
        rng = Random(seed)
        columns = requests(rng)
        options = {**limits(rng, columns, "chunked"), "order": "arrival", "num_blocks": 10_000}
        mine = answers(columns, {**options, "policy": "vllm"})
        assert mine == answers(columns, options)
        unlimited = {**options, "policy": "vllm", "block_size": None, "num_blocks": None}
        assert mine == answers(columns, unlimited)


def answers(columns: dict[str, Any], options: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What became of each request, with steps that are not alike."""

    def step_time(decoding: int, context: int, chunk: int, pairs: int, *_: int) -> float:
        return 1 + decoding / 8 + chunk / 64 + (context + pairs) / 4096

    _, served = schedule(**columns, step_time=step_time, **options)
    return [(r.first_token, r.finish, r.preemptions, r.cached_tokens) for r in served]


def test_equals_do_not_evict_each_other_for_ever() -> None:
    """Two prompts in pieces of one token, each as large as the memory: vLLM's rules alone would never end."""
    options = {"policy": "vllm", "order": "priority", "long_prefill_token_threshold": 1, "reserve_full_isl": False}
    scheduler, served = schedule(
        [0, 0], [8, 8], [1, 1], lambda *_: 1, max_running=2, block_size=1, num_blocks=8, token_budget=4, **options
    )
    assert all(request.status == "finished" for request in served)
    assert max(request.preemptions for request in served) >= STALLS // 2
    assert scheduler.steps < 10 * STALLS


def test_what_is_too_long_is_refused() -> None:
    traffic: Any = ([0] * 3, [3, 4, 5], [3, 3, 3], lambda *_: 1)
    for limit in ({"max_model_len": 7}, {"enable_chunked_prefill": False, "token_budget": 7}):
        _, served = schedule(*traffic, policy="vllm", max_running=2, **limit)
        assert [request.status for request in served] == ["finished", "finished", "rejected"]


@pytest.mark.parametrize("system", ["colocated", "disaggregated", "prefill_only", "decode_only"])
def test_a_prefix_cache_in_every_system(system: str) -> None:
    """Four times the same 8 tokens, one after the other, on two instances in turn: the second time there is a hit."""
    columns = ([0, 100, 200, 300], [9] * 4, [3] * 4)
    names = ("prefill_step", "decode_step") if system == "disaggregated" else ("step",)
    options: dict[str, Any] = {"block_size": 4, "enable_prefix_caching": True, "router": "round_robin"}
    options |= {"n_prefill": 2} if system == "disaggregated" else {"n_instances": 2}
    if system in ("colocated", "decode_only", "disaggregated"):
        options |= {"memory": "paged", "max_running": 2, "num_blocks": 10}
    if system == "colocated":
        options["policy"] = "vllm"
    if system in ("prefill_only", "disaggregated"):
        options["prefix_cache_blocks"] = 10
    texts = [[("s", 9), (f"o{i}", 3)] for i in range(4)]
    served, _ = run_system(system, *columns, {name: ConstantTimes(1) for name in names}, texts=texts, **options)
    assert [request.cached_tokens for request in served] == ([0] * 4 if system == "decode_only" else [0, 0, 8, 8])


def test_async_scheduling_by_hand() -> None:
    """One slot. A decodes alone; B, which comes during the first step, and C, which is there from the start, wait.

    A's last token is sent at 3, in the step from 2. The batch from 3 was to be fixed at 2, when A still had the place:
    nobody gets a token, so it is made up at 3. C runs from 3 to 5; B is admitted at 5 likewise.
    """
    options: dict[str, Any] = {"policy": "vllm", "max_running": 1, "async_scheduling": True}
    _, served = schedule([0, 0.5, 0], [4, 4, 4], [3, 2, 2], lambda *_: 1, **options)
    assert [request.admitted for request in served] == [0, 5, 3]
    assert [request.finish for request in served] == [3, 7, 5]


def test_async_scheduling_sees_an_arrival_one_step_later() -> None:
    options: dict[str, Any] = {"policy": "vllm", "max_running": 2}
    traffic: Any = ([0, 0.5], [4, 4], [9, 2], lambda *_: 1)
    assert [r.first_token for r in schedule(*traffic, **options)[1]] == [1, 2]
    assert [r.first_token for r in schedule(*traffic, **options, async_scheduling=True)[1]] == [1, 3]


@pytest.mark.parametrize("caching", [False, True])
def test_what_holds_under_async_scheduling(caching: bool) -> None:
    for seed in range(300):
        rng = Random(seed)
        columns = requests(rng)
        options = {**limits(rng, columns, "vllm"), "enable_prefix_caching": caching, "async_scheduling": True}
        for state in boundaries(columns, options):
            owned = {block for r in state.running for block in state.cache.tables[r]} if state.cache else ()
            held = len(owned) if state.cache else sum(request.blocks for request in state.running)
            assert held + state.free == state.num_blocks
            assert len(state.running) <= state.max_running
            assert all(request.emitted < request.output for request in [*state.running, *state.waiting])


def test_texts_of_a_workload_in_the_words_of_the_reference() -> None:
    texts = SimpleNamespace(
        start=np.array([0, 2, 3]), segment=np.array([5, 6, 5]), tokens=np.array([3, 2, 9]), answer=np.array([0, 1])
    )
    work: Any = SimpleNamespace(texts=texts, output_tokens=np.array([7, 8]))
    assert texts_of(work) == [[(5, 3), (6, 2), (0, 7)], [(5, 9), (1, 8)]]
    assert texts_of(SimpleNamespace(texts=None)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_instance_of_a_system_does_what_a_scheduler_does(policy: str, asynchronous: bool) -> None:
    for seed in range(100):
        rng = Random(seed)
        columns = requests(rng)
        options = {**limits(rng, columns, policy), "enable_prefix_caching": True}
        if policy == "vllm":
            options["async_scheduling"] = asynchronous
        if policy == "prefill_first":
            options["max_tokens"] = 4096
        traffic = [columns.pop(name) for name in ("arrivals", "prompts", "outputs")]
        _, alone = schedule(*traffic, lambda *_: 1, **columns, **options)
        steps = {"step": ConstantTimes(1)}
        served, _ = run_system("colocated", *traffic, steps, **columns, memory="paged", **options)
        for mine, other in zip(served, alone, strict=True):
            for name in ("admitted", "first_token", "finish", "preemptions", "cached_tokens"):
                assert getattr(mine, name) == getattr(other, name)


@pytest.mark.parametrize("blocks", [0, 3, 10_000])
def test_prefill_instances_keep_what_they_have_room_for(blocks: int) -> None:
    """Without common text nothing changes; with it nothing is found that was not there, and all with room enough."""
    hits = 0
    for seed in range(200):
        columns = requests(Random(seed))
        texts, _ = columns.pop("texts"), columns.pop("priorities")
        options: dict[str, Any] = {"block_size": 4, "enable_prefix_caching": True, "prefix_cache_blocks": blocks}
        steps = {"step": ConstantTimes(1)}
        plain, _ = run_system("prefill_only", *columns.values(), steps, max_tokens=30)
        apart, _ = run_system("prefill_only", *columns.values(), steps, max_tokens=30, **options)
        assert [r.first_token for r in apart] == [r.first_token for r in plain]
        assert not any(r.cached_tokens for r in apart)
        served, (instance,) = run_system(
            "prefill_only", *columns.values(), steps, texts=texts, max_tokens=30, **options
        )
        cache = instance.units[0].cache  # type: ignore[attr-defined]
        assert cache.free == blocks
        seen: set[tuple[tuple[Any, int, int], ...]] = set()
        for request in sorted(served, key=lambda request: (request.arrival, request.key)):
            blocks_of_it = list(pieces(texts[request.key][:-1], 4))
            runs = [
                tuple(piece for block in blocks_of_it[: n + 1] for piece in block) for n in range(len(blocks_of_it))
            ]
            there = next((n for n, run in enumerate(runs) if run not in seen), len(runs))
            most = 4 * min(there, (request.prompt - 1) // 4)
            assert request.cached_tokens <= most
            assert blocks < 10_000 or request.cached_tokens == most
            seen.update(runs)
            hits += request.cached_tokens
    assert (hits > 0) == (blocks > 0)


def test_a_token_of_the_step_under_way_is_not_found() -> None:
    """B holds A's answer in its prompt, and is taken at 1 for the step from 2. A's second token is sent at 2."""
    texts = [[("a", 2), ("o0", 6)], [("a", 2), ("o0", 3), ("b", 1), ("o1", 1)]]
    options: dict[str, Any] = {"policy": "vllm", "max_running": 2, "block_size": 1, "num_blocks": 40}
    options |= {"enable_prefix_caching": True, "async_scheduling": True, "texts": texts}
    _, served = schedule([0, 0.5], [2, 6], [6, 1], lambda *_: 1, **options)
    assert (served[1].admitted, served[1].cached_tokens) == (2, 3)
