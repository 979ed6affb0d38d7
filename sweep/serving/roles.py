"""What prefill and decode instances have in common, whatever system they are part of."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import checks
from ..hardware.steps import Step
from ..kernels.rules import Rules
from .queue import Queue
from .stages import UNLIMITED_TOKENS, Stage
from .system import capacity_of, default_num_blocks, streams_of


def prefill_stage(system: Any, queue: Queue, step: Step, instances: int) -> Stage:
    """Prefill instances of a system, with what they shall serve."""
    return Stage(
        queue,
        step,
        Rules(decode_beside_prefill=False, reserve=True, decodes=False),
        instances=instances,
        max_tokens=system.max_tokens,
        pipeline=streams_of("decode", step),
        order=system.order,
        max_wait_s=system.max_wait_s,
        **system._routing(),
    )


def check_decode_memory(system: Any, step: Step) -> int | None:
    """KV blocks of a decode instance, None under reserved memory."""
    system._check_memory(system.memory)
    if system.memory == "reserve":
        system._refuse("under reserved memory", "max_running", "block_size", "num_blocks")
        return None
    for name in ("block_size", "max_running"):
        if getattr(system, name) is None:
            raise ValueError(f"{name}=None: must be given under paged memory")
        system._whole(name)
    lanes = streams_of("decode", step)
    if system.num_blocks is None:
        blocks = default_num_blocks(step, system.block_size, lanes)
        if not blocks:
            capacity = capacity_of(step, lanes)
            raise ValueError(
                f"block_size={system.block_size}: must be at most the KV capacity of a stream, {capacity} tokens"
            )
        return blocks
    return checks.whole("num_blocks", system.num_blocks, lanes)


def decode_capacity(system: Any, step: Step) -> float:
    """Tokens of the KV blocks of a stream of a decode instance; inf under reserved memory."""
    if system.memory == "reserve":
        return np.inf
    return float(min(system.block_size * (system.num_blocks // streams_of("decode", step)), UNLIMITED_TOKENS))


def decode_stage(system: Any, queue: Queue, step: Step, instances: int, routing: dict[str, Any]) -> Stage:
    """Decode instances of a system, with what they shall serve."""
    lanes = streams_of("decode", step)
    paged = system.memory == "paged"
    return Stage(
        queue,
        step,
        Rules(reserve=not paged, prefills=False),
        instances=instances,
        lanes=lanes,
        max_running=system.max_running,
        block_size=system.block_size,
        num_blocks=system.num_blocks // lanes if paged else capacity_of(step, lanes),
        **routing,
    )
