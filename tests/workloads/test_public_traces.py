"""The public traces themselves; skipped without ../shared."""

from pathlib import Path

import numpy as np
import pytest
from servesweep.workloads.traces import read_trace

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "traces"


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
