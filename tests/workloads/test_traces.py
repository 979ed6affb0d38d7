"""Reading traces: every format and every option."""

import gzip

import numpy as np
import pytest
from servesweep.workloads import trace_formats
from servesweep.workloads.traces import load_trace, read_trace
from trace_files import AZURE, AZURE_2024, MOONCAKE, PLAIN, mooncake, parquet, same

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
