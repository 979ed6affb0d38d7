"""Service orders of the reference: small cases worked by hand, and what holds on any run.

Every step takes a second, so a request of one token that is admitted at s and prefilled at once has its token at s + 1.
"""

from typing import Any

import pytest
from hypothesis import given
from invariants import check_run
from servesweep.serving.reference import ORDERS, Observer, RequestState, schedule
from servesweep.serving.reference_instances import RESERVED_POLICIES
from servesweep.serving.reference_queue import Queue
from servesweep.serving.reference_steps import ConstantTimes
from servesweep.serving.reference_systems import run_system
from strategies import POLICIES, LaneCase, lane_cases

ONE_SLOT: dict[str, Any] = {"policy": "mixed", "max_running": 1}


class Admissions(Observer):
    """(time, position) of each admission."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int]] = []

    def on_admit(self, request: RequestState, time: float) -> None:
        self.rows.append((time, request.key))


def served(
    requests: list[tuple[float, int, int]], priorities: list[int] | None = None, **options: Any
) -> tuple[list[tuple[float, int]], list[RequestState]]:
    """Admissions, and the requests, which are (arrival, prompt, output), when all is done."""
    admissions = Admissions()
    arrivals, prompts, outputs = (list(column) for column in zip(*requests, strict=True))
    options = {"priorities": priorities, "observer": admissions, **options}
    return admissions.rows, schedule(arrivals, prompts, outputs, lambda *_: 1.0, **options)[1]


def test_the_shortest_prompt_goes_first() -> None:
    rows, _ = served([(0, 5, 1), (0, 2, 1), (0, 9, 1), (0, 1, 1)], order="shortest_prompt", **ONE_SLOT)
    assert rows == [(0, 3), (1, 1), (2, 0), (3, 2)]


def test_equal_prompts_go_by_arrival_then_position() -> None:
    rows, _ = served([(0, 1, 1), (0.5, 3, 1), (0.25, 3, 1), (0.5, 3, 1)], order="shortest_prompt", **ONE_SLOT)
    assert rows == [(0, 0), (1, 2), (2, 1), (3, 3)]


def test_the_order_is_looked_at_anew_in_every_step() -> None:
    """At 1 only the long one is there; who comes at 2 is seen by the step that begins then, who comes later is not."""
    rows, _ = served([(0, 1, 1), (0, 9, 1), (1.5, 5, 1), (2.0, 4, 1), (2.1, 1, 1)], order="shortest_prompt", **ONE_SLOT)
    assert rows == [(0, 0), (1, 1), (2, 3), (3, 4), (4, 2)]


def test_smaller_priorities_go_first_and_then_arrival() -> None:
    requests = [(0.0, 1, 1), (0.2, 1, 1), (0.1, 9, 1), (0.1, 1, 1), (0.3, 1, 1)]
    rows, _ = served(requests, [0, 0, 0, 0, -1], order="priority", **ONE_SLOT)
    assert rows == [(0, 0), (1, 4), (2, 2), (3, 3), (4, 1)]
    rows, _ = served(requests, None, order="priority", **ONE_SLOT)
    assert rows == [(0, 0), (1, 2), (2, 3), (3, 1), (4, 4)], "all 0: by arrival"


def test_priorities_are_nothing_to_other_orders() -> None:
    requests = [(0.0, 2, 1), (0.0, 1, 1)]
    for order, first in (("arrival", 0), ("shortest_prompt", 1)):
        rows, _ = served(requests, [5, 5 - first], order=order, **ONE_SLOT)
        assert rows[0] == (0, first)
        rows, _ = served(requests, [5 * first, 4], order=order, **ONE_SLOT)
        assert rows[0] == (0, first)


def test_nobody_is_preempted_for_a_higher_priority() -> None:
    rows, (low, high) = served([(0, 1, 5), (1, 1, 1)], [1, 0], order="priority", **ONE_SLOT)
    assert rows == [(0, 0), (5, 1)]
    assert (low.finish, low.preemptions, high.finish) == (5, 0, 6)


def test_the_head_that_does_not_fit_blocks_all_behind_it() -> None:
    """Blocks: 0 holds 4 of 6 until it ends at 2, and 1 needs 3. So 2, which needs 1, waits too."""
    requests = [(0, 4, 2), (0.5, 3, 1), (0.5, 1, 1)]
    blocks = {"policy": "mixed", "max_running": 4, "block_size": 1, "num_blocks": 6}
    rows, _ = served(requests, [0, 1, 2], order="priority", **blocks)
    assert rows == [(0, 0), (2, 1), (2, 2)]
    rows, _ = served(requests, [0, 2, 1], order="priority", **blocks)
    assert rows == [(0, 0), (1, 2), (2, 1)]
    rows, _ = served(requests, order="shortest_prompt", **blocks)
    assert rows == [(0, 0), (1, 2), (2, 1)]


def test_a_batch_ends_at_the_head_that_is_too_long_for_it() -> None:
    requests = [(0, 6, 1), (0, 6, 1), (0, 1, 1), (0, 3, 1)]
    batch = {"policy": "prefill_first", "max_running": 4, "max_tokens": 7}
    rows, _ = served(requests, [0, 1, 2, 3], order="priority", **batch)
    assert rows == [(0, 0), (1, 1), (1, 2), (2, 3)]
    rows, _ = served(requests, order="shortest_prompt", **batch)
    assert rows == [(0, 2), (0, 3), (1, 0), (2, 1)]


def test_a_preempted_request_is_in_front_of_shorter_ones() -> None:
    """The example of the docs, shortest first: B before A, so A is the youngest and gives way in step 3.

    It comes back in step 5, when B has left: until then A, with 6 + 3 tokens in 3 blocks, is the head and does not fit,
    and C, which would, stays behind it.
    """
    blocks = {"policy": "mixed", "max_running": 3, "block_size": 4, "num_blocks": 4}
    rows, (a, b, c) = served([(0, 6, 4), (0, 4, 5), (1, 3, 2)], order="shortest_prompt", **blocks)
    assert rows == [(0, 1), (0, 0), (5, 0), (5, 2)]
    assert [request.preemptions for request in (a, b, c)] == [1, 0, 0]
    assert [(request.first_token, request.finish) for request in (a, b, c)] == [(1, 6), (1, 5), (6, 7)]


@pytest.mark.parametrize("options", [{"order": "shortest_prompt"}, {"order": "priority"}])
def test_so_is_one_that_was_preempted_before_its_first_token(options: dict[str, Any]) -> None:
    """Budget 2, 8 blocks of a token. X's decode in the second step takes the last block from Y, which has not begun.

    Y needs 6 and waits in front of Z, which needs 1 and is there, until X is done at 5; then both are admitted.
    """
    limits = {"policy": "chunked", "max_running": 2, "token_budget": 2, "block_size": 1, "num_blocks": 8}
    rows, (x, y, z) = served([(0, 2, 5), (0, 6, 1), (1, 1, 1)], [0, 1, 0], **options, **limits)
    assert rows == [(0, 0), (0, 1), (5, 1), (5, 2)]
    assert (x.finish, y.finish, z.finish) == (5, 8, 9)
    assert y.preemptions == 1


# One of nine tokens comes at 0.5, one of twelve at 0.25, and one of a single token in each step.
STREAM = [(0.0, 1, 1), (0.5, 9, 1), (0.25, 12, 1), *((second + 0.9, 1, 1) for second in range(6))]


@pytest.mark.parametrize(
    ("max_wait_s", "admitted"),
    [
        (None, [0, 3, 4, 5, 6, 7, 8, 1, 2]),
        (2.5, [0, 3, 4, 2, 1, 5, 6, 7, 8]),  # 0.5 + 2.5 <= 3, 0.25 + 2.5 <= 3: by arrival, not by length
        (2.6, [0, 3, 4, 2, 1, 5, 6, 7, 8]),  # 0.5 + 2.6 > 3, so at 3 it is 0.25's turn alone, and at 4 the other's
        (2.8, [0, 3, 4, 5, 2, 1, 6, 7, 8]),
        (0.0, [0, 2, 1, 3, 4, 5, 6, 7, 8]),  # all age at once: by arrival
    ],
)
def test_who_has_waited_long_goes_first(max_wait_s: float | None, admitted: list[int]) -> None:
    rows, _ = served(STREAM, order="shortest_prompt", max_wait_s=max_wait_s, **ONE_SLOT)
    assert rows == list(enumerate(admitted))


def test_ageing_is_told_at_the_beginning_of_the_step() -> None:
    """At 2 the long one has waited 1.9 s, and at 3 it has waited 2.9 s."""
    requests = [(0, 1, 2), (0.1, 5, 1), (1.5, 1, 1), (2.5, 1, 1)]
    rows, _ = served(requests, order="shortest_prompt", max_wait_s=2.0, **ONE_SLOT)
    assert rows == [(0, 0), (2, 2), (3, 1), (4, 3)]


def test_who_is_preempted_is_in_front_of_who_has_waited_long() -> None:
    """As above with A, B and C; C has aged when A is preempted in step 3."""
    blocks = {"policy": "mixed", "max_running": 3, "block_size": 4, "num_blocks": 4}
    rows, _ = served([(0, 6, 4), (0, 4, 5), (1, 3, 2)], order="shortest_prompt", max_wait_s=1.0, **blocks)
    assert rows == [(0, 1), (0, 0), (5, 0), (5, 2)]


@pytest.mark.parametrize("order", [name for name, order in ORDERS.items() if not order.ages])
def test_other_orders_have_no_ageing(order: str) -> None:
    with pytest.raises(ValueError, match=r"max_wait_s=3.0: has no effect under order"):
        Queue(order, 3.0)


# ------------------------------------------------------------------------------------------------- reserved memory


def in_system(
    system: str, requests: list[tuple[float, int, int]], priorities: list[int] | None = None, **options: Any
) -> list[RequestState]:
    arrivals, prompts, outputs = (list(column) for column in zip(*requests, strict=True))
    roles = ("prefill_step", "decode_step") if system == "disaggregated" else ("step",)
    steps = dict.fromkeys(roles, ConstantTimes(1.0))
    return run_system(system, arrivals, prompts, outputs, steps, priorities=priorities, **options)[0]


@pytest.mark.parametrize("system", ["colocated", "prefill_only"])
def test_heads_of_a_queue_are_taken_in_order(system: str) -> None:
    """Batches of 4 tokens. 0 wakes the instance and runs alone, then 2 and 3 make a batch, then 1."""
    requests = [(0, 9, 1), (0.5, 8, 1), (0.6, 2, 1), (0.7, 2, 1)]
    answered = in_system(system, requests, order="shortest_prompt", max_tokens=4)
    assert [request.first_token for request in answered] == [1, 3, 2, 2]
    answered = in_system(system, requests, [0, 1, 2, 0], order="priority", max_tokens=4)
    assert [request.first_token for request in answered] == [1, 3, 4, 2], "1 blocks 2 when 3 has been taken"
    answered = in_system(system, requests, order="shortest_prompt", max_wait_s=0.5, max_tokens=4)
    assert [request.first_token for request in answered] == [1, 2, 3, 3], "1 has waited 0.5 s at 1"


@pytest.mark.parametrize("system", ["colocated", "prefill_only"])
def test_an_idle_instance_starts_on_the_request_that_wakes_it(system: str) -> None:
    answered = in_system(system, [(0, 9, 1), (0, 3, 1), (0, 1, 1)], order="shortest_prompt", max_tokens=1)
    assert [request.first_token for request in answered] == [1, 3, 2]


def test_who_is_part_way_goes_before_shorter_ones() -> None:
    """Chunks of 4. The second step ends 2 and does a token of 1; the next ones go on with 1, though 3 is shorter."""
    requests = [(0, 4, 1), (0.5, 6, 1), (0.6, 3, 1), (1.5, 1, 1)]
    answered = in_system("colocated", requests, order="shortest_prompt", policy="chunked", chunk_budget=4)
    assert [request.first_token for request in answered] == [1, 4, 2, 4]


def test_decode_instances_serve_in_the_order_in_which_requests_become_ready() -> None:
    """3 and 1 are prefilled before 2, and so decode before it; ready at one time, they keep the order of the requests.

    The decode instance runs one at a time: whoever comes waits until the one before it has left.
    """
    requests = [(0, 3, 4), (0.5, 5, 2), (0.6, 2, 2), (0.7, 5, 2)]
    limits = {"memory": "paged", "max_running": 1, "block_size": 1, "num_blocks": 9, "max_tokens": 10}
    link = {"alpha_s": 0.0, "bandwidth_bytes_per_s": 1.0}
    answered = in_system("disaggregated", requests, [0, 1, 1, 0], order="priority", link=link, **limits)
    assert [request.first_token for request in answered] == [1, 2, 3, 2]
    assert [request.finish for request in answered] == [4, 5, 7, 6]
    with pytest.raises(ValueError, match="decode_only has no order"):
        in_system("decode_only", requests, order="priority")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_scheduler_of_a_system_has_the_same_order(policy: str, order: str) -> None:
    @given(lane_cases(policy=policy, order=order))
    def check(case: LaneCase) -> None:
        options = case.limits()
        run, _ = case.reference()
        traffic = (case.arrivals(), case.traffic.prompt_tokens, case.traffic.output_tokens)
        memory = "paged" if "block_size" in options else "unlimited"
        steps = {"step": case.step_times()}
        answered, _ = run_system(
            "colocated", *traffic, steps, priorities=case.traffic.priorities, memory=memory, **options
        )
        assert [request.preemptions for request in answered] == run.preemptions
        assert [request.finish for request in answered] == pytest.approx(run.finish_s, rel=0, abs=0, nan_ok=True)

    check()


# ------------------------------------------------------------------------------------------------ what always holds


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_holds_under_every_order(policy: str, order: str) -> None:
    @given(lane_cases(policy=policy, order=order))
    def check(case: LaneCase) -> None:
        run, log = case.reference()
        check_run(run, case.limits(), log, case.traffic.priorities)

    check()


def test_the_tables_name_the_policies_of_both_kinds_of_memory() -> None:
    assert set(RESERVED_POLICIES) <= set(POLICIES)
