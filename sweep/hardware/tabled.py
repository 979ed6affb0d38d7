"""What step times have in common that are tables over whole numbers and straight lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

from .. import checks
from ..kernels.step_tables import StepTables, table_seconds
from .parts import Chip, Model
from .step_times import StepModel


class TabledSteps(ABC):
    """Step times that are looked up; a subclass makes the tables, and keeps none that it would have to send along."""

    @abstractmethod
    def coefficients(self) -> StepTables:
        """The step time as tables and numbers, for the engine: `step_time` looks up the same ones."""

    def step_time(
        self,
        decoding: int,
        context: int,
        prefill_tokens: int = 0,
        pairs: int = 0,
        done: int = 0,
        emitting: int | None = None,
    ) -> float:
        """Seconds of a step.

        Parameters
        ----------
        decoding, context
            Requests that decode, and the tokens in their caches together.
        prefill_tokens, pairs, done
            Prompt tokens processed, pairs of such a token and one that it attends to, and tokens of these prompts that
            were processed before.
        emitting
            Requests that emit a token: those that decode, and the prefills that end. None: only the former.

        Returns
        -------
        float
            Seconds; 0 for a step without a token.

        Raises
        ------
        ValueError
            For anything but integers of at least 0.
        """
        counts = {"decoding": decoding, "context": context, "prefill_tokens": prefill_tokens, "pairs": pairs}
        counts |= {"done": done, "emitting": decoding if emitting is None else emitting}
        work = [checks.whole(name, value, 0) for name, value in counts.items()]
        return float(table_seconds(self.coefficients(), *work)) if decoding + prefill_tokens else 0.0


class TabledInstance(TabledSteps):
    """The same of an instance of `tp * pp` chips, whose KV capacity is that of a roofline."""

    model: Model
    chip: Chip
    tp: int
    pp: int
    weight_bytes: float
    kv_bytes: float
    mem_reserve: float

    @cached_property
    def _roofline(self) -> StepModel:
        shared = {name: getattr(self, name) for name in ("tp", "pp", "weight_bytes", "kv_bytes", "mem_reserve")}
        return StepModel(self.model, self.chip, **shared)

    @property
    def n_gpus(self) -> int:
        """Chips of the instance."""
        return self.tp * self.pp

    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV fits beside the weights; as of `StepModel`."""
        return self._roofline.kv_capacity_tokens()
