"""What all serving systems have in common: what the engine asks of them, and how their options are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from .. import checks
from ..arrays import Floats, Ints
from ..hardware.steps import KNOWS_CHIP, Step, outside_s
from ..kernels.slots import NEVER_FINISHES
from ..workloads.workload import Workload
from .queue import Queue
from .routers import ROUTERS
from .stages import UNLIMITED_TOKENS, Stage


class System(ABC):
    """One or more instances and their traffic: all that decides an outcome.

    Attributes
    ----------
    workload
        The requests.
    rate
        Arrival = workload.arrival_s / rate.
    """

    roles: ClassVar[tuple[str, ...]]
    """Roles of the instances that a request meets, in order: colocated, prefill or decode."""
    memories: ClassVar[tuple[str, ...]]
    """KV memories that the instances can have; none where nothing decodes."""

    workload: Workload
    rate: float

    @property
    def capacity_tokens(self) -> float:
        """A request whose cache would grow beyond it is rejected; inf where nothing is."""
        return np.inf

    @property
    def skips_one_token(self) -> bool:
        """Whether requests of one token meet no instance that decodes: they are done with their first token."""
        return False

    @property
    def outside_s(self) -> float:
        """Seconds of each request outside the engine before its first token; none where it comes with that."""
        name = "prefill_step" if len(self.roles) > 1 else "step"
        return 0.0 if self.roles[0] == "decode" else outside_s(getattr(self, name))

    @abstractmethod
    def stage(self, role: str, queue: Queue) -> Stage:
        """The instances of a role, with what they shall serve."""

    def transfer_s(self, prompt_tokens: Ints) -> Floats:
        """Seconds in which the KV of prompts goes from the prefill to the decode instances."""
        return np.zeros(prompt_tokens.size)


class CheckedSystem(System):
    """Checks that systems have in common."""

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _whole(self, name: str, most: int | None = None) -> None:
        self._keep(name, checks.whole(name, getattr(self, name), 1, most))

    def _refuse(self, why: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}={getattr(self, name)!r}: has no effect {why}")

    def _check_memory(self, memory: str) -> None:
        checks.one_of("memory", memory, self.memories)

    def _check_traffic(self) -> None:
        if not isinstance(self.workload, Workload):
            raise ValueError(f"workload is a {type(self.workload).__name__}: must be a Workload")
        self._keep("rate", checks.positive("rate", self.rate))
        self._check_clients()
        if np.isinf(float(self.workload.arrival_s.max(initial=0.0)) / self.rate):
            raise ValueError(f"rate={self.rate!r}: is so small that the last request would never arrive")

    def _check_clients(self) -> None:
        """What closed loops allow."""
        concurrency = self.workload.concurrency
        if concurrency is None:
            return
        if self.roles != ("colocated",):
            raise ValueError(f"workload: has concurrency={concurrency}: must be a rate under {type(self).__name__}")
        if getattr(self, "memory", None) == "reserve" and getattr(self, "n_instances", 1) != 1:
            raise ValueError(f"memory='reserve': must be another under concurrency={concurrency} and several instances")
        if self.rate != 1:
            raise ValueError(f"rate={self.rate!r}: has no effect under concurrency={concurrency} of the workload")

    def _check_steps(self, budget: int | None) -> None:
        """Each step emits a token, or spends the whole budget on one prompt, or ends a prompt."""
        pieces = -(-self.workload.prompt_tokens // (budget or UNLIMITED_TOKENS))
        steps = int(np.sum(self.workload.output_tokens)) + int(np.sum(pieces))
        if steps >= NEVER_FINISHES:
            raise ValueError(f"workload: could take {steps} steps, must be fewer than {NEVER_FINISHES:.0f}")

    def _check_step(self, name: str) -> None:
        step = getattr(self, name)
        if not isinstance(step, Step):
            kinds = "a StepModel, an OperatorStepModel, TableStepTimes or a ConstantStepTime"
            raise ValueError(f"{name}={step!r}: must be {kinds}")
        if isinstance(step, KNOWS_CHIP) and step.kv_capacity_tokens() == 0:
            raise ValueError(
                f"{name}: the weights of {step.model.name} do not fit {step.n_gpus} x {step.chip.name}"
                f" (tp={step.tp}, pp={step.pp}, mem_reserve={step.mem_reserve}): no room for any KV"
            )


class RoutedSystem(CheckedSystem):
    """Checks that systems of several instances have in common."""

    router: str
    router_seed: int

    def _check_traffic(self) -> None:
        super()._check_traffic()
        checks.one_of("router", self.router, ROUTERS)
        self._keep("router_seed", checks.whole("router_seed", self.router_seed, 0))

    def _routing(self) -> dict[str, Any]:
        return {"router": self.router, "router_seed": self.router_seed, "rate": self.rate}


def streams_of(role: str, step: Step) -> int:
    """Batches that an instance of this role works on at a time: a decode instance has one in each pipeline stage."""
    return step.pp if role == "decode" and isinstance(step, KNOWS_CHIP) else 1


def capacity_of(step: Step, lanes: int) -> int | None:
    """KV tokens for each of an instance's lanes; None without a limit."""
    return min(step.kv_capacity_tokens() // lanes, UNLIMITED_TOKENS) if isinstance(step, KNOWS_CHIP) else None


def default_num_blocks(step: Step, block_size: int, lanes: int = 1) -> int:
    """KV blocks of an instance: as many as the step model's KV capacity holds.

    ValueError for step times that know no capacity.
    """
    capacity = capacity_of(step, lanes)
    if capacity is None:
        raise ValueError(f"num_blocks=None: must be given, as {type(step).__name__} knows no KV capacity")
    return capacity // block_size * lanes
