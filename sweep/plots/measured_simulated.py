"""Measured latencies against simulated ones, and the steps that step times were fitted to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from .style import COLOURS, GREY, MARKERS, STYLE, in_lines, plain_axis, plain_log_axis

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..calibration.calibrating import Calibration
    from ..hardware.operators import OperatorStepModel
    from ..hardware.profile import TableStepTimes
    from ..profiles.measured_steps import StepRows


def latency_numbers(found: Calibration) -> pd.DataFrame:
    """A row a request: its run, whether it was held out, measured and simulated TTFT and TPOT in seconds."""
    import pandas as pd

    parts = []
    for place, run in enumerate(found.runs):
        ttft, tpot, _ = run.measured
        columns = {
            "run": run.name,
            "held_out": found.held_out[place],
            "arrival_s": run.arrival_s,
            "prompt_tokens": run.prompt_tokens,
            "output_tokens": run.output_tokens,
            "ttft_measured_s": ttft,
            "ttft_simulated_s": found.simulated_ttft_s[place],
            "tpot_measured_s": tpot,
            "tpot_simulated_s": found.simulated_tpot_s[place],
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def latency_figure(found: Calibration) -> Figure:
    """Two panels, TTFT and TPOT: a point a request that was held out, measured along x, simulated along y."""
    from matplotlib.figure import Figure

    numbers = latency_numbers(found)
    numbers = numbers[numbers["held_out"]]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.4), layout="constrained")
        for ax, measure in zip(figure.subplots(1, 2), ("ttft", "tpot"), strict=True):
            x, y = f"{measure}_measured_s", f"{measure}_simulated_s"
            for place, (name, part) in enumerate(numbers.groupby("run", sort=False)):
                look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
                ax.plot(1e3 * part[x], 1e3 * part[y], linestyle="", markersize=3.5, alpha=0.6, label=str(name), **look)
            there = numbers[[x, y]].to_numpy().ravel()
            there = 1e3 * there[np.isfinite(there) & (there > 0)]
            ends = [there.min() / 1.1, there.max() * 1.1] if there.size else [1.0, 10.0]
            ax.plot(ends, ends, color=GREY, linewidth=1.0, zorder=1)
            _log_axes(ax, ends)
            error = found.worst_error[measure]
            ax.set_title(f"{measure.upper()} of requests held out, mean {100 * error:+.1f} %", loc="left")
            ax.set_xlabel("measured (ms)")
            ax.set_ylabel("simulated (ms)")
        if len(found.runs) > 1:
            figure.axes[0].legend()
    return figure


def _log_axes(ax: Axes, ends: list[float]) -> None:
    for which in ("x", "y"):
        getattr(ax, f"set_{which}lim")(*ends)
        plain_log_axis(ax, which)


def step_numbers(steps: TableStepTimes | OperatorStepModel, rows: StepRows) -> pd.DataFrame:
    """A row a measured step: what was in it, its seconds, and those that step times say."""
    import pandas as pd

    from ..profiles.measured_steps import step_errors

    error = step_errors(steps, rows)
    return pd.DataFrame(
        {
            "decodes": rows.decodes,
            "context_tokens": rows.context,
            "prefill_tokens": rows.prefill,
            "prefill_done_tokens": rows.done,
            "prefill_pairs": rows.pairs,
            "step_s": rows.step_s,
            "fitted_s": rows.step_s * (1 + error),
            "error": error,
        }
    )


def steps_figure(steps: TableStepTimes | OperatorStepModel, rows: StepRows | None, title: str = "") -> Figure:
    """F over the tokens of a step, and beside it how far step times are off each measured step."""
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.8) if rows is not None else (4.8, 3.8), layout="constrained")
        panels = figure.subplots(1, 1 if rows is None else 2, squeeze=False)[0]
        _draw_tokens(panels[0], steps)
        if rows is not None:
            _draw_errors(panels[1], steps, rows)
        if title:
            figure.suptitle(in_lines(title), x=0.01, ha="left", fontsize=10.5)
    return figure


def _draw_tokens(ax: Axes, steps: TableStepTimes | OperatorStepModel) -> None:
    table = steps.coefficients().tokens_s
    knots = np.array(getattr(steps, "tokens_s", ())).reshape(-1, 2)
    first, last = (max(knots[0, 0], 1), knots[-1, 0]) if len(knots) else (1, 8192)
    measured = getattr(steps, "measured", None)
    x = np.unique(np.geomspace(first, min(max(1.3 * last, 4), table.size - 1), 300).astype(np.int64))
    ax.plot(x, 1e3 * table[x], color=COLOURS[0], label="F")
    if len(knots):
        ax.plot(knots[:, 0], 1e3 * knots[:, 1], "o", color=COLOURS[0], label="knots")
    if measured is not None:
        ax.axvline(measured.most_tokens, color=GREY, linestyle=":", label="end of what was measured")
    plain_log_axis(ax, "x")
    plain_axis(ax, "y")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("tokens in the step")
    ax.set_ylabel("F (ms)")
    ax.legend()


def _draw_errors(ax: Axes, steps: TableStepTimes | OperatorStepModel, rows: StepRows) -> None:
    from ..profiles.measured_steps import step_errors

    error = 100 * step_errors(steps, rows)
    kinds = (
        ("decodes", rows.prefill == 0),
        ("prefill", (rows.prefill > 0) & (rows.decodes == 0)),
        ("both", (rows.prefill > 0) & (rows.decodes > 0)),
    )
    ax.axhline(0.0, color=GREY, linewidth=1.0, zorder=1)
    for place, (name, there) in enumerate(kinds):
        if there.any():
            look: dict[str, Any] = {"color": COLOURS[place], "marker": MARKERS[place]}
            ax.plot(1e3 * rows.step_s[there], error[there], linestyle="", markersize=4, alpha=0.7, label=name, **look)
    plain_log_axis(ax, "x")
    plain_axis(ax, "y")
    ax.set_xlabel("measured (ms)")
    ax.set_ylabel("fitted / measured - 1 (%)")
    ax.legend()
