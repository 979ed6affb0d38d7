"""Tables: schemas, building, bytes on disk, reading back, and the generated documentation."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servesweep.measures.columns import MEASURES
from servesweep.measures.result import Result
from servesweep.measures.slo import SLO
from servesweep.tables import schemas
from servesweep.tables.build import cells_table, requests_table, steps_table, write_table
from servesweep.tables.reading import load
from servesweep.tables.schemas import CELLS_SCHEMA, REQUESTS_SCHEMA, STEPS_SCHEMA

RECIPES = Path(__file__).parents[2] / "docs" / "pandas.md"
CONFIG = {"name": "small", "axes": {"policy": ["mixed", "chunked"], "rate": [1, 2.5]}}


def row(cell_id="a", policy="mixed", rate=1.0, **more):
    return {
        "cell_id": cell_id,
        "status": "ok",
        "workload": "chat",
        "n_requests": 100,
        "request_rate_rps": rate,
        "system": "colocated",
        "n_gpus": 1,
        "policy": policy,
        "warmup": 0.2,
        "cooldown": 0.2,
    } | more


def result(n=3):
    arrival = np.arange(n, dtype=float)
    return Result(arrival, np.full(n, 9), np.full(n, 2), arrival + 1, arrival + 2)


@pytest.fixture
def run(tmp_path):
    rows = [
        row("a", "mixed", 1.0, attainment=1.0, steps=7, block_size=16),
        row("b", "mixed", 2.5, attainment=np.nan, steps=9),
        row("c", "chunked", 1.0, status="infeasible", error="the weights do not fit"),
    ]
    write_table(tmp_path / "cells.parquet", cells_table(rows, CONFIG))
    return tmp_path


# ----------------------------------------------------------------------------------------------------------- schemas


def test_every_column_has_a_unit_and_a_definition():
    for schema in (CELLS_SCHEMA, REQUESTS_SCHEMA, STEPS_SCHEMA):
        assert set(schema.metadata) == {b"servesweep.table", b"servesweep.schema_version"}
        assert len(set(schema.names)) == len(schema.names)
        for name, text in schemas.definitions(schema).items():
            assert text, name
        for name, unit in schemas.units(schema).items():
            by_suffix = {"_s": "s", "_rps": "requests/s", "_tps": "tokens/s"}
            for suffix, expected in by_suffix.items():
                if name.endswith(suffix):
                    assert unit == expected, name


def test_cells_end_with_the_measures_in_order():
    assert tuple(CELLS_SCHEMA.names[-len(MEASURES) :]) == MEASURES
    assert all(CELLS_SCHEMA.field(name).nullable for name in MEASURES)


def test_measures_have_the_types_of_their_columns():
    for name, value in result().summary(slo=SLO(ttft_s=1.0)).items():
        assert CELLS_SCHEMA.field(name).type == (pa.int64() if isinstance(value, int) else pa.float64()), name


# ----------------------------------------------------------------------------------------------------------- building


def test_missing_and_nan_are_null():
    table = cells_table([row(attainment=np.nan, num_blocks=np.nan, steps=np.int64(3), seed=None)])
    assert table.schema == CELLS_SCHEMA
    assert table["attainment"].to_pylist() == table["num_blocks"].to_pylist() == table["seed"].to_pylist() == [None]
    assert table["finished"].to_pylist() == [None]
    assert table["steps"].to_pylist() == [3]


def test_rows_and_columns_give_the_same_table():
    rows = [row("a", steps=1, attainment=0.5), row("b", "chunked", steps=2, attainment=np.nan)]
    columns = {name: [r[name] for r in rows] for name in rows[0]}
    columns["attainment"] = np.array(columns["attainment"])
    assert cells_table(rows).equals(cells_table(columns))
    assert cells_table([]).schema == cells_table({}).schema == CELLS_SCHEMA


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(ttft_p50=1.0)], "'ttft_p50' is not a column of cells; did you mean .ttft_p50_s."),
        ([row(), row(zzz=1.0)], "'zzz' is not a column of cells; known: cell_id, status"),
        ([row(steps="many")], "column steps must hold int64 or nothing"),
        ([row(status=None)], "column status is missing in 1 of 1 rows"),
        ({"cell_id": ["a"], "status": ["ok", "ok"]}, "column status has 2 values"),
    ],
)
def test_bad_rows_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        cells_table(rows)


def test_requests_table_has_one_row_a_request():
    table = requests_table([("a", result(2)), ("b", result(3))])
    assert table.schema == REQUESTS_SCHEMA
    assert table["cell_id"].to_pylist() == ["a", "a", "b", "b", "b"]
    assert table["request"].to_pylist() == [0, 1, 0, 1, 2]
    assert table["ttft_s"].to_pylist() == [1.0] * 5
    assert table["kv_ready_s"].null_count == 5
    assert requests_table([]).num_rows == 0


def test_steps_table_has_one_row_a_step():
    log = {"start_s": np.array([0.0, 1.0]), "end_s": np.array([1.0, 2.0])}
    log |= {name: np.array([1, 2]) for name in ("role", "instance", "running", "emitted", "tokens", "blocks_used")}
    table = steps_table([("a", log), ("b", {name: column[:1] for name, column in log.items()})])
    assert table.schema == STEPS_SCHEMA
    assert table["cell_id"].to_pylist() == ["a", "a", "b"]
    assert table["step"].to_pylist() == [0, 1, 0]
    assert table["role"].to_pylist() == ["prefill", "decode", "prefill"]
    assert table["end_s"].to_pylist() == [1.0, 2.0, 1.0]
    assert steps_table([]).num_rows == 0


# ------------------------------------------------------------------------------------------------------------ writing


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = [row(f"cell {i}", ("mixed", "chunked")[i % 2], steps=i, attainment=i / 500) for i in range(500)]
    whole = cells_table(rows, CONFIG)
    pieces = pa.concat_tables([cells_table(rows[:7], CONFIG), cells_table(rows[7:], CONFIG)])
    digests = set()
    for number, table in enumerate((whole, whole, pieces, pieces.slice(0, 500))):
        path = tmp_path / f"{number}.parquet"
        write_table(path, table)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1
    assert b"pandas" not in pq.read_schema(path).metadata


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "cells.parquet"
    write_table(path, cells_table([row()]))
    before = path.read_bytes()

    def fail(table, file, **options):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("servesweep.tables.build.pq.write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        write_table(path, cells_table([row("b")]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------------------------------------------------------------ reading


def test_load_gives_categories_in_plan_order_and_nullable_integers(run):
    frame = load(run)
    assert list(frame.columns) == CELLS_SCHEMA.names
    assert list(frame["policy"].cat.categories) == ["mixed", "chunked"]
    assert frame["link"].isna().all()
    assert frame["steps"].dtype == frame["block_size"].dtype == pd.Int64Dtype()
    assert frame["steps"].tolist() == [7, 9, pd.NA]
    assert frame["attainment"].dtype == float
    assert frame["attainment"].isna().tolist() == [False, True, True]
    assert frame["error"].dropna().tolist() == ["the weights do not fit"]


def test_attributes_are_plain_dicts(run):
    frame = load(run)
    assert json.loads(json.dumps(frame.attrs)) == frame.attrs
    assert frame.attrs["config"] == CONFIG
    assert frame.attrs["units"]["ttft_p99_s"] == "s"
    assert "first token - arrival" in frame.attrs["definitions"]["ttft_mean_s"]
    assert set(frame.attrs["units"]) == set(frame.attrs["definitions"]) == set(frame.columns)
    assert frame[frame["policy"] == "mixed"].attrs == frame.attrs  # pandas hands them on


def test_requests_and_steps_load_with_the_config_of_the_run(run):
    write_table(run / "requests.parquet", requests_table([("b", result(2)), ("a", result(3))]))
    frame = load(run, table="requests")
    assert list(frame.columns) == REQUESTS_SCHEMA.names
    assert list(frame["cell_id"].cat.categories) == ["b", "a"]
    assert frame["rejected"].dtype == bool
    assert frame["request"].dtype == pd.Int64Dtype()
    assert frame.attrs["config"] == CONFIG
    assert frame.attrs["units"]["arrival_s"] == "s"
    joined = frame.merge(load(run)[["cell_id", "policy"]], on="cell_id")
    assert len(joined) == 5


def test_load_says_what_is_wrong(run, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with pytest.raises(ValueError, match="there is no such directory"):
        load(elsewhere / "missing")
    with pytest.raises(ValueError, match=r"not a finished run: it has no cells\.parquet"):
        load(elsewhere)
    with pytest.raises(ValueError, match=r"has no steps\.parquet"):
        load(run, table="steps")
    with pytest.raises(ValueError, match="table='cell': must be one of cells, requests, steps, instances"):
        load(run, table="cell")

    (elsewhere / "cells.parquet").write_bytes(b"not a table")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        load(elsewhere)
    pq.write_table(pa.table({"a": [1]}), elsewhere / "cells.parquet")
    with pytest.raises(ValueError, match="is not a cells table written by servesweep"):
        load(elsewhere)
    newer = {**CELLS_SCHEMA.metadata, b"servesweep.schema_version": b"99"}
    write_table(elsewhere / "cells.parquet", cells_table([row()]).replace_schema_metadata(newer))
    with pytest.raises(ValueError, match="has schema version 99, but this servesweep reads up to 1: upgrade"):
        load(elsewhere)


def test_recipes_of_the_documentation_run(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "results" / "quickstart"
    folder.mkdir(parents=True)
    measured = result(20).summary(slo=SLO(ttft_s=2.0, tpot_s=2.0))
    rows = [
        row(f"{policy} {rate} {seed}", policy, rate, seed=seed, block_size=16, **measured)
        for policy in ("mixed", "chunked")
        for rate in (1.0, 2.0)
        for seed in (0, 1)
    ]
    rows.append(row("unfit", status="infeasible", error="the weights do not fit"))
    write_table(folder / "cells.parquet", cells_table(rows, CONFIG))
    write_table(folder / "requests.parquet", requests_table([(rows[0]["cell_id"], result(20))]))
    monkeypatch.chdir(tmp_path)
    recipes = re.findall(r"```python\n(.*?)```", RECIPES.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(recipes) >= 7
    names: dict = {}
    for recipe in recipes:
        exec(recipe, names)
        assert capsys.readouterr().out.strip()
