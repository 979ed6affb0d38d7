"""Vidur's profiles: kernels of a layer, in milliseconds, by the size of what they work on."""

from __future__ import annotations

from os import PathLike

import numpy as np

from .. import checks
from ..arrays import Bools, Floats
from ..hardware.parts import Model
from ..hardware.profile import TableStepTimes
from .columns import Columns, read_columns
from .kernel_sums import Kernels, Seconds, chosen, kernel_steps, line_through, no_seconds
from .measured_steps import fit_steps

_OF_TOKENS = (
    *("attn_pre_proj", "attn_post_proj", "attn_rope", "input_layernorm"),
    *("mlp_up_proj", "mlp_act", "mlp_down_proj"),
)
_IF_THERE = ("post_attention_layernorm", "add")  # fused, or not there, in some models
_SAVE = "attn_kv_cache_save"


@checks.spelt_out
def vidur_step_times(
    mlp: str | PathLike[str],
    attention: str | PathLike[str],
    *,
    model: Model,
    tp: int = 1,
    all_reduce: str | PathLike[str] | None = None,
) -> TableStepTimes:
    """Step times fitted to steps put together from Vidur's profiles, data/profiling of its repository.

    Vidur has no time of the output layer, nor of anything between steps; there are none in the result either. No mixed
    steps were profiled: context costs the same in them as in others.

    Parameters
    ----------
    mlp, attention
        The files mlp.csv and attention.csv of the chip; rows of other models are left out.
    model
        Whose layers they are.
    tp
        Tensor-parallel degree, of which there must be rows.
    all_reduce
        The file all_reduce.csv of the network; needed if `tp` is above 1. None: without.

    Returns
    -------
    TableStepTimes
        With the error of the fit in `measured`.

    Raises
    ------
    ValueError
        For columns that are missing, and for a `tp` that was not profiled.
    """
    tp = checks.whole("tp", tp, 1)
    if not isinstance(model, Model):
        raise ValueError(f"model={model!r}: must be a Model, for example servesweep.model(...)")
    if (all_reduce is None) != (tp == 1):
        raise ValueError(f"all_reduce={all_reduce!r}: must be given if tp is above 1, and only then; tp={tp}")
    dense = read_columns(checks.path("mlp", mlp))
    heads = read_columns(checks.path("attention", attention))
    dense.need(["num_tokens", "num_tensor_parallel_workers", *map(_median, _OF_TOKENS)])
    needed = ("batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill", "num_tensor_parallel_workers")
    heads.need([*needed, *map(_median, ("attn_prefill", "attn_decode"))])
    rows = _of_model(dense, model, tp)
    each = sum(_milliseconds(dense, name)[rows] for name in (*_OF_TOKENS, *_IF_THERE) if _median(name) in dense.header)
    tokens = dense.whole("num_tokens")[rows]
    layer_s = line_through(tokens, np.asarray(each) / 1e3)
    reduce_s: Seconds = no_seconds
    if all_reduce is not None:
        reduce_s = _all_reduces(read_columns(checks.path("all_reduce", all_reduce)), model, tp)

    def tokens_s(number: Floats) -> Floats:
        return np.asarray(model.n_layers * (layer_s(number) + 2 * reduce_s(number)))

    there = _of_model(heads, model, tp)
    prefills = np.array([text.lower() in ("true", "1") for text in heads.text("is_prefill")])
    batch, chunk, cached = (heads.numbers(name, missing=0.0) for name in needed[:3])
    saved = _milliseconds(heads, _SAVE) if _median(_SAVE) in heads.header else np.zeros(len(heads))
    seconds = np.where(prefills, _milliseconds(heads, "attn_prefill"), _milliseconds(heads, "attn_decode")) + saved
    seconds = model.n_layers * seconds / 1e3
    decodes, prefills = there & ~prefills & (batch > 0), there & prefills & (chunk > 0)
    if not decodes.any() or not prefills.any():
        raise ValueError(f"{heads.shown}: must have rows with is_prefill True and with False, for tp {tp}")
    kernels = Kernels(
        f"Vidur, {model.name}, tp {tp}",
        tokens_s,
        no_seconds,
        int(tokens.max()),
        np.stack([batch, cached], axis=1)[decodes],
        seconds[decodes],
        np.stack([np.maximum(batch, 1.0), chunk, cached], axis=1)[prefills],
        seconds[prefills],
    )
    return fit_steps(kernel_steps(kernels), n_gpus=tp)


def _of_model(columns: Columns, model: Model, tp: int) -> Bools:
    """Rows of a model, where a file says which model each is of, and of a degree. [R]"""
    sizes = {"n_embd": model.d_model, "n_expanded_embd": model.d_ff, "n_head": model.n_heads}
    sizes |= {"n_q_head": model.n_heads, "n_kv_head": model.n_kv_heads}
    wanted = {name: size for name, size in sizes.items() if name in columns.header}
    return chosen(columns, **wanted, num_tensor_parallel_workers=tp)


def _all_reduces(columns: Columns, model: Model, tp: int) -> Seconds:
    columns.need(["size", "num_workers", _median("all_reduce")])
    rows = chosen(columns, num_workers=tp)
    tokens = columns.numbers("size")[rows] / (2 * model.d_model)
    return line_through(tokens, _milliseconds(columns, "all_reduce")[rows] / 1e3)


def _milliseconds(columns: Columns, name: str) -> Floats:
    return columns.numbers(_median(name), missing=0.0)


def _median(name: str) -> str:
    return f"time_stats.{name}.median"
