"""Measures: golden attainments, agreement with plain definitions, independence of batch, padding and chunks."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servesweep.measures import metrics
from servesweep.measures.metrics import LATENCIES, MEASURES, PERCENTILES, attainment, max_rate, measures, percentile
from servesweep.measures.result import Result
from servesweep.measures.window import row_means, row_percentiles
from servesweep.serving.run import InstanceFacts

GOLDEN = Path(__file__).parents[1] / "golden" / "serving"
RUNS = [path for path in sorted(GOLDEN.glob("*.json")) if "attainment_whole_run" in path.read_text()]


# ---------------------------------------------------------------------------------------------------- golden results


def golden_result(path: Path) -> tuple[Result, dict]:
    case = json.loads(path.read_text())
    inputs, outputs = case["inputs"], case["outputs"]
    times = {name: np.array(outputs[name], dtype=float) for name in ("first_token_s", "finish_s", "kv_ready_s")}
    return Result(inputs["arrival_s"], inputs["prompt_tokens"], inputs["output_tokens"], **times), outputs


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_golden_attainment_and_percentiles(path):
    result, expected = golden_result(path)
    slo = expected["slo"]
    assert attainment(result, slo["ttft_s"], slo["tpot_s"]) == expected["attainment"]
    assert attainment(result, slo["ttft_s"]) == expected["attainment_ttft_only"]
    assert attainment(result, slo["ttft_s"], slo["tpot_s"], warmup=0, cooldown=0) == expected["attainment_whole_run"]
    for name in ("ttft", "tpot"):
        for q in (50, 99):
            if f"{name}_p{q}_s" in expected:
                assert percentile(result, name, q) == expected[f"{name}_p{q}_s"]


def test_golden_results_are_there():
    assert len(RUNS) >= 4


# ------------------------------------------------------------------------------------------------ plain definitions


def plain_measures(result, slos, warmup, cooldown, n_gpus):
    """Every measure, one request at a time, in Python numbers: slow and obvious; float sums agree only nearly."""
    n = len(result)
    order = sorted(range(n), key=lambda i: (result.arrival_s[i], i))
    window = order[int(n * warmup) : n - int(n * cooldown)]
    first, finish, arrival = result.first_token_s, result.finish_s, result.arrival_s
    ttft = [first[i] - arrival[i] for i in range(n)]
    tpot = [
        (0.0 * finish[i] if result.output_tokens[i] == 1 else (finish[i] - first[i]) / (result.output_tokens[i] - 1))
        for i in range(n)
    ]
    values = {
        "ttft": ttft,
        "tpot": tpot,
        "e2e": [finish[i] - arrival[i] for i in range(n)],
        "queue_delay": [result.admitted_s[i] - arrival[i] for i in range(n)],
        "kv_transfer": [result.kv_ready_s[i] - first[i] for i in range(n)],
    }
    facts = result.instances
    prefill_only = set(facts.role) == {"prefill"}

    def meets(i, checked=("ttft", "tpot", "e2e")):
        if result.rejected[i]:
            return False
        return all(slos[name] is None or values[name][i] <= slos[name] for name in checked)

    def share(flags):
        return sum(flags) / len(flags) if flags else math.nan

    end = first if prefill_only else finish
    done = [i for i in range(n) if not math.isnan(end[i])]
    duration = max((end[i] for i in done), default=math.nan) - min(arrival, default=math.nan)
    duration = duration if duration > 0 else math.nan
    prompt, output = (sum(int(x[i]) for i in done) for x in (result.prompt_tokens, result.output_tokens))
    if prefill_only:
        output = len(done)

    busy_s = [float(busy / lanes) for busy, lanes in zip(facts.busy_s, facts.lanes, strict=True)]

    def of_role(role, values):
        return [float(value) for value, other in zip(values, facts.role, strict=True) if other == role]

    def uneven(values):
        return max(values) * len(values) / sum(values) if sum(values) else math.nan

    def mean(values):
        return sum(values) / len(values) if values else math.nan

    expected = {
        "attainment": share([meets(i) for i in window]),
        "attainment_requests": len(window),
        **{
            f"{name}_attainment": math.nan if slos[name] is None else share([meets(i, [name]) for i in window])
            for name in ("ttft", "tpot", "e2e")
        },
        "itl_max_attainment": math.nan,  # of gaps see test_gaps
        "request_goodput_rps": sum(meets(i) for i in range(n)) / duration,
        "request_throughput_rps": len(done) / duration,
        "output_throughput_tps": output / duration,
        "total_throughput_tps": (prompt + output) / duration,
        "request_throughput_per_gpu_rps": len(done) / duration / n_gpus,
        "output_throughput_per_gpu_tps": output / duration / n_gpus,
        "duration_s": duration,
    }
    for name, all_of_them in values.items():
        have = [float(all_of_them[i]) for i in window if not math.isnan(all_of_them[i])]
        expected[f"{name}_mean_s"] = math.fsum(have) / len(have) if have else math.nan
        for q in PERCENTILES:
            expected[f"{name}_p{q}_s"] = float(np.percentile(have, q)) if have else math.nan
    expected |= {f"itl_max_{which}_s": math.nan for which in ("mean", *(f"p{q}" for q in PERCENTILES))}
    finished = [i for i in range(n) if not math.isnan(finish[i]) and not prefill_only]
    gaps = sum(int(result.output_tokens[i]) - 1 for i in finished)
    spans = [float(finish[i] - first[i]) for i in finished if result.output_tokens[i] > 1]
    expected["itl_mean_s"] = math.fsum(spans) / gaps if gaps else math.nan
    expected |= {f"itl_p{q}_s": math.nan for q in PERCENTILES}
    expected |= {
        "preemptions": sum(result.preemptions),
        "recomputed_tokens": result.recomputed_tokens,
        "prefill_tokens": result.prefill_tokens,
        "kv_utilization_mean": result.block_steps / result.batch_steps / result.num_blocks
        if result.batch_steps
        else math.nan,
        "kv_utilization_peak": result.peak_blocks / result.num_blocks,
        "peak_blocks": result.peak_blocks,
        "batch_size_mean": result.running_steps / result.batch_steps if result.batch_steps else math.nan,
        "steps": result.steps,
        "utilization": mean(busy_s) / duration,
    }
    for role, prefix in (("colocated", ""), ("prefill", "prefill_"), ("decode", "decode_")):
        busy = of_role(role, busy_s)
        expected[f"{prefix}requests_max_over_mean"] = uneven(of_role(role, facts.requests))
        expected[f"{prefix}busy_max_over_mean"] = uneven(busy)
        if prefix:
            expected[f"{prefix}utilization"] = mean(busy) / duration
    return expected | {"finished": len(done), "rejected": sum(result.rejected)}


EXACT = {"attainment", "ttft_attainment", "tpot_attainment", "e2e_attainment", "duration_s"} | {
    f"{name}_p{q}_s" for name in LATENCIES for q in PERCENTILES
}


ROLES = (
    ("colocated",),
    ("colocated",) * 3,
    ("prefill", "decode"),
    ("prefill", "prefill", "decode", "decode", "decode"),
    ("prefill",) * 2,
    ("decode",) * 2,
)


def random_result(rng, n, *, shuffled=False, ticks=False):
    """A result that could have happened: some requests rejected, some unfinished, one-token outputs, tied arrivals."""
    arrival = np.cumsum(rng.exponential(1.0, n)) + rng.random()
    if ticks:
        arrival = np.floor(arrival)
    if shuffled:
        rng.shuffle(arrival)
    output = rng.integers(1, 6, n)
    rejected = rng.random(n) < 0.15
    roles = ROLES[rng.integers(len(ROLES))]
    admitted = np.where(rejected, np.nan, arrival + rng.exponential(1.0, n))
    first = admitted + rng.exponential(1.0, n)
    finish = first + (output - 1) * rng.exponential(0.1, n)
    finish[rng.random(n) < 0.1] = np.nan
    return Result(
        arrival,
        rng.integers(1, 50, n),
        output,
        first,
        finish,
        admitted_s=admitted,
        preemptions=rng.integers(0, 3, n),
        rejected=rejected,
        steps=int(rng.integers(0, 100)),
        prefill_tokens=int(rng.integers(0, 100)),
        recomputed_tokens=int(rng.integers(0, 100)),
        peak_blocks=int(rng.integers(0, 40)),
        running_steps=float(rng.integers(0, 1000)),
        block_steps=float(rng.integers(0, 1000)),
        busy_s=float(rng.random()),
        num_blocks=math.nan if rng.random() < 0.3 else 40.0,
        kv_ready_s=np.where(rng.random(n) < 0.3, np.nan, first + rng.exponential(0.1, n)),
        batch_steps=int(rng.integers(0, 100)),
        instances=InstanceFacts(
            system=np.zeros(len(roles), np.int64),
            role=np.array(roles),
            instance=np.array([roles[:i].count(role) for i, role in enumerate(roles)]),
            requests=rng.integers(0, 4, len(roles)),
            lanes=(lanes := np.array([1 + 2 * (role == "decode") for role in roles])),
            steps=rng.integers(0, 9, len(roles)),
            busy_s=lanes * rng.random(len(roles)),
        ),
    )


def joined(results):
    """The instances of all results as those of one batch."""
    facts = [result.instances for result in results]
    columns = {
        name: np.concatenate([getattr(fact, name) for fact in facts])
        for name in ("role", "instance", "requests", "lanes", "steps", "busy_s")
    }
    system = np.repeat(np.arange(len(facts)), [len(fact.role) for fact in facts])
    return InstanceFacts(system=system, **columns)


def batch(results):
    """Lanes of the given results, padded to the longest as the scheduler pads them."""
    width = max(map(len, results))
    padding = {"preemptions": 0, "rejected": False, "prompt_tokens": 0, "output_tokens": 0}
    lanes: dict = {"n_requests": np.array([len(result) for result in results]), "instances": joined(results)}
    for name in metrics.LaneArrays.__annotations__:
        if name in ("n_requests", "instances"):
            continue
        columns = [np.asarray(getattr(result, name)) for result in results]
        if columns[0].ndim:
            columns = [np.pad(x, (0, width - len(x)), constant_values=padding.get(name, np.nan)) for x in columns]
        lanes[name] = np.stack(columns)
    return SimpleNamespace(itl_max_s=None, itl_counts=None, **lanes)


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


slos = st.none() | st.sampled_from([0.0, 0.1, 0.5, 2.0, math.inf])
shares = st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9])


@given(
    st.integers(0, 2**32),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
    slos,
    slos,
    slos,
    shares,
    shares,
    st.integers(1, 8),
)
def test_measures_are_the_plain_definitions(
    seed, n, shuffled, ticks, ttft_slo, tpot_slo, e2e_slo, warmup, cooldown, n_gpus
):
    result = random_result(np.random.default_rng(seed), n, shuffled=shuffled, ticks=ticks)
    summary = result.summary(ttft_slo, tpot_slo, warmup, cooldown, n_gpus, e2e_slo)
    expected = plain_measures(result, {"ttft": ttft_slo, "tpot": tpot_slo, "e2e": e2e_slo}, warmup, cooldown, n_gpus)
    assert tuple(summary) == tuple(expected) == MEASURES
    for name, value in expected.items():
        if name in EXACT or isinstance(value, int):
            assert same(summary[name], value), name
        else:
            assert summary[name] == pytest.approx(value, rel=1e-12, abs=1e-12, nan_ok=True), name
    both = result.summary(ttft_slo, tpot_slo, warmup, cooldown)["attainment"]
    assert same(attainment(result, ttft_slo, tpot_slo, warmup, cooldown), both)
    for name in LATENCIES:
        for q in PERCENTILES:
            assert same(percentile(result, name, q, warmup, cooldown), summary[f"{name}_p{q}_s"])


@given(st.integers(0, 2**32), st.lists(st.integers(0, 25), min_size=1, max_size=8), st.integers(1, 60))
def test_a_lane_is_alone_in_its_batch(seed, lengths, chunk):
    rng = np.random.default_rng(seed)
    results = [random_result(rng, n, shuffled=rng.random() < 0.3, ticks=rng.random() < 0.3) for n in lengths]
    ttft, tpot = (np.where(rng.random(len(results)) < 0.3, np.nan, rng.random(len(results))) for _ in range(2))
    gpus = rng.integers(1, 5, len(results))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_CHUNK_ELEMENTS", chunk)
        together = measures(batch(results), ttft_slo_s=ttft, tpot_slo_s=tpot, warmup=0.2, cooldown=0.1, n_gpus=gpus)
    for lane, result in enumerate(results):
        limits = [None if np.isnan(x[lane]) else x[lane] for x in (ttft, tpot)]
        alone = result.summary(*limits, warmup=0.2, cooldown=0.1, n_gpus=gpus[lane])
        for name in MEASURES:
            assert same(together[name][lane].item(), alone[name]), name


def test_measures_leave_the_results_alone():
    lanes = batch([random_result(np.random.default_rng(3), n, shuffled=n == 7) for n in (7, 20)])
    arrays = {name: value for name, value in vars(lanes).items() if isinstance(value, np.ndarray)}
    before = {name: value.copy() for name, value in arrays.items()}
    for value in arrays.values():
        value.flags.writeable = False
    found = measures(lanes, ttft_slo_s=1.0, tpot_slo_s=None, warmup=0.2, cooldown=0.2, n_gpus=1)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(lanes, name), value)
    assert {name: column.dtype.kind for name, column in found.items() if column.dtype.kind != "f"} == dict.fromkeys(
        (
            "attainment_requests",
            "preemptions",
            "recomputed_tokens",
            "prefill_tokens",
            "peak_blocks",
            "steps",
            "finished",
            "rejected",
        ),
        "i",
    )


def test_no_lanes_give_empty_columns():
    empty = random_result(np.random.default_rng(0), 5)
    others = {"instances": None, "itl_max_s": None, "itl_counts": None}
    arrays = {name: value[:0] for name, value in vars(batch([empty])).items() if name not in others}
    lanes = SimpleNamespace(**arrays, **others)
    found = measures(lanes, ttft_slo_s=None, tpot_slo_s=None, warmup=0.2, cooldown=0.2, n_gpus=1)
    assert tuple(found) == MEASURES
    assert {column.shape for column in found.values()} == {(0,)}


# ---------------------------------------------------------------------------------------------- percentiles, to the bit


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 1201])
def test_row_percentiles_are_numpys_to_the_bit(n):
    rng = np.random.default_rng(n)
    rows = rng.lognormal(0, 3, (200, n))
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[0] = np.nan
    rows[1] = 0.1
    q = np.concatenate([[0, 50, 90, 95, 99, 100], rng.random(20) * 100])
    ordered = np.sort(rows, axis=1)
    count = np.count_nonzero(~np.isnan(ordered), axis=1)
    found = row_percentiles(ordered, count, q)
    for row, points in zip(rows, found, strict=True):
        have = row[~np.isnan(row)]
        expected = np.percentile(have, q) if len(have) else np.full(len(q), np.nan)
        assert points.tobytes() == expected.tobytes()


def test_row_means_do_not_depend_on_padding():
    rows = np.random.default_rng(1).lognormal(0, 2, (50, 300))
    wide = np.concatenate([rows, np.full((50, 1000), np.nan)], axis=1)
    count = np.full(50, 300)
    assert row_means(rows, count).tobytes() == row_means(wide, count).tobytes()
    np.testing.assert_allclose(row_means(rows, count), rows.mean(axis=1), rtol=1e-13)


# ------------------------------------------------------------------------------------------------------- edge cases


def two(**changes):
    fields = {
        "arrival_s": [0.0, 1.0],
        "prompt_tokens": [10, 10],
        "output_tokens": [1, 3],
        "first_token_s": [0.5, 2.0],
        "finish_s": [0.5, 4.0],
    }
    return Result(**(fields | changes))


def test_missing_times_and_rejections_meet_nothing():
    unfinished = two(finish_s=[0.5, np.nan])
    assert attainment(unfinished, warmup=0, cooldown=0) == 1.0  # nothing is checked
    assert attainment(unfinished, tpot_slo=math.inf, warmup=0, cooldown=0) == 0.5
    assert attainment(unfinished, ttft_slo=1.0, warmup=0, cooldown=0) == 1.0  # an SLO is inclusive
    rejected = two(rejected=[False, True], first_token_s=[0.5, np.nan], finish_s=[0.5, np.nan])
    assert attainment(rejected, warmup=0, cooldown=0) == 0.5
    assert rejected.summary(warmup=0, cooldown=0)["rejected"] == 1


def test_an_empty_window_has_no_attainment():
    assert math.isnan(attainment(two(), warmup=0.5, cooldown=0.5))
    assert math.isnan(percentile(two(), "ttft", 50, warmup=0.5, cooldown=0.9))
    assert math.isnan(attainment(two(), warmup=1.0, cooldown=0))
    assert math.isnan(percentile(two(), "ttft", 50, warmup=1, cooldown=1))
    assert math.isnan(attainment(Result([], [], [], [], [])))
    assert Result([], [], [], [], []).summary()["attainment_requests"] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attainment(two(), ttft_slo=-1), "ttft_slo is -1"),
        (lambda: attainment(two(), tpot_slo=math.nan), "tpot_slo is nan"),
        (lambda: attainment(two(), warmup=1.1), "warmup is 1.1"),
        (lambda: attainment(two(), cooldown=-0.1), "cooldown is -0.1"),
        (lambda: attainment(two(), cooldown=math.nan), "cooldown is nan"),
        (lambda: percentile(two(), "itl", 50), "'itl', but must be one of ttft, tpot, e2e, queue_delay"),
        (lambda: percentile(two(), "ttft", 101), "q is 101"),
        (lambda: percentile(two(), "ttft", math.nan), "q is nan"),
        (lambda: two().summary(n_gpus=0), "n_gpus is 0"),
        (lambda: percentile(two(), "ttft", [50, 99]), r"q is \[50, 99\], but must be one percentage"),
        (lambda: percentile(two(), "ttft", None), "q is None"),
        (lambda: percentile(None, "ttft", 50), "result is of type NoneType"),
        (lambda: attainment(None), "result is of type NoneType"),
        (lambda: attainment(two(), ttft_slo="a"), "ttft_slo is 'a'"),
        (lambda: two().summary(ttft_slo="a"), "ttft_slo_s is 'a'"),
        (lambda: max_rate(lambda _: None), r"run\(0.05\) is None"),
        (lambda: max_rate(lambda _: 1.0, target=0.0), "target is 0.0"),
        (lambda: max_rate(lambda _: 1.0, lo=0.0), "lo is 0.0"),
        (lambda: max_rate(lambda _: 1.0, target="0.9"), "target is '0.9'"),
        (lambda: max_rate(lambda _: 1.0, lo="1"), "lo is '1'"),
        (lambda: max_rate(lambda _: 1.0, lo=math.nan), "lo is nan"),
        (lambda: max_rate(lambda _: 1.0, hi=None), "hi is None"),
        (lambda: max_rate(lambda _: 1.0, lo=2.0, hi=1.0), "lo is 2.0, but must be at most hi, which is 1.0"),
        (lambda: percentile(two(), "ttft", "99"), "q is '99'"),
        (lambda: attainment(two(), ttft_slo="1"), "ttft_slo is '1'"),
        (lambda: attainment(two(), warmup=None), "warmup is None"),
        (lambda: max_rate(lambda _: 1.0, hi=math.inf), "hi is inf"),
        (lambda: max_rate(lambda _: 1.0, iters=-1), "iters is -1"),
        (lambda: max_rate(lambda _: 1.0, iters=2.5), "iters is 2.5"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message.replace("'", ".")):
        call()


def test_max_rate_bisects_at_the_geometric_mean():
    asked = []

    def run(rate):
        asked.append(rate)
        return 1.0 if rate <= 3.0 else 0.5

    assert max_rate(run, lo=1.0, hi=16.0, iters=3) == math.sqrt(8.0)
    assert asked == [1.0, 16.0, 4.0, 2.0, math.sqrt(8.0)]


def test_max_rate_at_the_ends():
    assert max_rate(lambda _: 0.0) == 0.0
    assert max_rate(lambda _: math.nan) == 0.0
    assert max_rate(lambda _: 0.9) == 64.0
    assert max_rate(lambda rate: float(rate < 1), iters=0) == 0.05


@pytest.mark.parametrize(("attained", "found"), [(0.9, 2.0), (0.8, 0.0), (math.nan, 0.0)])
def test_max_rate_of_a_single_rate(attained, found):
    assert max_rate(lambda _: attained, lo=2.0, hi=2) == found
