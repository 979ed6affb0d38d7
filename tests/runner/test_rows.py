"""Rows of a run one by one: verified, iterated over, timed, and shown in a notebook."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servesweep
import servesweep.experiment.plan as plan_module
from servesweep.commands.main import command_line
from small_sweep import CELLS, FEASIBLE, digests

pytestmark = pytest.mark.usefixtures("folder")


def test_verify_finds_the_same_numbers_and_a_forged_one(undisturbed, folder, capsys):
    directory = str(undisturbed.directory)
    assert command_line(["verify", directory, "-k", "9", "--seed", "3"]) == 0
    assert capsys.readouterr().out == "9 of 9 cells came out the same to the last bit\n"
    table = pq.read_table(undisturbed.directory / "cells.parquet")
    at = table.column_names.index("ttft_p99_s")
    forged = table["ttft_p99_s"].to_numpy() * (1 + 2**-50)
    (folder / "forged").mkdir()
    pq.write_table(table.set_column(at, table.field(at), pa.array(forged)), folder / "forged" / "cells.parquet")
    assert command_line(["verify", "forged", "-k", "5", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert len(found["cells"]) == len(found["differences"]) == 5
    assert {difference["column"] for difference in found["differences"]} == {"ttft_p99_s"}
    assert command_line(["verify", "nowhere"]) == 2
    assert "nowhere is not a run: there is no such directory" in capsys.readouterr().err


def test_verify_refuses_other_rules(undisturbed, folder, capsys, monkeypatch):
    monkeypatch.setattr(plan_module, "RULES_VERSION", 99)
    assert command_line(["verify", str(undisturbed.directory)]) == 2
    assert f"{CELLS} of {CELLS} cells are not those of its experiment by version" in capsys.readouterr().err


def test_iter_run_gives_every_row_once_and_can_be_left(undisturbed, folder):
    rows = servesweep.iter_run("small.toml", out="out", max_batch_cells=4, workers=1)
    first = [next(rows) for _ in range(CELLS - FEASIBLE + 6)]
    rows.close()
    assert [row["status"] for row in first] == ["infeasible"] * (CELLS - FEASIBLE) + ["ok"] * 6
    assert not (folder / "out" / "cells.parquet").exists()
    with pytest.raises(ValueError, match="out is not a finished run: the run was stopped; start it again"):
        servesweep.load("out")
    again = list(servesweep.iter_run("small.toml", out="out"))
    assert len({row["cell_id"] for row in again}) == len(again) == CELLS
    by_id = {row["cell_id"]: row for row in again}
    for row in undisturbed.df[undisturbed.df["status"] == "ok"].iloc[::17].to_dict("records"):
        assert by_id[row["cell_id"]]["ttft_p99_s"] == row["ttft_p99_s"]
        assert by_id[row["cell_id"]]["policy"] == row["policy"]
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_timings_have_a_row_a_cell(undisturbed):
    timings = servesweep.load(undisturbed.directory, "timings")
    assert timings["cell_id"].tolist() == undisturbed.df["cell_id"].tolist()
    ran = undisturbed.df["status"] == "ok"
    assert timings["batch"].notna().tolist() == ran.tolist()
    assert set(timings.loc[ran, "pid"]) == {os.getpid()}
    sizes = timings[ran].groupby("batch")["batch_cells"].agg(["size", "first"])
    assert sizes["size"].tolist() == sizes["first"].tolist()


def test_a_run_shows_itself_in_a_notebook(undisturbed):
    html = undisturbed._repr_html_()
    assert f"<b>small</b>: {CELLS} cells, {FEASIBLE} ok, {CELLS - FEASIBLE} infeasible" in html
    assert "req/s at 90% attainment" in html
    assert html.count("<tr") == 4  # a head and three policies
    assert repr(undisturbed).startswith("<Run small: 288 cells, 144 ok, ")
    assert "object" not in undisturbed.df.dtypes.astype(str).tolist()
