"""Every measure as a plain sum over the requests of a result, and random results to compare on."""

import math
from types import SimpleNamespace

import numpy as np
from servesweep.measures.instances import InstanceFacts
from servesweep.measures.latencies import LATENCIES, PERCENTILES, SystemArrays
from servesweep.measures.result import Result


def plain_measures(result, slos, warmup, cooldown, n_gpus):
    """Every measure, one request at a time, in Python numbers: slow and obvious; float sums agree only nearly."""
    n = len(result)
    order = sorted(range(n), key=lambda i: (result.arrival_s[i], i))
    window = order[int(n * warmup) : n - int(n * cooldown)]
    first, finish, arrival = result.first_token_s, result.finish_s, result.arrival_s
    ttft = [first[i] - arrival[i] + result.outside_s for i in range(n)]
    tpot = [
        (0.0 * finish[i] if result.output_tokens[i] == 1 else (finish[i] - first[i]) / (result.output_tokens[i] - 1))
        for i in range(n)
    ]
    values = {
        "ttft": ttft,
        "tpot": tpot,
        "e2e": [finish[i] - arrival[i] + result.outside_s for i in range(n)],
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

    busy_s = [float(busy / streams) for busy, streams in zip(facts.busy_s, facts.streams, strict=True)]

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
    asked = sum(int(result.prompt_tokens[i]) for i in range(n) if not result.rejected[i])
    expected |= {
        "preemptions": sum(result.preemptions),
        "recomputed_tokens": result.recomputed_tokens,
        "prefill_tokens": result.prefill_tokens,
        "cached_tokens": sum(int(n) for n in result.cached_tokens),
        "prefix_cache_hit_rate": sum(int(n) for n in result.cached_tokens) / asked if asked else math.nan,
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
        cached_tokens=rng.integers(0, 3, n),
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
            streams=(streams := np.array([1 + 2 * (role == "decode") for role in roles])),
            steps=rng.integers(0, 9, len(roles)),
            busy_s=streams * rng.random(len(roles)),
        ),
        outside_s=0.25 * float(rng.integers(0, 2)),
    )


def joined(results):
    """The instances of all results as those of one batch."""
    facts = [result.instances for result in results]
    columns = {
        name: np.concatenate([getattr(fact, name) for fact in facts])
        for name in ("role", "instance", "requests", "streams", "steps", "busy_s")
    }
    system = np.repeat(np.arange(len(facts)), [len(fact.role) for fact in facts])
    return InstanceFacts(system=system, **columns)


def batch(results):
    """Lanes of the given results, padded to the longest as the scheduler pads them."""
    width = max(map(len, results))
    padding = {"preemptions": 0, "cached_tokens": 0, "rejected": False, "prompt_tokens": 0, "output_tokens": 0}
    lanes: dict = {"n_requests": np.array([len(result) for result in results]), "instances": joined(results)}
    for name in SystemArrays.__annotations__:
        if name in ("n_requests", "instances"):
            continue
        columns = [np.asarray(getattr(result, name)) for result in results]
        if columns[0].ndim:
            columns = [np.pad(x, (0, width - len(x)), constant_values=padding.get(name, np.nan)) for x in columns]
        lanes[name] = np.stack(columns)
    return SimpleNamespace(itl_max_s=None, itl_counts=None, counters={}, **lanes)


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))
