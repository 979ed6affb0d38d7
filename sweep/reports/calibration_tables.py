"""What a calibration found, for the terminal and as JSON."""

from __future__ import annotations

from typing import Any

from ..calibration.calibrating import GOAL, MEASURES, Calibration
from ..profiles.profile_files import given_constants
from .text_tables import print_table


def print_calibration(found: Calibration) -> None:
    """Constants, errors, and what they say."""
    rows = []
    for one in found.constants:
        sure = f"{100 * one.spread:.1g} %" if one.spread < 1 else "-"
        rows.append([one.name, _value(one.value, one.unit), _value(one.start, one.unit), sure, one.remark])
    print_table(["constant", "found", "before", "+-", ""], rows, last_is_text=True)
    rows = []
    for error in found.errors:
        shares = [f"{100 * share:+.1f} %" for share in (error.mean, error.median, error.p90, error.mean_before)]
        cells = [error.run, f"{error.requests} ({error.n:,})", error.measure.upper()]
        rows.append([*cells, f"{1e3 * error.measured_s:,.4g} ms", f"{1e3 * error.simulated_s:,.4g} ms", *shares])
    headers = ["run", "requests", "", "measured mean", "simulated", "mean", "median", "p90", "mean before"]
    print_table(headers, rows, left=3)


def verdict(found: Calibration) -> str:
    """A line that says whether the goal is reached on requests that were not used, and what is not told."""
    worst = found.worst_error
    off = ", ".join(f"{name.upper()} {100 * worst[name]:+.1f} %" for name in MEASURES)
    runs = " of the run that is off most" if len(found.runs) > 1 else ""
    reached = all(abs(error) <= GOAL for error in worst.values())
    text = f"On requests that were not used, means{runs} are off by {off}: "
    text += f"{'all within' if reached else 'not all within'} {100 * GOAL:g} %."
    untold = [one.name for one in found.constants if not one.told]
    if untold:
        text += f" Not told by these data: {', '.join(untold)}."
    return text


def calibration_json(found: Calibration) -> dict[str, Any]:
    """All of it but the requests, as JSON's types."""
    step = found.step
    return {
        "model": step.model.name,
        "chip": step.chip.name,
        "tp": step.tp,
        "server": found.server,
        "constants": [one._asdict() for one in found.constants],
        "profile_constants": given_constants(step),
        "first_token_s": step.first_token_s,
        "errors": [one._asdict() for one in found.errors],
        "goal": GOAL,
        "reached": all(abs(error) <= GOAL for error in found.worst_error.values()),
        "runs": [
            {"name": run.name, "format": run.format, "requests": len(run), "skipped": run.skipped} for run in found.runs
        ],
        "simulations": found.simulations,
    }


def _value(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.4g}"
    return f"{1e3 * value:,.4g} ms" if value >= 1e-3 else f"{round(1e6 * value, 2):,.4g} us"
