"""Searches that fail, are interrupted or cannot be: what is kept and what is said."""

import re

import pytest
import servesweep.runner.tasks as tasks
from goodput_cases import GRID, QUIET, SEARCH
from servesweep import SLO, ConfigError, find_goodput, load, run_grid, run_systems
from servesweep.goodput.search import SearchInterrupted


def test_a_failure_costs_only_its_configuration(tmp_path, monkeypatch):
    def explode(lanes, **options):
        if any(lane.policy == "chunked" and lane.num_blocks == 400 and lane.rate > 5 for lane in lanes):
            raise RuntimeError("injected")
        return run_systems(lanes, **options)

    whole = find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path / "whole").df
    monkeypatch.setattr(tasks, "run_systems", explode)
    found = find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path)
    failed = found.df["status"] == "failed"
    assert found.counts["failed"] == failed.sum() == 2
    assert set(found.failed["error"]) == {"RuntimeError: injected"}
    assert found.df.loc[~failed, "max_rate_rps"].tolist() == whole.loc[~failed, "max_rate_rps"].tolist()
    assert found.df.loc[failed, "ending"].isna().all()


def test_ctrl_c_keeps_the_rounds_that_ended(tmp_path, monkeypatch):
    rounds = iter(range(100))

    def interrupt(lanes, **options):
        if next(rounds) == 2:  # a batch a round: in the third
            raise KeyboardInterrupt
        return run_systems(lanes, **options)

    monkeypatch.setattr(tasks, "run_systems", interrupt)
    with pytest.raises(
        SearchInterrupted, match=r"interrupted: 2 rounds ended; the rates found so far are in"
    ) as caught:
        find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path, look_ahead=1)
    df = load(tmp_path, "goodput")
    assert set(df["ending"]) <= {"interrupted", "lower_end_fails", "upper_end_passes"}
    open_ends = df[df["ending"] == "interrupted"]
    assert len(open_ends) > 6
    assert (open_ends["max_rate_rps"] < open_ends["next_rate_rps"]).all()
    assert load(tmp_path, "probes")["round"].max() == 2
    assert caught.value.found.counts["interrupted"] == len(open_ends)


def test_ctrl_c_in_the_first_round_writes_nothing(tmp_path, monkeypatch):
    def interrupt(lanes, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "run_systems", interrupt)
    with pytest.raises(SearchInterrupted, match="interrupted: 0 rounds ended; nothing was written"):
        find_goodput(GRID, **SEARCH, **QUIET, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slo": {"tppt_ms": 50}}, "slo={'tppt_ms': 50}: 'tppt_ms' is unknown; did you mean \"tpot_ms\"?"),
        ({"slo": {"ttft": 200}}, "'ttft' is unknown; did you mean \"ttft_ms\"?"),
        ({"slo": {"ttft_ms": "fast"}}, "ttft_ms='fast': must be a positive finite number of milliseconds"),
        ({"slo": {"ttft_ms": -1}}, "ttft_ms=-1: must be a positive finite number"),
        ({"slo": {}}, "slo: must be given, as --slo ttft:200 tpot:50, slo=SLO(ttft_s=0.2), or by keys of"),
        ({"slo": SLO()}, "slo: must be given, as --slo ttft:200 tpot:50"),
        ({"attainment": 90}, "attainment=90: must be a share above 0 and at most 1"),
        ({"lo": 0}, "lo=0: must be a rate from 1e-9 to 1e9"),
        ({"lo": 5, "hi": 2}, "lo=5: must be at most hi, which is 2"),
        ({"iters": -1}, "iters=-1: must be a whole number from 0 to 1000"),
        ({"rel_tol": 0}, "rel_tol=0: must be a number of at least 1e-9"),
        ({"rel_tol": 0.1, "iters": 3}, "iters=3: has no effect with rel_tol"),
        ({"warmup": 2.0}, "warmup: slo.warmup = 2.0: must be"),
        (
            {"settings": ["request_rate_rps=3"]},
            "settings 'request_rate_rps=3': has no effect: the rate is searched for",
        ),
        ({"lo": 1e-307, "hi": 1}, "lo=1e-307: must be a rate from 1e-9 to 1e9"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path, options, message):
    with pytest.raises(ConfigError) as caught:
        find_goodput(GRID, **options, **QUIET, out=tmp_path)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_search_without_an_slo_is_refused(tmp_path):
    bare = {key: value for key, value in GRID.items() if key != "slo"}
    with pytest.raises(
        ConfigError, match=r"config: slo: must be given, as --slo .*, slo=SLO\(ttft_s=0.2\), or by keys of"
    ):
        find_goodput(bare, **QUIET, out=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joint": "no"}, "joint='no': must be True or False"),
        ({"find_upper": 5}, "find_upper=5: must be True or False"),
        ({"progress": "yes"}, "progress='yes': must be True or False"),
        ({"attainment": None}, "attainment=None: must be a share above 0 and at most 1"),
        ({"hi": None}, "hi=None: must be a rate from 1e-9 to 1e9"),
        ({"lo": 1e-300}, "lo=1e-300: must be a rate from 1e-9 to 1e9"),
        ({"slo": 5}, "slo=5: must be an SLO, as SLO(ttft_s=0.5), or a dict of milliseconds"),
        ({"slo": "ttft:200"}, "slo='ttft:200': must be an SLO"),
        ({"slo": ["ttft:200"]}, "slo=['ttft:200']: must be an SLO"),
        ({"slo": {"ttft_ms": True}}, "ttft_ms=True: must be a positive finite number of milliseconds"),
        ({"slo": {"ttft_ms": 10**400}}, "must be a positive finite number of milliseconds"),
        ({"settings": 5}, "settings=5: must be a dict of keys and values, or a list"),
        ({"out": ""}, "out='': must be a path"),
        ({"out": 5}, "out=5: must be a path"),
        ({"trace": 5}, "trace=5: must be a path"),
    ],
)
def test_wrong_kinds_of_arguments(options, message, tmp_path):
    given = {"slo": {"ttft_ms": 60}, "progress": False, "out": tmp_path / "out", **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        find_goodput(GRID, **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", [5, None, [], b"quickstart", ""])
def test_wrong_kinds_of_experiments(config, tmp_path):
    message = f"config={config!r}: must be a TOML file, the name of a ready experiment"
    for function in (run_grid, find_goodput):
        with pytest.raises(ConfigError, match=re.escape(message)):
            function(config, out=tmp_path)
    with pytest.raises(ConfigError, match="config: 5 is a key: keys must be texts"):
        run_grid({"workload": {5: 5}}, out=tmp_path)


def test_wrong_kinds_of_arguments_of_a_run(tmp_path):
    config = {**GRID, "workload": {**GRID["workload"], "request_rate_rps": 5}}
    for name in ("fresh", "retry_failed", "progress"):
        with pytest.raises(ValueError, match=f"{name}='no': must be True or False"):
            run_grid(config, out=tmp_path, **{name: "no"})
    for wrong in (5, None, b"run", ""):
        with pytest.raises(ValueError, match=re.escape(f"run_directory={wrong!r}: must be a path")):
            load(wrong)
    with pytest.raises(ValueError, match="systems=5: must be a list of systems"):
        run_systems(5)
    with pytest.raises(ValueError, match="step_log=5: must be a list of places of systems"):
        run_systems([], step_log=5)
    assert list(tmp_path.iterdir()) == []
