"""Bad rows, files that are no traces, and options that cannot be: each is told with its line."""

import gzip

import pytest
from servesweep.workloads.traces import load_trace, read_trace
from trace_files import AZURE, GOOD, HEAD, MOONCAKE, parquet, same


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
