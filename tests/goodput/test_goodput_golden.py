"""Golden goodputs: `max_rate` over the package's systems."""

from typing import Any

import numpy as np
import pytest
from parity import step_model
from servesweep import Colocated, Disaggregated, attainment, lognormal_len, make_workload, max_rate, run_systems
from strategies import golden

ROWS = golden("serving/goodput")["rows"]


def attainment_at(row: dict[str, Any], rates: list[float]) -> list[float]:
    """Of all rates in one batch."""
    work, slo = row["workload"], row["slo"]
    lengths = [lognormal_len(*work[name]) for name in ("prompt", "output")]
    kind = {"colocated": Colocated, "disaggregated": Disaggregated}[row["system"]]
    steps = {name: step_model(step) for name, step in row["steps"].items()}
    traffic = make_workload(work["n"], 1.0, *lengths, seed=work["seed"], arrivals=work["arrivals"])
    results = run_systems([kind(traffic, **steps, **row["options"], rate=rate) for rate in rates])
    return [attainment(results.result(i), slo["ttft_s"], slo["tpot_s"]) for i in range(len(rates))]


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{row['system']}" for i, row in enumerate(ROWS)])
def test_max_rate(row: dict[str, Any]) -> None:
    assert attainment_at(row, [5.0])[0] == row["attainment_at_5_per_s"]
    found = max_rate(lambda rate: attainment_at(row, [rate])[0], row["target"], row["lo"], row["hi"], row["iterations"])
    np.testing.assert_allclose(found, row["max_rate"], rtol=1e-9)
