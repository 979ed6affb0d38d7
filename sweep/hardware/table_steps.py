"""An instance whose step times are tables."""

from dataclasses import KW_ONLY, dataclass

from .. import checks
from ..kernels.step_tables import StepTables
from .measured import MeasuredSteps
from .parts import Chip, Model
from .profile import TableStepTimes
from .tabled import TabledInstance


@checks.spelt_out
@dataclass(frozen=True)
class TableStepModel(TabledInstance):
    """An instance of `tp * pp` chips that serves one model in steps that were measured: TableStepTimes with a KV
    capacity.

    Parameters
    ----------
    times
        How long steps take.
    model, chip
        From the catalogue, `model(name)` and `chip(name)`, or your own: they say how much KV fits.
    tp, pp
        Tensor-parallel degree, and pipeline stages.
    weight_bytes, kv_bytes
        Bytes of a weight, and of a number of the KV cache.
    mem_reserve
        Share of the memory kept from weights and KV.

    Raises
    ------
    ValueError
        For a field out of range.
    """

    times: TableStepTimes
    _: KW_ONLY
    model: Model
    chip: Chip
    tp: int = 1
    pp: int = 1
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    mem_reserve: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.times, TableStepTimes):
            raise ValueError(f"times={self.times!r}: must be TableStepTimes")
        for name in ("tp", "pp", "weight_bytes", "kv_bytes", "mem_reserve"):
            object.__setattr__(self, name, getattr(self._roofline, name))  # checked there

    @property
    def measured(self) -> MeasuredSteps | None:
        """What the step times were fitted to; None: nothing is known."""
        return self.times.measured

    @property
    def first_token_s(self) -> float:
        """Seconds of a request outside the engine before its first token."""
        return self.times.first_token_s

    def coefficients(self) -> StepTables:
        """The step time as tables and numbers, for the engine: `step_time` looks up the same ones."""
        return self.times.coefficients()
