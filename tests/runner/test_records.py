"""Lines of a journal that are whole, but say what cannot be: they count as damaged, and are not believed."""

import base64
import json
import shutil
import zlib

import numpy as np
import pytest
from servesweep.measures.columns import MEASURES
from servesweep.runner.cells import FORM
from servesweep.runner.journal import decode_line, encode_line
from servesweep.runner.records import is_sound
from servesweep.runner.runner import run_grid
from small_sweep import CELLS, SWEEP, digests

FEW = {"n_requests": 20, "seed": 0, "chip": "h100-sxm", "request_rate_rps": [4, 40], "block_size": 64}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    (folder / "small.toml").write_text(SWEEP)
    run_grid(folder / "small.toml", out=folder / "out", workers=1, progress=False, settings=FEW, max_batch_cells=2)
    return folder


def raw(text):
    return b"%08x %b\n" % (zlib.crc32(text), text)


def measures(record, **changes):
    """The values of a record with some measures replaced."""
    values = np.frombuffer(base64.b64decode(record["values"]), "<f8").copy()
    for name, value in changes.items():
        values[MEASURES.index(name)] = value
    return base64.b64encode(values.tobytes()).decode()


NAN = float("nan")
WRONG = {
    "a status that there is not": lambda r: r | {"status": "fine"},
    "no status": lambda r: {k: v for k, v in r.items() if k != "status"},
    "a failure without a reason": lambda r: r | {"status": "failed"},
    "a reason that is no text": lambda r: r | {"status": "failed", "error": ["x"]},
    "an id that is no id": lambda r: r | {"cell": "../../x"},
    "an id that is a list": lambda r: r | {"cell": [r["cell"]]},
    "a batch that is text": lambda r: r | {"batch": "1"},
    "a batch out of range": lambda r: r | {"batch": 10**30},
    "a negative batch": lambda r: r | {"batch": -1},
    "values that are a list": lambda r: r | {"values": [1.0]},
    "values that are no base64": lambda r: r | {"values": "!" + r["values"][1:]},
    "values that are cut": lambda r: r | {"values": base64.b64encode(base64.b64decode(r["values"])[:-3]).decode()},
    "a measure too few": lambda r: r | {"values": base64.b64encode(base64.b64decode(r["values"])[:-8]).decode()},
    "a measure too many": lambda r: r | {"values": base64.b64encode(base64.b64decode(r["values"]) + bytes(8)).decode()},
    "no values": lambda r: {k: v for k, v in r.items() if k != "values"},
    "a form that is a number": lambda r: r | {"form": 3},
    "an attainment above 1": lambda r: r | {"values": measures(r, attainment=1.5)},
    "an infinite measure": lambda r: r | {"values": measures(r, ttft_p99_s=np.inf)},
    "a negative time": lambda r: r | {"values": measures(r, ttft_p99_s=-1.0)},
    "a part of a step": lambda r: r | {"values": measures(r, steps=1.5)},
    "more steps than can be counted": lambda r: r | {"values": measures(r, steps=2.0**60)},
    "more requests than the cell has": lambda r: r | {"values": measures(r, finished=21)},
    "fewer requests than the cell has": lambda r: r | {"values": measures(r, finished=19)},
    "no number of requests": lambda r: r | {"values": measures(r, rejected=NAN)},
    "a window larger than the cell": lambda r: r | {"values": measures(r, attainment_requests=21)},
    "measures by name that are texts": lambda r: {"cell": r["cell"], "status": "ok", "measures": {"attainment": "1"}},
    "measures by name that are a list": lambda r: {"cell": r["cell"], "status": "ok", "measures": [1.0]},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_cell_that_cannot_be_runs_again(done, tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "out" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if b'"status"' in line)
    lines[at] = encode_line(WRONG[what](decode_line(lines[at])))
    path.write_bytes(b"".join(lines))
    again = run_grid("small.toml", out="out", progress=False, workers=1, settings=FEW)
    assert again.notes == (f"out/journal.jsonl: line {at + 1} is damaged and left out; what stood there runs again",)
    assert again.counts["reused"] == again.counts["cells"] - 1 == 5
    assert digests(tmp_path / "out") == digests(done / "out")


@pytest.mark.parametrize(
    "line",
    [
        raw(b"[1]"),
        raw(b"3"),
        raw(b"{}"),
        raw(b""),
        raw(b'{"cell":"0000000000000000","status":"ok","measures":{"steps":NaN}}'),
        raw(b'{"cell":"0000000000000000","cell":"0000000000000001","status":"failed","error":"x"}'),
        raw(b"[" * 100_000),
        raw(b'{"end":"\xff"}'),
        raw('{"end":"done"}'.encode("utf-16")),
        raw(b'{"batch":1' + b"0" * 5000 + b"}"),
        encode_line({"batch": 0, "cells": "x", "wall_s": 1, "cpu_s": 1, "host": None, "pid": 1, "ended_unix_s": 0}),
        encode_line({"batch": 0, "cells": 1, "wall_s": -1, "cpu_s": 1, "host": None, "pid": 1, "ended_unix_s": 0}),
        encode_line({"batch": 0, "cells": 1, "wall_s": 1, "cpu_s": 1, "host": [], "pid": 2**70, "ended_unix_s": 0}),
        encode_line({"batch": 0}),
        encode_line({"journal": "1"}),
        encode_line({"journal": 2}),
        encode_line({"journal": 2, "rules": "1"}),
        encode_line({"journal": 2, "rules": 1, "form": "x", "measures": [1]}),
        encode_line({"journal": 2, "rules": 1, "form": FORM, "measures": [*MEASURES[::-1]]}),
        encode_line({"end": 3}),
        encode_line({"of a later kind": 3}),
    ],
    ids=lambda line: line[9:40].decode("ascii", "replace").strip(),
)
def test_other_lines_that_say_nothing_are_left_out(done, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    with open("out/journal.jsonl", "ab") as file:
        file.write(line)
    number = len((tmp_path / "out" / "journal.jsonl").read_bytes().splitlines())
    again = run_grid("small.toml", out="out", progress=False, workers=1, settings=FEW)
    assert again.notes == (f"out/journal.jsonl: line {number} is damaged and left out; what stood there runs again",)
    assert again.counts["reused"] == again.counts["cells"]
    assert digests(tmp_path / "out") == digests(done / "out")


def test_what_a_run_writes_is_sound(done):
    records = [decode_line(line) for line in (done / "out" / "journal.jsonl").read_bytes().splitlines(keepends=True)]
    assert all(map(is_sound, records))
    assert [kind for kind in ("journal", "batch", "cell", "end") if any(kind in record for record in records)]
    assert is_sound(json.loads('{"cell":"0123456789abcdef","batch":3,"status":"failed","error":"E: \\udce9"}'))


def test_names_that_are_not_utf8_survive_a_line():
    record = {"cell": "0123456789abcdef", "status": "failed", "error": "caf\udce9"}
    assert decode_line(encode_line(record)) == record


def test_a_new_batch_takes_no_number_of_cells_whose_batch_is_lost(done, tmp_path, monkeypatch):
    """Otherwise its time would stand in their rows."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "out" / "journal.jsonl"
    records = [decode_line(line) for line in path.read_bytes().splitlines(keepends=True)]
    kept = [record for record in records if record.get("batch") != 2 or "cell" in record]
    last = max(at for at, record in enumerate(kept) if "cell" in record)
    del kept[last - 1 :]  # one cell of the last batch is left, but not what is known of the batch
    path.write_bytes(
        b"".join(map(encode_line, [*kept, next(r for r in records if r.get("batch") == 2 and "cell" in r)]))
    )
    from servesweep.tables.reading import load

    again = run_grid("small.toml", out="out", progress=False, workers=1, settings=FEW)
    timings = load("out", "timings")
    assert again.counts["reused"] == 5
    assert timings["batch_cells"].isna().sum() == 1
    assert timings["batch"].max() == 3


def test_rows_of_another_number_are_not_reused(done, tmp_path, monkeypatch):
    """A table that lost rows, in a file that can be read: the cells that lack some run again."""
    from servesweep.tables.build import write_table
    from servesweep.tables.parquet_files import read_table

    for table in ("requests", "steps", "instances"):
        folder = tmp_path / table
        shutil.copytree(done, folder)
        monkeypatch.chdir(folder)
        path = folder / "out" / f"{table}.parquet"
        write_table(path, read_table(path).slice(1))
        again = run_grid("small.toml", out="out", progress=False, workers=1, settings=FEW)
        assert again.counts["reused"] == 5
        assert digests(folder / "out") == digests(done / "out")
    assert CELLS
