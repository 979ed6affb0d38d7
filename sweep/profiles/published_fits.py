"""What DistServe and Splitwise published of steps: fits by batch, and a table of measurements."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

import numpy as np

from .. import checks
from ..arrays import Ints
from ..hardware.profile import TableStepTimes
from ..messages import listed, shown
from ..workloads.trace_source import shown_path
from .columns import open_file, read_columns
from .measured_steps import StepRows, fit_steps

DECODES = (1, 2, 4, 8, 16, 32, 64, 94, 96, 128, 192, 256)
CACHED = (64, 256, 1024, 2048)
PROMPTS = (1, 2, 4, 8)
PROMPT_TOKENS = (16, 64, 128, 256, 512, 1024, 2048)
MOST_TOKENS = 4096
_ROLES = ("prefill", "decode")


@checks.spelt_out
def distserve_step_times(
    path: str | PathLike[str], *, model: str, tp: int = 1, role: str | None = None
) -> TableStepTimes:
    """Step times fitted to those that DistServe's simulator has fitted: up to 256 decodes, and 4,096 prompt tokens.

    Its prefill takes a + b tokens + c (sum of squared prompts), its decode steps a + b context + c requests, with other
    numbers from 96 requests on, in milliseconds.

    Parameters
    ----------
    path
        A JSON file: model, degree, then `prefill`, `decoding_smallbs`, `decoding_largebs` and
        `decoding_large_small_bs_threshold`.
    model
        A model of the file, such as "facebook/opt-13b".
    tp
        A degree of the file.
    role
        "prefill" or "decode": of instances that do only that, which is met more closely. None: of any.

    Returns
    -------
    TableStepTimes
        With the error of the fit to their fit in `measured`.

    Raises
    ------
    ValueError
        For what is no such file, and for a model or degree that it does not have.
    """
    path = checks.path("path", path)
    where = shown_path(path)
    tp = checks.whole("tp", tp, 1)
    if role is not None:
        checks.one_of("role", role, _ROLES)
    with open_file(path) as file:
        text = file.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON: {error}") from None
    entry = _entry(where, _entry(where, content, "model", model), "tp", str(tp))
    names = ("prefill", "decoding_smallbs", "decoding_largebs")
    for name in names:
        numbers = entry.get(name)
        if not isinstance(numbers, list) or len(numbers) != 3 or not all(map(checks.finite, numbers)):
            raise ValueError(f"{where}: {name}={shown(numbers)}: must be three numbers")
    threshold = entry.get("decoding_large_small_bs_threshold", 95)
    steps: list[tuple[tuple[int, ...], float]] = []
    if role != "prefill":
        for requests, each in itertools.product(DECODES, CACHED):
            a, b, c = entry[names[1] if requests < threshold else names[2]]
            steps.append(((requests, requests * each, 0, 0, requests), a + b * requests * each + c * requests))
    if role != "decode":
        a, b, c = entry[names[0]]
        for prompts, each in itertools.product(PROMPTS, PROMPT_TOKENS):
            if prompts * each <= MOST_TOKENS:
                pairs = prompts * each * (each + 1) // 2
                seconds = a + b * prompts * each + c * prompts * each**2
                steps.append(((0, 0, prompts * each, pairs, prompts), seconds))
    return fit_steps(_rows(where, [(counts, ms / 1e3, 0) for counts, ms in steps if ms > 0]), n_gpus=tp)


@checks.spelt_out
def splitwise_step_times(path: str | PathLike[str], *, model: str, hardware: str, tp: int) -> TableStepTimes:
    """Step times fitted to Splitwise's table of whole models (data/perf_model.csv of splitwise-sim).

    A row is a batch of equal prompts and the mean of the steps that follow; context is that of the middle one.

    Parameters
    ----------
    path
        CSV with the columns model, hardware, tensor_parallel, prompt_size, batch_size, token_size, prompt_time and
        token_time, in milliseconds.
    model, hardware, tp
        Values of the first three columns, such as "llama2-70b", "h100-80gb" and 8.

    Returns
    -------
    TableStepTimes
        With the error of the fit in `measured`.

    Raises
    ------
    ValueError
        For columns that are missing, and for what was not measured.
    """
    columns = read_columns(checks.path("path", path))
    texts = {"model": checks.text("model", model), "hardware": checks.text("hardware", hardware)}
    there = np.ones(len(columns), np.bool_)
    for name, value in texts.items():
        found = np.array(columns.text(name))
        if not (there & (found == value)).any():
            known = listed(dict.fromkeys(found[there].tolist()), 12)
            raise ValueError(f"{columns.shown}: has no {name} {shown(value)}; it has {known}")
        there &= found == value
    degrees = columns.whole("tensor_parallel")
    if not (there & (degrees == checks.whole("tp", tp, 1))).any():
        raise ValueError(f"{columns.shown}: has no tensor_parallel {tp}; it has {listed(np.unique(degrees[there]))}")
    there &= degrees == tp
    names = ("prompt_size", "batch_size", "token_size")
    prompt, batch, tokens = (columns.whole(name, least=1)[there].tolist() for name in names)
    times = [columns.numbers(name, above=True)[there].tolist() for name in ("prompt_time", "token_time")]
    lines = np.array(columns.lines)[there].tolist()
    steps = []
    for each, requests, sent, first_ms, ms, line in zip(prompt, batch, tokens, *times, lines, strict=True):
        pairs = requests * each * (each + 1) // 2
        steps.append(((0, 0, requests * each, pairs, requests), first_ms / 1e3, line))
        steps.append(((requests, requests * (each + sent // 2), 0, 0, requests), ms / 1e3, line))
    return fit_steps(_middle(_rows(columns.shown, steps)), n_gpus=tp)


def _entry(where: str, content: Any, name: str, value: str) -> Mapping[str, Any]:
    entry = content.get(value) if isinstance(content, dict) else None
    if not isinstance(entry, dict):
        known = listed(content, 12) if isinstance(content, dict) else "none"
        raise ValueError(f"{where}: has no {name} {shown(value)}; it has {known}")
    return entry


def _rows(source: str, steps: Iterable[tuple[tuple[int, ...], float, int]]) -> StepRows:
    """Steps of decodes, context, prefill tokens, pairs and emitting requests; seconds; and lines."""
    counts, seconds, lines = zip(*steps, strict=True)
    decodes, context, prefill, pairs, emitting = np.array(counts).T
    nothing = np.zeros(decodes.size, np.int64)
    return StepRows(
        source, decodes, context, prefill, nothing, pairs, emitting, np.array(seconds), np.array(lines, np.int64)
    )


def _middle(rows: StepRows) -> StepRows:
    """Of steps that were measured several times, one that takes their median."""
    same: dict[tuple[int, ...], list[int]] = {}
    parts: list[Ints] = [rows.decodes, rows.context, rows.prefill, rows.pairs]
    for i, step in enumerate(zip(*(part.tolist() for part in parts), strict=True)):
        same.setdefault(step, []).append(i)
    first = np.zeros(len(rows), np.bool_)
    seconds = rows.step_s.copy()
    for places in same.values():
        first[places[0]] = True
        seconds[places[0]] = np.median(rows.step_s[places])
    parts += [rows.done, rows.emitting, rows.lines]
    decodes, context, prefill, pairs, done, emitting, lines = (part[first] for part in parts)
    return StepRows(rows.source, decodes, context, prefill, done, pairs, emitting, seconds[first], lines)
