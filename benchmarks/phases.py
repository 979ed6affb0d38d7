"""Where the time of a run goes: CPU time of each phase of the engine's loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from servesweep.kernels import engine as module
from servesweep.kernels.batch import Batch
from servesweep.kernels.engine import Engine
from servesweep.kernels.phases import NAMES, Step

PHASES = NAMES


@dataclass
class Profile:
    """CPU seconds by phase, loops of the engine, and events: lanes that a loop moved on. Idle lanes, and those that
    wait for an arrival of their group, are none."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    engine_s: float = 0.0
    loops: int = 0
    events: int = 0


@contextlib.contextmanager
def profiled() -> Iterator[Profile]:
    """Measure what runs inside, at some cost to its speed: three clock readings a phase."""
    profile = Profile()
    clock = time.process_time

    def timed(step: Step, counts: bool) -> Step:
        def phase(batch: Batch) -> None:
            if counts:
                profile.events += int(np.count_nonzero(batch.due(batch.decodes.running > 0)))
            begin = clock()
            step.phase(batch)
            profile.seconds[step.name] += clock() - begin

        return step._replace(phase=phase)

    def steps_of(batch: Batch) -> tuple[Step, ...]:
        moves = "step" if batch.listed else "leap" if batch.rules.decodes else "prefill"
        return tuple(timed(step, step.name == moves) for step in plain_steps(batch))

    def run(engine: Engine) -> Any:
        begin = clock()
        out = plain_run(engine)
        profile.engine_s += clock() - begin
        return out

    def advance(engine: Engine) -> bool:
        profile.loops += 1
        return plain_advance(engine)

    plain_run, plain_advance, plain_steps = Engine.run, Engine.advance, module.steps_of
    changes: list[tuple[Any, str, Any]] = [
        (Engine, "run", run),
        (Engine, "advance", advance),
        (module, "steps_of", steps_of),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        yield profile
