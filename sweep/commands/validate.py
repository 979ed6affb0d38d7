"""`servesweep validate`: how far predictions are off what was measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..escapes import one_line
from ..streams import say, tell
from .options import EXIT_OK, add_command, at_least_one, print_json, writing

if TYPE_CHECKING:
    from ..calibration.fidelity import Fidelity
    from .options import Commands


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "validate",
        _validate,
        "predict what was measured, and print the errors",
        "Predict kernels, whole steps and whole runs that were measured, and print how far off the predictions are. "
        "Nothing is fitted to what is tested. The measurements are not in the package: say where they are.",
    )
    parser.add_argument("--kernels", metavar="FILE", help="CSV of steps put together from measured kernels")
    parser.add_argument("--steps", metavar="FILE", help="CSV of whole steps that were measured on one chip")
    parser.add_argument("--run", metavar="FILE", help="a benchmark of vLLM on one chip, as calibrate takes it")
    parser.add_argument("--model", metavar="NAME", default="llama-3.1-8b", help="of --steps and --run (llama-3.1-8b)")
    parser.add_argument("--chip", metavar="NAME", default="rtx4090", help="of --steps and --run (rtx4090)")
    parser.add_argument("--num-blocks", metavar="N", type=at_least_one, help="KV blocks of the server of --run")
    parser.add_argument("--max-running", metavar="N", type=at_least_one, default=256, help="its most requests (256)")
    parser.add_argument("--token-budget", metavar="N", type=at_least_one, default=2048, help="its tokens a step (2048)")
    parser.add_argument("--out", metavar="DIR", help="where fidelity.parquet goes (default: results/fidelity)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _validate(options: argparse.Namespace) -> int:
    from ..calibration.fidelity import kernel_fidelity, missed, run_fidelity, step_fidelity
    from ..experiment.tables import ConfigError
    from ..tables.filenames import RESULTS

    if options.kernels is None and options.steps is None and options.run is None:
        raise ConfigError(["nothing to validate against: --kernels, --steps or --run must name a file"])
    rows: list[Fidelity] = []
    try:
        if options.kernels is not None:
            rows += kernel_fidelity(options.kernels)
        if options.steps is not None:
            rows += step_fidelity(options.steps, options.model, options.chip)
        if options.run is not None:
            rows += run_fidelity(
                options.run,
                options.model,
                options.chip,
                steps=options.steps,
                num_blocks=options.num_blocks,
                max_running=options.max_running,
                token_budget=options.token_budget,
            )
    except OSError as error:
        raise ConfigError([f"{error.filename}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if options.json:
        print_json({"rows": [row._asdict() for row in rows], "missed": [row._asdict() for row in missed(rows)]})
    else:
        _print(rows)
        barred = sum(row.bar is not None for row in rows)
        tell(f"{barred - len(missed(rows)):,} of {barred:,} bars are reached.")
    folder = Path(RESULTS) / "fidelity" if options.out is None else Path(options.out)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (say if options.json else tell)(one_line(_write(rows, folder / "fidelity.parquet")))
    return EXIT_OK


def _print(rows: list[Fidelity]) -> None:
    from ..reports.text_tables import print_table

    def shown(median: float | None, p95: float | None, sign: str = "") -> str:
        return "-" if median is None else f"{median:{sign}.1f}" + ("" if p95 is None else f" ({p95:.1f})")

    cells = [
        [
            row.what,
            row.about,
            row.step_times,
            f"{row.number:,}",
            shown(row.median, row.p95, "+" if row.p95 is None else ""),
            shown(row.bar, row.bar_p95),
        ]
        for row in rows
    ]
    headers = ["what", "chip", "step times", "number", "error %, median (95 %)", "bar"]
    print_table(headers, cells, "Predicted against measured", left=3)


def _write(rows: list[Fidelity], path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..tables.atomic_write import write_whole

    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in rows[0]._fields}
    write_whole(path, lambda file: pq.write_table(pa.table(columns), file))
    return path
