"""Keys of systems: which go together, and what the defaults are."""

import pytest
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError
from system_plans import ALL, WORKLOAD, columns, problems, tables


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
            {"system": {"kind": "disaggregated"}, "decode_instance": {"step_times": "roofline", "link": "nvlink4"}},
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
            'scheduler.policy = "mixed": cannot be with memory = "reserve": must be chunked or prefill_first',
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
