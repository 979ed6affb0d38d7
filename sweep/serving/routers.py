"""The routers: one row each. Who gets which request; the rules are in docs/systems.md.

A new router is a row here, and its rules in the reference (reference_systems.py). A load that no router compares yet is
a function of the engine's batch, as those of kernels/routing.py are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .. import checks
from ..arrays import Floats, Int32s, Ints
from ..kernels.batch import Batch
from ..kernels.router import BETTER_OF_TWO, FIRST_DRAWN, LEAST
from ..kernels.routing import not_done, queued_or_running, tokens_not_done

RouterName = Literal["least_loaded", "least_outstanding", "least_tokens", "round_robin", "random", "power_of_two"]
Draw = Callable[[np.random.Generator, int, int], Int32s]
Load = Callable[[Batch, Ints, Floats], Floats]


@dataclass(frozen=True)
class RouterKind:
    """Which instance a request goes to.

    Parameters
    ----------
    name, meaning
        What it is called, and a line about it.
    load
        What it compares, of (batch, lanes, arrival of the request), in one shape; of an instance the sum of its lanes.
    rule
        How an instance is picked: a rule of kernels/router.py.
    draw
        Instances for all requests before the run, of (generator, requests, instances): int32 [n, 2], of which a rule
        looks at the first or at both; None: nothing is drawn.
    seeded
        The numbers depend on `router_seed`.
    splits
        It looks at nothing: the requests of each instance are known before the run.
    """

    name: RouterName
    meaning: str
    load: Load = not_done
    rule: int = LEAST
    draw: Draw | None = None
    seeded: bool = False
    splits: bool = False

    def __post_init__(self) -> None:
        if self.rule not in (LEAST, FIRST_DRAWN, BETTER_OF_TWO):
            raise ValueError(f"rule={self.rule!r}: must be LEAST, FIRST_DRAWN or BETTER_OF_TWO of kernels/router.py")
        if (self.draw is None) != (self.rule == LEAST):
            raise ValueError(f"draw={self.draw!r}: must be given where the rule looks at what is drawn, and only there")
        if self.splits and self.rule != FIRST_DRAWN:
            raise ValueError("splits=True: must go with rule FIRST_DRAWN, which looks at nothing that happens")

    def drawn(self, seed: Sequence[int], n: int, instances: int) -> Int32s:
        """Instances drawn for each of n requests, two a row: int32 [n, 2]."""
        if self.draw is None:
            return np.zeros((n, 2), np.int32)
        return self.draw(np.random.default_rng(seed), n, instances)


def _in_turn(_: np.random.Generator, n: int, instances: int) -> Int32s:
    drawn = np.zeros((n, 2), np.int32)
    drawn[:, 0] = np.arange(n) % instances
    return drawn


def _any(rng: np.random.Generator, n: int, instances: int) -> Int32s:
    drawn = np.zeros((n, 2), np.int32)
    drawn[:, 0] = np.floor(rng.random(n) * instances)
    return drawn


def _two(rng: np.random.Generator, n: int, instances: int) -> Int32s:
    """Two different instances, where there are two."""
    drawn = np.zeros((n, 2), np.int32)
    if instances > 1:
        pair = rng.random((n, 2))
        drawn[:, 0] = np.floor(pair[:, 0] * instances)
        drawn[:, 1] = np.floor(pair[:, 1] * (instances - 1))
        drawn[:, 1] += drawn[:, 1] >= drawn[:, 0]
    return drawn


ROUTERS: dict[str, RouterKind] = checks.by_name(
    (
        RouterKind(
            "least_loaded",
            "the instance with the fewest requests queued or running (prefill: tokens queued)",
            queued_or_running,
        ),
        RouterKind("least_outstanding", "the one with the fewest requests that are not done", not_done),
        RouterKind("least_tokens", "the one with the fewest tokens of requests that are not done", tokens_not_done),
        RouterKind("round_robin", "one after the other", rule=FIRST_DRAWN, draw=_in_turn, splits=True),
        RouterKind("random", "any", rule=FIRST_DRAWN, draw=_any, seeded=True, splits=True),
        RouterKind("power_of_two", "the better of two drawn at random", not_done, BETTER_OF_TWO, _two, seeded=True),
    )
)
DEFAULT_ROUTER: RouterName = "least_loaded"
