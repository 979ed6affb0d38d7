"""The command as users meet it: exit codes, what goes to stdout and to stderr, and how much it imports."""

import json
import re
import subprocess
import sys

import pytest
import servesweep.runner.tasks as tasks
from servesweep.commands.main import command_line

SMALL = """\
name = "small"
[workload]
kind = "synthetic"
prompt = { mean = 300, sigma = 0.8, lo = 16, hi = 2000 }
output = 20
n_requests = 30
request_rate_rps = { from = 2, to = 50, count = 4 }
[instance]
model = "llama-3.1-8b"
chip = "h100-sxm"
[scheduler]
policy = ["mixed", "chunked", "prefill_first"]
block_size = [16, 32]
[slo]
ttft_ms = 200
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def test_a_run_prints_the_best_and_a_verdict_and_leaves_a_table(folder, capsys):
    assert command_line(["run", "small.toml"]) == 0
    out, err = capsys.readouterr()
    assert "Best configuration by policy" in out
    assert out.strip().splitlines()[-1].endswith(".")
    assert "req/s at 90% attainment (ttft <= 200 ms)" in out
    assert "tables in results/small" in err
    assert (folder / "results" / "small" / "cells.parquet").is_file()


def test_json_on_stdout_and_nothing_on_stderr_when_quiet(capsys):
    options = ["--quiet", "--json", "--out", "elsewhere", "--steps", "policy=mixed"]
    assert command_line(["run", "small.toml", *options]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert err == ""
    assert (result["cells"], result["ok"], result["directory"]) == (24, 24, "elsewhere")
    assert [row["policy"] for row in result["best"]]
    assert result["verdict"]


def test_a_dry_run_prints_the_plan_and_runs_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr(tasks, "run_systems", None)
    assert command_line(["run", "small.toml", "--dry-run"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("small: 24 cells, 24 of them feasible\n")
    assert "policy (3): mixed, chunked, prefill_first" in out
    assert "request_rate_rps (4): 2, 5.848, 17.1, 50" in out
    assert "720 requests" in out
    assert not (folder / "results").exists()
    assert command_line(["run", "small.toml", "--dry-run", "--json", "--set", 'chip=["t4","h100-sxm"]']) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["cells"], plan["feasible"]) == (48, 24)
    assert list(plan["infeasible"].values()) == [24]


def test_errors_come_at_once_with_exit_code_2(folder, capsys):
    (folder / "small.toml").write_text(SMALL.replace("n_requests = 30", "n_requests = 0").replace("chunked", "chunky"))
    assert command_line(["run", "small.toml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "small.toml:6: workload.n_requests = 0: must be an integer of at least 1"
    assert err.splitlines()[1].startswith(
        'small.toml:12: scheduler.policy = "chunky": is unknown; did you mean "chunked"?'
    )
    assert err.splitlines()[2] == "2 errors; nothing was run"
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere.toml"], "no such file or ready experiment"),
        (["small.toml", "--set", "chip=t4"], "no cell can run"),
        (["small.toml", "--trace", "nowhere.csv"], "no such file"),
        (["small.toml", "--requests", "policy=none"], "chooses none of the 24 cells"),
        (["small.toml", "--out", "small.toml"], "cannot be written"),
    ],
)
def test_what_is_refused(options, words, capsys):
    assert command_line(["run", *options]) == 2
    assert words in capsys.readouterr().err


def test_when_all_requests_are_rejected_the_cause_is_told(folder, capsys):
    options = ["run", "small.toml", "--quiet", "--set", "num_blocks=1", "--set", "prompt=500"]
    assert command_line(options) == 0
    out, _ = capsys.readouterr()
    assert "nan" not in out
    assert " - " in out
    assert out.splitlines()[-1] == (
        "Warning: 24 of 24 cells reject requests; at worst 30 of 30 requests rejected (100.0%): they need more than "
        "num_blocks = 1 of 16 tokens."
    )
    assert command_line([*options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["request_rate_rps"] for row in result["best"]} == {None}
    assert result["warning"].startswith("24 of 24 cells")


def test_a_dry_run_finds_what_cannot_be_written(folder, capsys):
    (folder / "there" / "cells.parquet").mkdir(parents=True)
    for out in ("there", "small.toml", "small.toml/below"):
        assert command_line(["run", "small.toml", "--dry-run", "--out", out]) == 2
        assert re.search("is a directory|cannot be written", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "begin", "words"),
    [
        (["--trace", "."], "--trace: ", "is a directory"),
        (["--trace", "photo.png"], "--trace: workload: ", "is not UTF-8 text"),
        (["--trace", "bad.csv"], "--trace: workload: ", "(--set on_bad=skip)"),
        (["--trace", "named.csv"], "--trace: workload: ", "(--set 'columns={arrival_s = \"its name\"}')"),
        (["--trace", "good.csv", "--set", "n_requests=9"], "--set: workload: n_requests = 9", "at most 2"),
        (["--requests", "zzz"], "--requests: output.requests = ", "no cell id begins with 'zzz'"),
        (["--steps", "policy=none"], "--steps: output.steps = ", "chooses none"),
        (["--set", "steps=zzz"], "--set: output.steps = ", "no cell id begins with 'zzz'"),
        (["--set", "chip=t4"], "small.toml with --set instance.chip: ", "no cell can run"),
        (["--set", "policy=[mixed,chunked]"], "--set policy=[mixed,chunked]: is not valid TOML", "must be quoted"),
    ],
)
def test_errors_name_the_option_that_they_come_from(folder, capsys, options, begin, words):
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x1b[31m\x00")
    (folder / "bad.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,x,1\n")
    (folder / "good.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n")
    (folder / "named.csv").write_text("when\x1b[31m,prompt_tokens,output_tokens\n" + "0,1,1\n")
    assert command_line(["run", "small.toml", "--set", "n_requests=2", *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith(begin)
    assert words in err
    assert all(character.isprintable() or character == "\n" for character in err)


@pytest.mark.parametrize(
    "options", [[], ["walk"], ["run"], ["run", "small.toml", "--workers", "0"], ["run", "x", "--y"]]
)
def test_wrong_usage_is_exit_code_2(options, capsys):
    with pytest.raises(SystemExit) as caught:
        command_line(options)
    assert caught.value.code == 2
    assert "usage: servesweep" in capsys.readouterr().err


def test_an_unexpected_error_has_no_traceback_unless_asked_for(capsys, monkeypatch):
    monkeypatch.setattr("servesweep.experiment.plan.expand", None)
    assert command_line(["run", "small.toml"]) == 1
    assert capsys.readouterr().err.startswith("unexpected error, TypeError: ")
    with pytest.raises(TypeError):
        command_line(["run", "small.toml", "--debug"])


def test_failed_cells_are_exit_code_3(capsys, monkeypatch):
    run_systems = tasks.run_systems

    def fail_chunked(systems, **options):
        if any(system.policy == "chunked" for system in systems):
            raise RuntimeError("chunks are out")
        return run_systems(systems, **options)

    monkeypatch.setattr(tasks, "run_systems", fail_chunked)
    assert command_line(["run", "small.toml", "--workers", "1"]) == 3
    out, err = capsys.readouterr()
    assert "8 failed: RuntimeError: chunks are out" in err
    assert "prefill_first" in out


def test_an_interrupt_is_exit_code_130(capsys, monkeypatch):
    def interrupt(systems, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "run_systems", interrupt)
    assert command_line(["run", "small.toml", "--workers", "1"]) == 130
    assert "interrupted: 0 of 24 cells ended; nothing was written" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- imports

HEAVY = ("numpy", "pandas", "pyarrow", "joblib", "rich", "matplotlib")


@pytest.mark.parametrize(
    "options",
    [["--version"], ["--help"], *([name, "--help"] for name in ("run", "show", "export", "compare", "doctor"))],
)
def test_help_and_version_import_nothing_heavy(options):
    code = (
        "import sys\nfrom servesweep.commands.main import command_line\n"
        f"try:\n    command_line({options})\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr.strip() == "[]"
    assert "servesweep" in ended.stdout


def test_progress_lines_where_there_is_no_terminal(capsys, monkeypatch):
    import time

    from servesweep.runner import progress

    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    with progress.Progress(10, 0, 60.0) as shown:
        shown.advance(5, 1, 100.0)
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert lines[0].startswith("5/10 cells, 0 s, ")
    assert lines[0].endswith("about 100 s left, 1 failed")


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    import io

    from servesweep.runner import progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.Progress(10, 0, 60.0) as shown:
        shown.advance(10, 0, 0.0)
    assert "10/10 cells" in sys.stderr.getvalue()
