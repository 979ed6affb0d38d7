"""Whole steps that were measured, and the step times fitted to them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import NoReturn

import numpy as np

from .. import checks
from ..arrays import Bools, Floats, Ints
from ..hardware.measured import MeasuredSteps, WorstStep
from ..hardware.profile import Knots, TableStepTimes
from ..hardware.tabled import TabledSteps
from ..workloads.trace_source import shown_path
from .columns import Columns, read_columns
from .least_squares import nonnegative

COLUMNS = ("decodes", "context_tokens", "prefill_tokens", "prefill_done_tokens", "prefill_pairs", "step_s")
EMITTING = "emitting"  # a further column, that a file need not have
LAST_RATIO = 1.4  # of the last two: their line goes on beyond
MOST_KNOTS = 48
KNOT_RATIO = 1.19  # knots of F stand so far apart, at least: 4 between two powers of 2
MAX_FALL = 0.2  # by which a step with more of everything may be shorter: kernels of more tokens are, by up to a seventh
MOST_COMPARED = 4000  # steps, each with all others
WORST = 5


@dataclass(frozen=True)
class StepRows:
    """Measured steps, one in each place of every array. [R]"""

    source: str
    decodes: Ints
    context: Ints
    prefill: Ints
    done: Ints
    pairs: Ints
    emitting: Ints
    step_s: Floats
    lines: Ints  # of the file; 0 where steps were put together

    @property
    def tokens(self) -> Ints:
        """Tokens that a step processes. [R]"""
        return self.decodes + self.prefill

    def __len__(self) -> int:
        return self.step_s.size

    def __getitem__(self, chosen: Bools) -> StepRows:
        """Some of them."""
        names = ("decodes", "context", "prefill", "done", "pairs", "emitting", "step_s", "lines")
        return StepRows(self.source, *(getattr(self, name)[chosen] for name in names))

    def refuse(self, row: int, words: str) -> NoReturn:
        """ValueError about a step."""
        line = int(self.lines[row])
        raise ValueError(f"{self.source}{f', line {line}' if line else ''}: {words}")


@checks.spelt_out
def measured_step_times(path: str | PathLike[str], *, n_gpus: int = 1) -> TableStepTimes:
    """Step times fitted to a CSV file of whole steps that were measured.

    Its columns are `decodes`, `context_tokens`, `prefill_tokens`, `prefill_done_tokens`, `prefill_pairs` and `step_s`,
    and `emitting` where it is known. The fit is one non-negative least squares of errors relative to the measured
    times; what it reached is in `measured` of the result (docs/calibration.md).

    Parameters
    ----------
    path
        The file, which may be compressed with gzip.
    n_gpus
        Chips of the instance that was measured.

    Returns
    -------
    TableStepTimes
        With knots at numbers of tokens that were measured.

    Raises
    ------
    ValueError
        For a column that is missing, a time of 0 or below, times that fall by more than a fifth as steps grow, and too
        few steps; with the file and the line.
    """
    rows = read_steps(checks.path("path", path))
    check_growth(rows)
    return fit_steps(rows, n_gpus=checks.whole("n_gpus", n_gpus, 1))


def is_steps(header: list[str]) -> bool:
    """Whether a header is that of a file of whole steps, be it that some columns are missing."""
    return "step_s" in header and len(set(COLUMNS) & set(header)) >= 3


def read_steps(path: Path) -> StepRows:
    """The steps of a file; ValueError with the line for what cannot be one."""
    return steps_of(read_columns(path))


def steps_of(columns: Columns) -> StepRows:
    """The steps in the columns of a file."""
    columns.need(COLUMNS)
    decodes, context, prefill, done, pairs = (columns.whole(name) for name in COLUMNS[:-1])
    emitting = columns.whole(EMITTING) if EMITTING in columns.header else decodes + (prefill > 0)
    step_s = columns.numbers("step_s", above=True)
    rows = StepRows(
        shown_path(columns.path), decodes, context, prefill, done, pairs, emitting, step_s, np.array(columns.lines)
    )
    for wrong, words in (
        (rows.tokens == 0, "decodes and prefill_tokens are both 0: a step must process a token"),
        (
            (prefill > 0) & (pairs < prefill),
            "prefill_pairs: must be at least prefill_tokens: each attends to itself",
        ),
        ((prefill == 0) & (pairs + done > 0), "prefill_pairs, prefill_done_tokens: must be 0 without prefill_tokens"),
        ((decodes == 0) & (context > 0), "context_tokens: must be 0 without decodes"),
        (emitting > decodes + prefill, "emitting: must be at most decodes + prefill_tokens"),
    ):
        if wrong.any():
            rows.refuse(int(wrong.argmax()), words)
    return rows


def fit_steps(rows: StepRows, *, n_gpus: int = 1) -> TableStepTimes:
    """Step times fitted to measured steps; ValueError where these are too few."""
    names, costs_of = _costs(rows)
    if len(rows) < (unknowns := len(names) + 2):
        raise ValueError(
            f"{rows.source}: has {len(rows)} steps for {unknowns} unknowns ({', '.join(['2 of F', *names])}): "
            "must have at least as many"
        )
    knots = token_knots(rows.tokens, most=min(MOST_KNOTS, max(2, (len(rows) - len(names)) // 2)))
    design = np.hstack([_rises(rows.tokens, knots), costs_of])
    found = nonnegative(design / rows.step_s[:, None], np.ones(len(rows)))
    costs = dict(zip(names, found[knots.size :].tolist(), strict=True))
    sequence_s = costs.pop("sequence_s", 0.0)
    if "mixed_context_s" not in costs:  # no step with both was measured
        costs["mixed_context_s"] = costs.get("context_s", 0.0)
    tokens_s = tuple(zip(knots.tolist(), np.cumsum(found[: knots.size]).tolist(), strict=True))
    emitting_s: Knots = ((0, 0.0), (1, sequence_s)) if sequence_s else ()
    errors = design @ found / rows.step_s - 1
    return TableStepTimes(tokens_s, emitting_s=emitting_s, n_gpus=n_gpus, measured=about_fit(rows, errors), **costs)


def about_fit(rows: StepRows, errors: Floats) -> MeasuredSteps:
    """What is kept of a fit."""
    size = np.abs(errors)
    worst = np.argsort(-size, kind="stable")[:WORST]
    shown = [rows.lines, rows.decodes, rows.context, rows.prefill, rows.step_s, errors]
    decodes, context, prefill, tokens = (
        int(part.max()) for part in (rows.decodes, rows.context, rows.prefill, rows.tokens)
    )
    return MeasuredSteps(
        rows.source.rpartition("/")[2],
        len(rows),
        float(np.median(size)),
        float(np.quantile(size, 0.95)),
        decodes,
        context,
        prefill,
        tokens,
        tuple(WorstStep(*(part[i].item() for part in shown)) for i in worst.tolist()),
    )


def step_errors(steps: TabledSteps, rows: StepRows) -> Floats:
    """Step times / measured ones - 1. [R]"""
    parts = (rows.decodes, rows.context, rows.prefill, rows.pairs, rows.done, rows.emitting)
    found = [steps.step_time(*step) for step in zip(*(part.tolist() for part in parts), strict=True)]
    return np.array(found) / rows.step_s - 1


def token_knots(tokens: Ints, most: int = MOST_KNOTS) -> Ints:
    """Numbers of tokens at which F gets a knot: measured ones, KNOT_RATIO apart at least, and the first and last."""
    there = np.unique(tokens)
    ratio = max(KNOT_RATIO, (there[-1] / there[0]) ** (1 / (most - 1)))
    chosen = [int(there[0])]
    for number in there[1:-1].tolist():
        if number >= chosen[-1] * ratio and there[-1] >= number * max(ratio, LAST_RATIO):
            chosen.append(number)
    if there.size > 1:
        chosen.append(int(there[-1]))
    return np.array(chosen)


def _rises(tokens: Ints, knots: Ints) -> Floats:
    """F's part of the design: its value at the first knot, and how much of its rise from each knot to the next each
    step has. [R, knots]"""
    columns = [np.ones(tokens.size)]
    for low, high in pairwise(knots.tolist()):
        share = np.maximum((tokens - low) / (high - low), 0.0)
        columns.append(share if high == knots[-1] else np.minimum(share, 1.0))
    return np.stack(columns, axis=1)


def _costs(rows: StepRows) -> tuple[list[str], Floats]:
    """Names of the costs that these steps can tell something about, and what each step has of them. [R, costs]"""
    prefills = rows.prefill > 0
    counts = {
        "sequence_s": rows.emitting * bool(prefills.any()),  # without prefill every token is emitted: F has it
        "context_s": rows.context * ~prefills,
        "mixed_context_s": rows.context * prefills,
        "pair_s": rows.pairs,
        "done_s": rows.done,
        "prefill_s": prefills * bool((~prefills).any()),
    }
    told = [name for name, count in counts.items() if count.any()]
    columns = np.zeros((len(rows), len(told)))
    for place, name in enumerate(told):
        columns[:, place] = counts[name]
    return told, columns


def check_growth(rows: StepRows) -> None:
    """ValueError where a step takes less time than one that has at most as much of everything."""
    rows = rows[np.arange(len(rows)) % -(-len(rows) // MOST_COMPARED) == 0]
    parts = np.stack([rows.decodes, rows.context, rows.prefill, rows.done, rows.pairs])
    order = np.argsort(rows.step_s, kind="stable")
    for at, later in enumerate(order.tolist()):  # those before it in this order are shorter
        if at == 0:
            continue
        shorter = order[:at]
        shorter = shorter[rows.step_s[shorter] < (1 - MAX_FALL) * rows.step_s[later]]
        more = (parts[:, shorter] >= parts[:, [later]]).all(axis=0)
        if more.any():
            other = int(shorter[more.argmax()])
            fall = 100 * (1 - rows.step_s[other] / rows.step_s[later])
            which = f"line {rows.lines[later]}" if rows.lines[later] else "another"
            rows.refuse(
                other,
                f"step_s={rows.step_s[other]:g}: is {fall:.0f} % less than that of {which}, a step with no more of "
                f"anything: times must not fall as steps grow (a fifth is let pass)",
            )
