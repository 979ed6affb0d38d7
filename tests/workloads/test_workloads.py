"""Workloads: golden values, draws against drawing one request at a time, scaling, and what is refused."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servesweep.workloads.conversation import conversation_workload
from servesweep.workloads.workload import LognormalLen, Workload, lognormal_len, make_workload

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/serving/workloads.json").read_text())["rows"]


def distribution(value):
    return lognormal_len(*value) if isinstance(value, list) else value


def rows(workload):
    arrays = workload.arrival_s, workload.prompt_tokens, workload.output_tokens
    return list(zip(*(array.tolist() for array in arrays), strict=True))


@pytest.mark.parametrize("row", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_exactly(row):
    prompt, output = distribution(row["prompt"]), distribution(row["output"])
    workload = make_workload(row["n"], row["rate"], prompt, output, row["seed"], row["arrivals"], row["cv"])
    assert workload.arrival_s.tolist() == row["arrival_s"]
    assert workload.prompt_tokens.tolist() == row["prompt_tokens"]
    assert workload.output_tokens.tolist() == row["output_tokens"]
    assert workload.mean_rate_rps == row["rate"]


def one_at_a_time(n, rate, prompt, output, seed, arrivals, cv):
    """docs/workloads.md with plain loops and scalar draws."""
    rng = np.random.default_rng(seed)
    gaps = []
    for _ in range(n):
        if arrivals == "poisson":
            gaps.append(rng.exponential(1.0) / rate)
        elif arrivals == "uniform":
            gaps.append(1 / rate)
        else:
            k = 1 / cv**2
            gaps.append(rng.gamma(k, 1 / k) / rate)

    def draw(length):
        if not isinstance(length, LognormalLen):
            return length
        value = rng.lognormal(math.log(length.mean) - length.sigma**2 / 2, length.sigma)
        return max(1, min(max(round(value), length.lo), length.hi))

    lengths = [(draw(prompt), draw(output)) for _ in range(n)]
    arrival, out = 0.0, []
    for gap, (prompt_tokens, output_tokens) in zip(gaps, lengths, strict=True):
        arrival += gap
        out.append((arrival, prompt_tokens, output_tokens))
    return out


lengths = st.integers(1, 5000) | st.builds(
    lambda mean, sigma, lo, more: lognormal_len(mean, sigma, lo, max(lo + more, 1)),
    st.floats(0.5, 5000),
    st.floats(0, 3),
    st.integers(0, 100),
    st.integers(0, 5000),
)


@given(
    st.integers(0, 40),
    st.floats(1e-3, 1e3),
    lengths,
    lengths,
    st.integers(0, 2**64),
    st.sampled_from(["poisson", "uniform", "bursty"]),
    st.floats(0.1, 10),
)
def test_drawn_as_one_request_at_a_time(n, rate, prompt, output, seed, arrivals, cv):
    args = (n, rate, prompt, output, seed, arrivals, cv)
    assert rows(make_workload(*args)) == one_at_a_time(*args)


@given(st.floats(1e-2, 1e2), st.sampled_from(["poisson", "uniform", "bursty"]), st.integers(0, 99))
def test_the_rate_stretches_time_and_nothing_else(rate, arrivals, seed):
    make = (lognormal_len(400, 0.8, 16, 4000), lognormal_len(150, 0.8, 2, 1000), seed, arrivals, 2.0)
    unit = make_workload(50, 1.0, *make)
    drawn, scaled = make_workload(50, rate, *make), unit.at_rate(rate)
    for workload in (drawn, scaled):
        assert workload.prompt_tokens.tolist() == unit.prompt_tokens.tolist()
        assert workload.output_tokens.tolist() == unit.output_tokens.tolist()
        np.testing.assert_allclose(workload.arrival_s, unit.arrival_s / rate, rtol=1e-13)
        assert workload.mean_rate_rps == rate
    assert scaled.arrival_s.tolist() == (unit.arrival_s / rate).tolist()


@pytest.mark.parametrize(("arrivals", "cv"), [("poisson", 1.0), ("uniform", 0.0), ("bursty", 0.5), ("bursty", 3.0)])
def test_gaps_have_the_mean_and_variation_asked_for(arrivals, cv):
    gaps = np.diff(make_workload(200_000, 4.0, 1, 1, 1, arrivals, cv or 1.0).arrival_s)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-6)
    if arrivals == "poisson":  # not cut off: 5 % of gaps are longer than 3 means, and a few of 200,000 than 10
        assert (gaps > 0.75).mean() == pytest.approx(math.exp(-3), rel=0.05)
        assert gaps.max() > 2.5


def test_lengths_have_the_mean_asked_for():
    workload = make_workload(200_000, 1.0, lognormal_len(400, 0.8, 1, 10**6), lognormal_len(150, 1.2, 2, 1000), 3)
    assert workload.prompt_tokens.mean() == pytest.approx(400, rel=0.02)
    assert np.log(workload.prompt_tokens).std() == pytest.approx(0.8, rel=0.02)
    assert workload.output_tokens.min() == 2
    assert workload.output_tokens.max() == 1000


def test_lengths_round_half_to_even_and_stay_at_one_or_more():
    drawn = np.array([0.2, 0.5, 1.5, 2.5, 3.5, 7.4, 1e300, math.inf])
    assert lognormal_len(10, 1.0, 0, 7).lengths(drawn).tolist() == [1, 1, 2, 2, 4, 7, 7, 7]
    assert make_workload(3, 1.0, lognormal_len(7, 0, 1, 10), 2).prompt_tokens.tolist() == [7, 7, 7]


def test_arrays_are_typed_read_only_copies():
    arrival, prompt = np.array([0, 1]), np.array([3, 4], np.int32)
    workload = Workload(arrival, prompt, [5.0, 6.0])
    arrival[0] = prompt[0] = 9
    assert rows(workload) == [(0.0, 3, 5), (1.0, 4, 6)]
    assert [array.dtype for array in (workload.arrival_s, workload.prompt_tokens)] == [np.float64, np.int64]
    for array in (workload.arrival_s, workload.prompt_tokens, workload.output_tokens):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    held = np.array([3, 4])
    view = held[:]
    view.flags.writeable = False
    viewed = Workload([0.0, 1.0], view, view)
    held[0] = 9
    assert viewed.prompt_tokens.tolist() == [3, 4]


def test_lengths_are_shared_by_scaled_workloads():
    workload = make_workload(10, 2.0, lognormal_len(40, 1, 1, 99), 5)
    assert workload.at_rate(7.0).prompt_tokens is workload.prompt_tokens


def test_order_is_kept_as_given():
    workload = Workload([3.0, 1.0, 2.0], [1, 2, 3], [4, 5, 6])
    assert rows(workload.at_unit_rate()) == rows(workload)  # two gaps in two seconds: already 1 request/s
    assert len(workload) == 3


def test_mean_rate_of_a_recorded_workload():
    workload = Workload([10.0, 10.5, 12.0], [1, 1, 1], [1, 1, 1])
    assert workload.mean_rate_rps == 1.0
    fast = Workload([0.0, 0.25, 0.5], [1, 1, 1], [1, 1, 1])
    assert fast.mean_rate_rps == 4.0
    assert fast.at_unit_rate().arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert fast.at_rate(2.0).arrival_s.tolist() == [0.0, 0.5, 1.0]
    assert fast.at_rate(2.0).at_rate(4.0).arrival_s.tolist() == fast.arrival_s.tolist()


def test_no_span_has_no_rate():
    at_once = Workload([1.0, 1.0], [1, 1], [1, 1], name="burst")
    assert math.isnan(at_once.mean_rate_rps)
    with pytest.raises(ValueError, match="workload 'burst' has no mean rate"):
        at_once.at_rate(2.0)
    assert Workload([1.0, 1.0], [1, 1], [1, 1], rate_rps=2.0).at_rate(1.0).arrival_s.tolist() == [2.0, 2.0]


def test_empty_workloads():
    for workload in (Workload([], [], []), make_workload(0, 3.0, lognormal_len(5, 1, 1, 9), 4)):
        assert len(workload) == 0
        assert len(workload.at_rate(2.0)) == 0
        assert workload.describe() == "workload: 0 requests"
        assert workload.prompt_tokens.dtype == np.int64


def test_describe():
    text = Workload([0.0, 0.5, 1.0], [10, 20, 30], [1, 1, 4], name="chat").describe()
    assert text.splitlines() == [
        "chat: 3 requests over 1.0 s, 2 requests/s",
        "prompt tokens: mean 20.0, p50 20, p90 28, p99 30",
        "output tokens: mean 2.0, p50 1, p90 3, p99 4",
    ]
    assert Workload([2.0], [1], [1]).describe().splitlines()[0] == "workload: 1 requests over 0.0 s"


GOOD = {"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 2], "output_tokens": [3, 4]}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("arrival_s", [0.0, -1.0], r"arrival_s\[1\]=-1.0: must be finite and at least 0"),
        ("arrival_s", [math.nan, 1.0], r"arrival_s\[0\]=nan: must be finite and at least 0"),
        ("arrival_s", [0.0, math.inf], r"arrival_s\[1\]=inf: must be finite"),
        ("arrival_s", ["a", "b"], "arrival_s holds <U1: must hold numbers"),
        ("arrival_s", [[0.0, 1.0]], r"arrival_s has shape \(1, 2\): must be an array with one dimension"),
        ("arrival_s", [0.0, [1.0, 2.0]], "arrival_s=.*must be an array with one dimension"),
        ("arrival_s", 3.0, r"arrival_s has shape \(\)"),
        ("arrival_s", [0.0], "have 1, 2 and 2 entries"),
        ("prompt_tokens", [1, 0], r"prompt_tokens\[1\]=0: must be an integer of at least 1"),
        ("prompt_tokens", [-7, 1], r"prompt_tokens\[0\]=-7: must be"),
        ("prompt_tokens", [1.0, 1.5], r"prompt_tokens\[1\]=1.5: must be an integer"),
        ("prompt_tokens", [1.0, math.nan], r"prompt_tokens\[1\]=nan: must be an integer"),
        ("prompt_tokens", [True, True], "prompt_tokens holds bool: must hold integers"),
        ("prompt_tokens", [1, 2, 3], "have 2, 3 and 2 entries"),
        (
            "output_tokens",
            np.array([1, 2**63], np.uint64),
            r"output_tokens\[1\]=9223372036854775808: .* at most 2147483647",
        ),
        ("prompt_tokens", [1, 2**31], r"prompt_tokens\[1\]=2147483648: must be an integer .* at most 2147483647"),
        ("output_tokens", [1, None], "output_tokens holds object"),
        ("rate_rps", 0.0, "rate_rps=0.0: must be a positive finite number"),
        ("name", "", "name='': must be a string"),
    ],
)
def test_refused_workloads(field, value, message):
    with pytest.raises(ValueError, match=message):
        Workload(**(GOOD | {field: value}))


@pytest.mark.parametrize(
    ("field", "values", "allowed"),
    [
        ("n", [-1, 2.0, True], "an integer of at least 0"),
        ("rate", [0, -1.0, math.nan, math.inf, True, "1"], "a positive finite number"),
        ("cv", [0, -1.0, math.nan, math.inf, 1e-200, 1e200], "a finite number of at least 0.001 and at most 1000"),
        ("prompt", [0, -5, 1.5, True, None], "an integer of at least 1"),
        ("output", [0, 2.0], "an integer of at least 1"),
        ("n", [10**12], "at most 100000000"),
        ("prompt", [2**31, 2**63], "at most 2147483647"),
        ("output", [2**31], "at most 2147483647"),
        ("seed", [-1, 1.0, True, None], "an integer of at least 0"),
        ("arrivals", ["gamma", None], "one of poisson, uniform, bursty"),
    ],
)
def test_refused_arguments(field, values, allowed):
    for value in values:
        with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}: must be {allowed}")):
            make_workload(**({"n": 3, "rate": 1.0, "prompt": 5, "output": 5} | {field: value}))


def test_a_refused_integer_beyond_every_float():
    with pytest.raises(ValueError, match="rate=<an integer of 1,329 bits>: must be a positive finite number"):
        make_workload(3, 10**400, 5, 5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((0, 1.0, 1, 2), "mean=0: must be a positive finite number"),
        ((math.inf, 1.0, 1, 2), "mean=inf: must be a positive finite number"),
        ((5, -1.0, 1, 2), "sigma=-1.0: must be a finite number of at least 0 and at most 10"),
        ((5, 1e200, 1, 2), r"sigma=1e\+200: must be a finite number of at least 0 and at most 10"),
        ((5, 1.0, 1, 2**31), "hi=2147483648: must be at most 2147483647"),
        ((5, 1.0, 3, 2), "lo=3: must be at most hi=2"),
        ((5, 1.0, -1, 2), "lo=-1: must be an integer of at least 0"),
        ((5, 1.0, 0, 0), "hi=0: must be an integer of at least 1"),
        ((5, 1.0, 1.5, 2), "lo=1.5: must be an integer"),
    ],
)
def test_refused_distributions(args, message):
    with pytest.raises(ValueError, match=message):
        lognormal_len(*args)


@pytest.mark.parametrize("rate", [0, -2.0, math.nan, math.inf])
def test_refused_rates(rate):
    with pytest.raises(ValueError, match=f"rate={rate!r}: must be a positive finite number"):
        make_workload(3, 1.0, 5, 5).at_rate(rate)


@pytest.mark.parametrize("arrivals", ["poisson", "uniform", "bursty"])
@pytest.mark.parametrize("rate", [5e-324, 1e-308])
def test_rates_at_which_requests_would_never_arrive(arrivals, rate):
    message = f"rate={rate!r}: is so small that the last request would never arrive"
    with pytest.raises(ValueError, match=message):
        make_workload(300, rate, 5, 5, 0, arrivals)
    with pytest.raises(ValueError, match=message):
        conversation_workload(300, rate=rate)
    with pytest.raises(ValueError, match=message):
        make_workload(300, 1.0, 5, 5, 0, arrivals).at_rate(rate)
    assert make_workload(300, 1e-300, 5, 5, 0, arrivals).arrival_s[-1] == pytest.approx(3e302, rel=0.5)


def test_rates_that_are_too_large_to_scale_by():
    with pytest.raises(ValueError, match=r"rate_rps=1e\+300: is so large that the last request would never arrive"):
        Workload([0.0, 1e10], [1, 1], [1, 1], rate_rps=1e300).at_unit_rate()
    assert math.isnan(Workload([0.0, 5e-324], [1, 1], [1, 1]).mean_rate_rps)  # 1 / 5e-324 is no finite rate


@pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
@pytest.mark.parametrize("cv", [1e-3, 1e3])
def test_the_widest_distributions_that_are_allowed_can_be_drawn(arrivals, cv):
    widest = lognormal_len(2**31 - 1, 10, 0, 2**31 - 1)
    workload = make_workload(1000, 1.0, widest, 2**31 - 1, 0, arrivals, cv)
    assert np.isfinite(workload.arrival_s).all()
    assert workload.prompt_tokens.min() == 1
    assert workload.output_tokens.max() == 2**31 - 1
