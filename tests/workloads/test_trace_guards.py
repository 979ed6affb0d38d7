"""Files that never end, or are no files; names and values that are no text for a terminal; units that cannot be."""

import gzip
import json
import os
import resource
import socket
import time
import warnings
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servesweep.workloads.traces import load_trace, read_trace
from trace_files import AZURE, GOOD, HEAD, MOONCAKE, mooncake, parquet, same

MB = 2**20


@pytest.fixture
def bounded():
    """Nothing here takes ten seconds of work, or a GB more than was taken before."""
    before, began = peak_bytes(), time.process_time()
    yield
    assert time.process_time() - began < 10
    assert peak_bytes() - before < 1000 * MB


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ------------------------------------------------------------------------------------------------------ what is no file


def test_devices_and_folders():
    with pytest.raises(ValueError, match="/dev/zero: cannot be read: is a device: must be a file"):
        load_trace("/dev/zero")
    with pytest.raises(ValueError, match="/dev/null: cannot be read: is a device"):
        load_trace("/dev/null")
    with pytest.raises(ValueError, match="/: cannot be read: Is a directory"):
        load_trace("/")


def test_pipes_and_sockets(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: cannot be read: is a pipe: must be a file"):
        load_trace(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # for the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(ValueError, match="socket: cannot be read: is a socket"):
            load_trace("socket")


@pytest.mark.parametrize("name", ["~", "s3:t.csv", "file:t", "ü", "b\udcff"])
def test_a_name_is_a_place_and_nothing_else(tmp_path, monkeypatch, name):
    columns = {"arrival_s": [0.0, 1.0], "prompt_tokens": [5, 6], "output_tokens": [7, 8]}
    parquet(tmp_path / "t.parquet", **columns).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    same(load_trace(name), [0, 1], [5, 6], [7, 8])


def test_names_below_a_file_and_no_names(write):
    with pytest.raises(ValueError, match=r"trace.csv/more: cannot be read: Not a directory"):
        load_trace(write(AZURE) / "more")
    for path in ("", 3, None, "a\0b"):
        with pytest.raises(ValueError, match=r"path=.*: must be a path"):
            load_trace(path)


# ------------------------------------------------------------------------------------------------- what would never end


def bomb(path, unit, head=b"", level=9):
    with gzip.open(path, "wb", level) as file:
        file.write(head)
        chunk = unit * (MB // len(unit))
        for _ in range(40):
            file.write(chunk)
    assert path.stat().st_size < MB / 2
    return path


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        ("", "\0"),
        ("", "\n"),
        (HEAD, "\n"),
        (HEAD, GOOD),
        (HEAD, "1,10,0\n"),
        (HEAD, ","),
        (HEAD, '"\n",'),
        ("", MOONCAKE.splitlines(keepends=True)[0]),
        (MOONCAKE, "{\n"),
        ("", "{\n"),
        ("", "[" * 1000),
    ],
)
def test_small_files_that_expand_without_end(tmp_path, bounded, head, unit):
    path = bomb(tmp_path / "bomb.gz", unit.encode(), head.encode())
    with pytest.raises(ValueError, match=r"bomb.gz"):
        load_trace(path, on_bad="skip")


def test_little_effort_makes_a_bomb_too(tmp_path, bounded):
    path = bomb(tmp_path / "bomb.gz", GOOD.encode(), HEAD.encode(), level=1)
    with pytest.raises(ValueError, match=r"bomb.gz: its gzip data grows more than 100-fold \([\d,]+ bytes so far\)"):
        load_trace(path)


def test_what_is_needed_of_a_file_that_expands_without_end(tmp_path, bounded):
    head = (HEAD + "0,1,1\n1,2,2\n2,3,3\n").encode()
    path = bomb(tmp_path / "bomb.gz", b"3,10,10\n", head)
    same(load_trace(path, limit=2), [0, 1], [1, 2], [1, 2])


def test_files_that_expand_a_little_are_read(tmp_path):
    path = tmp_path / "same.csv.gz"
    path.write_bytes(gzip.compress((HEAD + GOOD * 200_000).encode()))
    assert len(load_trace(path)) == 200_000


@pytest.mark.parametrize("head", ["", HEAD, MOONCAKE])
def test_lines_without_end(write, bounded, head):
    path = write(head)
    os.truncate(path, 2**36)  # zeros that take no room
    line = head.count("\n") + 1
    with pytest.raises(ValueError, match=rf"trace.csv, line {line}: goes on for more than 8,388,608 characters"):
        load_trace(path, on_bad="skip")


def test_records_without_end(write, bounded):
    path = write(HEAD + GOOD + '1,"' + '\n","' * 7_000_000)
    with pytest.raises(ValueError, match=r"trace.csv, line \d+: goes on for more than .* a quote that is never closed"):
        load_trace(path, on_bad="skip")
    path = write(HEAD + GOOD + '1,"' + "1,1\n" * 6_000_000)
    with pytest.raises(ValueError, match="line 3: is not CSV: field larger"):
        load_trace(path, on_bad="skip")


def test_wide_rows_and_long_lines(write, bounded):
    wide = ",".join(f"c{i}" for i in range(100_000))
    row = "," * 100_000
    path = write(f"{HEAD.strip()},{wide}\n" + f"1,2,3{row}\n" * 3)
    assert load_trace(path).prompt_tokens.tolist() == [2, 2, 2]
    records = [{"timestamp": i, "input_length": i + 1, "output_length": 1, "text": "x" * 3_000_000} for i in range(8)]
    path = write("".join(json.dumps(record) + "\n" for record in records))
    assert load_trace(path).prompt_tokens.tolist() == list(range(1, 9))


def test_a_file_of_something_else_is_left_early(write, bounded):
    path = write(HEAD + GOOD + "1,1\n" * 150_000)
    with pytest.raises(
        ValueError, match=r"is no trace: 102,399 of its first 102,400 rows are bad, the first is .*line 3"
    ):
        load_trace(path, on_bad="skip")
    assert len(load_trace(write(HEAD + GOOD * 2000 + "1,1\n" * 150_000), on_bad="skip")) == 2000
    assert len(load_trace(write(HEAD + "1,1,0\n" * 150_000 + GOOD), on_bad="skip")) == 1


def test_parquet_with_more_rows_than_its_size_allows(tmp_path, bounded):
    n = 3_000_000
    columns = {"arrival_s": np.zeros(n), "prompt_tokens": np.ones(n, int), "output_tokens": np.ones(n, int)}
    path = parquet(tmp_path / "bomb.parquet", **columns)
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"bomb.parquet: has more than 1,\d\d\d,\d\d\d rows"):
        load_trace(path)
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="gzip")
    with pytest.raises(ValueError, match=r"bomb.parquet: has more than 1,\d\d\d,\d\d\d rows"):
        load_trace(path)


def test_parquet_with_texts_that_grow(tmp_path, bounded):
    columns = {"arrival_s": ["1" * 10_000] * 2000, "prompt_tokens": [1] * 2000, "output_tokens": [1] * 2000}
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="zstd")
    with pytest.raises(
        ValueError, match=r"bomb.parquet: cannot be read as Parquet: it grows more than 100-fold, to 20,"
    ):
        load_trace(path)


@pytest.mark.parametrize("key", ["arrival_s", "prompt_tokens"])
def test_parquet_with_a_long_text_that_repeats(tmp_path, bounded, key):
    n = 70_000
    texts = pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), ["1" * 500_000])
    columns = {"arrival_s": np.zeros(n), "prompt_tokens": np.ones(n, int), "output_tokens": np.ones(n, int)}
    path = parquet(tmp_path / "bomb.parquet", **{**columns, key: texts})
    with pytest.raises(ValueError, match=rf"bomb.parquet, row 1: {key} = '1111.*\.\.\. is (not|neither)"):
        load_trace(path)


def test_too_many_rows(write, monkeypatch):
    from servesweep.workloads import trace_columns

    monkeypatch.setattr(trace_columns, "Rows", partial(trace_columns.Rows, most_rows=10))
    assert len(load_trace(write(HEAD + GOOD * 10))) == 10
    with pytest.raises(ValueError, match=r"trace.csv: has more than 10 rows: must be cut into smaller files"):
        load_trace(write(HEAD + GOOD * 11))


# -------------------------------------------------------------------------------------------------------- the first row


@pytest.mark.parametrize(
    "line",
    [
        '{"timestamp": 0, "input_length": 10}',
        "null",
        "[1, 2]",
        '"text"',
        "17",
        '{"timestamp": 0, "inp',
        "\\x00",
        "a,b,c",
    ],
)
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_bad_json_line_is_skipped_wherever_it_is(write, line, at):
    lines = MOONCAKE.splitlines()
    path = write("\n" + "\n".join([*lines[:at], line, *lines[at:]]), "t.jsonl")
    with pytest.raises(ValueError, match=rf"t.jsonl, line {at + 2}: (is not valid JSON|is JSON, but|has no)"):
        load_trace(path)
    workload, report = read_trace(path, on_bad="skip")
    same(workload, [0.0, 0.0, 2.998, 6.001], [9000, 120, 4321, 80], [50, 700, 3, 250])
    assert (report.format, sum(report.skipped.values())) == ("mooncake", 1)


def test_bytes_that_are_no_text_in_the_first_json_line(write):
    same(load_trace(write(b"\xff\xfe\0\n" + MOONCAKE.encode()), on_bad="skip", limit=2), [0, 0], [9000, 120], [50, 700])


@pytest.mark.parametrize(
    ("first", "others", "why"),
    [
        ("2032-07-04 00:00:00", "17", "is not a number"),
        ("17", "2032-07-04 00:00:00", "is not an ISO 8601 time"),
        ("2032-07-04 00:00:00Z", "2032-07-04 00:00:00", "has a time zone, unlike most rows"),
        ("2032-07-04 00:00:00", "2032-07-04 00:00:00+02:00", "has no time zone, unlike most rows"),
        ("-1e308", "17", r"is beyond 1e\+20"),
    ],
)
def test_a_bad_arrival_in_the_first_row_makes_no_others_bad(write, first, others, why):
    path = write(HEAD + f"{first},1,1\n" + f"{others},2,2\n" * 3)
    with pytest.raises(ValueError, match=rf"line 2: arrival_s = '{first}' {why};".replace("+02", r"\+02")):
        load_trace(path)
    same(load_trace(path, on_bad="skip"), [0, 0, 0], [2, 2, 2], [2, 2, 2])


def test_huge_negative_values(write):
    path = write(
        "\ufeff" + HEAD.replace(",", ";") + "0.0;100;5\n0.5;-1e308;6\n1.0;-99999999999999999999;6\n2.0;101;7\n"
    )
    with pytest.raises(ValueError, match=r"line 3: prompt_tokens = '-1e308' is below 1 \(1 more bad"):
        load_trace(path)
    same(load_trace(path, on_bad="skip"), [0.0, 2.0], [100, 101], [5, 7])
    row = '{"timestamp": 1, "input_length": -99999999999999999999, "output_length": 1}\n'
    same(load_trace(write(row + MOONCAKE), on_bad="skip", limit=1), [0], [9000], [50])


def test_a_header_over_two_lines(write):
    path = write('arrival_s,prompt_tokens,output_tokens,"a\nnote"\n1,2,3,x\n1,0,3,x\n')
    with pytest.raises(ValueError, match="line 4: prompt_tokens = '0'"):
        load_trace(path)
    same(load_trace(path, on_bad="skip"), [0], [2], [3])


@pytest.mark.parametrize("depth", range(900, 1000, 3))
def test_lists_in_lists(write, depth):
    row = f'{{"timestamp": 1, "input_length": {"[" * depth}{"]" * depth}, "output_length": 1}}\n'
    same(load_trace(write(MOONCAKE + row), on_bad="skip", limit=1), [0], [9000], [50])


# ------------------------------------------------------------------------------------------- text for terminals, limits


def message(path, **options):
    with pytest.raises(ValueError, match=r"\w") as error:
        load_trace(path, **options)
    text = str(error.value)
    assert text.isprintable(), ascii(text)
    assert len(text) < 1500
    return text


@pytest.mark.parametrize("name", ["a\x1b[31m\nb.csv", "b\udcff.csv", "c\u202e.csv"])
def test_names_of_files_are_shown_without_control_characters(write, name):
    path = write(HEAD + "1,1,0\n" + GOOD, name)
    assert "line 2: output_tokens" in message(path)
    workload, report = read_trace(path, on_bad="skip")
    assert workload.name.isprintable()
    assert all(line.isprintable() for line in report.lines())
    assert report.path == str(path)
    with pytest.raises(FileNotFoundError) as error:
        load_trace(path.with_name("x" + name))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x00", "\u202e", "x" * 100_000, "\x07" * 100_000])
def test_names_and_values_are_shown_without_control_characters(write, bad):
    message(write(HEAD + f"1,{bad},1\n"))
    message(write(HEAD + f"{bad},1,1\n"), on_bad="skip")
    message(write(f"arrival_s,{bad}\n" + GOOD))
    message(write(HEAD + GOOD), columns={"prompt_tokens": bad})
    message(write(HEAD + GOOD), columns={bad: "x"})
    message(write(HEAD + GOOD), columns={"prompt_tokens": bad}, format="azure")
    message(write(MOONCAKE), columns={"prompt_tokens": bad})
    message(write(HEAD + GOOD), columns=[bad])
    message(write(json.dumps({bad: 1}) + "\n"))
    message(write(MOONCAKE + json.dumps({"timestamp": bad, "input_length": 1, "output_length": 1})))
    name = bad.replace("\0", "\x01")
    path = write(f"{name},prompt_tokens,output_tokens\n1,1,1\n1,0,1\n")
    _, report = read_trace(path, columns={"arrival_s": name}, on_bad="skip")
    assert all(line.isprintable() for line in report.lines())


def test_long_paths(tmp_path):
    folder = tmp_path
    for _ in range(8):
        folder /= "f" * 200
    folder.mkdir(parents=True)
    (folder / "t.csv").write_text(HEAD)
    assert message(folder / "t.csv").endswith("t.csv: has no rows after its header")


@pytest.mark.parametrize("columns", [["arrival_s"], {"arrival_s": 3}, {3: "t"}, "arrival_s", 7])
def test_columns_that_are_no_names(write, columns):
    with pytest.raises(ValueError, match=r"columns=.*: must be names of columns, by ours"):
        load_trace(write(AZURE), columns=columns)


def test_spreading_over_almost_no_end(write):
    workload = load_trace(write(HEAD + "1,1,1\n1,2,2\n"), spread_s=1e308)
    assert np.isfinite(workload.arrival_s).all()


# ------------------------------------------------------------------------------------------------- units that cannot be


def spaced(step, name="timestamp", start=0.0, n=40):
    return f"{name},prompt_tokens,output_tokens\n" + "".join(f"{start + i * step!r},1,1\n" for i in range(n))


def doubts(path, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, report = read_trace(path, **options)
        load_trace(path, **options)
    told = [str(warning.message) for warning in caught]
    assert told == ([] if report.unit_doubt is None else [f"{path}: {report.unit_doubt}"] * 2)
    assert {warning.filename for warning in caught} <= {__file__}
    assert ("caution: arrivals from" in str(report)) == bool(told)
    return report.unit_doubt


def test_seconds_that_cannot_be_seconds(write):
    assert doubts(write(spaced(0.1))) is None
    assert "were read as numbers in seconds, which makes 20,000 requests/s" in doubts(write(spaced(5e-5)))
    tiny = doubts(write(spaced(5e-7)))
    assert "were read as numbers in seconds, which makes no gap of a microsecond" in tiny
    assert "milliseconds are told by columns={'arrival_ms': 'timestamp'}" in tiny
    since = doubts(write(spaced(100.0, start=1.7e12)))
    assert "numbers in seconds, which makes years after 5138 if they count from 1970" in since
    assert doubts(write(spaced(0.1, start=1.7e9))) is None


def test_a_unit_that_was_told_is_not_doubted(write):
    assert doubts(write(spaced(5e-5, "arrival_s"))) is None
    assert doubts(write(spaced(5e-5, "timestamp_ms"))) is None
    assert doubts(write(spaced(5e-5)), columns={"arrival_s": "timestamp"}) is None
    assert doubts(write(spaced(100.0, start=1.7e12)), columns={"arrival_ms": "timestamp"}) is None


def test_arrivals_at_one_time_say_nothing_of_their_unit(write):
    assert doubts(write(spaced(0.0))) is None


def test_json_lines_in_seconds(write):
    assert doubts(write(mooncake(*((i, 1, 1) for i in range(9))))) is None
    seconds = doubts(write(mooncake(*((i / 6, 1, 1) for i in range(9)))))
    assert "were read as numbers in milliseconds, which makes 6,000 requests/s" in seconds
    assert "a column arrival_s" in seconds


def test_timestamps_made_of_seconds_taken_for_nanoseconds(tmp_path):
    stamps = pa.array(range(40), pa.int64()).cast(pa.timestamp("ns"))
    columns = {"prompt_tokens": [1] * 40, "output_tokens": [1] * 40}
    found = doubts(parquet(tmp_path / "t.parquet", timestamp=stamps, **columns))
    assert "were read as timestamps in nanoseconds, which makes no gap of a microsecond" in found
