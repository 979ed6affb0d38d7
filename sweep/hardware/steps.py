"""All kinds of step times that an instance can have."""

from typing import Any

import numpy as np

from ..kernels.step_tables import StepTables, table_seconds
from ..kernels.steptime import step_seconds
from .operators import CONSTANTS, OperatorStepModel
from .profile import TableStepTimes
from .step_times import ConstantStepTime, StepModel
from .table_steps import TableStepModel

InstanceStep = StepModel | OperatorStepModel | TableStepModel
Step = InstanceStep | TableStepTimes | ConstantStepTime
KNOWS_CHIP = (StepModel, OperatorStepModel, TableStepModel)
"""Those that know a model and its chips, and so a KV capacity."""


def outside_s(step: Step) -> float:
    """Seconds of a request outside the engine before its first token, where step times know of them."""
    return float(getattr(step, "first_token_s", 0.0))


def source_of(step: Step) -> str:
    """Where step times come from, and what of them is guessed, in a line.

    >>> from .catalogue import chip, model
    >>> source_of(OperatorStepModel(model("llama-3.1-8b"), chip("h100-sxm"), mfu=0.7))
    'operators: constants of h100-sxm, guessed: mixed_attention, given: mfu'
    """
    if isinstance(step, TableStepModel):
        step = step.times
    if isinstance(step, TableStepTimes):
        known = "" if step.measured is None else f", fitted to {step.measured.steps:,} steps of {step.measured.source}"
        return f"tables: {step.content_id}{known}"
    if isinstance(step, StepModel):
        return "roofline: mfu, mbu and overhead_s are assumed, not measured"
    if isinstance(step, ConstantStepTime):
        return f"constant: {step.seconds:g} s a step"
    origin = step.constants_origin
    found = f"constants of {origin}"
    if origin != step.chip.name:
        found += f", {step.chip.name} was not measured"
    elif step.guessed:
        found += f", guessed: {' '.join(step.guessed)}"
    given = [name for name in CONSTANTS if getattr(step, name) is not None]
    return f"operators: {found}" + (f", given: {' '.join(given)}" if given else "")


def seconds_of(step: Step, decoding: Any, context: Any, prefill_tokens: Any, pairs: Any, ending: Any = 1.0) -> Any:
    """Seconds of steps of which only averages are known: counts need not be whole. Prompts begin at their first token,
    and `ending` of them end; arguments are numbers or [n]."""
    c = step.coefficients()
    if not isinstance(c, StepTables):
        return step_seconds(c, decoding + prefill_tokens, context + pairs, context + prefill_tokens)
    tokens, before = np.rint(decoding + prefill_tokens).astype(np.int64), np.rint(decoding).astype(np.int64)
    prefills = np.asarray(prefill_tokens) > 0
    emitting = np.rint(decoding + ending * prefills).astype(np.int64)
    return table_seconds(c, before, context, tokens - before, pairs, 0, emitting)
