"""Systems in sweeps: which keys go together, which cells come out, what they measure and what is told of them."""

import numpy as np
import pytest
import servesweep
from servesweep.analysis.ranking import best_by_policy, slo_words, verdict
from servesweep.commands.main import command_line
from servesweep.experiment.combinations import fits
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError, check_columns
from servesweep.runner.batches import default_workers, estimate, make_batches
from servesweep.runner.runner import run_grid
from servesweep.serving.run import run_systems

WORKLOAD = {"kind": "synthetic", "prompt": 400, "output": 20, "n_requests": 30, "request_rate_rps": [5, 20]}
INSTANCE = {"model": "llama-3.1-8b", "chip": "h100-sxm"}
ALL = ["colocated", "disaggregated", "prefill_only", "decode_only"]


def tables(**more):
    return {"workload": WORKLOAD, "instance": INSTANCE, **more}


def plan_of(**more):
    return expand(load_experiment(tables(**more)))


def problems(**more):
    with pytest.raises(ConfigError) as caught:
        plan_of(**more)
    return list(caught.value.problems)


def columns(plan, *names):
    return [tuple(cell.columns()[name] for name in names) for cell in plan.cells[:: len(WORKLOAD["request_rate_rps"])]]


# ----------------------------------------------------------------------------------------------- which keys go together


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"system": {"kind": "colocate"}}, 'system.kind = "colocate": is unknown; did you mean "colocated"?'),
        ({"system": {"n_instances": 0}}, "system.n_instances = 0: must be an integer of at least 1"),
        ({"system": {"n_prefill": 2}}, 'system.n_prefill = 2: has no effect without kind = "disaggregated"'),
        (
            {"system": {"kind": "disaggregated", "n_instances": 2}},
            "system.n_instances = 2: has no effect without kind =",
        ),
        ({"system": {"router": "round_robin"}}, "has no effect without n_instances above 1"),
        ({"system": {"n_instances": 2, "router": "robin"}}, 'did you mean "round_robin"?'),
        (
            {"system": {"n_instances": 2, "router_seed": 1}},
            'router_seed = 1: has no effect without router = "random" or',
        ),
        ({"system": {"transfer_link": "ib-ndr"}}, 'system.transfer_link = "ib-ndr": has no effect without kind ='),
        ({"system": {"kind": "disaggregated", "transfer_link": "ib"}}, 'transfer_link = "ib": is unknown'),
        (
            {"system": {"n_instances": [1, 2], "n_gpus": 3}},
            "n_gpus = 3: no system of this experiment has so many GPUs; th",
        ),
        ({"decode_instance": {"tp": 2}}, 'decode_instance.tp = 2: has no effect without system.kind = "disaggregated"'),
        ({"system": {"kind": "disaggregated"}, "decode_instance": {"model": "llama-3-8b"}}, "model: unknown key"),
        (
            {"system": {"kind": "disaggregated"}, "decode_instance": {"link": "nvlink4"}},
            'decode_instance.link = "nvlink4": has no effect without tp above 1',
        ),
        (
            {
                "system": {"kind": "disaggregated"},
                "prefill_instance": {"chip": "t4"},
                "decode_instance": {"chip": "l4"},
            },
            'instance.chip = "h100-sxm": has no effect without system.kind = "colocated" or',
        ),
        (
            {"system": {"kind": "disaggregated"}, "scheduler": {"policy": "chunked"}},
            'scheduler.policy = "chunked": has no effect without system.kind = "colocated"',
        ),
        (
            {"system": {"kind": "prefill_only"}, "scheduler": {"memory": "reserve"}},
            'scheduler.memory = "reserve": has no effect without system.kind = "colocated" or',
        ),
        (
            {"scheduler": {"policy": "chunked", "memory": "reserve", "token_budget": 512}},
            'token_budget = 512: has no effect without memory = "paged" or memory = "unlimited"',
        ),
        (
            {"scheduler": {"policy": "chunked", "memory": "paged", "chunk_budget": 512}},
            'scheduler.chunk_budget = 512: has no effect without memory = "reserve"',
        ),
        (
            {"scheduler": {"memory": "reserve", "max_running": 8}},
            'scheduler.max_running = 8: has no effect without memory = "paged" or memory = "unlimited"',
        ),
        (
            {"scheduler": {"policy": "mixed", "memory": "reserve"}},
            'scheduler.policy = "mixed": cannot be with memory = "reserve": must be prefill_first or chunked',
        ),
        (
            {"scheduler": {"policy": "mixed", "memory": ["reserve", "paged"]}},
            'scheduler.memory = "reserve": cannot be with policy = "mixed"',
        ),
        (
            {"system": {"kind": "decode_only"}, "scheduler": {"memory": "unlimited"}},
            'scheduler.memory = "unlimited": must be reserve or paged for system.kind = "decode_only"',
        ),
        (
            {"system": {"kind": "disaggregated"}, "scheduler": {"memory": ["unlimited", "reserve"]}},
            'scheduler.memory = "unlimited": cannot be with system.kind = "disaggregated"',
        ),
        (
            {"system": {"kind": "prefill_only"}, "slo": {"tpot_ms": 30}},
            'slo.tpot_ms = 30: has no effect without system.kind = "colocated" or',
        ),
        (
            {"system": {"kind": "decode_only"}, "slo": {"ttft_ms": 30}},
            'slo.ttft_ms = 30: has no effect without system.kind = "colocated" or',
        ),
    ],
)
def test_what_cannot_be_names_the_keys(more, words):
    (text,) = problems(**more)
    assert words in text


def test_defaults_go_by_what_is_given():
    def scheduler(kind, **keys):
        held = load_experiment(tables(system={"kind": kind}, scheduler=keys)).scheduler
        return held.memory + held.policy

    assert scheduler("colocated") == ("unlimited", "mixed")
    assert scheduler("colocated", block_size=8) == ("paged", "mixed")
    assert scheduler("colocated", chunk_budget=512, policy="chunked") == ("reserve", "chunked")
    assert scheduler("colocated", memory="reserve") == ("reserve", "prefill_first")
    assert scheduler(["colocated", "disaggregated"]) == ("reserve", "prefill_first")
    assert scheduler("disaggregated", block_size=8) == ("paged", "mixed")


def test_a_role_with_a_chip_of_its_own_needs_none_in_instance():
    roles = {"prefill_instance": {"chip": "h100-sxm"}, "decode_instance": {"chip": "h200-sxm"}}
    config = {"workload": WORKLOAD, "instance": {"model": "llama-3.1-8b"}, "system": {"kind": "disaggregated"}}
    plan = expand(load_experiment({**config, **roles}))
    assert columns(plan, "chip", "prefill_chip", "decode_chip") == [(None, "h100-sxm", "h200-sxm")]
    with pytest.raises(ConfigError, match=r"instance\.chip is missing"):
        load_experiment({**config, "prefill_instance": roles["prefill_instance"]})


def test_tables_read_again_give_the_same_experiment():
    for more in (
        {"system": {"kind": ALL, "n_instances": [1, 4], "n_decode": [1, 2], "router": ["random", "least_loaded"]}},
        {
            "system": {"kind": "disaggregated"},
            "prefill_instance": {"tp": 2},
            "decode_instance": {"tp": [1, 4], "pp": 2},
        },
        {"system": {"kind": "prefill_only", "n_instances": 2, "n_gpus": 2}, "slo": {"ttft_ms": [100, 200]}},
        {"scheduler": {"memory": ["reserve", "paged"], "policy": ["chunked", "mixed"], "chunk_budget": 256}},
    ):
        experiment = load_experiment(tables(**more))
        assert load_experiment(experiment.tables()) == experiment
        assert load_experiment(experiment) == experiment


def test_settings_take_the_effect_of_keys_away():
    more = {"system": {"kind": ["colocated", "disaggregated"], "n_prefill": [1, 2], "n_instances": 3}}
    experiment = load_experiment(tables(**more), settings={"system.kind": "colocated"})
    assert experiment.tables()["system"] == {"kind": "colocated", "n_instances": 3, "router": "least_loaded"}


# --------------------------------------------------------------------------------------------------------------- cells


def test_an_axis_multiplies_only_the_systems_that_have_it():
    plan = plan_of(
        system={
            "kind": ALL,
            "n_instances": [1, 3],
            "n_prefill": [1, 2],
            "n_decode": 2,
            "router": ["least_loaded", "random"],
            "router_seed": [0, 1],
            "transfer_link": ["ib-ndr", "ib-hdr"],
        },
        scheduler={
            "policy": ["mixed", "chunked", "prefill_first"],
            "memory": ["paged", "unlimited", "reserve"],
            "block_size": [16, 32],
            "token_budget": 512,
            "chunk_budget": [256, 512],
            "max_tokens": [2048, 4096],
        },
        slo={"ttft_ms": [100, 200], "tpot_ms": 30},
    )
    routers = 1 + 2  # least_loaded, and random with two seeds
    # mixed: paged (2 sizes) and unlimited; chunked: these and reserve (2 budgets); prefill_first: these x 2 max_tokens
    colocated = (1 + routers) * (3 + (3 + 2) + 4 * 2) * 2
    disaggregated = 2 * routers * 2 * (3 * 2) * 2
    prefill_only = (1 + routers) * 2 * 2
    decode_only = (1 + routers) * 3
    found = columns(plan, "system")
    assert [found.count((kind,)) for kind in ALL] == [colocated, disaggregated, prefill_only, decode_only]
    for cell in plan.cells:
        c = cell.columns()
        kind = c["system"]
        assert fits(kind, c["policy"], c["memory"])
        assert (c["policy"] is not None) == (kind == "colocated")
        assert (c["memory"] is None) == (kind == "prefill_only")
        assert (c["n_instances"] is None) == (kind == "disaggregated")
        assert (c["transfer_link"] is not None) == (c["prefill_chip"] is not None) == (kind == "disaggregated")
        several = c["n_instances"] != 1
        assert (c["router"] is not None) == several
        assert (c["router_seed"] is not None) == (several and c["router"] == "random")
        assert (c["max_running"] is None) == (c["memory"] in ("reserve", None))
        assert (c["ttft_slo_s"] is None) == (kind == "decode_only")
        assert (c["tpot_slo_s"] is None) == (kind == "prefill_only")
        assert cell.system().rate == c["request_rate_rps"]  # which refuses options without effect
        for column in c:
            check_columns(f"{column}=1")
    assert len({cell.cell_id for cell in plan.cells}) == len(plan.cells)


def test_systems_are_what_the_cells_say():
    plan = plan_of(
        system={"kind": "disaggregated", "n_prefill": 2, "n_decode": 3, "router": "power_of_two", "router_seed": 7},
        instance={**INSTANCE, "pp": 2},
        prefill_instance={"tp": 2, "chip": "h200-sxm"},
        scheduler={"memory": "paged", "block_size": 32, "max_running": 9, "max_tokens": 1000},
    )
    cell = plan.cells[0]
    system = cell.system()
    assert (system.prefill_step.tp, system.prefill_step.pp, system.prefill_step.chip.name) == (2, 2, "h200-sxm")
    assert (system.decode_step.tp, system.decode_step.pp, system.decode_step.chip.name) == (1, 2, "h100-sxm")
    assert (system.n_prefill, system.n_decode, system.router, system.router_seed) == (2, 3, "power_of_two", 7)
    assert (system.memory, system.block_size, system.max_running, system.max_tokens) == ("paged", 32, 9, 1000)
    assert system.link == servesweep.link("ib-ndr")
    assert cell.columns()["n_gpus"] == cell.setup.n_gpus == 2 * 4 + 3 * 2
    # Each of the two lanes holds what half of the capacity has room for.
    assert cell.columns()["num_blocks"] == system.num_blocks == 2 * (system.decode_step.kv_capacity_tokens() // 2 // 32)
    names = ("chip", "tp", "pp", "prefill_tp", "prefill_link", "decode_tp", "decode_link", "kv_bytes")
    assert columns(plan, *names) == [(None, None, 2, 2, "nvlink4", 1, None, 2.0)]


def test_roles_share_the_axes_that_they_do_not_replace():
    plan = plan_of(
        system={"kind": ["colocated", "disaggregated"]},
        instance={**INSTANCE, "tp": [1, 2], "kv_bytes": [1.0, 2.0]},
        prefill_instance={"kv_bytes": 2.0},
        decode_instance={"kv_bytes": [1.0, 2.0]},
    )
    assert columns(plan, "system", "tp", "kv_bytes", "prefill_kv_bytes", "decode_kv_bytes") == [
        *(("colocated", tp, kv, None, None) for tp in (1, 2) for kv in (1.0, 2.0)),
        # The axis of [instance] has no effect where both roles have a value of their own.
        *(("disaggregated", tp, 2.0 if kv == 2.0 else None, 2.0, kv) for tp in (1, 2) for kv in (1.0, 2.0)),
    ]
    assert plan.axes["decode_kv_bytes"] == (1.0, 2.0)


def test_only_systems_with_the_wanted_number_of_gpus_stay():
    plan = plan_of(
        system={
            "kind": ["colocated", "disaggregated"],
            "n_instances": [1, 2, 4],
            "n_prefill": [1, 2, 3],
            "n_decode": [1, 2, 3],
            "n_gpus": 4,
        },
        instance={**INSTANCE, "tp": [1, 2]},
    )
    assert columns(plan, "n_instances", "n_prefill", "n_decode", "tp") == [
        (2, None, None, 2),
        (4, None, None, 1),
        (None, 1, 1, 2),
        (None, 1, 3, 1),
        (None, 2, 2, 1),
        (None, 3, 1, 1),
    ]
    everything = plan_of(system={"n_instances": [1, 2, 4]}, instance={**INSTANCE, "tp": [1, 2]})
    same = plan_of(system={"n_instances": [1, 2, 4], "n_gpus": [4, 8]}, instance={**INSTANCE, "tp": [1, 2]})
    assert {cell.cell_id for cell in same.cells} < {cell.cell_id for cell in everything.cells}


def test_what_changes_a_system_changes_the_id():
    base = {"system": {"kind": "disaggregated", "n_decode": 2}}
    ids = {
        cell.cell_id
        for more in (
            base,
            {"system": {**base["system"], "n_prefill": 2}},
            {"system": {**base["system"], "router": "random"}},
            {"system": {**base["system"], "router": "random", "router_seed": 1}},
            {"system": {**base["system"], "transfer_link": "ib-hdr"}},
            {**base, "prefill_instance": {"mfu": 0.5}},
            {**base, "decode_instance": {"mfu": 0.5}},
            {**base, "scheduler": {"max_tokens": 100}},
            {**base, "scheduler": {"memory": "paged"}},
            {"system": {"kind": "decode_only", "n_instances": 2}},
        )
        for cell in plan_of(**more).cells
    }
    assert len(ids) == 10 * 2
    written_out = {"system": {**base["system"], "n_prefill": 1, "router": "least_loaded", "transfer_link": "ib-ndr"}}
    assert [cell.cell_id for cell in plan_of(**written_out).cells] == [cell.cell_id for cell in plan_of(**base).cells]
    # One instance is one instance, with the table or without.
    assert plan_of(system={"kind": "colocated"}).cells[0].cell_id == plan_of().cells[0].cell_id


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"prefill_instance": {"chip": ["t4", "h100-sxm"]}},
            "prefill instance: the weights of llama-3.1-8b do not fit 1",
        ),
        (
            {"decode_instance": {"chip": ["t4", "h100-sxm"]}},
            "decode instance: the weights of llama-3.1-8b do not fit 1",
        ),
        (
            {"decode_instance": {"mem_reserve": [0.1, 0.81], "pp": 1}, "scheduler": {"block_size": [16, 4096]}},
            "tokens of KV blocks do not fit: 1 x h100-sxm with llama-3.1-8b has room for",
        ),
        (
            {"decode_instance": {"pp": 2}, "scheduler": {"block_size": [16, 600_000]}},
            "1 x 600000 tokens of KV blocks do not fit: 2 x h100-sxm with llama-3.1-8b has room for 528",
        ),
        (
            {"decode_instance": {"pp": [1, 4]}, "scheduler": {"memory": "paged", "num_blocks": 3}},
            "in each of its pp = 4 lanes",
        ),
    ],
)
def test_cells_that_do_not_fit_are_marked_with_the_reason(more, reason):
    plan = plan_of(system={"kind": "disaggregated"}, **more)
    infeasible = [cell.setup.infeasible for cell in plan.cells if cell.setup.infeasible]
    assert infeasible
    assert plan.feasible
    assert any(reason in text for text in infeasible)


def test_a_lane_without_room_for_a_token_is_infeasible(monkeypatch):
    monkeypatch.setattr(
        "servesweep.hardware.step_times.StepModel.kv_capacity_tokens", lambda step: 3 if step.pp == 4 else 100
    )
    plan = plan_of(system={"kind": ["decode_only", "colocated"]}, instance={**INSTANCE, "pp": [2, 4]})
    reasons = [cell.setup.infeasible for cell in plan.cells[::2]]
    assert [reason is None for reason in reasons] == [True, False, True, True]
    assert reasons[1] == (
        "no KV fits: 4 x h100-sxm with llama-3.1-8b has room for 0 tokens in each of its pp = 4 lanes"
    )


# ------------------------------------------------------------------------------------------------------------- batches


def test_batches_hold_cells_that_the_engine_advances_together():
    plan = plan_of(
        system={"kind": ALL, "n_instances": [1, 3], "n_decode": 2, "router": ["least_loaded", "round_robin"]},
        scheduler={"policy": ["prefill_first", "chunked"], "memory": ["reserve", "paged"]},
    )
    batches = make_batches(plan, plan.feasible, 2)
    assert sorted(at for batch in batches for at in batch) == plan.feasible
    for batch in batches:
        setups = [plan.cells[at].setup for at in batch]
        assert len({(setup.kind, setup.options["memory"] == "reserve") for setup in setups}) == 1
        assert len({setup.options["policy"] for setup in setups if setup.options["memory"] == "reserve"}) <= 1
        assert len({setup.n_instances > 1 and setup.layout["router"] == "least_loaded" for setup in setups}) == 1
    assert default_workers(plan, plan.feasible, 2) in (1, 2)
    assert estimate(plan, batches, 2).cpu_s > 0


def test_more_instances_are_expected_to_cost_more_only_where_they_are_tied_together():
    def cost(router, n):
        plan = plan_of(system={"n_instances": n, "router": router}, workload={**WORKLOAD, "n_requests": 10_000})
        return estimate(plan, make_batches(plan, plan.feasible, 1), 1).cpu_s

    assert cost("round_robin", 100) < cost("least_loaded", 2) < cost("least_loaded", 100)


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
        slo = {"ttft_slo": cell.slo["ttft_slo_s"], "tpot_slo": cell.slo["tpot_slo_s"]}
        result = run_systems([cell.system()]).result(0)
        for name, value in result.summary(**slo, n_gpus=cell.setup.n_gpus).items():
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
        shares = mine["busy_s"] / mine["lanes"].astype(float) / row["duration_s"]
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
    other = run_grid(run.experiment, workers=2, max_lanes=3, out=tmp_path, progress=False)
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
    line = verdict(best, slo_words(run.df))
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
    assert {cell.setup.n_gpus for cell in plan.cells} == {8}
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
    assert {cell.setup.n_instances for cell in plan.cells} == {100}
    assert len({cell.columns()["router"] for cell in plan.cells}) == 6
