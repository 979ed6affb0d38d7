"""The embedded conversation workload: against its own statistics, and against the trace that they describe."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from servesweep.workloads.conversation import conversation_statistics, conversation_workload
from servesweep.workloads.traces import load_trace

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT.parent / "shared" / "traces" / "AzureLLMInferenceTrace_conv.csv"
SCRIPT = ROOT / "benchmarks" / "conversation_statistics.py"
N = 19_366  # requests in the trace
# Of the trace, as docs/conversation.md gives them, and how far one synthetic workload of as many requests may be off: a
# share of the value, at least three times its deviation over seeds.
FACTS = {
    "prompt mean": (1154.70, 0.03),
    "prompt p50": (1020, 0.01),
    "prompt p90": (2734.5, 0.12),
    "prompt p99": (4142, 0.06),
    "output mean": (211.13, 0.02),
    "output p50": (129, 0.03),
    "output p90": (424, 0.01),
    "output p99": (601, 0.04),
    "output max": (1000, 0.02),
    "total mean": (1365.82, 0.03),
    "total p50": (1412, 0.03),
    "total p90": (2819.5, 0.12),
    "total p99": (4259, 0.06),
    "rank correlation of prompt and output": (0.0728, 0.5),
    "gap cv": (1.094, 0.04),
    "dispersion of counts, 1 s": (1.385, 0.10),
    "dispersion of counts, 10 s": (3.86, 0.20),
    "dispersion of counts, 60 s": (16.1, 0.25),
    "autocorrelation of counts, 60 s, lag 1": (0.824, 0.15),
    "cv of prompt tokens a minute": (0.348, 0.20),
    "cv of output tokens a minute": (0.1155, 0.50),
    "autocorrelation of output lengths, lag 1": (0.110, 0.50),
}


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def trace():
    if not TRACE.exists():
        pytest.skip(f"{TRACE.name} is not beside the repository in ../shared/traces")
    return load_trace(TRACE)


def test_one_seed_one_workload():
    a, b, other = (conversation_workload(500, rate=2.0, seed=seed) for seed in (1, 1, 2))
    for key in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert getattr(a, key).tolist() == getattr(b, key).tolist()
        assert getattr(a, key).tolist() != getattr(other, key).tolist()


def test_the_rate_stretches_time_and_touches_nothing_else():
    unit, fast = conversation_workload(500, seed=3), conversation_workload(500, rate=8.0, seed=3)
    assert fast.arrival_s == pytest.approx(unit.arrival_s / 8.0, rel=1e-12)
    assert fast.prompt_tokens.tolist() == unit.prompt_tokens.tolist()
    assert fast.output_tokens.tolist() == unit.output_tokens.tolist()
    assert (fast.mean_rate_rps, fast.name) == (8.0, "conversation")


@pytest.mark.parametrize("n", [0, 1, 2, 59, 61, 1000])
def test_any_number_of_requests(n):
    workload = conversation_workload(n, seed=n)
    assert len(workload) == n
    assert (np.diff(workload.arrival_s) >= 0).all()
    for lengths, low, high in ((workload.prompt_tokens, 2, 14_050), (workload.output_tokens, 7, 1000)):
        assert ((lengths >= low) & (lengths <= high)).all()


@pytest.mark.parametrize("n", [300, 2000, N])
def test_the_mean_rate_and_the_lengths_are_right_for_any_number(n):
    drawn = [conversation_workload(n, rate=4.0, seed=seed) for seed in range(400_000 // n)]
    assert np.mean([n / w.arrival_s[-1] for w in drawn]) == pytest.approx(4.0, rel=0.02)
    assert np.mean([w.prompt_tokens.mean() for w in drawn]) == pytest.approx(1154.7, rel=0.01)
    assert np.mean([w.output_tokens.mean() for w in drawn]) == pytest.approx(211.13, rel=0.01)


def test_lengths_follow_the_embedded_distribution():
    known = conversation_statistics()
    drawn = [conversation_workload(N, seed=seed) for seed in range(10)]
    for key in ("prompt_tokens", "output_tokens"):
        lengths = np.sort(np.concatenate([getattr(w, key) for w in drawn]))
        # By levels, not lengths: the distribution has gaps, where a quantile means little.
        quantiles = np.rint(getattr(known, key)[1:-1])
        below, up_to = (np.searchsorted(lengths, quantiles, side) / len(lengths) for side in ("left", "right"))
        levels = known.levels[1:-1]
        assert np.all((below - 0.005 < levels) & (levels < up_to + 0.005))
    bins = known.cells.shape[1]
    edges = [
        np.interp(np.arange(1, bins) / bins, known.levels, getattr(known, k))
        for k in ("prompt_tokens", "output_tokens")
    ]
    third = slice(N // 3, N // 2)  # the third of six periods
    counts = np.zeros((bins, bins))
    for w in drawn:
        at = [np.searchsorted(e, x[third]) for e, x in zip(edges, (w.prompt_tokens, w.output_tokens), strict=True)]
        np.add.at(counts, tuple(at), 1)
    assert np.corrcoef(counts.ravel(), known.cells[2].ravel())[0, 1] > 0.97


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: conversation_workload(-1), "n=-1"),
        (lambda: conversation_workload(2.5), "n=2.5"),
        (lambda: conversation_workload(5, rate=0.0), "rate=0.0: must be a positive"),
        (lambda: conversation_workload(5, rate=float("nan")), "rate=nan"),
        (lambda: conversation_workload(5, seed=-1), "seed=-1"),
    ],
)
def test_arguments_that_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("seed", range(3))
def test_it_is_like_the_trace(script, seed):
    found = script["figures"](conversation_workload(N, rate=5.5304, seed=seed))
    for name, (value, tolerance) in FACTS.items():
        assert found[name] == pytest.approx(value, rel=tolerance), name


def test_the_facts_are_those_of_the_trace(script, trace):
    real = script["figures"](trace)
    for name, (value, _) in FACTS.items():
        assert real[name] == pytest.approx(value, rel=3e-3), name


def test_the_embedded_statistics_are_derived_from_the_trace(script, trace):
    assert (ROOT / "configs" / "conversation_statistics.toml").read_text(encoding="utf-8") == script["toml"](trace)
