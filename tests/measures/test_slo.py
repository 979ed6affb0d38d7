"""`SLO`: seconds in Python, milliseconds as TOML has them; and warnings where a measure says less than it seems to."""

import math
import warnings
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servesweep import SLO, Result, attainment, find_goodput, load_experiment, percentile, run_grid
from servesweep.measures.slo import SLOS, slo_table

RESULT = Result([0.0, 1.0], [10, 10], [1, 3], [0.5, 2.0], [0.5, 4.0])
WHOLE = {"warmup": 0.0, "cooldown": 0.0}


def test_limits_are_kept_as_floats_and_cannot_change():
    slo = SLO(ttft_s=1, itl_max_s=0.25)
    assert slo.limits == {"ttft": 1.0, "itl_max": 0.25}
    assert isinstance(slo.ttft_s, float)
    assert SLO().limits == {}
    with pytest.raises(FrozenInstanceError):
        slo.ttft_s = 2.0


@pytest.mark.parametrize("limit", [0, -1.0, math.inf, math.nan, True, "0.5", [0.5], 10**400])
@pytest.mark.parametrize("name", ["ttft_s", "tpot_s", "e2e_s", "itl_max_s"])
def test_a_limit_is_a_positive_finite_number(name, limit):
    with pytest.raises(ValueError, match=rf"^{name}=.*: must be a positive finite number of seconds, or None"):
        SLO(**{name: limit})


def test_keys_of_an_experiment_are_taken_in_milliseconds():
    assert SLO.of({"ttft_ms": 500, "tpot_ms": 35, "e2e_ms": None}) == SLO(ttft_s=0.5, tpot_s=0.035)
    assert SLO.of({}) == SLO()
    slo = SLO(e2e_s=3.0)
    assert SLO.of(slo) is slo


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, r"slo=0.5: must be an SLO, as SLO\(ttft_s=0.5\), or a dict of milliseconds, as \{'ttft_ms': 500\}"),
        (None, "slo=None: must be an SLO"),
        ({"ttft": 500}, r"'ttft' is unknown; did you mean .ttft_ms.\? Known: ttft_ms, tpot_ms, e2e_ms, itl_max_ms"),
        ({5: 500}, "5 is unknown"),
        ({"ttft_ms": 0}, "ttft_ms=0: must be a positive finite number of milliseconds, or None"),
        ({"ttft_ms": "5"}, "ttft_ms='5': must be"),
    ],
)
def test_what_else_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        SLO.of(value)


@pytest.mark.filterwarnings("ignore:ttft_")
@given(st.integers(1, 10**9), st.integers(0, 6))
def test_milliseconds_are_those_that_people_would_write(digits, places):
    seconds = float(f"{digits}e-{places + 3}")
    slo = SLO(ttft_s=seconds)
    assert slo.milliseconds()["ttft_ms"] == float(f"{digits}e-{places}")
    if places == 0:  # whole milliseconds
        assert SLO.of(slo.milliseconds()) == slo


@pytest.mark.filterwarnings("ignore:tpot_")
@given(st.floats(1e-300, 1e300))
def test_milliseconds_and_back_differ_by_a_rounding_at_most(limit):
    back = SLO.of(SLO(tpot_s=limit).milliseconds()).tpot_s
    assert back is not None
    assert abs(back - limit) <= math.ulp(limit)


def test_milliseconds_are_not_touched_on_their_way_to_an_experiment():
    given = {"ttft_ms": 0.1 + 0.2}
    assert slo_table(given)["ttft_ms"] == given["ttft_ms"]
    assert list(slo_table(given)) == [f"{name}_ms" for name in SLOS]


def test_attainment_takes_limits_either_way():
    assert attainment(RESULT, 0.5, 2.0, 0.0, 0.0) == attainment(RESULT, slo=SLO(0.5, 2.0), **WHOLE) == 0.5
    assert attainment(RESULT, slo=SLO(e2e_s=1.0), **WHOLE) == 0.5
    assert RESULT.summary(slo=SLO(ttft_s=0.5), **WHOLE)["ttft_attainment"] == 0.5


def test_an_slo_stands_for_its_table_in_the_tables_of_an_experiment():
    tables = {
        "workload": {"kind": "synthetic", "prompt": 100, "output": 9, "request_rate_rps": 2},
        "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    }
    experiment = load_experiment({**tables, "slo": SLO(ttft_s=0.035, e2e_s=2)})
    assert experiment == load_experiment({**tables, "slo": {"ttft_ms": 35, "e2e_ms": 2000}})


# ------------------------------------------------------------------------------------------------------------ warnings


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: percentile(RESULT, "ttft", 0.99), r"^q=0.99: percentiles go from 0 to 100 \(99 for the 99th\)"),
        (lambda: attainment(RESULT), "^attainment: no SLO is set, so it is the share of requests not rejected"),
        (lambda: attainment(RESULT, slo=SLO()), "^attainment: no SLO is set"),
        (lambda: RESULT.summary(), "^summary: no SLO is set, so attainment is the share of requests not rejected"),
        (lambda: RESULT.summary(slo=SLO()), "^summary: no SLO is set"),
    ],
)
def test_a_warning_names_the_problem_and_shows_the_line_of_the_caller(call, message):
    with pytest.warns(UserWarning, match=message) as caught:
        call()
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, call.__code__.co_firstlineno)]


def test_nothing_is_said_where_nothing_is_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for q in (0, 1, 1.0, 50, 99.9, 100):
            percentile(RESULT, "ttft", q)
        attainment(RESULT, 0.5)
        attainment(RESULT, ttft_slo=math.inf)
        RESULT.summary(slo=SLO(e2e_s=9.0))


def test_the_package_itself_does_not_warn(tmp_path):
    config = {
        "workload": {"kind": "synthetic", "n_requests": 20, "prompt": 100, "output": 9, "request_rate_rps": [2, 4]},
        "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    }
    options = {"workers": 1, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert set(run_grid(config, out=tmp_path / "run", **options).df["attainment"]) == {1.0}
        found = find_goodput(config, slo=SLO(ttft_s=0.5), iters=2, out=tmp_path / "search", **options)
        assert set(found.df["attainment"]) == {1.0}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"ttft_s": 500}, "ttft_s=500: is above 90 s: a limit in seconds; 500 ms are 0.5"),
        ({"tpot_s": 35}, "tpot_s=35: is above 9 s: a limit in seconds; 35 ms are 0.035"),
        ({"e2e_s": 2000}, "e2e_s=2000: is above 900 s: a limit in seconds; 2000 ms are 2"),
        ({"itl_max_s": 100}, "itl_max_s=100: is above 30 s"),
    ],
)
def test_seconds_that_look_like_milliseconds_get_a_warning(limits, message):
    with pytest.warns(UserWarning, match=message) as caught:
        SLO(**limits)
    assert [warning.filename for warning in caught] == [__file__]
    (name, limit), *_ = limits.items()
    if name in ("ttft_s", "tpot_s"):
        with pytest.warns(UserWarning, match=f"attainment: {name.replace('_s', '_slo')}={limit}: is above"):
            attainment(RESULT, **{name.replace("_s", "_slo"): limit}, **WHOLE)


def test_milliseconds_that_look_like_seconds_get_a_warning():
    for made in (
        lambda: SLO.of({"tpot_ms": 0.05}),
        lambda: load_experiment("quickstart", settings={"slo.tpot_ms": [20, 0.05]}),
    ):
        with pytest.warns(
            UserWarning, match="tpot_ms=0.05: is below 1 ms: a limit in milliseconds; 0.05 s are 50"
        ) as one:
            made()
        assert [warning.filename for warning in one] == [__file__]


def test_limits_within_reason_get_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        SLO(90, 9, 900, 30)
        assert SLO.of({"ttft_ms": 500_000, "tpot_ms": 1}) == SLO.of({"tpot_ms": 1.0, "ttft_ms": 5e5})
        attainment(RESULT, math.inf, 9.0)
