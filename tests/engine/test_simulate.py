"""`servesweep.simulate`, the scheduler on whole steps, against golden cases, the reference and its own contract."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from invariants import check_simulation
from reference_runs import simulate as reference
from servesweep import Request, simulate
from strategies import EXAMPLES, StepCase, golden, step_cases

LOG_KEYS = ("step", "running", "emitted", "tokens", "blocks_used")
Outcome = tuple[dict[str, dict[str, int]], list[tuple[int, ...]]]


def run(requests: list[tuple[str, int, int, int]], **limits: Any) -> Outcome:
    """Result and log of the package, after checking their form."""
    log: list[dict[str, int]] = []
    result = simulate([Request(*request) for request in requests], log=log, **limits)
    assert list(result) == [rid for rid, *_ in requests], "in the order given"
    for outcome in result.values():
        assert list(outcome) == ["first_token", "finish", "preemptions"]
        assert all(type(value) is int for value in outcome.values())
    for row in log:
        assert set(row) == set(LOG_KEYS)
        assert all(type(value) is int for value in row.values())
    assert result == simulate([Request(*request) for request in requests], **limits), "a log changes nothing"
    return result, [tuple(row[key] for key in LOG_KEYS) for row in log]


@pytest.mark.parametrize(("limits", "requests", "times", "preemptions"), EXAMPLES)
def test_examples(limits: Any, requests: Any, times: Any, preemptions: Any) -> None:
    result, _ = run(requests, **limits)
    assert {rid: (r["first_token"], r["finish"]) for rid, r in result.items()} == times
    assert {rid: r["preemptions"] for rid, r in result.items() if r["preemptions"]} == preemptions


@pytest.mark.parametrize("part", range(8))
def test_golden_steps(part: int) -> None:
    for case in golden("paged/steps")[part::8]:
        requests = [tuple(request) for request in case.pop("requests")]
        expected = case.pop("result"), [tuple(row) for row in case.pop("log")]
        assert run(requests, **case) == expected
        check_simulation(requests, case, *expected)


def check_against_reference(case: StepCase) -> None:
    result, log = run(case.requests, **case.limits)
    assert (result, log) == reference(case.requests, **case.limits)
    check_simulation(case.requests, case.limits, result, log)


@given(step_cases(paged=False, chunked=False))
def test_batching_against_reference(case: StepCase) -> None:
    check_against_reference(case)


@given(step_cases(paged=False, chunked=True))
def test_token_budget_against_reference(case: StepCase) -> None:
    check_against_reference(case)


@given(step_cases(paged=True, chunked=False))
def test_paging_against_reference(case: StepCase) -> None:
    check_against_reference(case)


@given(step_cases(paged=True, chunked=True))
def test_paging_with_token_budget_against_reference(case: StepCase) -> None:
    check_against_reference(case)


@given(step_cases())
def test_order_of_the_list_does_not_matter(case: StepCase) -> None:
    requests = [Request(*request) for request in case.requests]
    assert simulate(requests[::-1], **case.limits) == simulate(requests, **case.limits)


def test_late_and_long() -> None:
    """Long stretches without an event: idle ones before an arrival, and decodes of one request."""
    requests = [("a", 1_000_000, 3, 50_000), ("b", 0, 70_000, 2), ("c", 1_200_000, 1, 1)]
    limits: dict[str, Any] = {"max_running": 2, "block_size": 16, "num_blocks": 5_000, "token_budget": 7}
    result = simulate([Request(*request) for request in requests], **limits)
    assert result == {
        "a": {"first_token": 1_000_000, "finish": 1_049_999, "preemptions": 0},
        "b": {"first_token": 9_999, "finish": 10_000, "preemptions": 0},
        "c": {"first_token": 1_200_000, "finish": 1_200_000, "preemptions": 0},
    }


def test_empty() -> None:
    log: list[dict[str, int]] = []
    assert simulate([], 1, log=log) == {}
    assert log == []
    assert simulate([], max_running=4, block_size=2, num_blocks=1, token_budget=4) == {}


def test_ties_are_broken_by_rid_as_text() -> None:
    result, _ = run([("r9", 0, 1, 2), ("r10", 0, 1, 2), ("R9", 0, 1, 2)], max_running=1)
    assert {rid: r["first_token"] for rid, r in result.items()} == {"R9": 0, "r10": 2, "r9": 4}


def test_log_is_appended_to() -> None:
    before = {"step": -1}
    log: list[dict[str, int]] = [before]
    simulate([Request("a", 2, 3, 1)], 1, log=log)
    idle = {"running": 0, "emitted": 0, "tokens": 0, "blocks_used": 0}
    assert log == [
        before,
        {"step": 0, **idle},
        {"step": 1, **idle},
        {"step": 2, "running": 1, "emitted": 1, "tokens": 3, "blocks_used": 0},
    ]


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint16])
def test_numpy_integers_are_integers(kind: Callable[[int], Any]) -> None:
    for limits, requests, *_ in EXAMPLES:
        as_numpy = [(rid, *map(kind, numbers)) for rid, *numbers in requests]
        assert run(as_numpy, **{name: kind(value) for name, value in limits.items()}) == run(requests, **limits)


def test_request_is_a_frozen_dataclass() -> None:
    request = Request(rid="a", arrival=0, prompt_len=1, output_len=2)
    assert request == Request("a", 0, 1, 2)
    assert [field.name for field in dataclasses.fields(request)] == ["rid", "arrival", "prompt_len", "output_len"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.arrival = 1


def refusal(error: type[Exception], requests: list[tuple[Any, ...]], **limits: Any) -> str:
    """The message of the error that simulate, or Request before it, must raise before anything runs."""
    log = [{"step": 0}]
    with pytest.raises(error) as caught:
        simulate([Request(*request) for request in requests], log=log, **limits)
    assert type(caught.value) is error, "ValueError and TypeError are told apart"
    assert log == [{"step": 0}], "the log is untouched"
    return str(caught.value)


GOOD = ("good", 0, 4, 3)
PAGES = {"max_running": 2, "block_size": 4, "num_blocks": 2}


@pytest.mark.parametrize(
    ("requests", "limits", "named"),
    [
        ([GOOD, ("bad", -1, 4, 3)], {"max_running": 2}, ["bad", "-1"]),
        ([GOOD, ("bad", 0, 0, 3)], {"max_running": 2}, ["bad", "0"]),
        ([GOOD, ("bad", 0, -7, 3)], {"max_running": 2}, ["bad", "-7"]),
        ([GOOD, ("bad", 0, 4, 0)], {"max_running": 2}, ["bad", "0"]),
        ([GOOD, ("bad", 0, 4, -2)], {"max_running": 2}, ["bad", "-2"]),
        ([GOOD, ("twice", 0, 1, 1), ("twice", 5, 2, 2)], {"max_running": 2}, ["twice"]),
        ([GOOD], {"max_running": 0}, ["max_running", "0"]),
        ([GOOD], {"max_running": -3}, ["max_running", "-3"]),
        ([GOOD], {"max_running": 3, "token_budget": 2}, ["token_budget", "2", "max_running"]),
        ([GOOD], {"max_running": 1, "token_budget": 0}, ["token_budget", "0"]),
        ([GOOD], {"max_running": 1, "block_size": 4}, ["block_size", "num_blocks"]),
        ([GOOD], {"max_running": 1, "num_blocks": 4}, ["block_size", "num_blocks"]),
        ([GOOD], {"max_running": 1, "block_size": 0, "num_blocks": 4}, ["block_size", "0"]),
        ([GOOD], {"max_running": 1, "block_size": 4, "num_blocks": 0}, ["num_blocks", "0"]),
        ([GOOD], {"max_running": 1, "block_size": -4, "num_blocks": 4}, ["block_size", "-4"]),
        ([GOOD], {"max_running": 1, "block_size": 4, "num_blocks": -4}, ["num_blocks", "-4"]),
        ([GOOD, ("bad", 0, 8, 2)], PAGES, ["bad"]),
        ([GOOD, ("bad", 9, 1, 9)], PAGES, ["bad"]),
        ([], {"max_running": 0}, ["max_running", "0"]),
    ],
)
def test_value_errors(requests: list[tuple[Any, ...]], limits: dict[str, Any], named: list[str]) -> None:
    message = refusal(ValueError, requests, **limits)
    for name in named:
        assert name in message


def test_the_largest_that_fits_alone() -> None:
    """The last token is sent and never kept: 8 + 1 tokens fit two blocks of 4."""
    assert run([("a", 0, 8, 1), ("b", 0, 7, 2), ("c", 0, 1, 8)], **PAGES) == reference(
        [("a", 0, 8, 1), ("b", 0, 7, 2), ("c", 0, 1, 8)], **PAGES
    )


NOT_INTEGERS = [True, False, 1.0, 2.5, "2", np.bool_(True), np.float64(2.0), np.array([1, 2])]


@pytest.mark.parametrize("value", [*NOT_INTEGERS, None], ids=repr)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_type_errors_of_requests(place: int, value: Any) -> None:
    request: list[Any] = ["bad", 1, 1, 1]
    request[place] = value
    assert "bad" in refusal(TypeError, [GOOD, tuple(request)], max_running=2)


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=repr)
@pytest.mark.parametrize("name", ["max_running", "block_size", "num_blocks", "token_budget"])
def test_type_errors_of_arguments(name: str, value: Any) -> None:
    limits = {"max_running": 1, "block_size": 4, "num_blocks": 9, "token_budget": 4, name: value}
    assert name in refusal(TypeError, [GOOD], **limits)


def test_max_running_is_required_to_be_an_integer() -> None:
    assert "max_running" in refusal(TypeError, [GOOD], max_running=None)
