"""Hypothesis strategies for serving systems: random clocks, and exact ones on which arrivals meet the ends of steps."""

from random import Random
from typing import Any

from hypothesis import strategies as st
from parity_systems import SystemCase
from servesweep.serving import policies, routers, system_kinds
from servesweep.serving.reference_steps import StepTimes, times_of
from strategies import (
    BLOCK_SIZES,
    SLACK,
    SLOTS,
    Traffic,
    blocks_needed,
    order_options,
    policy_options,
    small_models,
    step_times,
    traffic,
    with_priorities,
)

SYSTEMS, ROUTERS = tuple(system_kinds.SYSTEMS), tuple(routers.ROUTERS)
PPS = (1, 2, 4)


def exact_step(rng: Random) -> dict[str, Any]:
    """Every time is a sum of powers of two that a float holds exactly, whatever the order of the additions.

    Half of them last the same whatever they do; the others grow with tokens and context.
    """
    if rng.randrange(10) == 0:
        return {"seconds": rng.choice([1.0, 0.5])}
    tp, pp = rng.choice([1, 1, 2, 4]), rng.choice(PPS)
    names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab")
    step: dict[str, Any] = {
        "model": {"name": "one", **dict.fromkeys(names, 1)},  # 16 bytes of weights, 4 a token; 16 FLOPs a token
        "chip": {"name": "one", "bf16": 2.0**80, "fp8": 0.0, "mem_bw": 2.0**80, "mem_cap": 1.0},
        "link": {"alpha_s": 2.0**-80, "bandwidth_bytes_per_s": 2.0**80},
        "tp": tp,
        "pp": pp,
        "weight_bytes": 2.0,
        "kv_bytes": 2.0,
        "mfu": 1.0,
        "mbu": 1.0,
        "overhead_s": rng.choice([1.0, 0.5, 2.0]),
        "mem_reserve": 0.0,
    }
    if rng.random() < 0.5:
        step["overhead_s"] = rng.choice([0.0, 0.5])
        step["chip"]["mem_bw"] = rng.choice([16.0, 32.0, 128.0])
        step["chip"]["bf16"] = rng.choice([16.0, 64.0, 512.0, 2.0**20])
        step["link"] = {
            "alpha_s": rng.choice([0.25, 2.0**-5]),
            "bandwidth_bytes_per_s": rng.choice([8.0, 64.0, 2.0**12]),
        }
    return step


def holding(tokens: int, step: dict[str, Any]) -> dict[str, Any]:
    """The step on a chip whose memory holds the KV of so many tokens."""
    if "seconds" in step:
        return step
    size = StepTimes(step)
    kv_bytes = (tokens + 0.5) * size.kv * max(1, step["tp"] / step["model"]["n_kv_heads"])
    gpus = step["tp"] * step["pp"] * (1 - step["mem_reserve"])
    chip = {**step["chip"], "mem_cap": (size.n_params * step["weight_bytes"] + kv_bytes) / gpus}
    held = {**step, "chip": chip}
    assert StepTimes(held).kv_capacity == tokens
    return held


EXACT_STEPS = st.randoms(use_true_random=False).map(exact_step)


@st.composite
def system_shapes(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """Prompts and outputs: enough of them to fill several instances, and outputs of one token among the others."""
    n = draw(st.integers(1, 8) | st.integers(15, 30))
    prompt, output = draw(st.sampled_from([(1, 1), (3, 3), (6, 20), (20, 6), (40, 40)]))
    prompts = draw(st.lists(st.integers(1, prompt), min_size=n, max_size=n))
    lengths = st.integers(1, output) if draw(st.booleans()) else st.sampled_from([1, 1, 2, output])
    return n, prompts, draw(st.lists(lengths, min_size=n, max_size=n))


@st.composite
def grid_traffic(draw: st.DrawFn) -> Traffic:
    """Arrivals on a coarse grid, often tied, often out of order."""
    n, prompts, outputs = draw(system_shapes())
    slots, width = draw(st.sampled_from([0, 3, 20, 60])), draw(st.sampled_from([0.25, 0.5, 1.0, 1.0]))
    arrivals = draw(st.lists(st.integers(0, slots), min_size=n, max_size=n))
    if draw(st.booleans()):
        arrivals.sort()
    return Traffic([slot * width for slot in arrivals], prompts, outputs)


def scheduler_options(draw: st.DrawFn, case_lengths: list[tuple[int, int]], memory: str, lanes: int) -> dict[str, Any]:
    """Options of paged or unlimited memory; `lanes` share the blocks of an instance."""
    options: dict[str, Any] = {"memory": memory, "max_running": draw(SLOTS)}
    if memory == "paged":
        options["block_size"] = block_size = draw(st.sampled_from(BLOCK_SIZES))
        needs = [blocks_needed(prompt, output, block_size) for prompt, output in case_lengths]
        rejecting = draw(st.sampled_from([False, False, True]))
        blocks = draw(st.integers(1, max(needs))) if rejecting else max(needs) + draw(SLACK)
        options["num_blocks"] = blocks * lanes + draw(st.integers(0, lanes - 1))
    return options


@st.composite
def system_cases(
    draw: st.DrawFn,
    system: str | None = None,
    router: str | None = None,
    memory: str | None = None,
    traffics: st.SearchStrategy[Traffic] | None = None,
    exact: bool | None = None,
    policy: str | None = None,
    order: str | None = None,
) -> SystemCase:
    """`traffics`, if given, are on a grid: exact clocks may go with them or not.

    Without `order` all is as it was before there were orders: requests have no priorities.
    """
    exact = draw(st.booleans()) if exact is None else exact
    requests = draw(traffics if traffics is not None else grid_traffic() if exact else traffic(system_shapes()))
    system = draw(st.sampled_from(SYSTEMS)) if system is None else system
    if memory is None:
        memory = draw(st.sampled_from(system_kinds.SYSTEMS[system].memories or ("reserve",)))
    roles = ("prefill_step", "decode_step") if system == "disaggregated" else ("step",)
    model = st.just(draw(small_models()))
    steps = {role: holding(100, draw(EXACT_STEPS if exact else step_times(model, PPS))) for role in roles}
    if not exact and len(roles) == 2 and all("seconds" in step for step in steps.values()):
        # if they were the same, ends of steps would meet arrivals of KV, to rounding
        steps["decode_step"] = {"seconds": 0.7371 * steps["prefill_step"]["seconds"]}
    if memory == "reserve":  # from less than the largest request needs to room for many
        largest = max(map(sum, zip(requests.prompt_tokens, requests.output_tokens, strict=True)))
        tokens = draw(st.integers(1 + largest // 2, 2 * largest) | st.integers(largest, 6 * largest))
        role = roles[-1]
        steps[role] = holding(tokens * (1 if system == "colocated" else steps[role].get("pp", 1)), steps[role])
    counts = ("n_prefill", "n_decode") if system == "disaggregated" else ("n_instances",)
    options: dict[str, Any] = {name: draw(st.sampled_from([1, 1, 1, 2, 2, 3, 5])) for name in counts}
    options["router"] = draw(st.sampled_from(ROUTERS)) if router is None else router
    if routers.ROUTERS[options["router"]].seeded:
        options["router_seed"] = draw(st.integers(0, 3))
    if system in ("prefill_only", "disaggregated"):
        options["max_tokens"] = draw(st.sampled_from([1, 10, 60, 4096]))
    if memory != "reserve":
        lengths = list(zip(requests.prompt_tokens, requests.output_tokens, strict=True))
        lanes = 1 if system == "colocated" else steps[roles[-1]].get("pp", 1)
        options |= scheduler_options(draw, lengths, memory, lanes)
    if system == "colocated":
        known = [row.name for row in policies.POLICIES.values() if memory in row.memories]
        options["policy"] = draw(st.sampled_from(known)) if policy is None else policy
        options |= draw(policy_options(options["policy"], memory, options.get("max_running", 0)))
    rate = 1.0
    if system == "disaggregated" and draw(st.booleans()):
        options["link"] = draw(links(exact))
    if not exact:
        # Not 3: arrivals lie on a grid, and would meet the ends of steps, to rounding.
        rate = draw(st.sampled_from([0.0307, 0.3071, 3.0713])) / times_of(steps[roles[-1]]).mixed(1, 1, 0, 0)
    if order is not None:
        options |= draw(order_options(order, rate))
        requests = draw(with_priorities(requests))
    return SystemCase(system, requests, rate, steps, options, exact)


@st.composite
def links(draw: st.DrawFn, exact: bool) -> dict[str, float]:
    """From no time at all, next to a step, to several steps a prompt."""
    if exact:
        alpha_s, bandwidth = draw(st.sampled_from([0.0, 0.5, 1.0])), draw(st.sampled_from([4.0, 16.0, 2.0**80]))
    else:
        rng = Random(draw(st.integers(0, 2**32)))
        alpha_s, bandwidth = rng.choice([1e-4, 0.1, 1.0]) * rng.random(), 10 ** rng.uniform(1, 6)
    return {"alpha_s": alpha_s, "bandwidth_bytes_per_s": bandwidth}


@st.composite
def system_batches(draw: st.DrawFn, max_systems: int = 8, **kind: Any) -> list[SystemCase]:
    """Systems of one kind or of all, several of them sharing their traffic."""
    if kind.get("exact") is not False:
        pool = draw(st.lists(grid_traffic(), min_size=1, max_size=3))
        kind["traffics"] = st.sampled_from(pool)
    return draw(st.lists(system_cases(**kind), min_size=1, max_size=max_systems))
