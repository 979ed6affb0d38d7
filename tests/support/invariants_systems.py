"""What holds on every run of a serving system, for the package's answers and for the reference's."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from servesweep.serving.reference_instances import (
    ColocatedInstance,
    PrefillInstance,
    ReservedStep,
    Unit,
    decodes_and_chunks,
)
from servesweep.serving.reference_vllm import longest_of


def check_system(run: Any, case: Any) -> None:
    """Everything ends, in the order of events; nothing is dropped; steps take their time, transfers theirs.

    `run` is a servesweep.Result or the reference's in the same words, `case` a SystemCase.
    """
    times, system = case.times(), case.system
    whole_prompts = case.options.get("policy") not in ("chunked", "vllm")
    ordered = sorted(range(len(run.arrival_s)), key=lambda i: run.arrival_s[i])  # stable: first come, first served
    assert len(run.arrival_s) == len(case.traffic.arrival_s), "nothing is dropped"
    for i in ordered:
        arrival, admitted, first, finish = (
            float(getattr(run, name)[i]) for name in ("arrival_s", "admitted_s", "first_token_s", "finish_s")
        )
        prompt, output, ready = run.prompt_tokens[i], run.output_tokens[i], float(run.kv_ready_s[i])
        assert arrival == case.traffic.arrival_s[i] / case.rate
        if run.rejected[i]:
            too_long = run.prompt_tokens[i] + run.output_tokens[i] > longest_of(dict(case.options))
            assert case.options.get("memory") == "paged" or too_long, "reserved and unlimited memory refuse nothing"
            assert all(map(math.isnan, (admitted, first, finish, ready)))
            continue
        assert arrival <= first < math.inf
        if system == "decode_only":
            assert first == arrival
        else:
            assert arrival <= admitted < first
            step = times["prefill_step" if system == "disaggregated" else "step"]
            if whole_prompts:
                assert first - admitted >= step.prefill([prompt]) * (1 - 1e-9), "a prompt takes its prefill"
        if system == "prefill_only":
            assert math.isnan(finish)
            continue
        start = first
        if system == "disaggregated" and not math.isnan(ready):
            link = case.options.get("link", {"alpha_s": 2e-6, "bandwidth_bytes_per_s": 50e9})
            transfer = link["alpha_s"] + prompt * times["prefill_step"].kv / link["bandwidth_bytes_per_s"]
            assert math.isclose(ready, first + transfer, rel_tol=1e-12)
            start = ready
        else:
            assert math.isnan(ready)
        assert first <= finish < math.inf
        if output == 1:
            assert finish == first, "done with its first token"
        else:
            assert not (system == "disaggregated" and math.isnan(ready))
            step = times["decode_step" if system == "disaggregated" else "step"]
            alone = (output - 1) * step.mixed(1, prompt + 1, 0, 0)
            assert finish - start >= alone * (1 - 1e-9), "a token takes at least a step of decoding alone"
    # A short batch can overtake a long one in a pipeline, and the pp lanes of a decode instance admit on their own.
    in_order = case.options.get("order", "arrival") == "arrival"
    if in_order and case.options.get("n_prefill" if system == "disaggregated" else "n_instances", 1) == 1:
        admitted = [run.admitted_s[i] for i in ordered if not math.isnan(run.admitted_s[i])]
        assert system == "decode_only" or admitted == sorted(admitted), "one instance serves in the order of arrival"


def check_trace(trace: Sequence[tuple[Unit, ReservedStep]], case: Any) -> None:
    """Steps of reserved memory: none starts before the last has ended, none holds more KV than there is."""
    budget, max_tokens = case.options.get("chunk_budget", 512), case.options.get("max_tokens", 4096)
    rows = defaultdict(list)
    for unit, step in trace:
        rows[unit].append(step)
    decoded = prefilled = 0
    for unit, steps in rows.items():
        for last, step in itertools.pairwise(steps):
            assert last.end <= step.start, "no step starts before the last one ended"
        for step in steps:
            assert step.start < step.end
            if isinstance(unit, PrefillInstance):
                assert step.prefill_tokens >= 1
                assert step.decoding == 0
            else:
                assert step.reserved <= unit.capacity or step.decoding <= 1, "only one alone may exceed the memory"
                assert step.ctx <= step.reserved
            if isinstance(unit, ColocatedInstance) and unit.compose is decodes_and_chunks:
                assert step.prefill_tokens <= max(0, budget - step.decoding)
            elif step.prefill_tokens:
                assert step.decoding == 0
                assert step.prefill_tokens <= max(max_tokens, max(case.traffic.prompt_tokens))
            if step.decoding == 0:
                assert step.prefill_tokens >= 1
            decoded += step.decoding
            prefilled += step.prefill_tokens
    expected_decoded = 0 if case.system == "prefill_only" else sum(n - 1 for n in case.traffic.output_tokens)
    assert decoded == expected_decoded, "every token is sent once"
    assert prefilled == (0 if case.system == "decode_only" else sum(case.traffic.prompt_tokens))
