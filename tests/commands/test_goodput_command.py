"""`servesweep goodput` as users meet it: what it prints, where, and its exit codes."""

import json
import re

import pytest
from servesweep import load
from servesweep.commands.main import command_line
from servesweep.reports.frontier import best_goodputs, format_goodputs
from test_commands import SMALL

NO_RATES = re.sub(r"request_rate_rps.*\n", "", SMALL).replace("n_requests = 30", "n_requests = 60")
MORE = r" \((at least )?[\d.]+ x mixed\)"
QUICK = ["--lo", "1", "--hi", "400", "--iters", "5", "--workers", "1"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(NO_RATES)
    return tmp_path


def test_it_prints_the_frontier_and_leaves_tables(folder, capsys):
    assert command_line(["goodput", "small.toml", *QUICK, "--slo", "ttft:60", "--baseline", "mixed"]) == 0
    out, err = capsys.readouterr()
    assert "highest request rate with 90% attainment (ttft <= 60 ms)" in " ".join(out.split())
    for policy, more in (("mixed", ""), ("chunked", MORE), ("prefill_first", MORE)):
        assert re.search(
            rf"^{policy}, block (16|32): (at least )?[\d.]+ req/s per GPU at 90%{more}$", out, re.MULTILINE
        )
    assert "Warning: 60 requests are few for a search" in out
    assert re.search(r"6 configurations: .*; \d+ rounds, [\d,]+ rates, .*; tables in results/small$", err.strip())
    assert sorted(path.name for path in (folder / "results" / "small").iterdir()) == [
        "goodput.json",
        "goodput.parquet",
        "probes.parquet",
    ]
    best = best_goodputs(load("results/small", "goodput"))
    assert format_goodputs(best, "mixed", 0.9) == [line for line in out.splitlines() if "per GPU at" in line]
    assert [row.goodput for row in best] == sorted((row.goodput for row in best), reverse=True)


def test_json_on_stdout_and_nothing_on_stderr_when_quiet(capsys):
    options = ["--slo", "tpot:1", "--json", "--quiet", "--set", "seed=[0,1]"]
    assert command_line(["goodput", "small.toml", *QUICK, *options]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["cells"], found["lower_end_fails"], found["baseline"]) == (12, 12, "mixed")
    assert [row["goodput_per_gpu_rps"] for row in found["best"]] == [None] * 3
    assert found["lines"][0].startswith("mixed, block 16: no rate reaches 90%: a decode step alone takes 6.")
    assert found["search"]["iters"] == 5


def test_limits_may_be_given_in_several_options(capsys):
    given = [*QUICK, "--json", "--quiet", "--set", "policy=mixed", "--set", "block_size=16"]
    assert command_line(["goodput", "small.toml", *given, "--slo", "ttft:60", "--slo", "tpot:8", "e2e:900"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slo_ms"] == {"ttft": [60], "tpot": [8], "e2e": [900]}
    assert command_line(["goodput", "small.toml", *given, "--slo", "ttft:60", "tpot:8", "e2e:900"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == found["best"]
    assert command_line(["goodput", "small.toml", *given, "--slo", "ttft:60", "--slo", "ttft:70"]) == 2
    assert "slo 'ttft': is given twice" in capsys.readouterr().err


def test_what_is_printed_says_that_each_slo_is_on_its_own(capsys):
    assert command_line(["goodput", "small.toml", *QUICK, "--slo", "ttft:60", "tpot:20", "--no-joint", "--quiet"]) == 0
    assert "(ttft <= 60 ms and tpot <= 20 ms, each on its own)" in " ".join(capsys.readouterr().out.split())


def test_seeds_count_together(capsys):
    assert command_line(["goodput", "small.toml", *QUICK, "--slo", "ttft:60", "--set", "seed=[0,1,2]", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"req/s per GPU at 90% \(seeds: [\d.]+ to [\d.]+\)", out)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slo", "ttf:60"], "slo 'ttf': is unknown; did you mean \"ttft\"?"),
        (["--slo", "ttft=200"], "slo 'ttft=200': must be NAME:MS, as in ttft:200"),
        (["--slo", "ttft:fast"], "slo ttft:fast: must be a positive number of milliseconds, as in ttft:200"),
        (["--slo", "ttft:-1"], "slo ttft:-1: must be a positive number"),
        (["--slo", "ttft:1", "tpot:nan"], "slo tpot:nan: must be a positive number"),
        (["--slo", "ttft:1", "ttft:2"], "slo 'ttft': is given twice"),
        (["--baseline", "chunky"], "baseline = 'chunky': is no system, policy or router of the experiment; did you"),
        (["--attainment", "90"], "attainment=90.0: must be a share above 0 and at most 1"),
        (["--set", "request_rate_rps=[1,2]"], "settings 'request_rate_rps=[1,2]': has no effect: the rate is searched"),
        (["--set", "ttft_ms="], "small.toml: slo: must be given, as --slo ttft:200 tpot:50"),
        (["--warmup", "1.5"], "warmup: slo.warmup = 1.5: must be"),
    ],
)
def test_what_is_wrong_is_exit_code_2(folder, capsys, options, message):
    assert command_line(["goodput", "small.toml", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert not (folder / "results").exists()


def test_unknown_options_are_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        command_line(["goodput", "small.toml", "--attain", "x"])
    assert caught.value.code == 2


def test_a_limit_that_looks_like_seconds_gets_one_line_of_warning(capsys):
    assert command_line(["goodput", "small.toml", *QUICK, "--slo", "ttft:0.2", "--iters", "0"]) == 0
    warning = "Warning: small.toml: slo.ttft_ms=0.2: is below 1 ms: a limit in milliseconds; 0.2 s are 200\n"
    assert capsys.readouterr().err.count(warning) == 1
    assert (
        command_line(["goodput", "small.toml", *QUICK, "--slo", "ttft:0.2", "--iters", "0", "--quiet", "--fresh"]) == 0
    )
    assert "Warning" not in capsys.readouterr().err
