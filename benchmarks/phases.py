"""Where the time of a run goes: CPU time of each phase of the engine's loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from servesweep.kernels import engine as module
from servesweep.kernels.engine import Engine
from servesweep.kernels.router import Router

PHASES = ("route", "wake", "grow", "admit", "join", "take", "prefill", "pass", "leap", "finish")


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

    def timed(name: str, function: Callable[..., Any], counts: bool = False) -> Callable[..., Any]:
        def wrapper(engine: Any, *more: Any) -> Any:
            if counts or (name == "prefill" and not engine.rules.decodes):
                profile.events += int(np.count_nonzero(engine.due(engine.state.running > 0)))
            begin = clock()
            out = function(engine, *more)
            profile.seconds[name] += clock() - begin
            return out

        return wrapper

    def run(engine: Engine) -> Any:
        begin = clock()
        out = plain_run(engine)
        profile.engine_s += clock() - begin
        return out

    def advance(engine: Engine) -> bool:
        profile.loops += 1
        return plain_advance(engine)

    plain_run, plain_advance = Engine.run, Engine.advance
    changes: list[tuple[Any, str, Any]] = [(Engine, "run", run), (Engine, "advance", advance)]
    changes += [(Engine, "_wake", timed("wake", Engine._wake)), (Router, "route", timed("route", Router.route))]
    for name in PHASES[2:]:
        function = "pass_finishes" if name == "pass" else name
        changes.append((module, function, timed(name, getattr(module, function), name == "leap")))
    with contextlib.ExitStack() as stack:
        for owner, name, function in changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)
        yield profile
