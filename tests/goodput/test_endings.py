"""Every ending of a search, and the reason that it gives."""

import pandas as pd
import pytest
from goodput_cases import GRID, QUIET, SEARCH, searched
from servesweep import find_goodput
from servesweep.goodput.findings import ENDINGS
from servesweep.tables.schemas import SCHEMAS


def test_converged(tmp_path):
    row = searched(tmp_path, {"ttft_ms": 35}, {"hi": 200.0})
    assert row["ending"] == "converged"
    assert pd.isna(row["reason"])
    assert row["rate_low_rps"] <= row["max_rate_rps"] < row["next_rate_rps"] <= row["rate_high_rps"]
    assert row["attainment_low"] < 0.9 <= row["attainment"] < row["attainment_high"]
    assert row["attainment_requests"] == 120
    assert row["probes"] == 16
    assert row["binding_slo"] == "ttft"
    assert pd.isna(row["tpot_attainment"])


def test_upper_end_passes(tmp_path):
    row = searched(tmp_path, {"ttft_ms": 500}, {"hi": 2.0})
    assert (row["ending"], row["max_rate_rps"], row["probes"]) == ("upper_end_passes", 2.0, 2)
    assert "100.0% at 2 req/s, the highest rate tried" in row["reason"]
    assert pd.isna(row["next_rate_rps"])
    assert pd.isna(row["binding_slo"])


def test_an_upper_end_is_found_when_asked_for(tmp_path):
    row = searched(tmp_path, {"ttft_ms": 35}, {"hi": 2.0, "find_upper": True})
    found = searched(tmp_path, {"ttft_ms": 35}, {"lo": 16.0, "hi": 32.0})  # where doubling ends
    assert row["probes"] == 2 + 4 + 14
    assert row["max_rate_rps"] == found["max_rate_rps"]


@pytest.mark.parametrize(
    ("slo", "binding", "words"),
    [
        ({"tpot_ms": 5}, "tpot", r"a decode step alone takes 6\.\d+ ms, longer than the tpot SLO of 5 ms"),
        (
            {"ttft_ms": 3},
            "ttft",
            r"the prefill of the shortest prompt alone takes 6\.\d+ ms, longer than the ttft SLO of 3 ms",
        ),
        ({"e2e_ms": 10}, "e2e", r"the quickest request alone takes 13\.6 ms, longer than the e2e SLO of 10 ms"),
        (
            {"ttft_ms": 12, "tpot_ms": 50},
            "ttft",
            r"only \d\d\.\d% of the requests could meet the ttft SLO of 12 ms with the inst",
        ),
    ],
)
def test_lower_end_fails_and_the_step_model_says_why(tmp_path, slo, binding, words):
    row = searched(tmp_path, slo)
    assert (row["ending"], row["binding_slo"], row["probes"]) == ("lower_end_fails", binding, 1)
    assert pd.Series([row["reason"]]).str.match(words).all(), row["reason"]
    assert pd.isna(row["max_rate_rps"])
    assert row["next_rate_rps"] == SEARCH["lo"]


def test_lower_end_fails_by_load(tmp_path):
    row = searched(tmp_path, {"ttft_ms": 35}, {"lo": 150.0, "hi": 200.0})
    assert row["ending"] == "lower_end_fails"
    assert "of 120 requests meet every SLO at 150 req/s, the lower end" in row["reason"]


def test_lower_end_fails_by_rejections(tmp_path):
    tiny = {**GRID, "scheduler": {"policy": "mixed", "block_size": 16, "num_blocks": 20, "max_running": 64}}
    found = find_goodput(tiny, **SEARCH, **QUIET, out=tmp_path)
    assert set(found.df["ending"]) == {"lower_end_fails"}
    assert (
        found.df["reason"]
        .str.fullmatch(r"\d+ of 200 requests are rejected: they need more KV blocks than there are")
        .all()
    )


def test_not_monotone(tmp_path):
    # Requests of one kind at equal gaps: how long each waits for the step under way depends on how gap and step fit. At
    # this rate, the first middle, each arrives just as the last step of the one before it has begun.
    search = {"lo": 8.407927902944143**2 / 40, "hi": 40.0, "iters": 5}
    row = searched(tmp_path, {"ttft_ms": 9}, search, prompt=100, output=20, arrivals="uniform")
    assert row["ending"] == "not_monotone"
    assert "which is beyond chance: higher rates that pass may exist" in row["reason"]


def test_unresolved(tmp_path):
    row = searched(tmp_path, {"ttft_ms": 35}, {"hi": 200.0}, n_requests=30)
    assert row["ending"] == "unresolved"
    assert row["reason"].startswith("no rate asked for passes beyond chance: 18 requests are too few")
    assert pd.isna(row["rate_low_rps"])
    assert row["max_rate_rps"] > 1


def test_every_ending_has_a_definition():
    definition = SCHEMAS["goodput"].field("ending").metadata[b"definition"].decode()
    assert [ending for ending in ENDINGS if ending not in definition] == []
