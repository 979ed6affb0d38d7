"""Step times in plain Python, from formulas alone (docs/models.md, docs/api/hardware.rst): the reference's own.

They stand beside the reference and not among the tests, because it is timed by them wherever the engine's answers are
checked: in tests, in `servesweep doctor`, in benchmarks. A check that took the package's own step times would not see
an error in them. They import nothing of the package.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

LAST = 2**15  # tokens up to which the operators are exact; from there the last slope goes on


class StepTimes:
    """Roofline step times of one instance.

    Parameters
    ----------
    step  its numbers: "model" (fields of Model), "chip" (bf16, fp8, mem_bw, mem_cap), "link" (alpha_s,
          bandwidth_bytes_per_s), and the other fields of StepModel
    """

    def __init__(self, step: dict[str, Any]) -> None:
        model, chip, link = step["model"], step["chip"], step["link"]
        layers, d, vocab = model["n_layers"], model["d_model"], model["vocab"]
        q, kv = model["n_heads"] * model["head_dim"], model["n_kv_heads"] * model["head_dim"]
        gated, tied = model.get("gated_mlp", True), model.get("tied_embeddings", False)
        tp = step["tp"]
        matmul_params = layers * (2 * d * q + 2 * d * kv + (3 if gated else 2) * d * model["d_ff"]) + d * vocab
        self.n_params = matmul_params + (0 if tied else vocab * d) + (2 * layers + 1) * d
        self.linear: int = 2 * matmul_params  # FLOPs a token
        self.attn: int = 4 * layers * q  # FLOPs a token of context
        self.kv: float = 2 * layers * kv * step["kv_bytes"]  # bytes a token
        self.weights: float = matmul_params * step["weight_bytes"]
        flops = chip["bf16"] if step["weight_bytes"] >= 2 else (chip["fp8"] or chip["bf16"])
        self.peak: float = flops * step["mfu"] * tp
        self.bandwidth: float = chip["mem_bw"] * step["mbu"] * tp
        self.layers: int = layers
        self.d_model: int = d
        self.tp: int = tp
        self.pp: int = step["pp"]
        self.overhead: float = step["overhead_s"]
        self.alpha: float = link["alpha_s"]
        self.link_bandwidth: float = link["bandwidth_bytes_per_s"]
        free = tp * step["pp"] * chip["mem_cap"] * (1 - step["mem_reserve"]) - self.n_params * step["weight_bytes"]
        # more GPUs than KV heads hold copies of them
        self.kv_capacity = max(0, math.floor(free / (self.kv * max(1, tp / model["n_kv_heads"]))))

    def mixed(self, batch: int, ctx: int, chunk: int, attention_pairs: float, *_: int) -> float:
        """Seconds of a step: decodes and the tokens in their caches; prefill tokens and the pairs that they attend."""
        tokens = batch + chunk
        if tokens == 0:
            return 0.0
        flops = tokens * self.linear + self.attn * (ctx + attention_pairs)
        nbytes = self.weights + (ctx + chunk) * self.kv
        return max(flops / self.peak, nbytes / self.bandwidth) + self.communication(tokens) + self.overhead

    def decode(self, batch: int, ctx: int) -> float:
        return self.mixed(batch, ctx, 0, 0)

    def prefill(self, prompts: list[int]) -> float:
        return self.mixed(0, 0, sum(prompts), sum(n * (n + 1) // 2 for n in prompts))

    def communication(self, tokens: int) -> float:
        """Two all-reduces a layer, each by the faster of two algorithms."""
        p = self.tp
        if p == 1:
            return 0.0
        seconds = tokens * self.d_model * 2 / self.link_bandwidth
        ring = 2 * (p - 1) * self.alpha + 2 * (p - 1) / p * seconds
        doubling = math.ceil(math.log2(p)) * (self.alpha + seconds)
        return 2 * self.layers * min(ring, doubling)


class ConstantTimes:
    """A step with a token in it takes `seconds`. Nothing is known of KV: memory has no limit, transfers no bytes."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.pp, self.kv, self.kv_capacity = float(seconds), 1, 0.0, sys.maxsize

    def mixed(self, batch: int, ctx: int, chunk: int, attention_pairs: float, *_: int) -> float:
        return self.seconds if batch + chunk else 0.0

    def prefill(self, prompts: list[int]) -> float:
        return self.seconds


class AddedTimes(ABC):
    """What steps have in common whose parts are added: F(tokens) + G(emitting) + attention + fixed seconds."""

    pp = 1
    kv: float = 0.0
    kv_capacity = sys.maxsize
    context = mixed_context = pair = done = overhead = prefill_step = 0.0

    @abstractmethod
    def of_tokens(self, n: int) -> float:
        """F."""

    @abstractmethod
    def of_emitting(self, n: int) -> float:
        """G."""

    def mixed(
        self, batch: int, ctx: int, chunk: int, pairs: float, done: int = 0, emitting: int | None = None
    ) -> float:
        """As of StepTimes; and prompt tokens done before, and requests that emit a token, those that decode if None."""
        if batch + chunk == 0:
            return 0.0
        seconds = self.of_tokens(batch + chunk) + self.of_emitting(batch if emitting is None else emitting)
        seconds += self.overhead
        if chunk == 0:
            return seconds + self.context * ctx
        return seconds + self.prefill_step + (self.mixed_context * ctx + self.pair * pairs + self.done * done)

    def decode(self, batch: int, ctx: int) -> float:
        return self.mixed(batch, ctx, 0, 0)

    def prefill(self, prompts: list[int]) -> float:
        return self.mixed(0, 0, sum(prompts), sum(n * (n + 1) // 2 for n in prompts), 0, len(prompts))


class OperatorTimes(AddedTimes):
    """Operators of one instance, added up.

    Parameters
    ----------
    step  its numbers: "model", "chip" as of StepTimes, and the fields of OperatorStepModel, every constant given
    """

    def __init__(self, step: dict[str, Any]) -> None:
        size = StepTimes({**step, "link": {"alpha_s": 0.0, "bandwidth_bytes_per_s": 1.0}})
        self.n_params, self.kv, self.kv_capacity, self.pp = size.n_params, size.kv, size.kv_capacity, size.pp
        model, chip, p = step["model"], step["chip"], step["tp"]
        head = model["d_model"] * model["vocab"]
        dense = size.linear // 2 - head
        fp8 = (step["compute_bytes"] or (1 if step["weight_bytes"] == 1 else 2)) == 1 and chip["fp8"] > 0
        peak = (chip["fp8"] if fp8 else chip["bf16"]) * step["mfu"] * p
        bandwidth = chip["mem_bw"] * step["mbu"] * p
        self.dense = 2 * dense / peak, dense * step["weight_bytes"] / bandwidth
        self.head = 2 * head / (chip["bf16"] * step["mfu"] * p), head * step["head_bytes"] / bandwidth
        self.layers: float = model["n_layers"] * step["layer_s"]
        self.token_bytes = 2 * model["d_model"]
        self.all_reduces, self.tp = (2 * model["n_layers"] if p > 1 else 0), p
        self.latency, self.bus = step["allreduce_s"], step["allreduce_bw"]
        self.sequence, self.overhead = step["sequence_s"], step["overhead_s"]
        copies = max(1, p / model["n_kv_heads"])
        self.context = self.done = size.kv * copies / (chip["mem_bw"] * step["mbu_attention"] * p)
        self.mixed_context = self.context * step["mixed_attention"]
        self.pair = size.attn / (chip["bf16"] * step["mfu_attention"] * p)

    def of_tokens(self, n: int) -> float:
        if n > LAST:
            last = self.of_tokens(LAST)
            return last + (n - LAST) * (last - self.of_tokens(LAST - 1))
        p = self.tp
        moved = 2 * (p - 1) / p * (n * self.token_bytes) / self.bus
        return knee(n, *self.dense) + self.layers + float(self.all_reduces * (self.latency + moved))

    def of_emitting(self, n: int) -> float:
        if n > LAST:
            last = self.of_emitting(LAST)
            return last + (n - LAST) * (last - self.of_emitting(LAST - 1))
        return knee(n, *self.head) + self.sequence * n if n else 0.0


class TableTimes(AddedTimes):
    """Step times between knots.

    Parameters
    ----------
    step  the fields of TableStepTimes; with those of a model and its instance also what its KV takes
    """

    def __init__(self, step: dict[str, Any]) -> None:
        if "model" in step:
            nothing = {"mfu": 1.0, "mbu": 1.0, "link": {"alpha_s": 0.0, "bandwidth_bytes_per_s": 1.0}}
            size = StepTimes({**step, **nothing})
            self.kv, self.kv_capacity, self.pp = size.kv, size.kv_capacity, size.pp
        self.tokens, self.emits = step["tokens_s"], step["emitting_s"]
        self.context, self.mixed_context = step["context_s"], step["mixed_context_s"]
        self.pair, self.done = step["pair_s"], step["done_s"]
        self.overhead, self.prefill_step = step["overhead_s"], step["prefill_s"]

    def of_tokens(self, n: int) -> float:
        return between(self.tokens, n)

    def of_emitting(self, n: int) -> float:
        return between(self.emits, n) if n else (self.emits[0][1] if self.emits and self.emits[0][0] == 0 else 0.0)


def knee(n: int, compute: float, memory: float) -> float:
    """A roofline with a soft knee."""
    return math.sqrt((n * compute) ** 2 + memory**2)


def between(knots: Sequence[tuple[int, float]], n: int) -> float:
    """On the straight lines between knots; the last goes on, before the first knot is its value."""
    if not knots:
        return 0.0
    if n <= knots[0][0] or len(knots) == 1:
        return knots[0][1]
    pairs = list(pairwise(knots))
    (x, y), (next_x, next_y) = next((pair for pair in pairs if n <= pair[1][0]), pairs[-1])
    return y + (n - x) * ((next_y - y) / (next_x - x))


Times = StepTimes | ConstantTimes | OperatorTimes | TableTimes


def times_of(step: dict[str, Any]) -> Times:
    """Of the numbers of StepTimes, of {"seconds": s}, of OperatorTimes, or of TableTimes."""
    if "seconds" in step:
        return ConstantTimes(step["seconds"])
    if "tokens_s" in step:
        return TableTimes(step)
    return OperatorTimes(step) if "layer_s" in step else StepTimes(step)
