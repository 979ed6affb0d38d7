"""How long the steps of an instance take, and how much KV it holds. Formulas and assumptions: docs/models.md."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .. import checks
from ..kernels.steptime import StepCoefficients, step_seconds
from .parts import NVLINK_4, Chip, Link, Model

# Far beyond any hardware, and far from where step times and memory are no longer finite.
MAX_DEGREE = 2**16  # of tp and of pp
BYTES_RANGE = (1e-3, 1e3)  # of a weight and of a number in the KV cache
EFFICIENCY_RANGE = (1e-6, 1.0)  # mfu and mbu
MAX_OVERHEAD_S = 1e6
_MAX_S = 1e6  # of any part of a step

ACTIVATION_BYTES = 2  # what an all-reduce moves per number, whatever the weights are stored in


@dataclass(frozen=True)
class StepModel:
    """An instance of `tp * pp` chips that serves one model: roofline step times in seconds, KV capacity in tokens.

    The formulas are in docs/models.md.

    Parameters
    ----------
    model, chip
        From the catalogue, `model(name)` and `chip(name)`, or your own.
    tp, pp
        Tensor-parallel degree, and pipeline stages.
    weight_bytes
        Bytes of a weight (2 bf16, 1 fp8; below 2 the chip's fp8 peak is used).
    kv_bytes
        Bytes of a number of the KV cache.
    mfu, mbu
        Shares of the peak FLOP/s and of the memory bandwidth that a step reaches.
    overhead_s
        Seconds added to every step: launches, scheduling, sampling.
    link
        Between the chips of one tensor-parallel group; not used with tp = 1.
    mem_reserve
        Share of the memory kept from weights and KV.

    Raises
    ------
    ValueError
        For a field out of range.
    """

    model: Model
    chip: Chip
    tp: int = 1
    pp: int = 1
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    mfu: float = 0.6
    mbu: float = 0.8
    overhead_s: float = 1e-3
    link: Link = NVLINK_4
    mem_reserve: float = 0.1

    def __post_init__(self) -> None:
        for name, kind in (("model", Model), ("chip", Chip), ("link", Link)):
            if not isinstance(getattr(self, name), kind):
                value = getattr(self, name)
                raise ValueError(f"{name}={value!r}: must be a {kind.__name__}, for example servesweep.{name}(...)")
        checked = {
            "tp": checks.whole("tp", self.tp, 1, MAX_DEGREE),
            "pp": checks.whole("pp", self.pp, 1, MAX_DEGREE),
            "weight_bytes": checks.between("weight_bytes", self.weight_bytes, *BYTES_RANGE),
            "kv_bytes": checks.between("kv_bytes", self.kv_bytes, *BYTES_RANGE),
            "mfu": checks.between("mfu", self.mfu, *EFFICIENCY_RANGE),
            "mbu": checks.between("mbu", self.mbu, *EFFICIENCY_RANGE),
            "overhead_s": checks.between("overhead_s", self.overhead_s, 0, MAX_OVERHEAD_S),
            "mem_reserve": checks.share("mem_reserve", self.mem_reserve),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        try:
            slowest = max(self._coefficients)
        except (OverflowError, ZeroDivisionError):
            slowest = math.inf
        if slowest > _MAX_S:
            parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in ("model", "chip", "link"))
            raise ValueError(f"{parts}: a step of one token takes {slowest:g} s, must be at most {_MAX_S:g} s")

    @property
    def n_gpus(self) -> int:
        """Chips of the instance."""
        return self.tp * self.pp

    def coefficients(self) -> StepCoefficients:
        """The step time as numbers, for the engine: `step_seconds` of these is what the methods here return."""
        return self._coefficients

    @cached_property
    def _coefficients(self) -> StepCoefficients:
        model, chip, link, p = self.model, self.chip, self.link, self.tp
        flops = chip.bf16_flops if self.weight_bytes >= 2 else chip.fp8_flops or chip.bf16_flops
        peak = flops * self.mfu * p
        bandwidth = chip.mem_bytes_per_s * self.mbu * p
        all_reduces = 2 * model.n_layers  # one after attention, one after the MLP
        bytes_per_token = model.d_model * ACTIVATION_BYTES
        doublings = (p - 1).bit_length()  # ceil(log2 p) in whole numbers
        return StepCoefficients(
            compute_per_token_s=model.linear_flops_per_token() / peak,
            compute_per_context_s=model.attention_flops_per_context_token() / peak,
            memory_fixed_s=model.matmul_params() * self.weight_bytes / bandwidth,
            memory_per_token_s=model.kv_bytes_per_token(self.kv_bytes) / bandwidth,
            overhead_s=self.overhead_s,
            ring_fixed_s=all_reduces * 2 * (p - 1) * link.alpha_s,
            ring_per_token_s=all_reduces * 2 * (p - 1) / p * bytes_per_token / link.bytes_per_s,
            doubling_fixed_s=all_reduces * doublings * link.alpha_s,
            doubling_per_token_s=all_reduces * doublings * bytes_per_token / link.bytes_per_s,
        )

    def prefill_time(self, prompts: Iterable[int]) -> float:
        """Seconds of a step that processes whole prompts.

        Parameters
        ----------
        prompts
            Their lengths in tokens.

        Returns
        -------
        float
            Seconds; 0 without prompts.

        Raises
        ------
        ValueError
            For a length that is not an integer of at least 1.
        """
        tokens, pairs = _prompt_work(prompts)
        return self._time(tokens, pairs, tokens)

    def decode_time(self, batch: int, ctx: int) -> float:
        """Seconds of a step in which requests emit a token each.

        Parameters
        ----------
        batch
            How many requests.
        ctx
            The sum over these requests of the tokens that their cache holds.

        Returns
        -------
        float
            Seconds; 0 for an empty batch.

        Raises
        ------
        ValueError
            For anything but integers of at least 0.
        """
        batch, ctx = _counts(batch=batch, ctx=ctx)
        return self._time(batch, ctx, ctx)

    def mixed_time(self, batch: int, ctx: int, chunk_tokens: int, chunk_attn_flops: float) -> float:
        """Seconds of a step of decodes with some prefill.

        Parameters
        ----------
        batch, ctx
            The decodes, as in `decode_time`.
        chunk_tokens
            Prompt tokens processed.
        chunk_attn_flops
            The attention work of that prefill in FLOPs: t tokens after `done` others of the same prompt add
            `model.attention_flops_per_context_token() * (t * done + t * (t + 1) / 2)`.

        Returns
        -------
        float
            Seconds; 0 for a step of neither.

        Raises
        ------
        ValueError
            For a count that is not an integer of at least 0, or FLOPs that are not finite and at least 0.
        """
        batch, ctx, chunk_tokens = _counts(batch=batch, ctx=ctx, chunk_tokens=chunk_tokens)
        chunk_attn_flops = checks.not_negative("chunk_attn_flops", chunk_attn_flops)
        pairs = chunk_attn_flops / self.model.attention_flops_per_context_token()
        return self._time(batch + chunk_tokens, ctx + pairs, ctx + chunk_tokens)

    def _time(self, tokens: int, context: float, kv_tokens: int) -> float:
        return float(step_seconds(self._coefficients, tokens, context, kv_tokens)) if tokens else 0.0

    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV fits beside the weights in the memory of all chips; 0 when the weights do not fit.

        With tp above the number of KV heads each head is held more than once, and the capacity falls accordingly.
        """
        memory = self.n_gpus * self.chip.mem_bytes * (1 - self.mem_reserve)
        free = memory - self.model.n_params() * self.weight_bytes
        copies = max(1.0, self.tp / self.model.n_kv_heads)
        return max(0, math.floor(free / (self.model.kv_bytes_per_token(self.kv_bytes) * copies)))


@dataclass(frozen=True)
class ConstantStepTime:
    """A step takes as long whatever it does: the scheduler alone, without a model or a chip. Has no KV capacity.

    Parameters
    ----------
    seconds
        How long.

    Raises
    ------
    ValueError
        For seconds that are not positive and finite, or above 1e6.
    """

    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", checks.positive("seconds", self.seconds))
        if self.seconds > _MAX_S:
            raise ValueError(f"seconds={self.seconds!r}: must be at most {_MAX_S:g}")

    @property
    def n_gpus(self) -> int:
        """1, so that measures per GPU are those of the instance."""
        return 1

    def coefficients(self) -> StepCoefficients:
        """All zero but the overhead."""
        return StepCoefficients(0.0, 0.0, 0.0, 0.0, self.seconds, 0.0, 0.0, 0.0, 0.0)

    def prefill_time(self, prompts: Iterable[int]) -> float:
        """`seconds`, or 0 without a prompt."""
        tokens, _ = _prompt_work(prompts)
        return self.seconds if tokens else 0.0

    def decode_time(self, batch: int, ctx: int) -> float:
        """`seconds`, or 0 for an empty batch."""
        batch, _ = _counts(batch=batch, ctx=ctx)
        return self.seconds if batch else 0.0

    def mixed_time(self, batch: int, ctx: int, chunk_tokens: int, chunk_attn_flops: float) -> float:
        """`seconds`, or 0 for a step without a token."""
        batch, _, chunk_tokens = _counts(batch=batch, ctx=ctx, chunk_tokens=chunk_tokens)
        checks.not_negative("chunk_attn_flops", chunk_attn_flops)
        return self.seconds if batch + chunk_tokens else 0.0


@overload
def kv_transfer_time(model: Model, prompt_tokens: int, link: Link, kv_bytes: float = 2.0) -> float: ...


@overload
def kv_transfer_time(
    model: Model, prompt_tokens: npt.NDArray[np.int64], link: Link, kv_bytes: float = 2.0
) -> npt.NDArray[np.float64]: ...


def kv_transfer_time(model: Model, prompt_tokens: Any, link: Link, kv_bytes: float = 2.0) -> Any:
    """Seconds to send the KV of a prompt over a link: latency + bytes / bandwidth.

    Parameters
    ----------
    model
        Whose KV it is.
    prompt_tokens
        One length, or an int64 array [N] of them.
    link
        What it crosses.
    kv_bytes
        Bytes of a number of the KV cache.

    Returns
    -------
    float or float64 array [N]
        Seconds.

    Raises
    ------
    ValueError
        For tokens that are not integers of at least 0, and for kv_bytes that are not positive and finite.
    """
    for name, part, kind in (("model", model, Model), ("link", link, Link)):
        if not isinstance(part, kind):
            raise ValueError(f"{name}={part!r}: must be a {kind.__name__}, for example servesweep.{name}(...)")
    if isinstance(prompt_tokens, np.ndarray):
        if prompt_tokens.dtype.kind not in "iu" or (prompt_tokens < 0).any():
            raise ValueError(f"prompt_tokens={prompt_tokens!r}: must hold integers of at least 0")
    else:
        prompt_tokens = checks.whole("prompt_tokens", prompt_tokens, 0)
    return link.alpha_s + prompt_tokens * model.kv_bytes_per_token(kv_bytes) / link.bytes_per_s


def _prompt_work(prompts: Iterable[int]) -> tuple[int, int]:
    """Tokens of these prompts, and pairs of a token and one that it attends to (itself and those before it)."""
    tokens = pairs = 0
    for position, length in enumerate(prompts):
        n = checks.whole(f"prompts[{position}]", length, 1)
        tokens += n
        pairs += n * (n + 1) // 2
    return tokens, pairs


def _counts(**values: int) -> list[int]:
    return [checks.whole(name, value, 0) for name, value in values.items()]
