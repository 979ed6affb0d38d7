"""Edge cases of measures: missing times, empty windows, bad arguments, and the search for a rate."""

import math

import numpy as np
import pytest
from servesweep.measures.metrics import attainment, max_rate, percentile
from servesweep.measures.result import Result


def two(**changes):
    fields = {
        "arrival_s": [0.0, 1.0],
        "prompt_tokens": [10, 10],
        "output_tokens": [1, 3],
        "first_token_s": [0.5, 2.0],
        "finish_s": [0.5, 4.0],
    }
    return Result(**(fields | changes))


def test_missing_times_and_rejections_meet_nothing():
    unfinished = two(finish_s=[0.5, np.nan])
    assert attainment(unfinished, warmup=0, cooldown=0) == 1.0  # nothing is checked
    assert attainment(unfinished, tpot_slo=math.inf, warmup=0, cooldown=0) == 0.5
    assert attainment(unfinished, ttft_slo=1.0, warmup=0, cooldown=0) == 1.0  # an SLO is inclusive
    rejected = two(rejected=[False, True], first_token_s=[0.5, np.nan], finish_s=[0.5, np.nan])
    assert attainment(rejected, warmup=0, cooldown=0) == 0.5
    assert rejected.summary(warmup=0, cooldown=0)["rejected"] == 1


def test_an_empty_window_has_no_attainment():
    assert math.isnan(attainment(two(), warmup=0.5, cooldown=0.5))
    assert math.isnan(percentile(two(), "ttft", 50, warmup=0.5, cooldown=0.9))
    assert math.isnan(attainment(two(), warmup=1.0, cooldown=0))
    assert math.isnan(percentile(two(), "ttft", 50, warmup=1, cooldown=1))
    assert math.isnan(attainment(Result([], [], [], [], [])))
    assert Result([], [], [], [], []).summary()["attainment_requests"] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attainment(two(), ttft_slo=-1), "ttft_slo is -1"),
        (lambda: attainment(two(), tpot_slo=math.nan), "tpot_slo is nan"),
        (lambda: attainment(two(), warmup=1.1), "warmup is 1.1"),
        (lambda: attainment(two(), cooldown=-0.1), "cooldown is -0.1"),
        (lambda: attainment(two(), cooldown=math.nan), "cooldown is nan"),
        (lambda: percentile(two(), "itl", 50), "'itl', but must be one of ttft, tpot, e2e, queue_delay"),
        (lambda: percentile(two(), "ttft", 101), "q is 101"),
        (lambda: percentile(two(), "ttft", math.nan), "q is nan"),
        (lambda: two().summary(n_gpus=0), "n_gpus is 0"),
        (lambda: percentile(two(), "ttft", [50, 99]), r"q is \[50, 99\], but must be one percentage"),
        (lambda: percentile(two(), "ttft", None), "q is None"),
        (lambda: percentile(None, "ttft", 50), "result is of type NoneType"),
        (lambda: attainment(None), "result is of type NoneType"),
        (lambda: attainment(two(), ttft_slo="a"), "ttft_slo is 'a'"),
        (lambda: two().summary(ttft_slo="a"), "ttft_slo_s is 'a'"),
        (lambda: max_rate(lambda _: None), r"run\(0.05\) is None"),
        (lambda: max_rate(lambda _: 1.0, target=0.0), "target is 0.0"),
        (lambda: max_rate(lambda _: 1.0, lo=0.0), "lo is 0.0"),
        (lambda: max_rate(lambda _: 1.0, target="0.9"), "target is '0.9'"),
        (lambda: max_rate(lambda _: 1.0, lo="1"), "lo is '1'"),
        (lambda: max_rate(lambda _: 1.0, lo=math.nan), "lo is nan"),
        (lambda: max_rate(lambda _: 1.0, hi=None), "hi is None"),
        (lambda: max_rate(lambda _: 1.0, lo=2.0, hi=1.0), "lo is 2.0, but must be at most hi, which is 1.0"),
        (lambda: percentile(two(), "ttft", "99"), "q is '99'"),
        (lambda: attainment(two(), ttft_slo="1"), "ttft_slo is '1'"),
        (lambda: attainment(two(), warmup=None), "warmup is None"),
        (lambda: max_rate(lambda _: 1.0, hi=math.inf), "hi is inf"),
        (lambda: max_rate(lambda _: 1.0, iters=-1), "iters is -1"),
        (lambda: max_rate(lambda _: 1.0, iters=2.5), "iters is 2.5"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message.replace("'", ".")):
        call()


def test_max_rate_bisects_at_the_geometric_mean():
    asked = []

    def run(rate):
        asked.append(rate)
        return 1.0 if rate <= 3.0 else 0.5

    assert max_rate(run, lo=1.0, hi=16.0, iters=3) == math.sqrt(8.0)
    assert asked == [1.0, 16.0, 4.0, 2.0, math.sqrt(8.0)]


def test_max_rate_at_the_ends():
    assert max_rate(lambda _: 0.0) == 0.0
    assert max_rate(lambda _: math.nan) == 0.0
    assert max_rate(lambda _: 0.9) == 64.0
    assert max_rate(lambda rate: float(rate < 1), iters=0) == 0.05


@pytest.mark.parametrize(("attained", "found"), [(0.9, 2.0), (0.8, 0.0), (math.nan, 0.0)])
def test_max_rate_of_a_single_rate(attained, found):
    assert max_rate(lambda _: attained, lo=2.0, hi=2) == found
