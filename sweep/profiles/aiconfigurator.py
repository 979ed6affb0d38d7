"""AIConfigurator's tables: matrix products, attention and all-reduces, in milliseconds."""

from __future__ import annotations

from os import PathLike

import numpy as np

from .. import checks
from ..arrays import Floats
from ..hardware.parts import Model
from ..hardware.profile import TableStepTimes
from .columns import Columns, read_columns
from .kernel_sums import Kernels, Seconds, chosen, kernel_steps, line_through, no_seconds, text_is
from .measured_steps import fit_steps

_HALF = ("bfloat16", "bf16", "float16", "fp16", "half")
MOST_TOKENS = 8192  # of a step: the tables of matrix products end there


@checks.spelt_out
def aiconfigurator_step_times(
    gemm: str | PathLike[str],
    context_attention: str | PathLike[str],
    generation_attention: str | PathLike[str],
    *,
    model: Model,
    tp: int = 1,
    nccl: str | PathLike[str] | None = None,
) -> TableStepTimes:
    """Step times fitted to steps put together from AIConfigurator's tables of a chip, in 16 bits.

    Matrix products of sizes that were not measured lie on straight lines between logarithms. Norms, rotary embedding
    and activations are not in the tables, nor is anything between steps; nor mixed steps, in which context costs what
    it costs in others.

    Parameters
    ----------
    gemm
        Columns m, n, k and latency (or latency_ms).
    context_attention, generation_attention
        Columns batch_size, isl, step, num_heads, num_key_value_heads, head_dim and latency.
    model
        Dense, with a size of heads that was measured.
    tp
        Tensor-parallel degree.
    nccl
        Columns op_name, num_gpus, message_size (numbers of 2 bytes) and latency; needed if `tp` is above 1. None:
        without.

    Returns
    -------
    TableStepTimes
        With the error of the fit in `measured`.

    Raises
    ------
    ValueError
        For columns that are missing, and for heads and degrees that were not measured.
    """
    tp = checks.whole("tp", tp, 1)
    if not isinstance(model, Model):
        raise ValueError(f"model={model!r}: must be a Model, for example servesweep.model(...)")
    if model.n_heads % tp:
        raise ValueError(f"tp={tp}: must divide the {model.n_heads} attention heads of {model.name}")
    if (nccl is None) != (tp == 1):
        raise ValueError(f"nccl={nccl!r}: must be given if tp is above 1, and only then; tp={tp}")
    products = Products(read_columns(checks.path("gemm", gemm)))
    queries = model.n_heads // tp * model.head_dim
    kv_heads = max(model.n_kv_heads // tp, 1)
    wide = (2 if model.gated_mlp else 1) * model.d_ff // tp
    shapes = [(queries + 2 * kv_heads * model.head_dim, model.d_model), (model.d_model, queries)]
    shapes += [(wide, model.d_model), (model.d_model, model.d_ff // tp)]
    layer = [products.seconds(*shape) for shape in shapes]
    reduce_s = no_seconds if nccl is None else _all_reduces(read_columns(checks.path("nccl", nccl)), model, tp)

    def tokens_s(number: Floats) -> Floats:
        each = sum(product(number) for product in layer) + 2 * reduce_s(number)
        return np.asarray(model.n_layers * each)

    heads = {"num_heads": model.n_heads // tp, "num_key_value_heads": kv_heads, "head_dim": model.head_dim}
    generation = read_columns(checks.path("generation_attention", generation_attention))
    context = read_columns(checks.path("context_attention", context_attention))
    rows = chosen(generation, **heads) & text_is(generation, "attn_dtype", *_HALF)
    batch, step = (generation.numbers(name)[rows] for name in ("batch_size", "step"))
    # Heads of queries that are their own of keys are a kind of their own in the table of prompts.
    prompt_rows = chosen(context, **heads) & text_is(context, "attn_dtype", *_HALF)
    prompts, each, done = (context.numbers(name)[prompt_rows] for name in ("batch_size", "isl", "step"))
    kernels = Kernels(
        f"AIConfigurator, {model.name}, tp {tp}",
        tokens_s,
        products.seconds(model.vocab // tp, model.d_model),
        min(MOST_TOKENS, products.most_tokens),
        np.stack([batch, step], axis=1),
        model.n_layers * _seconds(generation)[rows],
        np.stack([prompts, each, done], axis=1),
        model.n_layers * _seconds(context)[prompt_rows],
    )
    return fit_steps(kernel_steps(kernels), n_gpus=tp)


class Products:
    """Measured products of an m x k with a k x n matrix."""

    def __init__(self, columns: Columns) -> None:
        columns.need(["m", "n", "k"])
        rows = text_is(columns, "gemm_dtype", *_HALF)
        m, n, k = (columns.whole(name, least=1)[rows] for name in ("m", "n", "k"))
        self._m, self._n, self._k = np.unique(m), np.unique(n), np.unique(k)
        self._log_s = np.full((self._m.size, self._n.size, self._k.size), np.nan)
        places = (np.searchsorted(self._m, m), np.searchsorted(self._n, n), np.searchsorted(self._k, k))
        self._log_s[places] = np.log(_seconds(columns)[rows])
        self.most_tokens = int(self._m[-1])

    def seconds(self, n: int, k: int) -> Seconds:
        """Seconds by m, of matrices of this size."""
        by_m = np.full(self._m.size, np.nan)
        for i in range(self._m.size):
            by_n = [_on_line(np.log(k), np.log(self._k), row) for row in self._log_s[i]]
            by_m[i] = _on_line(np.log(n), np.log(self._n), np.array(by_n))
        there = np.isfinite(by_m)
        return line_through(self._m[there], np.exp(by_m[there]))


def _on_line(at: float, x: Floats, y: Floats) -> float:
    """The value on the straight lines through the points that are there, and on the last two beyond the ends."""
    there = np.isfinite(y)
    if there.sum() < 2:
        return float(y[there][0]) if there.any() else np.nan
    x, y = x[there], y[there]
    i = min(max(int(np.searchsorted(x, at)), 1), x.size - 1)
    return float(y[i - 1] + (at - x[i - 1]) * (y[i] - y[i - 1]) / (x[i] - x[i - 1]))


def _all_reduces(columns: Columns, model: Model, tp: int) -> Seconds:
    columns.need(["op_name", "num_gpus", "message_size"])
    rows = chosen(columns, num_gpus=tp) & text_is(columns, "op_name", "all_reduce")
    rows &= text_is(columns, "nccl_dtype", *_HALF)
    return line_through(columns.numbers("message_size")[rows] / model.d_model, _seconds(columns)[rows])


def _seconds(columns: Columns) -> Floats:
    name = "latency_ms" if "latency_ms" in columns.header else "latency"
    return np.asarray(columns.numbers(name, above=True) / 1e3)
