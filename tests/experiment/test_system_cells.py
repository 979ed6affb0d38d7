"""Cells of systems: which combinations come out, what they say, and which do not fit."""

import pytest
import servesweep
from servesweep.experiment.cell_selection import check_columns
from servesweep.experiment.combinations import fits
from system_plans import ALL, INSTANCE, columns, plan_of


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
        instance={**INSTANCE, "pp": 2, "step_times": "roofline"},
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
    assert cell.columns()["n_gpus"] == cell.spec.n_gpus == 2 * 4 + 3 * 2
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
            "in each of its pp = 4 streams",
        ),
    ],
)
def test_cells_that_do_not_fit_are_marked_with_the_reason(more, reason):
    plan = plan_of(system={"kind": "disaggregated"}, **more)
    infeasible = [cell.spec.infeasible for cell in plan.cells if cell.spec.infeasible]
    assert infeasible
    assert plan.feasible
    assert any(reason in text for text in infeasible)


def test_a_lane_without_room_for_a_token_is_infeasible(monkeypatch):
    monkeypatch.setattr(
        "servesweep.hardware.step_times.StepModel.kv_capacity_tokens", lambda step: 3 if step.pp == 4 else 100
    )
    plan = plan_of(system={"kind": ["decode_only", "colocated"]}, instance={**INSTANCE, "pp": [2, 4]})
    reasons = [cell.spec.infeasible for cell in plan.cells[::2]]
    assert [reason is None for reason in reasons] == [True, False, True, True]
    assert reasons[1] == (
        "no KV fits: 4 x h100-sxm with llama-3.1-8b has room for 0 tokens in each of its pp = 4 streams"
    )
