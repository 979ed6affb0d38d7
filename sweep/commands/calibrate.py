"""`servesweep calibrate`: constants of step times from benchmarks of a real server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..escapes import one_line
from ..streams import say, tell
from .options import EXIT_OK, add_command, at_least_one, column_list, print_json, writing

if TYPE_CHECKING:
    from ..calibration.calibrating import Calibration
    from .options import Commands

FORMATS = ("png", "svg", "csv")


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "calibrate",
        _calibrate,
        "find the constants of step times that make simulated benchmarks agree with measured ones",
        "Find the constants of step times that make simulated benchmarks agree with measured ones, and write a profile "
        "for step_times in [instance]. Every second request is held out, and tells how good it is.",
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="results of vllm bench serve --save-result --save-detailed, GuideLLM or AIPerf, or CSV",
    )
    parser.add_argument("--model", metavar="NAME", required=True, help="the model that was served")
    parser.add_argument("--chip", metavar="NAME", required=True, help="the chip")
    parser.add_argument("--tp", metavar="N", type=at_least_one, default=1, help="tensor-parallel degree (default: 1)")
    parser.add_argument("--weight-bytes", metavar="X", type=float, default=2.0, help="bytes of a weight (default: 2)")
    parser.add_argument("--kv-bytes", metavar="X", type=float, default=2.0, help="bytes of a number of KV (default: 2)")
    parser.add_argument("--policy", metavar="NAME", default="vllm", help="batching policy (default: vllm)")
    parser.add_argument("--async-scheduling", action="store_true", help="the server's batches are fixed a step ahead")
    parser.add_argument(
        "--max-running", metavar="N", type=at_least_one, default=256, help="most requests that run (default: 256)"
    )
    parser.add_argument("--token-budget", metavar="N", type=at_least_one, help="tokens of a step (default: 2048)")
    parser.add_argument(
        "--block-size", metavar="N", type=at_least_one, default=16, help="tokens of a KV block (default: 16)"
    )
    parser.add_argument(
        "--num-blocks", metavar="N", type=at_least_one, help="KV blocks of the server (default: what fits the chip)"
    )
    parser.add_argument("--fit", metavar="NAMES", type=column_list, help="constants to look for (default: all)")
    parser.add_argument(
        "--hold-out", choices=("requests", "runs"), default="requests", help="hold out every second request, or run"
    )
    parser.add_argument(
        "--candidates", metavar="N", type=at_least_one, default=256, help="simulated in each round (default: 256)"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the candidates (default: 0)")
    parser.add_argument("--out", metavar="DIR", help="where the files go (default: results/calibration)")
    parser.add_argument(
        "--formats", metavar="NAMES", type=column_list, default=list(FORMATS), help="default: png,svg,csv"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _calibrate(options: argparse.Namespace) -> int:
    from ..analysis.selection import check_names
    from ..calibration.calibrating import calibrate
    from ..experiment.tables import ConfigError
    from ..hardware import catalogue
    from ..hardware.operators import OperatorStepModel
    from ..reports.calibration_tables import calibration_json, print_calibration, verdict
    from ..tables.filenames import RESULTS

    try:
        check_names(options.formats, FORMATS, "format")
        step = OperatorStepModel(
            catalogue.model(options.model),
            catalogue.chip(options.chip),
            tp=options.tp,
            weight_bytes=options.weight_bytes,
            kv_bytes=options.kv_bytes,
        )
        found = calibrate(
            options.files,
            step,
            policy=options.policy,
            async_scheduling=options.async_scheduling,
            max_running=options.max_running,
            token_budget=options.token_budget,
            block_size=options.block_size,
            num_blocks=options.num_blocks,
            fit=options.fit,
            hold_out=options.hold_out,
            candidates=options.candidates,
            seed=options.seed,
        )
    except OSError as error:
        raise ConfigError([f"{error.filename}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if options.json:
        print_json(calibration_json(found))
    else:
        print_calibration(found)
        tell(verdict(found))
    folder = Path(RESULTS) / "calibration" if options.out is None else Path(options.out)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in write(found, folder, options.formats):
            (say if options.json else tell)(one_line(path))
    return EXIT_OK


def write(found: Calibration, folder: Path, formats: list[str]) -> list[Path]:
    """Write the profile, the report as JSON, and the pictures with their numbers; their paths."""
    import json

    from ..plots.measured_simulated import latency_figure, latency_numbers
    from ..reports.calibration_tables import calibration_json
    from ..tables.atomic_write import write_whole
    from .plot import save

    paths = [found.save_profile(folder / "profile.toml"), folder / "calibration.json"]
    text = json.dumps(calibration_json(found), indent=2, ensure_ascii=False)
    write_whole(paths[1], lambda file: file.write(text.encode()))
    return paths + save(latency_figure(found), latency_numbers(found), folder, "measured-simulated", formats)
