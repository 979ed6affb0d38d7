"""show, export, compare, catalog, schema, init and doctor, as users meet them."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import servesweep
from servesweep.analysis.comparison import compare
from servesweep.commands.init import TEMPLATE
from servesweep.commands.main import command_line
from servesweep.experiment.keys import key_of
from servesweep.experiment.names import listed
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.runner import self_check
from servesweep.serving.reference_answers import answer
from servesweep.serving.systems import PrefillOnly
from servesweep.tables.schemas import SCHEMAS

SETTINGS = ["n_requests=60", "request_rate_rps=[4,8,40]", "block_size=[16,64]", "seed=[0,1]", 'chip=["h100-sxm","t4"]']


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A directory with results/quickstart, which has infeasible cells, and results/slow on a slower chip."""
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in (
        ("quickstart", SETTINGS),
        ("slow", [*SETTINGS, "chip=a100-80-sxm", "request_rate_rps=[8,40,80]"]),
    ):
        servesweep.run_grid(
            "quickstart", settings=settings, workers=1, out=folder / "results" / name, requests="all", progress=False
        )
    return folder


@pytest.fixture(autouse=True)
def inside(runs, monkeypatch):
    monkeypatch.chdir(runs)


@pytest.fixture
def cells(runs):
    return servesweep.load(runs / "results" / "quickstart")


def printed(capsys, *arguments, code=0):
    assert command_line(list(arguments)) == code
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert command_line(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


# ---------------------------------------------------------------------------------------------------------------- show


def test_show_has_the_counts_the_axes_the_best_and_a_verdict(capsys, cells):
    lines = printed(capsys, "show", "quickstart").splitlines()
    ok = int((cells["status"] == "ok").sum())
    assert lines[0] == f"quickstart: {len(cells)} cells, {ok} ok, {len(cells) - ok} infeasible"
    assert "  request_rate_rps (3): 4, 8, 40" in lines
    assert lines[-1].startswith(("chunked", "mixed", "prefill_first", "No configuration"))
    result = json.loads(printed(capsys, "show", "results/quickstart", "--json", "--top", "3"))
    assert len(result["best"]) == 3
    assert result["verdict"] == lines[-1]
    rates = [row["request_rate_rps"] or 0 for row in result["best"]]
    assert rates == sorted(rates, reverse=True)


def test_show_lists_cells_in_order(capsys, cells):
    where = ("--where", "policy=mixed,chip=h100-sxm,seed=0,seed=1")
    rows = json.loads(printed(capsys, "show", "quickstart", "--sort", "ttft_p99_s", "--json", "--top", "5", *where))
    chosen = cells[(cells["policy"] == "mixed") & (cells["status"] == "ok")]
    assert [row["ttft_p99_s"] for row in rows] == sorted(chosen["ttft_p99_s"], reverse=True)[:5]
    text = printed(capsys, "show", "quickstart", "--sort", "ttft_p99_s", "--lowest", "--columns", "tp", *where)
    assert text.splitlines()[1].split() == ["cell_id", "tp", "ttft_p99_s"]
    assert text.splitlines()[-1] == f"10 of {len(chosen)} cells, by ttft_p99_s, lowest first"


def test_one_cell_is_printed_as_a_benchmark_prints_it(capsys, cells):
    cell = cells[cells["status"] == "ok"].iloc[0]
    lines = printed(capsys, "show", "quickstart", "--cell", cell["cell_id"][:12]).splitlines()
    begin = lines.index("============ Serving Benchmark Result ============")
    block = lines[begin : lines.index("=" * 50) + 1]
    requests = servesweep.load("results/quickstart", "requests")
    requests = requests[requests["cell_id"] == cell["cell_id"]]
    assert block[1:3] == [f"{'Successful requests:':<41}60", f"{'Failed requests:':<41}0"]
    assert f"{'Total input tokens:':<41}{requests['prompt_tokens'].sum()}" in block
    assert f"{'Total generated tokens:':<41}{requests['output_tokens'].sum()}" in block
    assert f"{'P99 TTFT (ms):':<41}{1000 * cell['ttft_p99_s']:.2f}" in block
    assert "-----Time per Output Token (excl. 1st token)------" in block
    assert f"{'Mean ITL (ms):':<41}{1000 * cell['itl_mean_s']:.2f}" in block
    assert f"{'P99 ITL (ms):':<41}-" in block  # kept only with an SLO on it
    assert all(len(line) == 50 for line in block if line[0] in "-=")
    failed = cells[cells["status"] == "infeasible"].iloc[0]
    assert "infeasible: the weights of" in printed(capsys, "show", "quickstart", "--cell", failed["cell_id"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "quick"], 'did you mean "quickstart"? Known: quickstart, slow'),
        (["show", "quickstart", "--sort", "ttft_p98_s"], 'did you mean "ttft_p99_s"?'),
        (["show", "quickstart", "--sort", "policy"], "'policy' is no column of numbers"),
        (["show", "quickstart", "--columns", "policy"], "only with --sort"),
        (["show", "quickstart", "--sort", "ttft_p99_s", "--target", "0.9"], "--target has no effect with --sort"),
        (["show", "quickstart", "--cell", "policy=mixed", "--top", "10"], "--top has no effect with --cell"),
        (["show", "quickstart", "--cell", "policy=mixed", "--sort", "tp"], "--sort has no effect with --cell"),
        (["show", "quickstart", "--where", "policy=chunky"], 'no row has it; did you mean "chunked"?'),
        (["show", "quickstart", "--where", "polcy=mixed"], 'did you mean "policy"?'),
        (["show", "quickstart", "--where", "mixed"], "must be conditions such as"),
        (["show", "quickstart", "--where", "tp=two"], "no row has it; known: 1"),
        (["show", "quickstart", "--cell", "zz"], "no cell id begins with it"),
        (["show", "quickstart", "--cell", ""], "cell ids begin with it"),
        (["show", "quickstart", "--cell", "policy=mixed"], "chooses 48 cells"),
        (["export", "quickstart", "--columns", "policy,nope"], "'nope' is no column"),
        (["export", "quickstart", "--table", "steps"], "was not asked to record steps"),
        (["export", "quickstart", "--out", "nowhere/x.csv"], "cannot be written"),
        (["compare", "quickstart", "slow", "--columns", "policy"], "'policy' is no measure of both runs"),
        (["catalog", "model"], 'did you mean "models"?'),
        (["schema", "ttft"], "'ttft' is no column"),
        (["schema", "--table", "cell"], 'did you mean "cells"?'),
        (["init", "results/quickstart"], "is there already"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_right(arguments, words, capsys):
    assert words in refused(capsys, *arguments)


# -------------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "parquet"])
def test_exports_hold_every_row_and_every_digit(form, cells, tmp_path):
    path = tmp_path / f"table.{form}"
    assert command_line(["export", "quickstart", "--out", str(path)]) == 0
    read = {
        "csv": lambda path: pd.read_csv(path, float_precision="round_trip", dtype={"cell_id": str}),
        "json": lambda path: pd.DataFrame(json.loads(path.read_text())),
        "jsonl": lambda path: pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()]),
        "parquet": pd.read_parquet,
    }[form](path)
    assert list(read.columns) == list(cells.columns)
    for name in ("cell_id", "policy", "error"):
        found, due = (frame[name].astype(object).where(frame[name].notna(), None).tolist() for frame in (read, cells))
        assert found == due
    for name in ("ttft_p99_s", "token_budget", "steps"):
        np.testing.assert_array_equal(read[name].astype(float), cells[name].astype(float))


def test_an_export_to_stdout_is_only_the_table(capfdbinary):
    assert command_line(["export", "quickstart", "--columns", "policy,steps", "--where", "status=ok,policy=mixed"]) == 0
    table = pd.read_csv(io.BytesIO(capfdbinary.readouterr().out))
    assert list(table.columns) == ["policy", "steps"]
    assert set(table["policy"]) == {"mixed"}


# ------------------------------------------------------------------------------------------------------------- compare


def test_compare_joins_on_what_was_swept(cells):
    other = servesweep.load("results/slow")
    here = cells[cells["chip"] == "h100-sxm"].copy()
    found = compare(here, other)
    assert set(found.keys) == {"request_rate_rps", "seed", "mem_reserve", "policy", "block_size"}
    assert len(found.cells) == len(other) * 2 // 3  # two of three rates are common
    assert found.only_a == len(here) - len(found.cells)
    assert found.differing["chip"] == (["h100-sxm"], ["a100-80-sxm"])
    row = found.cells.iloc[0]
    for frame, x in ((here, "a"), (other, "b")):
        same = frame
        for key in found.keys:
            same = same[same[key].astype(object) == row[key]]
        assert len(same) == 1
        assert same["e2e_p99_s"].iloc[0] == row[f"e2e_p99_s_{x}"]
    summary = found.summary("e2e_p99_s")
    assert summary["higher"] == len(found.cells)
    change = found.cells["e2e_p99_s_b"] / found.cells["e2e_p99_s_a"] - 1
    assert summary["median_change"] == pytest.approx(change.median())
    assert found.largest("e2e_p99_s", 1)["change"].iloc[0] == pytest.approx(change.max())
    share = found.cells["attainment_b"] - found.cells["attainment_a"]
    assert found.summary("attainment")["median_change"] == share.median()


def test_compare_prints_sizes_and_a_run_equals_itself(capsys):
    where = ("--where", "chip=h100-sxm")
    lines = printed(capsys, "compare", "quickstart", "quickstart", *where).splitlines()
    assert lines[0].startswith("A is quickstart, B is quickstart: 72 cells in both")
    assert lines[-1] == "No cell differs in these measures."
    facts = json.loads(printed(capsys, "compare", "quickstart", "quickstart", "--json", *where))
    assert facts["measures"]["ttft_p99_s"]["same"] == 72
    assert (facts["only_a"], facts["only_b"], facts["differing"]) == (0, 0, {})


# --------------------------------------------------------------------------------------- catalog, schema, init, doctor


def test_the_catalog_has_a_line_for_every_name(capsys):
    found = json.loads(printed(capsys, "catalog", "--json"))
    assert list(found["models"]) == servesweep.model_names()
    assert list(found["chips"]) == servesweep.chip_names()
    assert list(found["links"]) == servesweep.link_names()
    assert all(line for lines in found.values() for line in lines.values())
    assert "989 TFLOP/s bf16" in found["chips"]["h100-sxm"]
    text = printed(capsys, "catalog", "policies", "experiments")
    assert text.startswith("policies (4)\n  mixed ")
    assert "quickstart" in text


def test_the_catalog_names_what_experiments_accept():
    from servesweep.experiment import tables as config

    def accepted(table, key):
        return key_of(config.TABLES[table], key).names

    found = listed()
    for kind, names in (
        ("systems", accepted("system", "kind")),
        ("routers", accepted("system", "router")),
        ("policies", accepted("scheduler", "policy")),
        ("memories", accepted("scheduler", "memory")),
        ("workloads", config.KINDS),
        ("arrivals", config.ARRIVALS),
    ):
        assert set(found[kind]) == set(names)


def test_the_schema_has_every_column(capsys):
    for table, schema in SCHEMAS.items():
        facts = json.loads(printed(capsys, "schema", "--table", table, "--json"))
        assert list(facts[table]) == schema.names
    text = printed(capsys, "schema", "tpot_p99_s", "tokens")
    assert "cells: a row a cell\n  tpot_p99_s (double, s)\n      99th percentile" in text
    assert "steps: a row a step\n  tokens (int64, tokens)" in text


def test_init_writes_an_experiment_that_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line(["init"]) == 0
    assert "experiment.toml" in capsys.readouterr().err
    plan = expand(load_experiment("experiment.toml"))
    assert len(plan.cells) == len(plan.feasible) == 2 * 9 * 2 * (1 + 2 + 1)
    assert command_line(["run", "experiment.toml", "--quiet", "--set", "n_requests=50"]) == 0
    (tmp_path / "experiment.toml").write_text("mine")
    assert command_line(["init"]) == 2
    assert (tmp_path / "experiment.toml").read_text() == "mine"
    assert command_line(["init", "--force"]) == 0
    assert (tmp_path / "experiment.toml").read_text() == TEMPLATE


@pytest.mark.process
def test_the_doctor_passes_and_says_what_fails(capsys, monkeypatch):
    facts = json.loads(printed(capsys, "doctor", "--json"))
    assert facts["ok"]
    assert [check["problem"] for check in facts["checks"]] == [None] * len(self_check.CHECKS)
    assert facts["numpy"] == np.__version__
    broken = {"Z": (0, 0, 0)}
    examples = [(requests, options, broken) for requests, options, _ in self_check.WORKED_EXAMPLES]
    monkeypatch.setattr(self_check, "WORKED_EXAMPLES", examples)
    text = printed(capsys, "doctor", code=1)
    assert "FAILED  the worked examples come out as documented" in text
    assert text.splitlines()[-1] == "4 of 5 checks passed"


def test_the_doctor_says_where_engine_and_reference_differ(monkeypatch):
    def one_preemption_too_many(system):
        requests = answer(system)
        requests[7].preemptions += isinstance(system, PrefillOnly)
        return requests

    monkeypatch.setattr(self_check, "answer", one_preemption_too_many)
    problems = {check.name: check.problem for check in self_check.run_checks() if check.problem is not None}
    assert problems == {
        "every serving system serves 300 requests as the reference does": (
            "prefill_only: request 7: preemptions 0, the reference's 1"
        )
    }
