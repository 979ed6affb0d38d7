"""About how many requests a second a system can serve, from averages alone: where a search should look first."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..hardware.steps import seconds_of
from ..serving.queue import NO_QUEUE
from ..serving.stages import UNLIMITED_TOKENS, Stage
from ..serving.system import System
from ..workloads.workload import Workload

_SHARE = 0.8  # of the rate by averages that meets usual SLOs: the middle of those measured, half of them within 14 %


class Averages(NamedTuple):
    """What a workload is like: its requests, and means of prompt and output tokens, of the pairs of tokens that the
    attention of a prefill takes, and of the tokens in the cache of a decoding request."""

    requests: int
    prompt: float
    output: float
    pairs: float
    context: float


def averages(workload: Workload) -> Averages | None:
    """None without requests."""
    if not len(workload):
        return None
    prompt, output = workload.prompt_tokens.astype(np.float64), workload.output_tokens.astype(np.float64)
    context = (output * (prompt + output / 2)).sum() / output.sum()
    means = prompt.mean(), output.mean(), (prompt * (prompt + 1) / 2).mean(), context
    return Averages(len(workload), *map(float, means))


def rate_by_averages(system: System, work: Averages | None) -> float | None:
    """The request rate about which the goodput of a system is to be expected; None where averages say nothing.

    A full batch of B requests decodes in steps that take up the prompts of B / (mean output) new requests each;
    `prefill_first` takes them up in steps of their own. It ignores queues, preemptions and the spread of lengths.
    """
    if work is None or len(system.roles) != 1:
        return None
    stage = system.stage(system.roles[0], NO_QUEUE)
    step, rules = stage.step, stage.rules
    prefill_s = float(seconds_of(step, 0.0, 0.0, work.prompt, work.pairs))
    if not rules.decodes:
        return _positive(_SHARE * stage.instances / prefill_s)
    batch = _batch(stage, work)
    beside = batch / work.output if rules.prefills and rules.decode_beside_prefill else 0.0
    kv = batch * work.context
    step_s = float(seconds_of(step, batch, kv, beside * work.prompt, beside * work.pairs, beside))
    request_s = work.output * step_s / batch
    if rules.prefills and not beside:
        request_s += prefill_s
    return _positive(_SHARE * stage.instances * stage.lanes / request_s)


def _batch(stage: Stage, work: Averages) -> float:
    """Requests of a full batch, at least 1."""
    most = float(stage.max_running or UNLIMITED_TOKENS)
    if stage.num_blocks is not None:
        tokens = float(stage.num_blocks) * (stage.block_size or 1)
        reserved = work.prompt + work.output
        most = min(most, tokens / (reserved if stage.rules.reserve else work.context + (stage.block_size or 1) / 2))
    return max(min(most, work.requests), 1.0)


def _positive(rate: float) -> float | None:
    return rate if 0 < rate < math.inf else None
