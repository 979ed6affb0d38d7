"""Step times of operators added up, with constants that were measured."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .. import checks
from ..kernels.step_tables import LAST, StepTables
from .catalogue import chip_file
from .parts import Chip, Model
from .step_times import ACTIVATION_BYTES, BYTES_RANGE, EFFICIENCY_RANGE, MAX_OVERHEAD_S
from .tabled import TabledInstance

MAX_FACTOR = 1e3  # of mixed_attention
_EFFICIENCIES = ("mfu", "mbu", "mbu_attention", "mfu_attention")
_SECONDS = ("layer_s", "allreduce_s", "overhead_s", "sequence_s")
CONSTANTS = (*_EFFICIENCIES, "mixed_attention", *_SECONDS, "allreduce_bw")
"""Constants of OperatorStepModel that the catalogue has for each chip."""
USUAL_KIND = "h100-sxm"


class ChipConstants(NamedTuple):
    """What the catalogue knows of a chip: constants, the names of those that were not measured on it, their origin, and
    the chip that they are of."""

    values: dict[str, float]
    guessed: tuple[str, ...]
    source: str
    chip: str


def chip_constants(chip: str, tp: int = 1) -> ChipConstants:
    """The constants of `OperatorStepModel` for a chip (configs/step_constants.toml).

    Parameters
    ----------
    chip
        Its name. One that was not measured takes the constants of its kind, all of them guessed.
    tp
        Tensor-parallel degree, which `allreduce_s` depends on: that of the next larger degree of 2, 4 and 8, and above
        8 that of 8.
    """
    entries = chip_file("step_constants")
    kind = chip if chip in entries["chips"] else entries["kinds"].get(chip, USUAL_KIND)
    entry = entries["chips"][kind]
    guessed = tuple(entry["guessed"]) if kind == chip else CONSTANTS
    values = {name: entry[name] for name in CONSTANTS if name != "allreduce_s"}
    degrees = {int(degree): seconds for degree, seconds in entry["allreduce_s"].items()}
    degree = min((degree for degree in degrees if degree >= tp), default=max(degrees))
    if degree < tp and "allreduce_s" not in guessed:
        guessed += ("allreduce_s",)
    source = entry["source"] if kind == chip else f"{chip} was not measured: those of {kind}"
    values["allreduce_s"] = degrees[degree]
    if chip in entries["pcie"]["chips"]:
        values |= {name: entries["pcie"][name] for name in ("allreduce_s", "allreduce_bw")}
    return ChipConstants(values, guessed, source, kind)


@checks.spelt_out
@dataclass(frozen=True)
class OperatorStepModel(TabledInstance):
    """An instance of `tp * pp` chips that serves one model: operators added up, with measured constants.

    Matrices are a roofline with a soft knee, sqrt(compute^2 + memory^2); attention, all-reduces and a time per layer
    are added. With x (+) y = sqrt(x^2 + y^2), L layers, p = tp, weights P, and peak and bandwidth of the chip::

        F(T) = 2 T P_layers / (peak mfu p) (+) P_layers weight_bytes / (bandwidth mbu p) + L layer_s
               + 2 L (allreduce_s + 2 (p - 1) / p 2 T d_model / allreduce_bw), the last only if p > 1
        G(E) = 2 E P_head / (bf16 peak mfu p) (+) P_head head_bytes / (bandwidth mbu p) + sequence_s E, 0 if E = 0
        a    = KV bytes of a token, with copies / (bandwidth mbu_attention p); e = a; a' = a mixed_attention
        c    = attention FLOPs of a pair / (bf16 peak mfu_attention p); g = 0; o = overhead_s

    F and G are exact up to 32,768; beyond, their last slope goes on. Constants that are None are the chip's in the
    catalogue (configs/step_constants.toml); `guessed` says which of them were not measured there.

    Parameters
    ----------
    model, chip
        From the catalogue, `model(name)` and `chip(name)`, or your own.
    tp, pp
        Tensor-parallel degree, which divides the model's attention heads, and pipeline stages.
    weight_bytes, head_bytes
        Bytes of a weight of the layers, and of the output layer.
    compute_bytes
        What matrices of layers compute in: 2 bf16, 1 fp8. None: 1 for a `weight_bytes` of 1, else 2.
    kv_bytes
        Bytes of a number of the KV cache.
    mem_reserve
        Share of the memory kept from weights and KV.
    mfu, mbu
        Shares of the peak FLOP/s and of the memory bandwidth that matrices reach. None: the chip's, as of all below.
    mbu_attention, mfu_attention
        The same of attention: reading KV, and prefills; None: the chip's.
    mixed_attention
        By how much context costs more in steps that prefill too; None: the chip's.
    layer_s
        Seconds a layer, whatever is in the step; None: the chip's.
    allreduce_s, allreduce_bw
        Seconds of an all-reduce of nothing, and its bytes/s; not used with tp = 1. None: the chip's.
    overhead_s, sequence_s
        Seconds a step, and for each request that emits a token; None: the chip's.
    first_token_s
        Seconds of a request outside the engine before its first token (network, tokenising), of no step: part of TTFT
        and of end-to-end latency.

    Raises
    ------
    ValueError
        For a field out of range, and a tp that does not divide the heads.
    """

    model: Model
    chip: Chip
    _: KW_ONLY
    tp: int = 1
    pp: int = 1
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    mem_reserve: float = 0.1
    head_bytes: float = 2.0
    compute_bytes: int | None = None
    mfu: float | None = None
    mbu: float | None = None
    mbu_attention: float | None = None
    mfu_attention: float | None = None
    mixed_attention: float | None = None
    layer_s: float | None = None
    allreduce_s: float | None = None
    allreduce_bw: float | None = None
    overhead_s: float | None = None
    sequence_s: float | None = None
    first_token_s: float = 0.0

    def __post_init__(self) -> None:
        # What both have in common is checked there, and the KV that fits is the same.
        roofline = self._roofline
        for name in ("tp", "pp", "weight_bytes", "kv_bytes", "mem_reserve"):
            self._keep(name, getattr(roofline, name))
        self._keep("head_bytes", checks.between("head_bytes", self.head_bytes, *BYTES_RANGE))
        if self.compute_bytes not in (None, 1, 2):
            raise ValueError(f"compute_bytes={self.compute_bytes!r}: must be 1 (fp8), 2 (bf16) or None")
        if self.model.n_heads % self.tp:
            raise ValueError(f"tp={self.tp}: must divide the {self.model.n_heads} attention heads of {self.model.name}")
        self._keep("first_token_s", checks.between("first_token_s", self.first_token_s, 0, MAX_OVERHEAD_S))
        for name in CONSTANTS:
            value = getattr(self, name)
            if value is None:
                continue
            if name in _EFFICIENCIES:
                value = checks.between(name, value, *EFFICIENCY_RANGE)
            elif name == "mixed_attention":
                value = checks.between(name, value, 0, MAX_FACTOR)
            elif name == "allreduce_bw":
                value = checks.positive(name, value)
            else:
                value = checks.between(name, value, 0, MAX_OVERHEAD_S)
            self._keep(name, value)

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def constants(self) -> dict[str, float]:
        """Every constant by name: as given, else that of the chip."""
        usual = chip_constants(self.chip.name, self.tp).values
        given = {name: getattr(self, name) for name in CONSTANTS}
        return {name: usual[name] if value is None else value for name, value in given.items()}

    @property
    def guessed(self) -> tuple[str, ...]:
        """Names of the constants that are neither given nor measured on this chip."""
        names = chip_constants(self.chip.name, self.tp).guessed
        unused = ("allreduce_s", "allreduce_bw") if self.tp == 1 else ()
        return tuple(name for name in CONSTANTS if name in names and name not in unused and getattr(self, name) is None)

    @property
    def constants_origin(self) -> str:
        """The chip whose constants are taken where none is given: this one, or one of its kind."""
        return chip_constants(self.chip.name, self.tp).chip

    @property
    def constants_source(self) -> str:
        """Where the constants that were not given come from, in words."""
        return chip_constants(self.chip.name, self.tp).source

    def coefficients(self) -> StepTables:
        """The step time as tables and numbers, for the engine: `step_time` looks up the same ones."""
        model, chip, p, c = self.model, self.chip, self.tp, self.constants
        computes = self.compute_bytes or (1 if self.weight_bytes == 1 else 2)
        peak = (chip.fp8_flops or chip.bf16_flops) if computes == 1 else chip.bf16_flops
        bandwidth = chip.mem_bytes_per_s
        head = model.d_model * model.vocab
        dense = model.matmul_params() - head
        all_reduces = 2 * model.n_layers if p > 1 else 0
        kv = model.kv_bytes_per_token(self.kv_bytes) * max(1.0, p / model.n_kv_heads)
        fixed = model.n_layers * c["layer_s"] + all_reduces * c["allreduce_s"]
        moved = all_reduces * 2 * (p - 1) / p * (ACTIVATION_BYTES * model.d_model) / c["allreduce_bw"]
        context_s = kv / (bandwidth * c["mbu_attention"] * p)
        return StepTables(
            tokens_s=_knee(
                2 * dense / (peak * c["mfu"] * p), dense * self.weight_bytes / (bandwidth * c["mbu"] * p), fixed, moved
            ),
            emitting_s=_knee(
                2 * head / (chip.bf16_flops * c["mfu"] * p),
                head * self.head_bytes / (bandwidth * c["mbu"] * p),
                0.0,
                c["sequence_s"],
                nothing=True,
            ),
            context_s=context_s,
            mixed_context_s=context_s * c["mixed_attention"],
            pair_s=model.attention_flops_per_context_token() / (chip.bf16_flops * c["mfu_attention"] * p),
            done_s=context_s,
            overhead_s=c["overhead_s"],
            prefill_s=0.0,
        )

    def prefill_time(self, prompts: Iterable[int]) -> float:
        """Seconds of a step that processes whole prompts of so many tokens; 0 without any."""
        lengths = [checks.whole(f"prompts[{i}]", n, 1) for i, n in enumerate(prompts)]
        pairs = sum(n * (n + 1) // 2 for n in lengths)
        return self.step_time(0, 0, sum(lengths), pairs, 0, len(lengths))

    def decode_time(self, batch: int, ctx: int) -> float:
        """Seconds of a step in which `batch` requests, with `ctx` tokens in their caches, emit a token each."""
        return self.step_time(batch, ctx)


@lru_cache(maxsize=1024)  # 256 MB; a calibration makes thousands
def _knee(compute_s: float, memory_s: float, fixed_s: float, each_s: float, nothing: bool = False) -> Any:
    """sqrt((n compute_s)^2 + memory_s^2) + fixed_s + n each_s for n = 0 to LAST; with `nothing` 0 at 0. Shared by
    configurations of equal numbers."""
    n = np.arange(LAST + 1, dtype=np.float64)
    compute = n * compute_s
    table = np.sqrt(compute * compute + memory_s * memory_s) + fixed_s + n * each_s
    if nothing:
        table[0] = 0.0
    table.setflags(write=False)
    return table
