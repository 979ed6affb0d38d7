"""`servesweep steps`: what it prints, draws, saves and refuses."""

import json
from pathlib import Path

import pytest
from servesweep import load_step_times, measured_step_times
from servesweep.commands.main import command_line
from step_files import HEADER, write_steps


@pytest.fixture
def steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_steps(tmp_path / "mine.csv")


def test_it_prints_the_fit_and_draws_it(steps, capsys):
    assert command_line(["steps", "mine.csv", "--save", "mine.toml"]) == 0
    printed = capsys.readouterr().out
    assert "mine.csv: 36 steps, error of the fit" in printed
    assert "measured up to 128 decodes" in printed
    assert measured_step_times("mine.csv").content_id in printed
    assert sorted(path.name for path in Path("results/steps").iterdir()) == [
        f"steps-mine.{ending}" for ending in ("csv", "png", "svg")
    ]
    lines = Path("results/steps/steps-mine.csv").read_text("utf-8").splitlines()
    assert lines[0].startswith(HEADER.replace("step_s", "step_s,fitted_s,error")[:30])
    assert len(lines) == 37
    assert load_step_times("mine.toml") == measured_step_times("mine.csv")


def test_profiles_can_be_looked_at_and_compared(steps, capsys):
    assert command_line(["steps", "mine.csv", "--save", "mine.toml", "--formats", "csv"]) == 0
    capsys.readouterr()
    assert command_line(["steps", "mine.toml", "--json", "--out", "there"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["kind"] == "tables"
    assert about["measured"]["steps"] == 36
    assert "errors" not in about
    assert command_line(["steps", "mine.toml", "--against", "mine.csv", "--json", "--out", "there"]) == 0
    assert json.loads(capsys.readouterr().out)["errors"]["p95"] < 1e-6
    Path("own.toml").write_text('kind = "operators"\nmodel = "llama-3.1-8b"\nchip = "h100-sxm"\n[constants]\nmfu = 0.5')
    assert command_line(["steps", "own.toml", "--against", "mine.csv", "--out", "there"]) == 0
    printed = capsys.readouterr().out
    assert "operators of llama-3.1-8b on 1 x h100-sxm" in printed
    assert "mfu 0.5" in printed
    assert "off the steps by" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv"], "none.csv: cannot be read: No such file"),
        (["mine.csv", "--against", "mine.csv"], "has an effect only with a profile"),
        (["mine.csv", "--formats", "pdf"], "pdf"),
        (["bad.csv"], "bad.csv, line 2: step_s='0': must be a number above 0"),
    ],
)
def test_what_is_refused_in_a_line(steps, capsys, arguments, message):
    Path("bad.csv").write_text(f"{HEADER}\n1,1,0,0,0,0\n", encoding="utf-8")
    assert command_line(["steps", *arguments]) == 2
    assert message in capsys.readouterr().err
