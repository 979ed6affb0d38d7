"""Constants that make simulated runs agree with measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from .. import checks
from ..arrays import Bools, Floats
from ..hardware.operators import OperatorStepModel
from ..messages import shown
from ..profiles.profile_files import save_step_times
from ..serving.policies import PolicyName, policy_of
from .benchmark_files import load_benchmark
from .constants import OUTSIDE, chosen_constants
from .likeness import Trials
from .measured_run import MeasuredRun
from .searching import Likely, search
from .telling_apart import CalibratedConstant, what_is_told

HoldOut = Literal["requests", "runs"]
HOLD_OUT: tuple[HoldOut, ...] = get_args(HoldOut)
MEASURES = ("ttft", "tpot", "e2e")
GOAL = 0.03  # of means, on what was held out
USUAL_FIRST_TOKEN_S = 0.004
_BUDGET = 2048  # vLLM's, of most servers
_FEWEST = 64


class CalibrationError(NamedTuple):
    """How far a simulated run is off, measure by measure.

    Attributes
    ----------
    run, measure
        Its name, and "ttft", "tpot" or "e2e".
    requests
        "held out" or "used".
    n
        How many such requests.
    measured_s, simulated_s
        Means, in seconds.
    mean, median, p90
        Simulated / measured - 1 of these.
    mean_before
        The mean's, with the constants before.
    """

    run: str
    measure: str
    requests: str
    n: int
    measured_s: float
    simulated_s: float
    mean: float
    median: float
    p90: float
    mean_before: float


@dataclass(frozen=True)
class Calibration:
    """What a calibration found.

    Attributes
    ----------
    step
        The step model with the constants that were found, its `first_token_s` among them.
    constants
        Each that was looked for, and whether the data tell it.
    errors
        How far simulated runs are off, on requests held out and used.
    runs
        What was measured.
    simulated_ttft_s, simulated_tpot_s
        An array [N] for each run.
    held_out
        For each run which requests were not used, bool [N].
    server
        Options of the simulated server.
    simulations
        How many runs were simulated.
    """

    step: OperatorStepModel
    constants: tuple[CalibratedConstant, ...]
    errors: tuple[CalibrationError, ...]
    runs: tuple[MeasuredRun, ...]
    simulated_ttft_s: tuple[npt.NDArray[np.float64], ...]
    simulated_tpot_s: tuple[npt.NDArray[np.float64], ...]
    held_out: tuple[npt.NDArray[np.bool_], ...]
    server: dict[str, Any]
    simulations: int

    @property
    def worst_error(self) -> dict[str, float]:
        """For each measure, the error of the mean on requests held out, of the run that is off most."""
        held = [one for one in self.errors if one.requests == "held out"]
        return {name: max((one.mean for one in held if one.measure == name), key=abs) for name in MEASURES}

    def save_profile(self, path: str | PathLike[str]) -> Path:
        """Write the step model as a profile, which `load_step_times` reads."""
        names = ", ".join(run.name for run in self.runs)
        off = ", ".join(f"{name.upper()} {100 * error:+.1f} %" for name, error in self.worst_error.items())
        return save_step_times(self.step, path, about=f"calibrated on {names}; on requests held out {off}")


@checks.spelt_out
def calibrate(
    benchmarks: Sequence[str | PathLike[str] | MeasuredRun],
    step: OperatorStepModel,
    *,
    policy: PolicyName = "vllm",
    async_scheduling: bool = False,
    max_running: int = 256,
    token_budget: int | None = None,
    max_tokens: int | None = None,
    block_size: int | None = 16,
    num_blocks: int | None = None,
    first_token_s: float | None = None,
    fit: Sequence[str] | None = None,
    hold_out: HoldOut = "requests",
    candidates: int = 256,
    seed: int = 0,
) -> Calibration:
    """Find the constants of a step model that make simulated runs agree with measured ones (docs/calibration.md).

    Hundreds of candidates are simulated as one batch, round by round closer to the best. Half of the requests are held
    out: they are served, but what they measured is not used.

    Parameters
    ----------
    benchmarks
        Result files for `load_benchmark`, or runs.
    step
        The model, chip and layout that were measured, and where to start; what is not looked for stays.
    policy, async_scheduling, max_running, token_budget, max_tokens, block_size, num_blocks
        The server, as of `Scheduler`. None: 2048 for a `token_budget` that the policy needs, unlimited memory for
        `block_size`, the step model's KV capacity for `num_blocks`.
    first_token_s
        Seconds before the first token outside of the engine, where to start. None: those of `step`, or if it has none
        4 ms, which vLLM was measured to take.
    fit
        Names of constants to look for: mfu, mbu, mbu_attention, mfu_attention, allreduce_s, overhead_s, sequence_s,
        first_token_s. None: all that have an effect.
    hold_out
        "requests": every second one of each run; "runs": every second run.
    candidates
        How many are simulated in a round, at least 64.
    seed
        Of the candidates.

    Returns
    -------
    Calibration
        With the errors on what was held out.

    Raises
    ------
    ValueError
        For files that `load_benchmark` refuses, options that `Scheduler` refuses, requests that can never fit, and
        names that are unknown.
    """
    if not isinstance(step, OperatorStepModel):
        raise ValueError(f"step={shown(step)}: must be an OperatorStepModel")
    checks.one_of("hold_out", hold_out, HOLD_OUT)
    checks.whole("candidates", candidates, _FEWEST)
    checks.whole("seed", seed, 0)
    usual = step.first_token_s or USUAL_FIRST_TOKEN_S
    first_token_s = usual if first_token_s is None else checks.not_negative("first_token_s", first_token_s)
    constants = chosen_constants(step, fit)
    runs = _runs(benchmarks)
    used = _used(runs, hold_out)
    memory = "unlimited" if block_size is None else "paged"
    options = policy_of(policy, memory).options[memory]
    if token_budget is None and "token_budget" in options:
        token_budget = max(_BUDGET, max_running)
    server = {"policy": policy, "max_running": max_running, "token_budget": token_budget, "max_tokens": max_tokens}
    server |= {"block_size": block_size, "num_blocks": num_blocks, "async_scheduling": async_scheduling}
    trials = Trials(runs, used, step, server, constants, first_token_s)
    known = {**step.constants, OUTSIDE: first_token_s}
    values = np.array([known[one.name] for one in constants])
    start = np.array([one.place(known[one.name]) for one in constants])
    _check_fits(trials, start)
    likely = Likely(start, np.array([one.likely_spread for one in constants]))
    found = search(trials.residuals, trials.groups, likely, candidates=candidates, seed=seed)
    both = trials.latencies(np.stack([start, found.place]))
    return Calibration(
        trials.model(found.place),
        tuple(what_is_told(found, constants, values)),
        tuple(_errors(runs, used, both)),
        tuple(runs),
        tuple(one[1, 0] for one in both),
        tuple(one[1, 1] for one in both),
        tuple(~one for one in used),
        {name: value for name, value in server.items() if value is not None},
        trials.simulated,
    )


def _runs(benchmarks: Sequence[Any]) -> list[MeasuredRun]:
    if isinstance(benchmarks, str | PathLike) or not isinstance(benchmarks, Sequence) or not benchmarks:
        raise ValueError(f"benchmarks={shown(benchmarks)}: must be a list of files, at least one")
    runs: list[MeasuredRun] = []
    for one in benchmarks:
        runs += [one] if isinstance(one, MeasuredRun) else load_benchmark(one)
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({number})") if names.count(run.name) > 1 else run
        for number, run in enumerate(runs, 1)
    ]


def _used(runs: Sequence[MeasuredRun], hold_out: str) -> list[Bools]:
    if hold_out == "requests":
        return [np.arange(len(run)) % 2 == 0 for run in runs]
    if len(runs) < 2:
        raise ValueError('hold_out="runs": must have at least two runs, and there is one')
    return [np.full(len(run), number % 2 == 0) for number, run in enumerate(runs)]


def _check_fits(trials: Trials, start: Floats) -> None:
    for run, found in zip(trials.runs, trials.latencies(start[None]), strict=True):
        refused = int(np.isnan(found[0, 2]).sum())
        if refused:
            raise ValueError(
                f"{run.name}: {refused:,} of its {len(run):,} requests can never fit the KV memory: num_blocks must be "
                "that of the server"
            )


def _errors(runs: Sequence[MeasuredRun], used: Sequence[Bools], found: Sequence[Floats]) -> list[CalibrationError]:
    rows = []
    for words, chosen in (("held out", False), ("used", True)):
        for run, mask, simulated in zip(runs, used, found, strict=True):
            for k, measure in enumerate(MEASURES):
                there = (mask == chosen) & np.isfinite(run.measured[k])
                if not there.any():
                    continue
                measured, before, after = run.measured[k, there], simulated[0, k, there], simulated[1, k, there]
                rows.append(
                    CalibrationError(
                        run.name,
                        measure,
                        words,
                        int(there.sum()),
                        float(measured.mean()),
                        float(after.mean()),
                        float(after.mean() / measured.mean() - 1),
                        float(np.median(after) / np.median(measured) - 1),
                        float(np.quantile(after, 0.9) / np.quantile(measured, 0.9) - 1),
                        float(before.mean() / measured.mean() - 1),
                    )
                )
    return rows
