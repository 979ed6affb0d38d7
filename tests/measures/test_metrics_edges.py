"""Edge cases of measures: missing times, empty windows, bad arguments, and the search for a rate."""

import math

import numpy as np
import pytest
from servesweep.measures.metrics import attainment, max_rate, percentile
from servesweep.measures.result import Result
from servesweep.measures.slo import SLO


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
    with pytest.warns(UserWarning, match="no SLO is set"):
        assert attainment(unfinished, warmup=0, cooldown=0) == 1.0  # nothing is checked
    assert attainment(unfinished, tpot_slo=math.inf, warmup=0, cooldown=0) == 0.5
    assert attainment(unfinished, ttft_slo=1.0, warmup=0, cooldown=0) == 1.0  # an SLO is inclusive
    rejected = two(rejected=[False, True], first_token_s=[0.5, np.nan], finish_s=[0.5, np.nan])
    with pytest.warns(UserWarning, match="no SLO is set"):
        assert attainment(rejected, warmup=0, cooldown=0) == 0.5
    assert rejected.summary(slo=SLO(ttft_s=1.0), warmup=0, cooldown=0)["rejected"] == 1


def test_an_empty_window_has_no_attainment():
    assert math.isnan(attainment(two(), 1.0, warmup=0.5, cooldown=0.5))
    assert math.isnan(percentile(two(), "ttft", 50, warmup=0.5, cooldown=0.9))
    assert math.isnan(attainment(two(), 1.0, warmup=1.0, cooldown=0))
    assert math.isnan(percentile(two(), "ttft", 50, warmup=1, cooldown=1))
    assert math.isnan(attainment(Result([], [], [], [], []), 1.0))
    assert Result([], [], [], [], []).summary(slo=SLO(ttft_s=1.0))["attainment_requests"] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attainment(two(), ttft_slo=-1), "ttft_slo=-1: must be"),
        (lambda: attainment(two(), tpot_slo=math.nan), "tpot_slo=nan: must be"),
        (lambda: attainment(two(), warmup=1.1), "warmup=1.1: must be"),
        (lambda: attainment(two(), cooldown=-0.1), "cooldown=-0.1: must be"),
        (lambda: attainment(two(), cooldown=math.nan), "cooldown=nan: must be"),
        (lambda: percentile(two(), "itl", 50), "name='itl': must be one of ttft, tpot, e2e, queue_delay"),
        (lambda: percentile(two(), "ttft", 101), "q=101: must be"),
        (lambda: percentile(two(), "ttft", math.nan), "q=nan: must be"),
        (lambda: two().summary(slo=SLO(ttft_s=1.0), n_gpus=0), "n_gpus=0: must be"),
        (lambda: percentile(two(), "ttft", [50, 99]), r"q=\[50, 99\]: must be one percentage"),
        (lambda: percentile(two(), "ttft", None), "q=None: must be"),
        (lambda: percentile(None, "ttft", 50), "result is a NoneType: must be a Result"),
        (lambda: attainment(None), "result is a NoneType: must be a Result"),
        (lambda: attainment(two(), ttft_slo="a"), "ttft_slo='a': must be"),
        (lambda: two().summary(slo="a"), "slo='a': must be an SLO"),
        (lambda: two().summary(slo={"ttft_ms": 500}), "must be an SLO, as SLO.ttft_s=0.5.; SLO.of makes one"),
        (lambda: attainment(two(), slo={"ttft_ms": 500}), "must be an SLO"),
        (lambda: attainment(two(), 0.5, slo=SLO(tpot_s=1.0)), "ttft_slo=0.5: must be left out where slo=SLO"),
        (lambda: max_rate(lambda _: None), r"run\(0.05\)=None: must be an attainment"),
        (lambda: max_rate(lambda _: 1.0, target=0.0), "target=0.0: must be"),
        (lambda: max_rate(lambda _: 1.0, lo=0.0), "lo=0.0: must be"),
        (lambda: max_rate(lambda _: 1.0, target="0.9"), "target='0.9': must be"),
        (lambda: max_rate(lambda _: 1.0, lo="1"), "lo='1': must be"),
        (lambda: max_rate(lambda _: 1.0, lo=math.nan), "lo=nan: must be"),
        (lambda: max_rate(lambda _: 1.0, hi=None), "hi=None: must be"),
        (lambda: max_rate(lambda _: 1.0, lo=2.0, hi=1.0), "lo=2.0: must be at most hi, which is 1.0"),
        (lambda: percentile(two(), "ttft", "99"), "q='99': must be"),
        (lambda: attainment(two(), ttft_slo="1"), "ttft_slo='1': must be"),
        (lambda: attainment(two(), warmup=None), "warmup=None: must be"),
        (lambda: max_rate(lambda _: 1.0, hi=math.inf), "hi=inf: must be"),
        (lambda: max_rate(lambda _: 1.0, iters=-1), "iters=-1: must be"),
        (lambda: max_rate(lambda _: 1.0, iters=2.5), "iters=2.5: must be"),
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
