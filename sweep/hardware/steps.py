"""All kinds of step times that an instance can have."""

from typing import Any

import numpy as np

from ..kernels.step_tables import StepTables, table_seconds
from ..kernels.steptime import step_seconds
from .operators import OperatorStepModel
from .profile import TableStepTimes
from .step_times import ConstantStepTime, StepModel

Step = StepModel | OperatorStepModel | TableStepTimes | ConstantStepTime
KNOWS_CHIP = (StepModel, OperatorStepModel)
"""Those that know a model and its chips, and so a KV capacity."""


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
