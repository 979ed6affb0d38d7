"""Step times in plain Python, from the formulas of docs/models.md alone: the reference's own, and a check of StepModel.

They stand beside the reference and not among the tests, because it is timed by them wherever the engine's answers are
checked: in tests, in `servesweep doctor`, in benchmarks. A check that took the package's own step times would not see
an error in them. They import nothing of the package.
"""

import math
import sys
from typing import Any


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

    def mixed(self, batch: int, ctx: int, chunk: int, attention_pairs: float) -> float:
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

    def mixed(self, batch: int, ctx: int, chunk: int, attention_pairs: float) -> float:
        return self.seconds if batch + chunk else 0.0

    def prefill(self, prompts: list[int]) -> float:
        return self.seconds


def times_of(step: dict[str, Any]) -> StepTimes | ConstantTimes:
    """Of the numbers of StepTimes, or of {"seconds": s}."""
    return ConstantTimes(step["seconds"]) if "seconds" in step else StepTimes(step)
