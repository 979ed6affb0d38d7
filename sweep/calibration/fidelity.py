"""How far simulated times are off measured ones: kernels put together, whole steps, and whole runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from .. import checks
from ..arrays import Floats
from ..hardware import catalogue
from ..hardware.operators import OperatorStepModel
from ..hardware.step_times import StepModel
from ..hardware.steps import KNOWS_CHIP, Step
from ..profiles.columns import Columns, read_columns
from ..profiles.measured_steps import StepRows, fit_steps, read_steps, step_errors
from ..serving.run_one import run_scheduler
from .benchmark_files import load_benchmark
from .measured_run import MeasuredRun

KERNELS = ("chip", "model", "tp", "kind", "batch", "tokens_each", "step_s")
HELD_OUT = (("llama-3.1-8b", 2), ("llama-3.1-70b", 4))
"""Models and degrees whose kernels no constant was fitted to."""

NCCL_S = {"a100-80-sxm": {2: 14e-6, 4: 17e-6, 8: 25e-6}}
_NCCL_S = {2: 8e-6, 4: 12e-6, 8: 20e-6}  # of the others
BARS = {
    ("kernels held out", "a100-80-sxm"): (6.0, 10.0),
    ("kernels held out", "h100-sxm"): (3.0, 25.0),
    ("kernels held out", "h200-sxm"): (4.0, 10.0),
    ("steps, even held out", "rtx4090"): (3.0, 14.0),
    ("steps, odd held out", "rtx4090"): (3.0, 14.0),
    ("run, TTFT mean", "rtx4090"): (6.0, None),
    ("run, TPOT mean", "rtx4090"): (4.0, None),
    ("run, e2e mean", "rtx4090"): (5.0, None),
}
"""Median and 95 % error that are asked for, in %."""


class Fidelity(NamedTuple):
    """An error, in % of what was measured: medians and 95 % of absolute errors, or of a mean with its sign.

    Attributes
    ----------
    what, about
        What was predicted, and of which chip.
    step_times
        By what: "operators", "roofline", or "measured steps".
    number
        How many things were.
    median, p95
        Errors; p95 is None where it is one number.
    bar, bar_p95
        What is asked for; None: nothing.
    """

    what: str
    about: str
    step_times: str
    number: int
    median: float
    p95: float | None = None
    bar: float | None = None
    bar_p95: float | None = None


def kernel_fidelity(path: str | PathLike[str]) -> list[Fidelity]:
    """Against steps that were put together from kernels: all, and those of models held out, chip by chip.

    GPU time only: nothing is between steps, and all-reduces are NCCL's.

    Parameters
    ----------
    path
        CSV with the columns chip, model, tp, kind ("decode" or "prefill"), batch, tokens_each and step_s.
    """
    table = read_columns(checks.path("path", path))
    table.need(KERNELS)
    chips, models, kinds = (table.text(name) for name in ("chip", "model", "kind"))
    tp, batch, each = (table.whole(name, least=1).tolist() for name in ("tp", "batch", "tokens_each"))
    measured_s = table.numbers("step_s", above=True)
    steps: dict[tuple[str, str, int], tuple[Any, Any]] = {}
    errors = np.empty((2, len(table)))
    for row, key in enumerate(zip(chips, models, tp, strict=True)):
        if kinds[row] not in ("decode", "prefill"):
            table.refuse(row, f"kind={kinds[row]!r}: must be decode or prefill")
        if key not in steps:
            steps[key] = _of_kernels(table, row, *key)
        for by, step in enumerate(steps[key]):
            n = batch[row], each[row]
            s = step.decode_time(n[0], n[0] * n[1]) if kinds[row] == "decode" else step.prefill_time([n[1]] * n[0])
            errors[by, row] = s / measured_s[row] - 1
    held = np.array([(model, degree) in HELD_OUT for model, degree in zip(models, tp, strict=True)])
    found = []
    for chip in dict.fromkeys(chips):
        here = np.array([name == chip for name in chips])
        for what, which in (("kernels", here), ("kernels held out", here & held)):
            for name, off in zip(("operators", "roofline"), errors, strict=True):
                if which.any():
                    found.append(_spread(what, chip, name, off[which]))
    return found


def step_fidelity(path: str | PathLike[str], model: str, chip: str) -> list[Fidelity]:
    """Against whole steps that were measured: fits to every second one, on the others; and operators, on all.

    Parameters
    ----------
    path
        CSV of whole steps, as `measured_step_times` takes it.
    model, chip
        What was measured, with one chip.
    """
    rows = read_steps(checks.path("path", path))
    even, odd = (_some(rows, begin) for begin in (0, 1))
    operators = OperatorStepModel(catalogue.model(model), catalogue.chip(chip))
    return [
        _spread("steps, even held out", chip, "measured steps", step_errors(fit_steps(odd), even)),
        _spread("steps, odd held out", chip, "measured steps", step_errors(fit_steps(even), odd)),
        _spread("steps", chip, "operators", step_errors(operators, rows)),
    ]


def run_fidelity(
    path: str | PathLike[str],
    model: str,
    chip: str,
    *,
    steps: str | PathLike[str] | None = None,
    num_blocks: int | None = None,
    max_running: int = 256,
    token_budget: int = 2048,
) -> list[Fidelity]:
    """Against the means of whole runs of vLLM on one chip; nothing is fitted to them.

    Parameters
    ----------
    path
        A benchmark, as `calibrate` takes it.
    model, chip
        What was served, and on what.
    steps
        Measured steps (CSV) to predict it from too. None: only operators and the roofline.
    num_blocks, max_running, token_budget
        KV blocks of the server, most requests that run and tokens of a step. None: the blocks that fit.
    """
    parts = catalogue.model(model), catalogue.chip(chip)
    times: dict[str, Step] = {"operators": OperatorStepModel(*parts), "roofline": StepModel(*parts)}
    if steps is not None:
        times["measured steps"] = fit_steps(read_steps(checks.path("steps", steps)))
    found = []
    for run in load_benchmark(path):
        for name, step in times.items():
            blocks = num_blocks
            if blocks is None and not isinstance(step, KNOWS_CHIP):
                blocks = StepModel(*parts).kv_capacity_tokens() // 16
            for what, error in _means(run, step, blocks, max_running, token_budget):
                found.append(_barred(Fidelity(what, chip, name, len(run), error)))
    return found


def _of_kernels(table: Columns, row: int, chip: str, model: str, tp: int) -> tuple[Any, Any]:
    """The models for kernels alone; ValueError with the line for what there is not."""
    try:
        parts = catalogue.model(model), catalogue.chip(chip)
        latencies = NCCL_S.get(chip, _NCCL_S)
        latency = latencies.get(tp, latencies[8]) if tp > 1 else None
        operators = OperatorStepModel(*parts, tp=tp, overhead_s=0.0, sequence_s=0.0, allreduce_s=latency)
        return operators, StepModel(*parts, tp=tp)
    except ValueError as error:
        table.refuse(row, str(error))


def _means(
    run: MeasuredRun, step: Step, num_blocks: int | None, max_running: int, token_budget: int
) -> Iterator[tuple[str, float]]:
    result = run_scheduler(
        run.workload,
        step,
        policy="vllm",
        max_running=max_running,
        token_budget=token_budget,
        block_size=16,
        num_blocks=num_blocks,
    )
    ours = run.latencies(result.first_token_s + result.outside_s, result.finish_s + result.outside_s)
    for name, mine, measured in zip(("TTFT", "TPOT", "e2e"), ours, run.measured, strict=True):
        yield f"run, {name} mean", 100 * (float(np.nanmean(mine)) / float(np.nanmean(measured)) - 1)


def _some(rows: StepRows, begin: int) -> StepRows:
    """Every second step."""
    parts: dict[str, Any] = {
        name: value[begin::2] for name, value in vars(rows).items() if isinstance(value, np.ndarray)
    }
    return replace(rows, **parts)


def _spread(what: str, about: str, name: str, errors: Floats) -> Fidelity:
    size = 100 * np.abs(errors)
    return _barred(Fidelity(what, about, name, size.size, float(np.median(size)), float(np.quantile(size, 0.95))))


def _barred(found: Fidelity) -> Fidelity:
    """With the bar, which is not for the roofline."""
    runs = found.what.startswith("run")
    if found.step_times == "roofline" or (runs and found.step_times != "measured steps"):
        return found
    bar, p95 = BARS.get((found.what, found.about), (None, None))
    return found._replace(bar=bar, bar_p95=p95)


def missed(rows: Sequence[Fidelity]) -> list[Fidelity]:
    """Those that are further off than their bar."""
    return [
        row
        for row in rows
        if (row.bar is not None and abs(row.median) > row.bar)
        or (row.bar_p95 is not None and row.p95 is not None and row.p95 > row.bar_p95)
    ]
