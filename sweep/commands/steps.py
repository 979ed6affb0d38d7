"""`servesweep steps`: a look at measured steps, or at a profile of step times."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..escapes import one_line
from ..streams import say, tell
from .options import EXIT_OK, add_command, at_least_one, column_list, print_json, writing

if TYPE_CHECKING:
    from ..hardware.operators import OperatorStepModel
    from ..hardware.profile import TableStepTimes
    from ..profiles.measured_steps import StepRows
    from .options import Commands

FORMATS = ("png", "svg", "csv")


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "steps",
        _steps,
        "look at measured steps, or a profile of step times",
        "Look at a CSV file of measured steps or at a profile (TOML): how well it is fitted, up to where it was "
        "measured, F over tokens, and how far off each step is.",
    )
    parser.add_argument("file", metavar="FILE", help="CSV of whole steps, or a profile in TOML")
    parser.add_argument("--against", metavar="FILE", help="measured steps that a profile is compared with (CSV)")
    parser.add_argument(
        "--n-gpus", metavar="N", type=at_least_one, help="chips that steps were measured on (default: 1)"
    )
    parser.add_argument("--save", metavar="FILE", help="write the fit as a profile (TOML)")
    parser.add_argument("--out", metavar="DIR", help="where the pictures go (default: results/steps)")
    parser.add_argument(
        "--formats", metavar="NAMES", type=column_list, default=list(FORMATS), help="default: png,svg,csv"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _steps(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names
    from ..experiment.tables import ConfigError
    from ..profiles.profile_files import save_step_times
    from ..tables.filenames import RESULTS

    try:
        check_names(options.formats, FORMATS, "format")
        steps, rows = _read(options)
    except OSError as error:
        raise ConfigError([f"{error.filename}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if options.json:
        print_json(_about(steps, rows))
    else:
        tell(_text(steps, rows))
    told = say if options.json else tell
    if options.save is not None:
        with writing(options.save):
            told(one_line(save_step_times(steps, options.save, about=f"fitted to {Path(options.file).name}")))
    folder = Path(RESULTS) / "steps" if options.out is None else Path(options.out)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in _draw(steps, rows, folder, options):
            told(one_line(path))
    return EXIT_OK


def _read(options: argparse.Namespace) -> tuple[TableStepTimes | OperatorStepModel, StepRows | None]:
    from ..profiles.measured_steps import measured_step_times, read_steps
    from ..profiles.profile_files import load_step_times

    path = Path(options.file)
    if path.suffix.lower() == ".toml":
        if options.n_gpus is not None:
            raise ValueError(f"--n-gpus {options.n_gpus}: has no effect on a profile, which has it")
        return load_step_times(path), None if options.against is None else read_steps(Path(options.against))
    if options.against is not None:
        raise ValueError(f"--against {options.against}: has an effect only with a profile (TOML)")
    return measured_step_times(path, n_gpus=options.n_gpus or 1), read_steps(path)


def _about(steps: TableStepTimes | OperatorStepModel, rows: StepRows | None) -> dict[str, Any]:
    from dataclasses import asdict

    import numpy as np

    from ..hardware.operators import OperatorStepModel
    from ..profiles.measured_steps import step_errors

    about: dict[str, Any]
    if isinstance(steps, OperatorStepModel):
        about = {"kind": "operators", "model": steps.model.name, "chip": steps.chip.name, "tp": steps.tp}
        about |= {"constants": steps.constants}
    else:
        about = {"kind": "tables", "content_id": steps.content_id, **asdict(steps)}
        if steps.measured is not None:
            about["measured"]["worst"] = [one._asdict() for one in steps.measured.worst]
    if rows is not None:
        error = np.abs(step_errors(steps, rows))
        about["errors"] = {"median": float(np.median(error)), "p95": float(np.quantile(error, 0.95))}
    return about


def _text(steps: TableStepTimes | OperatorStepModel, rows: StepRows | None) -> str:
    from ..hardware.operators import OperatorStepModel

    about = _about(steps, rows)
    if isinstance(steps, OperatorStepModel):
        lines = [f"operators of {steps.model.name} on {steps.n_gpus} x {steps.chip.name}"]
        lines += [f"  {name} {value:.4g}" for name, value in about["constants"].items()]
    else:
        lines = [f"step times {steps.content_id}, of {steps.n_gpus} chip{'s' * (steps.n_gpus > 1)}"]
        if steps.measured is not None:
            lines = [*steps.measured.text().splitlines(), *lines]
        first, last = steps.tokens_s[0], steps.tokens_s[-1]
        lines.append(
            f"  F: {len(steps.tokens_s)} knots, {1e3 * first[1]:.4g} ms at {first[0]:,} tokens to "
            f"{1e3 * last[1]:.4g} ms at {last[0]:,}"
        )
        names = ("context_s", "mixed_context_s", "pair_s", "done_s", "prefill_s", "overhead_s")
        lines.append("  " + ", ".join(f"{name} {getattr(steps, name):.4g}" for name in names))
    if "errors" in about and getattr(steps, "measured", None) is None:
        shares = about["errors"]
        lines.append(f"off the steps by {shares['median']:.1%} in the median, {shares['p95']:.1%} at p95")
    return "\n".join(lines)


def _draw(
    steps: TableStepTimes | OperatorStepModel, rows: StepRows | None, folder: Path, options: argparse.Namespace
) -> list[Path]:
    import pandas as pd

    from ..plots.measured_simulated import step_numbers, steps_figure
    from .plot import save

    name = Path(options.file).name
    if rows is not None:
        numbers = step_numbers(steps, rows)
    else:
        table = steps.coefficients().tokens_s[:8193]
        numbers = pd.DataFrame({"tokens": range(len(table)), "tokens_s": table})
    return save(steps_figure(steps, rows, name), numbers, folder, f"steps-{Path(name).stem}", options.formats)
