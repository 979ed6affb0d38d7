"""Names of files, whatever they hold, mean one place; text from outside is shown, and does nothing else."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servesweep
import servesweep.reports
from servesweep.commands.main import command_line
from servesweep.escapes import in_json, lines, one_line
from servesweep.reports.text_tables import print_table

TOML = """
[workload]
kind = "synthetic"
prompt = 100
output = 10
n_requests = 30
request_rate_rps = [4, 16]
[instance]
model = "llama-3.1-8b"
chip = "h100-sxm"
[scheduler]
policy = ["mixed", "chunked"]
block_size = 16
[slo]
ttft_ms = 300
tpot_ms = 50
[output]
requests = "all"
"""
NOT_UTF8 = b"caf\xe9".decode("utf-8", "surrogateescape")
NAMES = (
    "~",
    "~root",
    "s3:bucket",
    "file:",
    "gs://x",
    NOT_UTF8,
    "é ü",
    "two\nlines",
    "[red]x[/red]",
    "\x1b[31mx",
    "$x$",
)
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an experiment, and a home directory with results of the same names, which are damaged."""
    here, home = tmp_path / "here", tmp_path / "home"
    for name in ("run", "search", "placement"):
        (home / name).mkdir(parents=True)
        for table in ("cells", "goodput", "placement"):
            (home / name / f"{table}.parquet").write_text("another run's")
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    (here / "e.toml").write_text(f'name = "e"{TOML}')
    return here


def printed(*arguments, code=0):
    """What a command prints on a stdout that takes UTF-8 alone."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(out):
        assert command_line([*arguments]) == code
    return out.buffer.getvalue().decode("utf-8")


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_results_are_read_where_they_were_written(folder, name, capsys):
    run, quick = f"{name}/run", ("--quiet", "--workers", "1")
    verdict = printed("run", "e.toml", f"--out={run}", *quick)
    assert "(ttft <= 300 ms and tpot <= 50 ms)" in verdict
    assert json.loads(printed("show", run, "--json"))["counts"] == {"ok": 4}
    assert json.loads(printed("run", "e.toml", f"--out={run}", *quick, "--json"))["directory"] == os.path.normpath(run)
    assert len(servesweep.load(run, "requests")) == 120
    paths = printed("plot", run, "--formats", "png,svg,csv") + printed("report", run)
    assert not UNSEEN.search(paths)
    assert len(os.listdir(f"{run}/plots")) == 12
    printed("export", run, f"--out={name}/x.csv")
    assert len(pd.read_csv(open(f"{name}/x.csv", "rb"))) == 4  # noqa: SIM115
    assert "No cell differs" in printed("compare", run, run)
    assert "2 of 2 cells came out the same" in printed("verify", run, "-k", "2")
    printed("goodput", "e.toml", f"--out={name}/search", "--iters", "1", *quick)
    printed("plot", f"{name}/search", "goodput", "--x", "policy", "--formats", "csv")
    printed("timeline", "e.toml", "--cell", "policy=mixed,request_rate_rps=4", f"--out={name}/timelines")
    one = ("--set", "policy=mixed", "--rel-tol", "0.5", "--n-gpus", "2")
    printed("placement", "e.toml", f"--out={name}/placement", *one, *quick)
    assert len(servesweep.load(f"{name}/placement", "placement")) == 3
    assert sorted(os.listdir()) == sorted(["e.toml", name.partition("/")[0]])
    for missing in (f"{name}/nothing", f"{name}/run/x" * 100):
        capsys.readouterr()
        assert command_line(["show", missing]) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1
        assert not UNSEEN.search(err)


def test_an_experiment_in_a_file_of_any_name(folder):
    for name in (f"{NOT_UTF8}.toml", "~", "s3:x.toml"):
        (folder / name).write_text(f'name = "e"{TOML}')
        assert "mixed: at least 16 req/s" in printed("run", name, "--quiet", "--out", "out", "--workers", "1")


def test_a_trace_of_any_name_keeps_it_in_tables_and_reports(folder):
    rows = "".join(f"{i * 0.1},100,10\n" for i in range(30))
    for name in (f"{NOT_UTF8}.csv", "\x1b[31m.csv", "é.csv"):
        (folder / name).write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
        options = ("--trace", name, "--out", "out", "--quiet", "--workers", "1")
        printed("run", "e.toml", *options)
        printed("run", "e.toml", *options)  # what was reused is as it was
        df = servesweep.load("out")
        assert set(map(one_line, df["workload"])) == {one_line(name.removesuffix(".csv"))}
        assert df.attrs["config"]["workload"]["path"] == name
        printed("report", "out")
        assert not UNSEEN.search((folder / "out" / "report.html").read_text("utf-8"))
        assert not UNSEEN.search(printed("show", "out") + printed("show", "out", "--json") + printed("export", "out"))
        assert "4 of 4" in printed("verify", "out", "--trace", name)


@pytest.mark.process
def test_names_work_where_nothing_but_ascii_can_be_printed(folder):
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    (folder / "é").mkdir()
    for name in ("é/run", f"{NOT_UTF8}/run"):
        for command in (["run", "e.toml", "--out", name, "--workers", "1"], ["show", name], ["report", name]):
            ran = subprocess.run(
                [sys.executable, "-m", "servesweep", *command], env=env, capture_output=True, check=False
            )
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout.isascii()
        shown = subprocess.run(
            [sys.executable, "-m", "servesweep", "run", "e.toml", "--out", name, "--json"],
            env=env,
            capture_output=True,
            check=True,
        )
        assert json.loads(shown.stdout)["verdict"].startswith("mixed")
    wrong = subprocess.run(
        [sys.executable, "-m", "servesweep", "show", "ü\n"], env=env, capture_output=True, check=False
    )
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1


# ------------------------------------------------------------------------------------------------------ text of tables

EVIL = "\x1b]0;x\x07[red]a[/red] [link=http://x]b[/link] :smile: </script><img src=x>\u202e\r\n=1+1"


@pytest.fixture
def evil(folder):
    """A run whose texts somebody has chosen."""
    printed("run", "e.toml", "--out", "out", "--quiet", "--workers", "1")
    path = folder / "out" / "cells.parquet"
    with open(path, "rb") as file:
        table = pq.ParquetFile(file).read()
    config = json.loads(table.schema.metadata[b"servesweep.config"]) | {"name": EVIL + "{{script}}"}
    for name, values in {
        "policy": [EVIL, EVIL, "=1+1", "=1+1"],
        "workload": [EVIL] * 4,
        "status": ["ok", "ok", "ok", "failed"],
        "error": [None, None, None, EVIL],
    }.items():
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values))
    table = table.append_column(EVIL, pa.array([1.5] * 4))
    table = table.replace_schema_metadata(table.schema.metadata | {b"servesweep.config": json.dumps(config).encode()})
    pq.write_table(table, path)
    return folder


def test_texts_of_a_table_are_shown_and_do_nothing(evil, capsys):
    cell = servesweep.load("out")["cell_id"].iloc[-1]
    for arguments in (
        ("show", "out"),
        ("show", "out", "--json"),
        ("show", "out", "--sort", EVIL),
        ("show", "out", "--cell", cell),
        ("compare", "out", "out"),
        ("export", "out"),
        ("export", "out", "--format", "json"),
        ("export", "out", "--neutralise-formulas"),
        ("plot", "out"),
        ("plot", "out", "curves", "--y", EVIL),
        ("plot", "out", "curves", "--panels", "policy"),
    ):
        text = printed(*arguments)
        assert not UNSEEN.search(text)
    assert "[red]a[/red] [link=http://x]b[/link] :smile:" in printed("show", "out")
    for wrong in (("show", EVIL), ("show", "out", "--where", f"policy={EVIL}x"), ("show", "out", EVIL)):
        capsys.readouterr()
        with suppress(SystemExit):
            command_line([*wrong])
        assert not UNSEEN.search(capsys.readouterr().err)
    assert sorted(os.listdir()) == ["e.toml", "out"]


def test_texts_of_a_table_are_text_in_a_report(evil):
    printed("report", "out")
    page = (evil / "out" / "report.html").read_text("utf-8")
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script")
    assert page.count("function") < 2 * (
        Path(servesweep.reports.__file__).parent / "page" / "report.js"
    ).read_text().count("function")
    assert not UNSEEN.search(page)


def test_formulas_are_neutralised_when_asked_and_numbers_are_not(evil):
    plain, safe = (printed("export", "out", *more) for more in ((), ("--neutralise-formulas",)))
    read = [pd.read_csv(io.StringIO(text), dtype={"cell_id": str}) for text in (plain, safe)]
    assert set(read[0]["policy"].iloc[2:]) == {"=1+1"}
    assert set(read[1]["policy"].iloc[2:]) == {"'=1+1"}
    for name in servesweep.load("out").select_dtypes("number").columns:
        name = name if name in read[0] else lines(name).replace("\\n", "\n")
        np.testing.assert_array_equal(read[0][name], read[1][name])
    from servesweep.commands.export import as_csv

    odd = pd.DataFrame({"=a": ["=x", "+x", "-x", "@x", "\tx", "\rx", "x=", "", None], "-n": [-1.5] * 9})
    text = as_csv(odd, neutralise=True).decode()
    assert text == ("'=a,'-n\n'=x,-1.5\n'+x,-1.5\n'-x,-1.5\n'@x,-1.5\n'\tx,-1.5\n'\\rx,-1.5\nx=,-1.5\n,-1.5\n,-1.5\n")
    assert printed("export", "out", "--format", "json", "--neutralise-formulas", code=2) == ""


def test_titles_and_cells_of_tables_have_no_markup(capsys):
    print_table(["[b]h", "x"], [["[red]a[/red]", ":smile:"]], "[link=x]t[/link] \x1b[31m")
    out = capsys.readouterr().out
    assert all(text in out for text in ("[b]h", "[red]a[/red]", ":smile:", "[link=x]t[/link] \\x1b[31m"))


def test_escapes_leave_what_can_be_seen():
    for text in ("plain", "é ü 日本語", "non\u00a0breaking", "emoji 🙂", "a\\b"):
        assert one_line(text) == in_json(text) == text
    assert one_line("a\tb\x85\u2028\u200f") == "a\\tb\\x85\\u2028\\u200f"
    assert lines("a\nb\r\n") == "a\nb\\r\n"
    odd = {"a": "\x7f\x85\u202e\udce9\U000e0001\n"}
    text = in_json(json.dumps(odd, ensure_ascii=False))
    assert json.loads(text) == odd
    assert text.isascii()


# ------------------------------------------------------------------------------------------------------------- links


def refused(capsys, *arguments):
    capsys.readouterr()
    assert command_line([*arguments]) == 2
    return capsys.readouterr().err


def test_links_in_a_directory_of_results_are_not_followed(folder, capsys):
    outside = folder / "outside"
    (outside / "parts").mkdir(parents=True)
    (outside / "parts" / "0.requests.parquet").write_text("mine")
    (outside / "file").write_text("mine")
    run = ("run", "e.toml", "--out", "out", "--quiet", "--workers", "1")

    def untouched():
        return (
            sorted(path.name for path in outside.rglob("*")) == ["0.requests.parquet", "file", "parts"]
            and (outside / "file").read_text() == (outside / "parts" / "0.requests.parquet").read_text() == "mine"
        )

    (folder / "out").mkdir()
    (folder / "out" / "journal.jsonl").symlink_to(outside / "file")
    assert "out/journal.jsonl: is a link: must be a file" in refused(capsys, *run, "--fresh")
    (folder / "out" / "journal.jsonl").unlink()
    (folder / "out" / "parts").symlink_to(outside / "parts")
    assert "out/parts: is a link: must be a directory" in refused(capsys, *run, "--fresh")
    assert "out/parts: is a link" in refused(capsys, *run, "--dry-run")
    (folder / "out" / "parts").unlink()
    for name in ("cells.parquet", "requests.parquet", "timings.parquet", "run.json", "report.html"):
        (folder / "out" / name).symlink_to(outside / "file")
    printed(*run)
    printed("report", "out")
    assert not any(path.is_symlink() for path in (folder / "out").iterdir())
    (folder / "out" / "plots").symlink_to(outside)
    assert "out/plots: cannot be written: is a link" in refused(capsys, "plot", "out", "--formats", "csv")
    (folder / "results" / "e").mkdir(parents=True)
    (folder / "results" / "e" / "timelines").symlink_to(outside)
    cell = ("timeline", "e.toml", "--cell", "policy=mixed,request_rate_rps=4")
    assert "timelines: cannot be written: is a link" in refused(capsys, *cell)
    (folder / "out" / "prefill").symlink_to(outside)
    one = ("--set", "policy=mixed", "--n-gpus", "2", "--out", "out", "--quiet")
    assert "out/prefill: is a link" in refused(capsys, "placement", "e.toml", *one)
    assert untouched()
    os.link(folder / "out" / "cells.parquet", folder / "kept")  # another name of the same file is no way outside
    printed(*run)
    assert len(servesweep.load("out")) == 4


def test_odd_files_among_the_parts_are_left_alone(folder):
    parts = folder / "out" / "parts"
    (parts / "3.requests.parquet").mkdir(parents=True)
    (parts / "1e.requests.parquet").write_text("no part")
    printed("run", "e.toml", "--out", "out", "--quiet", "--workers", "1")
    assert sorted(path.name for path in parts.iterdir()) == ["1e.requests.parquet", "3.requests.parquet"]


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("name with spaces.toml", "name-with-spaces"),
        ("it's $HOME; (2).toml", "it-s-HOME-2-"),
        ("-x.toml", "x"),
        ("...toml", "experiment"),
        ("caf\udce9\t.toml", "caf-"),
        ("x" * 240 + ".toml", "x" * 200),
    ],
)
def test_what_init_writes_is_run_by_the_command_that_it_names(name, folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert command_line(["init", "--", name]) == 0
    hint = capfd.readouterr().err.partition("; next: ")[2].strip()
    assert hint.startswith("servesweep run ")
    asked = subprocess.run(["bash", "-c", f"printf '%s\\0' {hint}"], stdout=subprocess.PIPE, check=True).stdout
    words = [os.fsdecode(word) for word in asked.split(b"\0")[:-1]]
    assert command_line([*words[1:], "--dry-run"]) == 0
    assert capfd.readouterr().out.startswith(f"{folder}: ")
