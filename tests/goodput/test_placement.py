"""The placement search: its arithmetic, its phases against `find_goodput` on the same configurations, its errors."""

import json
import math
import re

import pytest
from servesweep import SLO, ConfigError, find_goodput, find_placement, load
from servesweep.commands.main import command_line
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.goodput.splits import Parallelism, balanced_split, best_split, choose_split
from servesweep.goodput.verdict import placement_cautions
from servesweep.tables.schemas import PLACEMENT_SCHEMA

SMALL = {
    "name": "small",
    "workload": {
        "kind": "synthetic",
        "n_requests": 120,
        "prompt": {"mean": 800, "sigma": 0.5, "lo": 16, "hi": 4000},
        "output": {"mean": 40, "sigma": 0.5, "lo": 2, "hi": 200},
    },
    "system": {"kind": "disaggregated", "transfer_link": "ib-hdr"},
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm", "tp": [1, 2]},
    "slo": {"ttft_ms": 150, "tpot_ms": 12},
}
SEARCH = {"lo": 1.0, "hi": 32.0, "rel_tol": 0.05}
QUIET = {"workers": 1, "progress": False}


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """Three GPUs: pairs of one and two leave one over or none."""
    out = tmp_path_factory.mktemp("placed")
    config = {**SMALL, "scheduler": {"policy": ["prefill_first", "chunked"]}}
    config["system"] = {**SMALL["system"], "kind": ["disaggregated", "colocated"]}
    return find_placement(config, n_gpus=3, exhaustive=True, **SEARCH, **QUIET, out=out)


# --------------------------------------------------------------------------------------------------------- arithmetic


def test_the_split_takes_the_most_requests_then_the_fewest_gpus():
    prefill, decode = Parallelism(2, 1, 3.0), Parallelism(2, 2, 7.0)
    # 8 GPUs: 1 + 1 takes min(3, 7) with 6 GPUs, 2 + 1 takes min(6, 7) with all 8.
    split = best_split(8, prefill, decode)
    assert (split.n_prefill, split.n_decode, split.predicted_rps, split.n_gpus) == (2, 1, 6.0, 8)
    # 11 GPUs leave three over: 3 + 1 takes min(9, 7) with 10. 12 would do for 2 + 2: min(6, 14), which is less.
    split = best_split(12, prefill, decode)
    assert (split.n_prefill, split.n_decode, split.predicted_rps, split.n_gpus) == (3, 1, 7.0, 10)
    # Decode is the narrow role whatever is added to prefill: the spare GPUs stay unused.
    split = best_split(7, Parallelism(1, 1, 10.0), Parallelism(4, 1, 5.0))
    assert (split.n_prefill, split.n_decode, split.predicted_rps, split.n_gpus) == (1, 1, 5.0, 5)
    assert best_split(5, prefill, decode) is None


def test_each_role_takes_its_best_parallelism_and_the_next_pair_when_it_does_not_fit():
    prefills = [Parallelism(1, 1, 2.0), Parallelism(4, 1, 12.0)]  # 2 and 3 per GPU
    decodes = [Parallelism(2, 1, 8.0), Parallelism(1, 4, 40.0)]  # 4 and 10 per GPU
    split = choose_split(8, prefills, decodes)
    assert (split.prefill.tp, split.decode.pp, split.n_prefill, split.n_decode) == (4, 4, 1, 1)
    # With 7 GPUs, 4 + 4 is out. Balanced systems: 1 / (1/2 + 1/10) = 1.67 per GPU with 1 + 4, 1.71 with 4 + 2.
    split = choose_split(7, prefills, decodes)
    assert (split.prefill.tp, split.decode.tp, split.n_prefill, split.n_decode) == (4, 2, 1, 1)
    # Equal per GPU: the smaller instance.
    split = choose_split(4, [Parallelism(2, 1, 4.0), Parallelism(1, 1, 2.0)], [Parallelism(1, 1, 2.0)])
    assert (split.prefill.n_gpus, split.n_prefill, split.n_decode, split.predicted_rps) == (1, 2, 2, 4.0)
    with pytest.raises(ConfigError, match="n_gpus = 2: no pair of instances fits: must be at least 3"):
        choose_split(2, prefills, decodes)


def test_a_split_of_other_instances_that_promises_more_is_found():
    # 8 is the best prefill instance per GPU, but leaves 8 GPUs for decode that need only 4: 3 x 4 + 4 takes 30.
    prefills, decodes = [Parallelism(8, 1, 22.0), Parallelism(4, 1, 10.0)], [Parallelism(4, 1, 60.0)]
    split, balanced = choose_split(16, prefills, decodes), balanced_split(16, prefills, decodes)
    assert (split.n_prefill, split.n_gpus, split.predicted_rps) == (1, 12, 22.0)
    assert (balanced.n_prefill, balanced.n_gpus, balanced.predicted_rps) == (3, 16, 30.0)
    assert placement_cautions([], split, balanced) == [
        "the best instances do not divide the GPUs well: 1 x prefill tp8 + 1 x decode tp4 is predicted to take 22 "
        "req/s, 3 x prefill tp4 + 1 x decode tp4 30"
    ]
    assert placement_cautions([], split, split) == []


# ----------------------------------------------------------------------------------------------------------- the search


def test_the_phases_are_those_of_find_goodput_on_the_same_configurations(placed, tmp_path):
    chosen = placed.chosen.iloc[0]
    split = placed.split
    for role, slo, part, one in (
        ("prefill", {"ttft_ms": 150}, placed.prefill, split.prefill),
        ("decode", {"tpot_ms": 12}, placed.decode, split.decode),
    ):
        alone = {**SMALL, "system": {"kind": f"{role}_only"}, "instance": {**SMALL["instance"], "tp": one.tp}}
        found = find_goodput(alone, slo=slo, **SEARCH, find_upper=True, **QUIET, out=tmp_path / role).df.iloc[0]
        row = part[part["is_chosen"]].iloc[0]
        assert (row["max_rate_rps"], row["cell_id"]) == (found["max_rate_rps"], found["cell_id"])
        assert row["goodput_per_gpu_rps"] == part["goodput_per_gpu_rps"].max()
        assert one.rate_rps == found["max_rate_rps"]
    whole = {
        **SMALL,
        "instance": {key: value for key, value in SMALL["instance"].items() if key != "tp"},
        "system": {**SMALL["system"], "n_prefill": split.n_prefill, "n_decode": split.n_decode},
        "prefill_instance": {"tp": split.prefill.tp},
        "decode_instance": {"tp": split.decode.tp},
    }
    found = find_goodput(whole, **SEARCH, find_upper=True, **QUIET, out=tmp_path / "whole").df.iloc[0]
    assert (chosen["max_rate_rps"], chosen["cell_id"]) == (found["max_rate_rps"], found["cell_id"])
    assert chosen["predicted_rps"] == split.predicted_rps


def test_the_joint_search_has_every_system_and_is_at_least_as_good(placed):
    joint = placed.exhaustive
    split = joint[joint["system"] == "disaggregated"]
    layouts = {tuple(row) for row in split[["n_prefill", "prefill_tp", "n_decode", "decode_tp"]].astype(int).to_numpy()}
    assert layouts == {(1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 2, 1), (1, 2, 1, 1), (1, 1, 1, 2)}
    assert len(layouts) == len(split)
    assert split["max_rate_rps"].max() >= placed.chosen["max_rate_rps"].iloc[0]
    assert len(placed.chosen) == 1
    colocated = joint[joint["system"] == "colocated"]
    # One of two GPUs, three of one GPU: two of one would have room for a third.
    assert sorted(zip(colocated["policy"], colocated["n_instances"], colocated["tp"], strict=True)) == [
        ("chunked", 1, 2),
        ("chunked", 3, 1),
        ("prefill_first", 1, 2),
        ("prefill_first", 3, 1),
    ]
    assert joint["max_rate_rps"].is_monotonic_decreasing


def test_without_the_joint_search_the_choice_is_the_same(placed, tmp_path):
    found = find_placement(SMALL, n_gpus=3, **SEARCH, **QUIET, out=tmp_path)
    assert found.split == placed.split
    assert found.exhaustive is None
    assert found.chosen["max_rate_rps"].tolist() == placed.chosen["max_rate_rps"].tolist()
    assert found.verdict == placed.verdict.partition(";")[0]
    assert (tmp_path / "joint" / "probes.parquet").exists()


def test_the_table_has_its_schema_units_and_the_search(placed):
    df = load(placed.directory, "placement")
    assert df.columns.tolist() == PLACEMENT_SCHEMA.names
    assert df.attrs["units"]["predicted_rps"] == "requests/s"
    assert df.attrs["config"]["placement"] == {
        **{"attainment": 0.9, "lo": 1.0, "hi": 32.0, "rel_tol": 0.05, "find_upper": True, "joint": True},
        **{"n_gpus": 3, "exhaustive": True},
    }
    assert df["part"].astype(str).value_counts().to_dict() == {"prefill": 2, "decode": 2, "joint": 9}
    one = load(placed.directory / "prefill", "goodput")
    assert set(one["cell_id"]) == set(placed.prefill["cell_id"])
    assert one["tpot_slo_s"].isna().all()


def test_a_role_can_have_parallelisms_and_a_chip_of_its_own(tmp_path):
    config = {**SMALL, "decode_instance": {"chip": "a100-80-sxm", "tp": 2}}
    found = find_placement(config, n_gpus=3, **SEARCH, **QUIET, out=tmp_path)
    assert found.decode["tp"].tolist() == [2]
    assert load(tmp_path / "decode", "goodput")["chip"].tolist() == ["a100-80-sxm"]
    joint = load(tmp_path / "joint", "goodput").iloc[0]
    assert (joint["prefill_chip"], joint["decode_chip"], joint["decode_tp"]) == ("h100-sxm", "a100-80-sxm", 2)


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"slo": {"ttft_ms": 150}}, {"n_gpus": 4}, "config: slo: tpot must be limited too, as --slo ttft:500 tpot:50"),
        ({"slo": {}}, {"n_gpus": 4}, "config: slo: ttft must be limited too"),
        ({}, {}, "n_gpus is missing: must be one number of at least 2"),
        ({}, {"n_gpus": 1}, "n_gpus = 1: must be one number of at least 2"),
        (
            {},
            {"n_gpus": 8, "slo": SLO(ttft_s=0.001, tpot_s=0.012)},
            "no prefill instance meets the ttft SLO: tp 1, pp 1: ",
        ),
        ({}, {"n_gpus": 8, "settings": ["seed=[0,1]"]}, "--set: workload.seed = [0, 1]: must be one value"),
        ({}, {"n_gpus": 3, "settings": ["tp=2"]}, "n_gpus = 3: no pair of instances fits: must be at least 4"),
        ({}, {"n_gpus": 2, "settings": ["tp=2"]}, "n_gpus = 2: a prefill instance takes 2 GPUs: must be more"),
        ({}, {"n_gpus": 4, "settings": ["model=llama-3.1-405b"]}, "no cell can run: the weights of llama-3.1-405b"),
    ],
)
def test_what_is_wrong_is_said(changes, options, message, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_placement({**SMALL, **changes}, **options, **SEARCH, **QUIET, out=tmp_path)
    assert not (tmp_path / "placement.parquet").exists()


# -------------------------------------------------------------------------------------------------------------- command


OPTIONS = ["--slo", "ttft:60", "tpot:12", "--lo", "1", "--rel-tol", "0.1", "--workers", "1", "--quiet"]
FEW = [
    "--set",
    "n_requests=60",
    "--set",
    "prompt=400",
    "--set",
    "tp=[1,2]",
    "--set",
    "pp=1",
    "--set",
    "model=llama-3.1-8b",
]


def test_what_the_choice_rests_on_is_said_when_it_did_not_converge(tmp_path):
    config = {**SMALL, "slo": {"ttft_ms": 1e5, "tpot_ms": 12}}
    found = find_placement(config, n_gpus=2, **SEARCH, **QUIET, out=tmp_path)
    assert found.prefill["ending"].tolist() == ["upper_end_passes"]
    assert found.warnings[1].startswith("prefill, 1 x tp1: upper end passes: 100.0% at 3")
    assert re.search(r" at [\d,]{9,} req/s, the highest rate tried: nothing limits it up to there;", found.warnings[1])
    assert found.split.predicted_rps == found.split.decode.rate_rps


@pytest.mark.parametrize("name", ["placement-chat", "placement-long"])
def test_the_ready_experiments_print_a_table_and_a_verdict(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line(["placement", name, "--n-gpus", "2", "--exhaustive", *OPTIONS, *FEW]) == 0
    out = capsys.readouterr().out
    assert "Systems of at most 2 GPUs (90% attainment; ttft" in out
    assert re.search(
        r"^1 x prefill tp1 \+ 1 x decode tp1: [\d.]+ req/s, [\d.]+ per GPU; the best of 1 jointly searched; "
        r"best of 6 colocated: [12] x tp[12], (prefill_first|chunked, budget \d+), [\d.e+]+% (more|less)$",
        out,
        re.MULTILINE,
    )
    assert "Warning: 60 requests are few" in out
    assert sorted(path.name for path in (tmp_path / "results" / name).iterdir()) == [
        *("decode", "joint", "placement.json", "placement.parquet", "prefill")
    ]
    assert len(expand(load_experiment(name)).cells) > 0


def test_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line(["placement", "placement-chat", "--n-gpus", "2", "--json", *OPTIONS, *FEW]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found["chosen"]["max_rate_rps"] / 2 == found["chosen"]["goodput_per_gpu_rps"]
    assert found["exhaustive"] is None
    assert len(found["prefill"]) == len(found["decode"]) == 1  # instances of two leave no GPU for the other role
    assert math.isclose(
        found["predicted_rps"], min(found["prefill"][0]["max_rate_rps"], found["decode"][0]["max_rate_rps"])
    )


def test_no_placement_is_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line(["placement", "placement-chat", "--n-gpus", "2", *OPTIONS]) == 2
    assert "no cell can run: the weights of llama-3.1-70b do not fit 1 x h100-sxm" in capsys.readouterr().err
