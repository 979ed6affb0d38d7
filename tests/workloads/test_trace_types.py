"""Columns of a trace in every type that Parquet has, extreme values in each, and what no row can be."""

import base64
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servesweep.workloads.traces import load_trace, read_trace
from trace_files import parquet, same

LEAST, MOST = -(2**63), 2**63 - 1
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")


@pytest.fixture
def write(tmp_path):
    def write(**columns):
        columns = {"arrival_s": [0.0, 1.0], "prompt_tokens": [5, 6], "output_tokens": [7, 8], **columns}
        return parquet(tmp_path / "t.parquet", **columns)

    return write


def as_type(values, kind):
    return pa.array(values, pa.int64()).cast(kind)


# -------------------------------------------------------------------------------------------------- numbers of any type


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("key", ["arrival_s", "prompt_tokens", "output_tokens", "priority"])
@pytest.mark.parametrize("kind", INTEGERS + FLOATS)
def test_numbers_of_any_type(write, kind, key):
    workload = load_trace(write(**{key: np.array([100, 120]).astype(kind)}))
    expected = [0.0, 20.0] if key == "arrival_s" else [100, 120]
    assert getattr(workload, key).tolist() == expected
    assert getattr(workload, key).dtype == (np.float64 if key == "arrival_s" else np.int64)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", INTEGERS + FLOATS)
def test_numbers_of_any_type_with_gaps(write, kind):
    path = write(prompt_tokens=pa.array([None, np.dtype(kind).type(100)], pa.from_numpy_dtype(np.dtype(kind))))
    with pytest.raises(ValueError, match=r"t.parquet, row 1: prompt_tokens = None is empty"):
        load_trace(path)
    same(load_trace(path, on_bad="skip"), [0.0], [100], [8])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([100, 120]).dictionary_encode(),
        pa.array(["100", "120"]),
        pa.array(["100", "120"]).dictionary_encode(),
        pa.array(["100", "120.0"], pa.large_string()),
        pa.array([Decimal("100.00"), Decimal("120")], pa.decimal128(20, 2)),
        pa.array([Decimal(100), Decimal(120)], pa.decimal256(60, 2)),
    ],
    ids=lambda column: str(column.type),
)
def test_other_columns_that_hold_numbers(write, column):
    assert load_trace(write(prompt_tokens=column)).prompt_tokens.tolist() == [100, 120]
    assert load_trace(write(arrival_s=column)).arrival_s.tolist() == [0.0, 20.0]


def ends(kind):
    return np.iinfo(kind) if kind in INTEGERS else np.finfo(kind)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("key", ["prompt_tokens", "priority"])
@pytest.mark.parametrize("kind", INTEGERS + FLOATS)
def test_the_ends_of_every_type(write, kind, key):
    for end, limit, reason in (
        (ends(kind).max, 2**31 - 1, "is too large"),
        (ends(kind).min, 1 if key == "prompt_tokens" else -(2**31) + 1, "is below"),
    ):
        path = write(**{key: np.array([1, end], kind)})
        if abs(int(end)) <= abs(limit) and (int(end) > 0 or limit < 0):
            assert getattr(load_trace(path), key).tolist() == [1, end]
        elif not (key == "priority" and end == 0):
            with pytest.raises(ValueError, match=rf"t.parquet, row 2: {key} = .*{reason}"):
                load_trace(path)
            assert getattr(load_trace(path, on_bad="skip"), key).tolist() == [1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    ("value", "reason"), [(np.nan, "not finite"), (np.inf, "not finite"), (-np.inf, "not finite"), (1.5, "not a whole")]
)
def test_floats_that_are_no_lengths(write, kind, value, reason):
    path = write(prompt_tokens=np.array([3, value], kind))
    with pytest.raises(ValueError, match=rf"row 2: prompt_tokens = {value} is {reason}"):
        load_trace(path)
    assert load_trace(path, on_bad="skip").prompt_tokens.tolist() == [3]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e308, -1e308, 1.7e308, -1.7e308, 1.1e20, np.inf, np.nan])
def test_arrivals_beyond_every_clock(write, value):
    path = write(arrival_s=[5.0, value])
    with pytest.raises(ValueError, match=r"row 2: arrival_s = .*(is beyond 1e\+20|is not finite)"):
        load_trace(path)
    same(load_trace(path, on_bad="skip"), [0.0], [5], [7])


def test_arrivals_of_every_clock_of_64_bits(write):
    assert load_trace(write(arrival_s=np.array([0, 2**64 - 1], np.uint64))).arrival_s.tolist() == [0, 2.0**64]
    assert load_trace(write(arrival_s=[-1e20, 1e20]), rate=2.0).arrival_s.tolist() == [0, 0.5]


# ---------------------------------------------------------------------------------------------------- times of any type


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "Mars/Phobos"])
@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize("extreme", [LEAST, MOST])
def test_timestamps_that_are_no_dates(write, unit, zone, extreme):
    path = write(arrival_s=as_type([extreme, 5_000_000, None, 7_000_000], pa.timestamp(unit, zone)), **four())
    with pytest.raises(ValueError, match=rf"row 1: arrival_s = {extreme} {unit} since 1970 is outside the years 1 to"):
        load_trace(path)
    workload, report = read_trace(path, on_bad="skip")
    assert workload.arrival_s.tolist() == [0.0, 2000.0 if unit == "ms" else 2.0]
    assert report.skipped == {"arrival_s is outside the years 1 to 9999": 1, "arrival_s is empty": 1}
    assert report.arrivals == "timestamps"


def four():
    return {"prompt_tokens": [1, 2, 3, 4], "output_tokens": [1, 2, 3, 4]}


@pytest.mark.filterwarnings("error")
def test_timestamps_whose_difference_overflows(write):
    workload = load_trace(write(arrival_s=as_type([MOST, LEAST], pa.timestamp("ns"))))
    same(workload, [0.0, (2**64 - 1) / 1e9], [6, 5], [8, 7])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("unit", "ticks"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_durations(write, unit, ticks):
    workload, report = read_trace(write(arrival_s=as_type([7_000_000_000, 9_000_000_001], pa.duration(unit))))
    assert workload.arrival_s.tolist() == [0.0, 2_000_000_001 / ticks]
    assert report.arrivals == "durations"
    extreme = load_trace(write(arrival_s=as_type([MOST, LEAST], pa.duration(unit))))
    assert extreme.arrival_s.tolist() == [0.0, (2**64 - 1) / ticks]


def test_dates(write):
    days = as_type([3, 5], pa.int32())
    assert load_trace(write(arrival_s=days.cast(pa.date32()))).arrival_s.tolist() == [0, 2 * 86_400]
    assert load_trace(write(arrival_s=days.cast(pa.date32()).cast(pa.date64()))).arrival_s.tolist() == [0, 2 * 86_400]
    path = write(arrival_s=as_type([2**31 - 1, 5], pa.int32()).cast(pa.date32()))
    with pytest.raises(ValueError, match=r"row 1: arrival_s = .* since 1970 is outside the years 1 to 9999"):
        load_trace(path)
    assert load_trace(path, on_bad="skip").prompt_tokens.tolist() == [6]


# ------------------------------------------------------------------------------------------- what is no number, no time


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([True, False]), "True"),
        (pa.array([b"3", b"4"]), "b'3'"),
        (pa.array([b"\xff", b"4"], pa.large_binary()), r"b'\\xff'"),
        (pa.array([b"3", b"4"], pa.binary(1)), "b'3'"),
        (pa.array([b"3", b"4"]).dictionary_encode(), "b'3'"),
        (pa.array([[1], [2]]), r"\[1\]"),
        (pa.array([{"a": 1}, {"a": 2}]), r"\{'a': 1\}"),
        (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), r"\[\('a', 1\)\]"),
        (as_type([0, 1], pa.int32()).cast(pa.time32("ms")), "00:00:00"),
        (as_type([2**62, 1], pa.time64("ns")), ".*"),
        (pa.nulls(2), "None"),
    ],
    ids=lambda column: str(getattr(column, "type", "")),
)
def test_columns_of_other_types_are_bad_row_by_row(write, column, shown):
    for key in ("arrival_s", "prompt_tokens"):
        path = write(**{key: column})
        with pytest.raises(ValueError, match=rf"t.parquet, row 1: {key} = {shown} is (not|neither|empty)"):
            load_trace(path)
        with pytest.raises(ValueError, match="has no good row: all 2 are bad"):
            load_trace(path, on_bad="skip")


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ms"), pa.timestamp("us", "Mars/Phobos"), pa.timestamp("ns"), pa.duration("s"), pa.date32()]
)
def test_times_are_no_lengths(write, kind):
    values = [2**31 - 1, 1] if kind == pa.date32() else [MOST, 1]
    column = pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    with pytest.raises(ValueError, match=r"t.parquet, row 1: output_tokens = .*\d.* is not a number"):
        load_trace(write(output_tokens=column))


# --------------------------------------------------------------------------------------------------- files, not columns


def test_a_parquet_file_without_rows(tmp_path):
    table = pa.table({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1]})
    path = tmp_path / "t.parquet"
    pq.write_table(table.slice(0, 0), path)
    with pytest.raises(ValueError, match=r"t.parquet: has no rows$"):
        load_trace(path)
    pq.ParquetWriter(path, table.schema).close()  # no row group either
    with pytest.raises(ValueError, match=r"t.parquet: has no rows$"):
        load_trace(path)
    pq.write_table(pa.table({}), path)
    with pytest.raises(ValueError, match="has no column for arrival_s, but nothing: must have"):
        load_trace(path)


def test_parquet_cut_short_or_encrypted(write, tmp_path):
    data = write().read_bytes()
    path = tmp_path / "c.parquet"
    for size in (4, 8, 100, len(data) // 2, len(data) - 8, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"c.parquet: cannot be read as Parquet: .{,210}$"):
            load_trace(path)
    path.write_bytes(b"PARE" + data[4:-4] + b"PARE")
    with pytest.raises(ValueError, match=r"c.parquet: is encrypted Parquet"):
        load_trace(path)


def test_encrypted_columns(tmp_path):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, _):
            super().__init__()

        def wrap_key(self, key, _):
            return base64.b64encode(key)

    table = pa.table({"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 2], "output_tokens": [1, 2]})
    path = tmp_path / "t.parquet"
    for in_clear, message in ((False, "is encrypted Parquet"), (True, "cannot be read as Parquet: Cannot decrypt")):
        what = {"footer_key": "k", "column_keys": {"k": ["prompt_tokens"]}, "plaintext_footer": in_clear}
        factory, connection = encryption.CryptoFactory(Keys), encryption.KmsConnectionConfig()
        keys = factory.file_encryption_properties(connection, encryption.EncryptionConfiguration(**what))
        with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
            writer.write_table(table)
        with pytest.raises(ValueError, match=f"t.parquet: {message}"):
            load_trace(path)
        if in_clear:  # a column that is not needed may be
            assert len(load_trace(path, columns={"prompt_tokens": "output_tokens"})) == 2


def test_columns_named_alike_or_with_a_dot(write):
    nested = pa.array([{"b": 1}, {"b": 2}])
    path = write(**{"a.b": [11, 12], "a": nested})
    assert load_trace(path, columns={"prompt_tokens": "a.b"}).prompt_tokens.tolist() == [11, 12]
    with pytest.raises(ValueError, match="has 2 columns named 'arrival_s'"):
        load_trace(write(Arrival_s=[0.0, 1.0]))


def test_many_batches_are_one_file(tmp_path, monkeypatch):
    from servesweep.workloads import trace_parquet

    n = 1000
    stamps = as_type([5000 * (i ^ 1) for i in range(n)], pa.timestamp("us"))
    columns = {"prompt_tokens": np.arange(1, n + 1, dtype=np.uint16), "output_tokens": [str(i + 1) for i in range(n)]}
    path = parquet(tmp_path / "t.parquet", timestamp=stamps, **columns)
    whole, report = read_trace(path, columns={"arrival_s": "timestamp"})
    monkeypatch.setattr(trace_parquet, "_BATCH", 7)
    again, same_report = read_trace(path, columns={"arrival_s": "timestamp"})
    same(again, *(a.tolist() for a in (whole.arrival_s, whole.prompt_tokens, whole.output_tokens)))
    assert report == same_report
    assert report.out_of_order == n // 2
    with pytest.raises(ValueError, match=r"row 500: prompt_tokens = 0 is below 1"):
        load_trace(parquet(tmp_path / "b.parquet", arrival_s=columns["prompt_tokens"], **bad_at(columns, 499)))


def bad_at(columns, row):
    prompts = columns["prompt_tokens"].copy()
    prompts[row] = 0
    return {**columns, "prompt_tokens": prompts}
