"""About how many requests a second a system can serve, from averages alone: where a search should look first."""

from __future__ import annotations

import math

import numpy as np

from .kernels.steptime import step_seconds
from .runs import System
from .stages import MOST, Queue, Stage

_SHARE = 0.8  # of the rate by averages that meets usual SLOs: the middle of those measured, half of them within 14 %


def expected_rate(system: System) -> float | None:
    """The request rate about which the goodput of a system is to be expected; None where averages say nothing.

    A full batch of B requests decodes in steps that take up the prompts of B / (mean output) new requests each;
    `prefill_first` takes them up in steps of their own. It ignores queues, preemptions and the spread of lengths.
    """
    work = system.workload
    if len(system.stages()) != 1 or not len(work):
        return None
    prompt, output = work.prompt_tokens.astype(np.float64), work.output_tokens.astype(np.float64)
    queue = Queue(work.arrival_s, work.prompt_tokens, work.output_tokens, np.arange(len(work)))
    stage = system.stage(system.stages()[0], queue)
    c = stage.step.coefficients()
    mean_prompt, mean_output = float(prompt.mean()), float(output.mean())
    pairs = float((prompt * (prompt + 1) / 2).mean())
    prefill_s = float(step_seconds(c, mean_prompt, pairs, mean_prompt))
    if not stage.rules.decodes:
        return _positive(_SHARE * stage.instances / prefill_s)
    context = float((output * (prompt + output / 2)).sum() / output.sum())
    batch = _batch(stage, context, float((prompt + output).mean()))
    beside = batch / mean_output if stage.rules.prefills and stage.rules.decode_beside_prefill else 0.0
    kv = batch * context
    step_s = float(step_seconds(c, batch + beside * mean_prompt, kv + beside * pairs, kv + beside * mean_prompt))
    request_s = mean_output * step_s / batch
    if stage.rules.prefills and not beside:
        request_s += prefill_s
    return _positive(_SHARE * stage.instances * stage.lanes / request_s)


def _batch(stage: Stage, context: float, reserved: float) -> float:
    """Requests of a full batch, at least 1."""
    most = float(stage.max_running or MOST)
    if stage.num_blocks is not None:
        tokens = float(stage.num_blocks) * (stage.block_size or 1)
        each = reserved if stage.rules.reserve else context + (stage.block_size or 1) / 2
        most = min(most, tokens / each)
    return max(min(most, len(stage.queue)), 1.0)


def _positive(rate: float) -> float | None:
    return rate if 0 < rate < math.inf else None
