"""Systems in sweeps: what they measure and what is told of them."""

import numpy as np
import pytest
import servesweep
from servesweep.analysis.ranking import best_by_policy
from servesweep.analysis.verdicts import format_slos, format_verdict
from servesweep.commands.main import command_line
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.measures.slo import SLO
from servesweep.runner.runner import run_grid
from servesweep.serving.run import run_systems
from system_plans import ALL, INSTANCE, WORKLOAD, tables

# ------------------------------------------------------------------------------------------------------------ measures


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = tables(
        system={
            "kind": ALL,
            "n_instances": 2,
            "n_prefill": 1,
            "n_decode": 2,
            "router": ["least_loaded", "round_robin"],
        },
        decode_instance={"pp": 2},
        scheduler={"policy": ["prefill_first", "chunked"]},
        slo={"ttft_ms": 200, "tpot_ms": 20},
        output={"instances": "all", "requests": "all", "steps": "request_rate_rps=20"},
    )
    config["workload"] = {**WORKLOAD, "output": {"mean": 20, "sigma": 0.8, "lo": 1, "hi": 100}}
    return run_grid({"name": "all-systems", **config}, workers=1, out=tmp_path_factory.mktemp("run"), progress=False)


def test_a_cell_is_what_its_system_gives_alone(run):
    plan = expand(load_experiment(run.experiment))
    assert set(run.df["status"]) == {"ok"}
    for cell, (_, row) in zip(plan.cells, run.df.iterrows(), strict=True):
        slo = SLO(ttft_s=cell.slo["ttft_slo_s"], tpot_s=cell.slo["tpot_slo_s"])
        result = run_systems([cell.system()]).result(0)
        for name, value in result.summary(slo=slo, n_gpus=cell.spec.n_gpus).items():
            assert row[name] == value or (np.isnan(value) and np.isnan(float(row[name] or np.nan))), name


def test_measures_per_gpu_count_all_gpus(run):
    df = run.df
    assert df["n_gpus"].tolist() == [1 + 2 * 2 if kind == "disaggregated" else 2 for kind in df["system"]]
    assert np.allclose(df["request_throughput_per_gpu_rps"] * df["n_gpus"].astype(float), df["request_throughput_rps"])


def test_systems_that_only_prefill_end_with_the_first_token(run):
    rows = run.df[run.df["system"] == "prefill_only"]
    requests = servesweep.load(run.directory, "requests")
    for _, row in rows.iterrows():
        mine = requests[requests["cell_id"] == row["cell_id"]]
        assert row["finished"] == len(mine) == WORKLOAD["n_requests"]
        assert row["duration_s"] == mine["first_token_s"].max() - mine["arrival_s"].min()
        assert row["output_throughput_tps"] == len(mine) / row["duration_s"]
        assert row["total_throughput_tps"] == (mine["prompt_tokens"] + 1).sum() / row["duration_s"]
        assert row["attainment"] == row["ttft_attainment"] > 0
    nothing = ["tpot_mean_s", "e2e_p99_s", "tpot_attainment", "tpot_slo_s", "kv_utilization_peak", "decode_utilization"]
    assert rows[nothing].isna().all(axis=None)


def test_systems_that_only_decode_have_no_ttft(run):
    rows = run.df[run.df["system"] == "decode_only"]
    assert (rows["ttft_p99_s"] == 0).all()
    assert rows["ttft_attainment"].isna().all()
    assert (rows["attainment"] == rows["tpot_attainment"]).all()
    assert rows["kv_transfer_mean_s"].isna().all()


def test_kv_transfers_take_what_the_link_takes(run):
    link, model = servesweep.link("ib-ndr"), servesweep.model("llama-3.1-8b")
    expected = link.alpha_s + 400 * model.kv_bytes_per_token(2.0) / link.bytes_per_s
    disaggregated = run.df["system"] == "disaggregated"
    for name in ("kv_transfer_mean_s", "kv_transfer_p50_s", "kv_transfer_p99_s"):
        assert run.df.loc[disaggregated, name].to_numpy() == pytest.approx(expected, rel=1e-9)
        assert run.df.loc[~disaggregated, name].isna().all()


def test_balance_is_that_of_the_instances(run):
    instances = servesweep.load(run.directory, "instances")
    assert instances.groupby("cell_id", observed=True, sort=False).size().tolist() == [
        3 if kind == "disaggregated" else 2 for kind in run.df["system"]
    ]
    for _, row in run.df.iterrows():
        mine = instances[instances["cell_id"] == row["cell_id"]]
        shares = mine["busy_s"] / mine["streams"].astype(float) / row["duration_s"]
        assert row["utilization"] == pytest.approx(shares.mean(), rel=1e-12)
        assert row["steps"] == mine["steps"].sum()
        for role, prefix in (("colocated", ""), ("prefill", "prefill_"), ("decode", "decode_")):
            of_role = mine[mine["role"] == role]
            names = [f"{prefix}requests_max_over_mean", f"{prefix}busy_max_over_mean"]
            if of_role.empty:
                assert row[names].isna().all()
                continue
            requests, busy = of_role["requests"].astype(float), of_role["busy_s"]
            assert requests.sum() == WORKLOAD["n_requests"]
            assert row[names[0]] == pytest.approx(requests.max() / requests.mean(), rel=1e-12)
            assert row[names[1]] == pytest.approx(busy.max() / busy.mean(), rel=1e-12)
            assert of_role["instance"].tolist() == list(range(len(of_role)))
    even = run.df[(run.df["router"] == "round_robin") & (run.df["system"] == "colocated")]
    assert (even["requests_max_over_mean"] == 1).all()


def test_steps_name_the_instance(run):
    steps = servesweep.load(run.directory, "steps")
    cells = run.df[run.df["request_rate_rps"] == 20]
    assert list(dict.fromkeys(steps["cell_id"])) == cells["cell_id"].tolist()
    instances = servesweep.load(run.directory, "instances")
    by = ["cell_id", "role", "instance"]
    counted = steps.groupby(by, observed=True).size().rename("logged").reset_index()
    joined = counted.merge(instances, on=by)
    assert len(joined) == len(counted)
    assert (joined["logged"] == joined["steps"]).all()


def test_the_tables_are_the_same_bytes_for_any_batches(run, tmp_path):
    other = run_grid(run.experiment, workers=2, max_batch_cells=3, out=tmp_path, progress=False)
    for name in ("cells", "requests", "steps", "instances"):
        file = f"{name}.parquet"
        assert (other.directory / file).read_bytes() == (run.directory / file).read_bytes(), name


# ------------------------------------------------------------------------------------------------------------- reports


def test_every_system_policy_and_router_has_a_best(run):
    best = best_by_policy(run.df)
    assert {tuple(row.parameters[name] for name in ("system", "policy", "router")) for row in best} == {
        (kind, policy, router)
        for kind in ALL
        for policy in (("prefill_first", "chunked") if kind == "colocated" else (None,))
        for router in ("least_loaded", "round_robin")
    }
    rates = [row.rate_per_gpu_rps for row in best]
    assert rates == sorted(rates, reverse=True)
    line = format_verdict(best, format_slos(run.df))
    assert "prefill_only, least_loaded" in line
    assert "per GPU" in line


def test_a_role_with_its_own_axis_is_told_apart(tmp_path):
    config = tables(
        system={"kind": "disaggregated"}, instance={**INSTANCE, "tp": [1, 2]}, prefill_instance={"tp": [1, 4]}
    )
    run = run_grid({"name": "roles", **config}, workers=1, out=tmp_path, progress=False)
    (best,) = best_by_policy(run.df)
    assert best.parameters == {"tp": 1, "prefill_tp": 1, "decode_tp": 1}  # the fewest GPUs for a rate that all carry
    assert best.n_gpus == 2


def test_the_command_prints_systems_and_writes_instances(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(
        """\
[workload]
kind = "synthetic"
prompt = 300
output = 20
n_requests = 20
request_rate_rps = [5, 10]
[system]
kind = ["colocated", "disaggregated"]
n_instances = 2
[instance]
model = "llama-3.1-8b"
chip = "h100-sxm"
[slo]
tpot_ms = 30
"""
    )
    assert command_line(["run", "two.toml", "--instances", "system=disaggregated", "--quiet"]) == 0
    out, _ = capsys.readouterr()
    assert "Best configuration by system and policy (90% attainment)" in out
    assert "req/s/GPU" in out
    assert "colocated, prefill_first" in out or "disaggregated: " in out
    instances = servesweep.load("results/two", "instances")
    assert instances["role"].tolist() == ["prefill", "decode"] * 2
    assert command_line(["run", "two.toml", "--dry-run"]) == 0
    assert "system (2): colocated, disaggregated" in capsys.readouterr().out
    assert command_line(["run", "two.toml", "--set", "policy=mixed"]) == 2
    assert 'scheduler.policy = "mixed": cannot be with memory = "reserve"' in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- ready experiments


def test_the_ready_comparison_is_of_eight_gpus():
    plan = expand(load_experiment("systems", settings={"n_requests": 10, "request_rate_rps": 10}))
    assert {cell.spec.n_gpus for cell in plan.cells} == {8}
    splits = [
        (c["n_prefill"], c["n_decode"], c["tp"])
        for c in (cell.columns() for cell in plan.cells)
        if c["system"] == "disaggregated"
    ]
    assert {split for split in splits if split[2] == 4} == {(1, 1, 4)}
    assert {split for split in splits if split[2] == 1} == {(n, 8 - n, 1) for n in range(1, 8)}
    assert {split for split in splits if split[2] == 2} == {(n, 4 - n, 2) for n in range(1, 4)}


def test_the_ready_hundred_instances_are_a_hundred():
    plan = expand(load_experiment("hundred-instances", settings={"n_requests": 10, "request_rate_rps": 10}))
    assert {cell.spec.n_instances for cell in plan.cells} == {100}
    assert len({cell.columns()["router"] for cell in plan.cells}) == 6
