"""Values at the edges of what the engine counts, and far beyond what a server has: exact, or refused by name."""

import tracemalloc

import numpy as np
import pytest
from servesweep import (
    Request,
    Scheduler,
    StepModel,
    Workload,
    chip,
    make_workload,
    model,
    run_scheduler,
    run_schedulers,
    simulate,
)

ONE = Request("A", 0, 4, 3)
DONE = {"A": {"first_token": 0, "finish": 2, "preemptions": 0}}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("A", 0, 1, 2**31), "request 'A': output_len=2147483648"),
        (Request("A", 0, 10**20, 1), "request 'A': prompt_len=100000000000000000000"),
        (Request("A", 2**52 + 1, 1, 1), "request 'A': arrival=4503599627370497"),
        (Request("A", 0, 1, 2**31 - 1), "could take 2147483648 steps"),
    ],
)
def test_more_than_is_counted_is_refused(request_: Request, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate([request_], 1)


def test_last_exact_step() -> None:
    assert simulate([Request("A", 2**52 - 8, 4, 3)], 1)["A"]["finish"] == 2**52 - 6


@pytest.mark.parametrize("many", [10**6, 2**52, 10**400], ids=["million", "2**52", "10**400"])
def test_limits_beyond_any_run_do_not_matter(many: int) -> None:
    log: list[dict[str, int]] = []
    assert simulate([ONE], many, many, many, many, log=log) == DONE
    assert [row["blocks_used"] for row in log] == [1, 1, 1]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int64])
def test_small_numpy_integers_do_not_overflow(kind: type[np.integer]) -> None:
    assert simulate([ONE], kind(2), kind(16), kind(120), kind(100)) == DONE
    work = make_workload(20, 1.0, 100, 20)
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    result = run_scheduler(work, step, policy="mixed", max_running=kind(4), block_size=kind(120), num_blocks=kind(120))
    assert not result.rejected.any()


def test_blocks_larger_than_every_request_cost_no_memory() -> None:
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    work = make_workload(20, 5.0, 100, 20)
    lanes = [
        Scheduler(work, step, policy="mixed", max_running=8, block_size=size, num_blocks=3)
        for size in (120, 1000, 100_000)
    ]
    tracemalloc.start()
    results = run_schedulers(lanes)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    for other in (1, 2):
        np.testing.assert_array_equal(results.finish_s[other], results.finish_s[0])
    assert results.peak_blocks.tolist() == [3, 3, 3]


def test_a_rate_at_which_nothing_would_arrive_is_refused() -> None:
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    with pytest.raises(ValueError, match="rate=1e-308"):
        Scheduler(make_workload(20, 1.0, 100, 20), step, policy="mixed", max_running=4, rate=1e-308)


def test_a_model_that_does_not_fit_is_refused() -> None:
    step = StepModel(model("llama-3.1-70b"), chip("h100-sxm"))
    with pytest.raises(ValueError, match=r"weights of llama-3\.1-70b do not fit 1 x h100-sxm"):
        run_scheduler(make_workload(2, 1.0, 100, 20), step, policy="mixed", max_running=4)


def test_what_is_not_a_scheduler_is_named() -> None:
    with pytest.raises(ValueError, match=r"schedulers\[0\]=1"):
        run_schedulers([1])
    with pytest.raises(ValueError, match="workload is a list"):
        Scheduler([1, 2], StepModel(model("llama-3.1-8b"), chip("h100-sxm")), policy="mixed", max_running=4)
    with pytest.raises(ValueError, match="step=3"):
        Scheduler(Workload([0.0], [1], [1]), 3, policy="mixed", max_running=4)


def test_rids_and_log_are_checked_before_anything_runs() -> None:
    with pytest.raises(TypeError, match="request 1: rid must be a string"):
        simulate([Request(1, 0, 4, 3)], 2)
    with pytest.raises(TypeError, match="log="):
        simulate([ONE], 2, log=())
    with pytest.raises(TypeError, match=r"requests\[1\] is a tuple"):
        simulate([ONE, ("B", 0, 4, 3)], 2)
    with pytest.raises(TypeError, match="requests is a Request"):
        simulate(ONE, 2)


def test_more_prompt_pieces_than_steps_are_counted_are_refused() -> None:
    with pytest.raises(ValueError, match="could take 2147483648 steps"):
        simulate([Request("A", 0, 2**31 - 1, 1)], 1, token_budget=1)
    assert simulate([Request("A", 0, 10**9, 2)], 1, token_budget=7)["A"]["finish"] == -(-(10**9) // 7)


def test_large_block_numbers() -> None:
    assert simulate([ONE], 1, block_size=10**30, num_blocks=1) == DONE
