"""How long a step takes: a roofline, plus communication, plus a fixed overhead.

`L` is the number of lanes. Every coefficient is a float or an array `[L]`, and so is every argument: one call gives the
step times of all lanes of a batch, or of one step.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatOrArray = float | np.float64 | npt.NDArray[np.float64]


class StepCoefficients(NamedTuple):
    """What a step costs in seconds, per unit of work; each field a float or float64 `[L]`.

    The peaks, bandwidths and link latencies of an instance are divided in already: a kernel needs to know nothing of
    models or chips. The communication fields are all zero on one GPU.
    """

    compute_per_token_s: FloatOrArray  # linear FLOPs of one token / peak
    compute_per_context_s: FloatOrArray  # attention FLOPs of one token reading one token of context / peak
    memory_fixed_s: FloatOrArray  # reading the weights
    memory_per_token_s: FloatOrArray  # reading or writing the KV of one token
    overhead_s: FloatOrArray  # added to every step
    ring_fixed_s: FloatOrArray  # ring all-reduces of all layers, as fixed + per_token * tokens
    ring_per_token_s: FloatOrArray
    doubling_fixed_s: FloatOrArray  # the same by recursive doubling; the faster of the two is used
    doubling_per_token_s: FloatOrArray

    def communication_s(self, tokens: Any) -> Any:
        """Seconds that all layers' all-reduces of a step of `tokens` tokens take, by the faster of the two
        algorithms."""
        ring = self.ring_fixed_s + self.ring_per_token_s * tokens
        doubling = self.doubling_fixed_s + self.doubling_per_token_s * tokens
        return np.minimum(ring, doubling)


def step_seconds(c: StepCoefficients, tokens: Any, context: Any, kv_tokens: Any, communicates: bool = True) -> Any:
    """Seconds of a step that has at least one token; arguments and coefficients are scalars or `[L]`, and broadcast.

    tokens     tokens that pass through the model: one a decoding request, and the prefill tokens
    context    attention work, in pairs of a token and a token that it attends to
    kv_tokens  tokens whose KV is read or written

    communicates  False where all communication coefficients are 0, which saves computing them

    A step without tokens takes no time at all; that is the caller's case to handle: whoever chooses the step knows it.
    The order of the operations is fixed: the same arguments give the same bits, alone or in a batch.
    """
    compute = c.compute_per_token_s * tokens + c.compute_per_context_s * context
    memory = c.memory_fixed_s + c.memory_per_token_s * kv_tokens
    if not communicates:
        return np.maximum(compute, memory) + c.overhead_s  # the same bits as with communication of 0 s
    return np.maximum(compute, memory) + c.communication_s(tokens) + c.overhead_s
