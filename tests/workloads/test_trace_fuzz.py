"""Valid traces in every format, damaged in every way: each is read, or refused with a message that names the file.

150 files by default; SERVESWEEP_FUZZ=2000 tries so many. File 17 again, and what came of it:

    python tests/workloads/test_trace_fuzz.py 17 1 FOLDER
"""

import contextlib
import csv
import faulthandler
import gzip
import io
import json
import os
import random
import subprocess
import sys
import time
import traceback
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from peak_memory import peak_bytes

FILES = int(os.environ.get("SERVESWEEP_FUZZ") or 150)
A_PROCESS = 250  # files
SECONDS, BYTES = 10, 10**9  # that one file may take: of work, as other work on the machine must not count
HUNG = 300  # seconds

# ---------------------------------------------------------------------------------------------------------- valid files

ARRIVALS = ("arrival_s", "timestamp", "Arrived At", "time", "arrival_ms", "timestamp_ms")
PROMPTS = ("prompt_tokens", "input_tokens", "ContextTokens", "input_length")
OUTPUTS = ("output_tokens", "completion_tokens", "GeneratedTokens", "token_size")
NAMES = ("t.csv", "ü.trace", "~", "s3:t.csv", "a\x1b[31m.csv", "b\udcff.csv", "c\n.csv", "x" * 200)


def rows(rng):
    """Requests: arrival in microseconds, prompt, output, priority."""
    n, at = rng.choice([1, 2, 3, 40, 40, 40, 700]), rng.randrange(10**6)
    out = []
    for _ in range(n):
        at += rng.choice([0, 1000, 250_000, 3_000_000])
        out.append((at, rng.randint(1, 100), rng.randint(1, 100), rng.randint(-3, 3)))
    return out


def seconds(us, ms):
    return f"{us / 1000:.3f}" if ms else f"{us / 1e6:.6f}"


def as_csv(rng, requests):
    arrival, with_priority, extra = rng.choice(ARRIVALS), rng.random() < 0.3, rng.random() < 0.3
    ms, delimiter = arrival.endswith("_ms"), rng.choice(",;\t")
    header = [arrival, rng.choice(PROMPTS), rng.choice(OUTPUTS)]
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=rng.choice(["\n", "\r\n", "\r"]))
    writer.writerow(header + ["priority"] * with_priority + ["note"] * extra)
    for at, prompt, output, priority in requests:
        more = [priority] * with_priority + [rng.choice(["", "a", f'"{delimiter}\n'])] * extra
        writer.writerow([seconds(at, ms), prompt, output, *more])
    return rng.choice(["", "\ufeff", "\n \n"]) + stream.getvalue()


def as_azure(rng, requests):
    zone = rng.choice(["", "+00:00", "+02:00"])
    begin = datetime(2032, 7, 4, 23, 59, tzinfo=UTC)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for at, prompt, output, _ in requests:
        stamp = (begin + timedelta(microseconds=at)).replace(tzinfo=None)
        lines.append(f"{stamp.isoformat(' ', 'microseconds')}{zone},{prompt},{output}")
    return "\n".join(lines) + "\n" * rng.randint(0, 2)


def as_mooncake(rng, requests):
    keys = ("timestamp", "input_length", "output_length")
    more = rng.choice([lambda _: {}, lambda p: {"hash_ids": [*range(-(-p // 512))]}, lambda _: {"text": "ü\n"}])
    rows = [(more(p), (t / 1000, p, o)) for t, p, o, _ in requests]
    lines = [json.dumps({**other, **dict(zip(keys, row, strict=True))}) for other, row in rows]
    return "\n".join(lines) + rng.choice(["", "\n", "\n\n"])


def as_parquet(rng, requests):
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = parquet_columns(rng, requests)
    store_schema = rng.random() < 0.7
    if rng.random() < 0.5:
        retype(rng, arrays, len(requests))
        requests = None
    elif not store_schema and any(isinstance(a, pa.Array) and pa.types.is_duration(a.type) for a in arrays.values()):
        requests = None  # Parquet itself has no durations
    stream = io.BytesIO()
    with contextlib.suppress(pa.ArrowException):  # what cannot be written stays a file cut short
        pq.write_table(
            pa.table(arrays),
            stream,
            compression=rng.choice(["none", "snappy", "gzip", "zstd", "brotli"]),
            use_dictionary=rng.random() < 0.5,
            row_group_size=rng.choice([7, 100, 10**6]),
            data_page_version=rng.choice(["1.0", "2.0"]),
            store_schema=store_schema,
            write_page_checksum=rng.random() < 0.3,
        )
    return stream.getvalue(), requests


def parquet_columns(rng, requests):
    import pyarrow as pa

    times, prompts, outputs, priorities = (np.array(column) for column in zip(*requests, strict=True))
    kinds = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
    arrival = rng.choice(ARRIVALS)
    scale = 1000 if arrival.endswith("_ms") else 10**6
    clock = rng.choice([None, pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.duration("us")])
    arrivals = times / scale if clock is None else pa.array(times).cast(pa.timestamp("us")).cast(pa.int64())
    if clock is not None:
        arrivals = pa.array(times * (1000 if "ns" in str(clock) else 1)).cast(clock)
    arrays = {arrival: arrivals}
    for names, values in ((PROMPTS, prompts), (OUTPUTS, outputs)):
        column = pa.array(values.astype(rng.choice(kinds)))
        arrays[rng.choice(names)] = column.dictionary_encode() if rng.random() < 0.2 else column
    if rng.random() < 0.3:
        arrays["priority"] = priorities.astype(rng.choice(["i1", "i8", "f4"]))
    if rng.random() < 0.3:
        arrays["a.b"] = pa.array([{"c": [1]}] * len(requests))
    return arrays


def retype(rng, arrays, n):
    """One column with values of another type, or none, or extreme ones."""
    import pyarrow as pa

    low, high = -(2**63), 2**63 - 1
    ticks = [rng.choice([low, high, 0, 1, -1, 10**18, None]) for _ in range(n)]
    nasty = [rng.choice([*NASTY, None]) for _ in range(n)]
    kind = rng.choice(
        [
            *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Mars/Phobos")),
            *(pa.duration("s"), pa.duration("ns"), pa.time64("ns"), pa.date64(), pa.int64(), pa.float64()),
        ]
    )
    choice = rng.choice(
        [
            lambda: pa.array(ticks, pa.int64()).cast(kind, safe=False),
            lambda: pa.array(ticks, pa.int64()).cast(pa.float32(), safe=False),
            lambda: pa.array([rng.choice([1e308, -1e308, np.nan, np.inf, 5e-324, 7, None]) for _ in range(n)]),
            lambda: pa.array([text if text is None else text.encode(errors="replace") for text in nasty]),
            lambda: pa.array([text if text is None else text.replace("\udcff", "?") for text in nasty]),
            lambda: pa.array([rng.randrange(2**31) for _ in range(n)], pa.int32()).cast(pa.date32()),
            lambda: pa.array([rng.choice([True, False, None]) for _ in range(n)]),
            lambda: pa.array([rng.choice([[1], [], None]) for _ in range(n)], pa.list_(pa.int8())),
            lambda: pa.array([{"a": {"b": 1}}] * n),
            lambda: pa.nulls(n),
        ]
    )
    name = rng.choice(list(arrays))
    with contextlib.suppress(pa.ArrowException):
        arrays[name] = choice()


# --------------------------------------------------------------------------------------------------------------- damage

NASTY = [
    *("", " ", "nan", "-nan", "inf", "-inf", "1e308", "-1e308", "1e400", "1e-320", "-0.0", "0", "-1", "1.5", "+5"),
    *("2147483647", "2147483648", "-99999999999999999999", "99999999999999999999", "1_000", "0x10", "\u0663", "1e2"),
    *("2032-07-04", "2032-07-04T00:00:00+14:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59"),
    *("2032-W27-7", "24:00", "True", "null", "None", "[1]", "{}", "=1+1", "1,1", ";", '"', '"\n"', "'", "\\", "\r"),
    *("\0", "\x1b[31m", "\u202e", "\udcff", "\ufeff", "x" * 200_000, "9" * 5000, "0" * 5000 + "1", "\n", "#", "[bold]"),
]
NASTY_JSON = [
    *(
        "null",
        "true",
        "NaN",
        "-Infinity",
        "1e999",
        "-1e308",
        "5e-324",
        "[1]",
        "{}",
        '"5"',
        '"x"',
        "9" * 5000,
        "9" * 400,
    ),
    *("[" * 990 + "]" * 990, "[" * 10**5, '"\\ud800"', '"\\u0000"', "-99999999999999999999", "1.5", "0", "tru", ""),
]


def flip(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 10, 100])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def flip_end(rng, data):
    """Flips in the last bytes, where Parquet says what is where."""
    at = rng.randrange(min(len(data), 900)) + 1
    return data[:-at] + bytes([rng.randrange(256)]) + data[len(data) - at + 1 :]


def cut(rng, data):
    return data[: rng.randrange(len(data))]


def without_middle(rng, data):
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:start] + data[end:]


def twice(rng, data):
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:end] + data[start:]


def insert(rng, data):
    at = rng.randrange(len(data))
    what = rng.choice(
        [b"\0" * 1000, b"\xff\xfe", b"\n" * 5000, b'"', b"\x1f\x8b\x08\0", b"PAR1", b"{", os.linesep.encode()]
    )
    return data[:at] + what * rng.choice([1, 1, 50]) + data[at:]


def replace_values(rng, data):
    text = data.decode("utf-8", "surrogateescape")
    end = "\r\n" if "\r\n" in text else "\r" if "\r" in text else "\n"
    lines = text.split(end)
    for _ in range(rng.choice([1, 1, 5])):
        at = rng.randrange(len(lines)) if rng.random() < 0.8 else 0
        if lines[at].lstrip("\ufeff").startswith("{"):
            parts = lines[at].split(": ")
            parts[rng.randrange(len(parts))] = rng.choice(NASTY_JSON) + rng.choice(["", ', "output_length"'])
            lines[at] = ": ".join(parts)
        else:
            delimiter = max(",;\t", key=lines[at].count)
            fields = lines[at].split(delimiter)
            fields[rng.randrange(len(fields))] = rng.choice(NASTY)
            lines[at] = delimiter.join(fields)
    return end.join(lines).encode("utf-8", "surrogateescape")


def replace_lines(rng, data):
    lines = data.split(b"\n")
    for _ in range(rng.choice([1, 1, 5])):
        what = rng.choice([*NASTY, *NASTY_JSON]).encode("utf-8", "surrogateescape")
        at = rng.randrange(len(lines)) if rng.random() < 0.7 else 0
        lines[at] = rng.choice([what, lines[at] + what, lines[at] + b"," + what, what + b"\n" + lines[at], b""])
    return b"\n".join(lines)


ANY_DAMAGE = (flip, cut, without_middle, twice, insert, flip_end, flip_end)
TEXT_DAMAGE = (replace_values, replace_values, replace_values, replace_lines, replace_lines, *ANY_DAMAGE)


def draw(seed):
    """A name, the bytes of a file, options, and the requests in it where it is whole."""
    rng = random.Random(seed)
    requests = rows(rng)
    form = rng.choice([as_csv, as_azure, as_mooncake, as_parquet])
    if form is as_parquet:
        data, requests = as_parquet(rng, requests)
    else:
        data = form(rng, requests).encode()
    whole = rng.random() < 0.15
    damages = ANY_DAMAGE if form is as_parquet else TEXT_DAMAGE
    packed = rng.random() < 0.2
    if not whole:
        for _ in range(rng.choice([0, 1, 1, 2] if packed or requests is None else [1, 1, 2])):
            data = rng.choice(damages)(rng, data or b"\n")
    if packed and form is not as_parquet:
        data = gzip.compress(data, mtime=0)
        if not whole:
            data = rng.choice([lambda rng, data: data, *ANY_DAMAGE])(rng, data)
    name = rng.choice(["t.csv"] * 5 + list(NAMES))
    options = rng.choice([{}, {}, {"limit": 5}, {"rate": 8.0}, {"spread_s": "auto"}, {"start_s": 0.5}, {"end_s": 1.5}])
    return name, data, options, requests if whole else None


# -------------------------------------------------------------------------------------------------------- what is right


def check(path, options, requests):
    """Reads a file twice; AssertionError says what is not as it should be."""
    from servesweep import TraceReport, Workload, read_trace
    from servesweep.workloads.trace_rows import escaped

    came = {}
    for on_bad in ("error", "skip"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                came[on_bad] = read_trace(path, on_bad=on_bad, **options)
            except (ValueError, FileNotFoundError) as error:
                came[on_bad] = error
        assert all(warning.category is UserWarning for warning in caught), [str(w.message) for w in caught]
        texts = [str(warning.message) for warning in caught]
        if isinstance(came[on_bad], Exception):
            assert type(came[on_bad]) in (ValueError, FileNotFoundError), repr(came[on_bad])
            texts.append(str(came[on_bad]))
        for text in texts:
            assert escaped(path.name) in text, text
            assert text.isprintable(), ascii(text)
            assert len(text) < 2000, len(text)
        if isinstance(came[on_bad], tuple):
            workload, report = came[on_bad]
            assert (type(workload), type(report)) == (Workload, TraceReport)
            assert len(workload) == report.requests > 0
            assert workload.arrival_s[0] == 0 <= np.diff(workload.arrival_s).min(initial=0)
            assert all(line.isprintable() and len(line) < 2000 for line in report.lines())
            assert np.isnan(report.mean_rate_rps) or report.mean_rate_rps > 0
    if isinstance(came["error"], tuple):
        assert_same(*(came[on_bad][0] for on_bad in ("error", "skip")))
    if requests is not None and not options:
        workload = came["error"][0]
        assert np.allclose(workload.arrival_s, [(at - requests[0][0]) / 1e6 for at, *_ in requests], atol=1e-6)
        assert workload.prompt_tokens.tolist() == [prompt for _, prompt, _, _ in requests]
        assert workload.output_tokens.tolist() == [output for _, _, output, _ in requests]
        assert workload.priority is None or workload.priority.tolist() == [priority for *_, priority in requests]
    return {key: "read" if isinstance(value, tuple) else str(value) for key, value in came.items()}


def assert_same(a, b):
    for key in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert getattr(a, key).tolist() == getattr(b, key).tolist(), key


def main(first, count, folder):
    """Tries files, and writes what was wrong with them; the last line of `progress` says which one is at work."""
    folder.mkdir(exist_ok=True)
    problems, outcomes = [], {}
    peak_bytes()
    for seed in range(first, first + count):
        name, data, options, requests = draw(seed)
        path = folder / name
        path.write_bytes(data)
        (folder / "progress").write_text(f"{seed}")
        faulthandler.dump_traceback_later(HUNG, exit=True)
        before, began = peak_bytes(), time.process_time()
        try:
            outcomes[seed] = check(path, options, requests)
        except Exception:
            problems.append(f"file {seed}, {options}: {traceback.format_exc()}")
        faulthandler.cancel_dump_traceback_later()
        took, more = time.process_time() - began, peak_bytes() - before
        if took > SECONDS or more > BYTES:
            problems.append(f"file {seed}, {options}: took {took:.1f} s and {more / 1e6:,.0f} MB")
        if not problems or not problems[-1].startswith(f"file {seed},"):
            path.unlink()
    (folder / "problems").write_text(json.dumps(problems))
    return problems, outcomes


def run(first, count, folder):
    process = subprocess.run(
        [sys.executable, __file__, str(first), str(count), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    at = (folder / "progress").read_text() if (folder / "progress").exists() else "none"
    assert process.returncode == 0, f"{process.returncode} at file {at}: {process.stderr[-3000:]}"
    assert (process.stdout, process.stderr) == ("", "")
    return json.loads((folder / "problems").read_text())


@pytest.mark.parametrize("first", range(0, FILES, A_PROCESS))
def test_damaged_traces(tmp_path, first):
    problems = run(first, min(A_PROCESS, FILES - first), tmp_path / "files")
    assert not problems, f"{len(problems)} files, as:\n" + "\n".join(problems[:5])


def test_whole_files_are_drawn_too():
    drawn = [draw(seed) for seed in range(150)]
    assert sum(requests is not None for *_, requests in drawn) > 10


if __name__ == "__main__":
    found, results = main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    if int(sys.argv[2]) == 1:
        print(*found, *results.items(), sep="\n")
