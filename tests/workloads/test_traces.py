"""Reading traces: every format, every option, and every kind of bad input with its line.

The files here are made up, numbers and dates too, in the forms of the public traces; no row of a public trace is in
this repository. Tests of the traces themselves skip without ../shared.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from servesweep.workloads import trace_formats
from servesweep.workloads.traces import load_trace, read_trace

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "traces"

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2031-03-09 07:59:58.2500000,512,40
2031-03-09 08:00:01.0000010,60,300
2031-03-09 08:00:01.5000000,1234,7
2031-03-09 08:00:03.7500000,60,21
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2032-07-04 23:59:59.500000+00:00,700,9
2032-07-05 00:00:00+00:00,80,1
2032-07-05 00:00:00.031250+00:00,3000,33
"""
PLAIN = """\
arrival_s,prompt_tokens,output_tokens
10,100,20
10.5,200,30
12,300,1
"""


def mooncake(*rows):
    keys = ("timestamp", "input_length", "output_length")
    return "".join(json.dumps({**dict(zip(keys, row, strict=True)), "hash_ids": [0, 1, 2]}) + "\n" for row in rows)


MOONCAKE = mooncake((0, 9000, 50), (0, 120, 700), (2998, 4321, 3), (6001, 80, 250))


@pytest.fixture
def write(tmp_path):
    def write(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parquet(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def same(workload, arrival_s, prompt_tokens, output_tokens):
    assert workload.arrival_s.tolist() == arrival_s
    assert workload.prompt_tokens.tolist() == prompt_tokens
    assert workload.output_tokens.tolist() == output_tokens


# ------------------------------------------------------------------------------------------------------------- formats


def test_azure(write):
    workload, report = read_trace(write(AZURE))
    same(workload, [0.0, 2.750001, 3.25, 5.5], [512, 60, 1234, 60], [40, 300, 7, 21])
    assert (report.format, report.arrivals, report.rows_read, report.requests) == ("azure", "ISO 8601 times", 4, 4)
    assert workload.name == "trace"
    assert workload.mean_rate_rps == report.mean_rate_rps == pytest.approx(3 / 5.5)


def test_azure_2024_has_a_time_zone_and_whole_seconds(write):
    workload, report = read_trace(write(AZURE_2024))
    same(workload, [0.0, 0.5, 0.53125], [700, 80, 3000], [9, 1, 33])
    assert report.format == "azure"
    assert report.first_arrival == "2032-07-04 23:59:59.500000+00:00"


def test_mooncake(write):
    workload, report = read_trace(write(MOONCAKE, "trace.jsonl"))
    same(workload, [0.0, 0.0, 2.998, 6.001], [9000, 120, 4321, 80], [50, 700, 3, 250])
    assert (report.format, report.arrivals) == ("mooncake", "numbers in milliseconds")


def test_plain_csv_begins_at_its_first_arrival(write):
    workload, report = read_trace(write(PLAIN))
    same(workload, [0.0, 0.5, 2.0], [100, 200, 300], [20, 30, 1])
    assert (report.format, report.arrivals, report.first_arrival) == ("csv", "numbers in seconds", "10")


@pytest.mark.parametrize(
    ("header", "scale"),
    [
        ("Timestamp,Request tokens,Response tokens", 1),
        ("arrived_at,num_prefill_tokens,num_decode_tokens", 1),
        ("ARRIVAL_MS,input_tokens,completion_tokens", 1000),
        ('"arrival_timestamp", "prompt_size", "token_size"', 1),
    ],
)
def test_names_that_other_tools_use(write, header, scale):
    same(load_trace(write(f"{header}\n10,100,20\n12,300,1\n")), [0.0, 2.0 / scale], [100, 300], [20, 1])


def test_columns_can_be_named(write):
    path = write("user;t;in;arrival_s;out\nx;4;7;9;8\ny;6;1;9;2\n")
    names = {"prompt_tokens": "in", "output_tokens": "out"}
    same(load_trace(path, columns={**names, "arrival_s": "t"}), [0.0, 2.0], [7, 1], [8, 2])
    same(load_trace(path, columns={**names, "arrival_ms": "t"}), [0.0, 0.002], [7, 1], [8, 2])
    same(load_trace(path, columns=names), [0.0, 0.0], [7, 1], [8, 2])


def test_plain_csv_may_have_stamps_and_whole_floats(write):
    workload = load_trace(
        write("time\tprompt_len\toutput_len\n2032-07-04T00:00:01Z\t7.0\t1e2\n2032-07-04T02:00:02+02:00\t5\t6\n")
    )
    same(workload, [0.0, 1.0], [7, 5], [100, 6])


def test_parquet(tmp_path):
    path = parquet(
        tmp_path / "t.parquet", arrival_s=[1.0, 3.0], prompt_tokens=[5, 6], output_tokens=[7, 8], user=["a", "b"]
    )
    workload, report = read_trace(path)
    same(workload, [0.0, 2.0], [5, 6], [7, 8])
    assert report.format == "parquet"
    same(load_trace(path, columns={"prompt_tokens": "output_tokens"}), [0.0, 2.0], [7, 8], [7, 8])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_stamps_are_exact(tmp_path, unit):
    stamps = np.array(["2032-07-04T00:00:00", "2032-07-04T00:00:01"], f"datetime64[{unit}]")
    stamps[1] += 1  # of the unit
    path = parquet(tmp_path / "t.parquet", timestamp=stamps, prompt_tokens=[5, 6], output_tokens=[7, 8])
    workload, report = read_trace(path)
    assert workload.arrival_s[1] == 1 + {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert report.arrivals == "timestamps"
    assert report.first_arrival.startswith("2032-07-04")


def test_the_content_decides_not_the_name(write, tmp_path):
    assert read_trace(write(MOONCAKE, "trace.csv"))[1].format == "mooncake"
    assert read_trace(write(AZURE, "trace.jsonl"))[1].format == "azure"
    path = parquet(tmp_path / "t.csv", arrival_s=[1.0], prompt_tokens=[5], output_tokens=[7])
    assert read_trace(path)[1].format == "parquet"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.rstrip("\n"),
        lambda text: "\ufeff" + text,
        lambda text: "\n\n" + text.replace("\n", "\n  \n") + "\n",
        lambda text: gzip.compress(text.encode(), mtime=0),
    ],
    ids=["crlf", "cr", "no end of line", "byte order mark", "blank lines", "gzip"],
)
@pytest.mark.parametrize("text", [AZURE, AZURE_2024, PLAIN, MOONCAKE], ids=["azure", "azure 2024", "csv", "mooncake"])
def test_line_ends_and_wrappings(write, text, change):
    plain, changed = load_trace(write(text, "a")), load_trace(write(change(text), "b"))
    same(changed, *(a.tolist() for a in (plain.arrival_s, plain.prompt_tokens, plain.output_tokens)))


def test_name(write):
    assert load_trace(write(gzip.compress(AZURE.encode(), mtime=0), "mine.csv.gz")).name == "mine"
    assert load_trace(write(AZURE), name="other").name == "other"


# -------------------------------------------------------------------------------------------------------------- options


def test_scaling_counts_the_own_mean_rate_as_unit(write):
    workload, report = read_trace(write(PLAIN), rate=4.0)
    same(workload, [0.0, 0.125, 0.5], [100, 200, 300], [20, 30, 1])  # 2 gaps at 4 requests/s
    assert (workload.mean_rate_rps, report.mean_rate_rps, report.rate_rps) == (4.0, 1.0, 4.0)
    assert "scaled: to 4 requests/s" in str(report)


def test_cuts(write):
    path = write("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{100 + i},{i + 1},1\n" for i in range(10)))
    assert load_trace(path, start_s=2, end_s=5).prompt_tokens.tolist() == [3, 4, 5]
    assert load_trace(path, start_s=2, limit=2).prompt_tokens.tolist() == [3, 4]
    assert load_trace(path, start_s=2.5).arrival_s.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert load_trace(path, limit=99).prompt_tokens.tolist() == list(range(1, 11))
    with pytest.raises(ValueError, match=r"start_s=9.5, end_s=inf: keep nothing of .*trace.csv, .* to 9 s"):
        load_trace(path, start_s=9.5)


def test_rows_out_of_order_are_sorted_stably_and_counted(write):
    path = write("arrival_s,prompt_tokens,output_tokens\n5,1,1\n3,2,1\n5,3,1\n3,4,1\n4,5,1\n")
    workload, report = read_trace(path)
    same(workload, [0, 0, 1, 2, 2], [2, 4, 5, 1, 3], [1] * 5)
    assert report.out_of_order == 2
    assert "2 rows come earlier" in str(report)


def ticks(n=120, tick=3000, each=4):
    return mooncake(*((i // each * tick + i // each % 3, i + 1, 1) for i in range(n)))


def test_spreading_within_the_tick(write):
    path = write(ticks())
    coarse, told = read_trace(path)
    workload, report = read_trace(path, spread_s="auto", seed=3)
    assert told.tick_s == report.tick_s == report.spread_s == pytest.approx(3.0, abs=0.01)
    assert told.spread_s is None
    assert "caution: arrivals come in ticks of about 3 s" in str(told)
    assert workload.prompt_tokens.tolist() == coarse.prompt_tokens.tolist()
    assert (np.diff(workload.arrival_s) > 0).all()
    first_at = 3.0 * np.arange(30)
    moved = workload.arrival_s.reshape(30, 4) - first_at[:, None]
    assert 2.8 < moved.max() - moved.min() < 3.01
    assert moved.mean() - moved.min() == pytest.approx(1.5, abs=0.3)
    assert load_trace(path, spread_s="auto", seed=3).arrival_s.tolist() == workload.arrival_s.tolist()
    assert load_trace(path, spread_s="auto", seed=4).arrival_s.tolist() != workload.arrival_s.tolist()


def test_spreading_stops_at_the_next_arrival_time(write):
    rows = [(t, 1, 1) for t in (0, 0, 0, 100, 100, 5000)]
    workload = load_trace(write(mooncake(*rows)), spread_s=2.0, seed=1)
    first = workload.arrival_s - workload.arrival_s[0]
    assert (np.diff(first) > 0).all()
    assert first[2] < 0.1
    assert first[4] < 2.1


def test_cutting_moves_no_other_request(write, monkeypatch):
    path = write(ticks())
    whole = load_trace(path, spread_s=2.5).arrival_s
    monkeypatch.setattr(trace_formats, "_BLOCK", 16)  # so that reading stops early
    part, report = read_trace(path, spread_s=2.5, limit=10)
    assert report.stopped_early
    assert report.rows_read < 120
    assert part.arrival_s == pytest.approx(whole[:10] - whole[0], abs=1e-12)
    assert load_trace(path, start_s=6, end_s=30).prompt_tokens.tolist() == list(range(9, 41))


def test_fine_arrivals_are_not_spread_by_auto(write):
    path = write(PLAIN)
    workload, report = read_trace(path, spread_s="auto")
    assert (report.tick_s, report.spread_s) == (None, None)
    assert workload.arrival_s.tolist() == load_trace(path).arrival_s.tolist()


@pytest.mark.parametrize("block", [1, 2, 3, 65_536])
def test_the_size_of_a_block_changes_nothing(write, monkeypatch, block):
    path = write(ticks(20) + "{}\n\n" + ticks(20))
    whole, report = read_trace(path, on_bad="skip")
    monkeypatch.setattr(trace_formats, "_BLOCK", block)
    again, same_report = read_trace(path, on_bad="skip")
    assert again.arrival_s.tolist() == whole.arrival_s.tolist()
    assert same_report == report


# ------------------------------------------------------------------------------------------------------------- bad rows

HEAD = "arrival_s,prompt_tokens,output_tokens\n"
GOOD = "1,10,10\n"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,ten,10", "prompt_tokens = 'ten' is not a number"),
        ("1,10,", "output_tokens = '' is empty"),
        ("1,-3,10", "prompt_tokens = '-3' is below 1"),
        ("1,10,0", "output_tokens = '0' is below 1"),
        ("1,nan,10", "prompt_tokens = 'nan' is not finite"),
        ("1,10,inf", "output_tokens = 'inf' is not finite"),
        ("1,10.5,10", "prompt_tokens = '10.5' is not a whole number"),
        ("1,10,99999999999999999999", "output_tokens = '99999999999999999999' is too large"),
        ("1,2147483648,10", "prompt_tokens = '2147483648' is too large"),
        ("nan,10,10", "arrival_s = 'nan' is not finite"),
        ("later,10,10", "arrival_s = 'later' is not a number"),
        ("2032-07-04 00:00:00,10,10", "arrival_s = '2032-07-04 00:00:00' is not a number"),
        ("x,y,z", "arrival_s = 'x' is not a number"),
        ("1,10", "has 2 fields, and the header has 3"),
        ("1", "has 1 field, and the header has 3"),
        ("1,10,10,10", "has 4 fields, and the header has 3"),
        ("1,\udcff,10", r"prompt_tokens = '\udcff' is not a number"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 500])
def test_bad_rows_of_csv(write, row, reason, before):
    text = HEAD + GOOD * before + row + "\n" + GOOD * 3
    path = write(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match="on_bad") as error:
        load_trace(path)
    # With nothing before it, the odd arrival may be the first of its kind; then it is the others that are odd.
    if before or not row.startswith("2032"):
        assert str(error.value).startswith(f"{path}, line {before + 2}: {reason}")
        workload, report = read_trace(path, on_bad="skip")
        assert (len(workload), report.rows_read, list(report.skipped.values())) == (before + 3, before + 4, [1])
        assert report.examples == (f"{path}, line {before + 2}: {reason}",)
        assert f"{before + 4:,} read, 1 bad and skipped, {before + 3:,} kept" in str(report)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("yesterday,1,1", "TIMESTAMP = 'yesterday' is not an ISO 8601 time"),
        ("17.5,1,1", "TIMESTAMP = '17.5' is not an ISO 8601 time"),
        (",1,1", "TIMESTAMP = '' is empty"),
        ("2031-03-09 25:00:00,1,1", "TIMESTAMP = '2031-03-09 25:00:00' is not an ISO 8601 time"),
        (
            "2031-03-09 18:00:00+00:00,1,1",
            "TIMESTAMP = '2031-03-09 18:00:00+00:00' has a time zone, unlike the first row",
        ),
        ("2031-03-09 08:00:01,1,0", "GeneratedTokens = '0' is below 1"),
    ],
)
def test_bad_rows_of_azure(write, row, reason):
    lines = AZURE.splitlines()
    path = write("\r\n".join([*lines[:3], row, *lines[3:]]))
    with pytest.raises(ValueError, match="line 4") as error:
        load_trace(path)
    assert str(error.value).startswith(f"{path}, line 4: {reason}")
    workload, report = read_trace(path, on_bad="skip")
    same(workload, [0.0, 2.750001, 3.25, 5.5], [512, 60, 1234, 60], [40, 300, 7, 21])
    assert report.format == "azure"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"timestamp": 27000, "input_len', "is not valid JSON, cut short perhaps: "),
        ('{"timestamp": 1, "input_length": 5}', "has no 'output_length'"),
        ('{"timestamp": 1, "input_length": 5, "output_length": null}', "output_length = None is empty"),
        ('{"timestamp": 1, "input_length": 5.5, "output_length": 1}', "input_length = 5.5 is not a whole number"),
        ('{"timestamp": 1, "input_length": true, "output_length": 1}', "input_length = True is not a number"),
        ('{"timestamp": 1, "input_length": [1], "output_length": 1}', "input_length = [1] is not a number"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1}', "timestamp = nan is not finite"),
        ('{"timestamp": 1, "input_length": 5, "output_length": -1}', "output_length = -1 is below 1"),
        ("[1, 2, 3]", "is JSON, but not an object"),
    ],
)
def test_bad_rows_of_mooncake(write, row, reason):
    lines = MOONCAKE.splitlines()
    path = write("\n".join([*lines[:2], "", row, *lines[2:]]), "trace.jsonl")
    with pytest.raises(ValueError, match="line 4") as error:
        load_trace(path)
    assert str(error.value).startswith(f"{path}, line 4: {reason}")
    same(load_trace(path, on_bad="skip"), [0.0, 0.0, 2.998, 6.001], [9000, 120, 4321, 80], [50, 700, 3, 250])


def test_a_file_cut_short(write):
    path = write(MOONCAKE[:-10], "trace.jsonl")
    with pytest.raises(ValueError, match=r"trace.jsonl, line 4: is not valid JSON"):
        load_trace(path)
    path = write(AZURE[:-4])
    with pytest.raises(ValueError, match=r"trace.csv, line 5: has 2 fields"):
        load_trace(path)


def test_bad_rows_of_parquet(tmp_path):
    path = parquet(
        tmp_path / "t.parquet",
        arrival_s=[1.0, 2.0, None, 4.0],
        prompt_tokens=[5, None, 6, 7],
        output_tokens=[1, 1, 1, 0],
    )
    with pytest.raises(ValueError, match=r"t.parquet, row 2: prompt_tokens = None is empty \(2 more bad"):
        load_trace(path)
    workload, report = read_trace(path, on_bad="skip")
    same(workload, [0.0], [5], [1])
    assert report.skipped == {"prompt_tokens is empty": 1, "arrival_s is empty": 1, "output_tokens is below 1": 1}


def test_many_bad_rows_are_counted_by_reason_and_the_first_named(write):
    path = write(HEAD + GOOD + "1,0,1\n" + GOOD + "1,1\n" + "x,0,0\n" + "1,1,0\n" * 5)
    with pytest.raises(ValueError, match=r"line 3: prompt_tokens = '0' is below 1 \(7 more bad in the first 10 rows\)"):
        load_trace(path)
    workload, report = read_trace(path, on_bad="skip")
    assert len(workload) == 2
    assert report.skipped == {
        "prompt_tokens is below 1": 1,
        "wrong number of fields": 1,
        "arrival_s is not a number": 1,
        "output_tokens is below 1": 5,
    }
    assert [example.split(": ")[0].split(", ")[-1] for example in report.examples] == ["line 3", "line 5", "line 6"]


def test_a_record_over_two_lines_keeps_the_count(write):
    path = write('arrival_s,prompt_tokens,output_tokens,note\n1,1,1,"two\nlines"\n1,1,1,\n1,0,1,\n')
    with pytest.raises(ValueError, match="line 5: prompt_tokens = '0'"):
        load_trace(path)


@pytest.mark.parametrize("on_bad", ["error", "skip"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "trace.csv: is empty"),
        ("\n \r\n\n", "trace.csv: is empty"),
        (gzip.compress(b"", mtime=0), "trace.csv: is empty"),
        (HEAD, "trace.csv: has no rows after its header"),
        (HEAD + "\n\n", "trace.csv: has no rows after its header"),
        (
            "time,tokens\n1,2\n",
            "line 1: has no column for prompt_tokens, but time, tokens: must have one of prompt_tokens",
        ),
        ("\n0.5,100,20\n", "line 2: has no column for arrival_s, but 0.5, 100, 20: must"),
        ("time,input_tokens\n1,10\n", "line 1: has no column for output_tokens"),
        (HEAD.replace("output", "prompt") + GOOD, "line 1: has 2 columns named 'prompt_tokens'"),
        ("time,time,input_tokens,output_tokens\n1,1,1,1\n", "line 1: has 2 columns named 'time'"),
        ('{"a": 1}\n', "line 1: has no 'timestamp' but a: JSON lines must be in Mooncake's format"),
        ('{"timestamp": 1\n', "line 1: is not valid JSON"),
        (HEAD + GOOD + '1,"10,10\n' + GOOD, "line 3: is not CSV: unexpected end of data"),
        (HEAD + "x,1,1\ny,1,1\n", "line 2: arrival_s = 'x' is neither a number nor an ISO 8601 time"),
        (gzip.compress(AZURE.encode(), mtime=0)[:-20], "trace.csv: its gzip data is damaged or cut short"),
        (b"\x1f\x8b nonsense", "trace.csv: its gzip data is damaged or cut short"),
        (b"PAR1 nonsense", "trace.csv: cannot be read as Parquet"),
        (AZURE.encode("utf-16"), "line 1: is not UTF-8 text: must be CSV, JSON lines or Parquet"),
        (AZURE.encode("utf-16-le"), "line 1: is not UTF-8 text"),
        (b"a" * 300_000, "line 1: is not CSV: field larger"),
        (",".join(f"column{i}" for i in range(5000)).encode(), "has no column for arrival_s, but .{0,200}: must"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not UTF-8 text"),
        (b"\x7fELF\x1b[31m,ab\n1,2\n", r"has no column for arrival_s, but \\x7fELF\\x1b\[31m, ab: must"),
    ],
)
def test_files_that_are_no_traces(write, content, message, on_bad):
    with pytest.raises(ValueError, match=message):
        load_trace(write(content), on_bad=on_bad)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv: there is no such trace file"):
        load_trace(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        load_trace(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, "format='xml': must be None or one of azure, mooncake, csv, parquet"),
        ({"format": "mooncake"}, "holds the Azure format: format='mooncake' does not fit"),
        ({"format": "parquet"}, "format='parquet' does not fit"),
        ({"on_bad": "warn"}, "on_bad='warn': must be one of error, skip"),
        ({"rate": 0}, "rate=0: must be a positive"),
        ({"rate": float("nan")}, "rate=nan: must be a positive"),
        ({"start_s": -1}, "start_s=-1: must be a finite number of at least 0"),
        ({"start_s": 2, "end_s": 2}, "end_s=2: must be above start_s=2"),
        ({"end_s": 0}, "end_s=0: must be a positive"),
        ({"limit": 0}, "limit=0: must be an integer of at least 1"),
        ({"spread_s": 0}, "spread_s=0: must be a positive"),
        ({"spread_s": "yes"}, "spread_s='yes': must be \"auto\""),
        ({"seed": -1}, "seed=-1"),
        ({"limit": 1, "rate": 2.0}, r"rate=2.0: .* has no mean rate to scale"),
        ({"format": "azure", "columns": {"arrival_s": "TIMESTAMP"}}, "columns=.*: has no effect with format='azure'"),
        ({"columns": {"arrival": "TIMESTAMP"}}, "has 'arrival': must have keys of arrival_s"),
        ({"columns": {"arrival_s": "t"}}, "line 1: has no column for arrival_s, but TIMESTAMP.*: columns names 't'"),
        ({"columns": {"arrival_s": "t", "arrival_ms": "t"}}, "must have one of arrival_s and arrival_ms"),
    ],
)
def test_options_that_cannot_be(write, options, message):
    with pytest.raises(ValueError, match=message):
        load_trace(write(AZURE), **options)


def test_columns_have_no_effect_on_json(write):
    with pytest.raises(ValueError, match=r"columns=.*: has no effect on JSON lines"):
        load_trace(write(MOONCAKE), columns={"arrival_s": "timestamp"})


# ------------------------------------------------------------------------------------------------------- public traces


def public(name):
    path = PUBLIC / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the repository in ../shared/traces")
    return path


@pytest.mark.parametrize(
    ("name", "format", "n", "span", "rate"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 3501.721937, 5.5301),
        ("AzureLLMInferenceTrace_code.csv", "azure", 8_819, 3435.948056, 2.5664),
        ("mooncake_conversation_trace.jsonl", "mooncake", 12_031, 3536.999, 3.4012),
    ],
)
def test_public_traces(name, format, n, span, rate):
    workload, report = read_trace(public(name))
    assert (report.format, len(workload), report.rows_read, report.skipped) == (format, n, n, {})
    assert report.span_s == workload.arrival_s[-1] == pytest.approx(span, abs=1e-6)
    assert report.mean_rate_rps == pytest.approx(rate, abs=1e-4)


def test_mooncake_comes_in_ticks():
    path = public("mooncake_conversation_trace.jsonl")
    workload, report = read_trace(path, spread_s="auto")
    assert report.tick_s == pytest.approx(3.0, abs=0.01)
    assert len(np.unique(workload.arrival_s)) == len(workload)
    gaps = np.diff(workload.arrival_s)
    assert 0.9 < gaps.std() / gaps.mean() < 1.2
