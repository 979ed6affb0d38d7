"""`servesweep init`: a commented experiment to start from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..escapes import shell_path
from ..streams import say
from .options import add_command

if TYPE_CHECKING:
    from .options import Commands

TEMPLATE = """\
# What to simulate. `servesweep run FILE` runs it in a few seconds; add --dry-run to see what would run.
# A list is an axis: the cells are the product of all lists.
# Every key: docs/experiment-keys.md; every name: servesweep catalog.

[workload] # which requests
kind = "conversation" # like the Azure conversation trace, no file needed; or "synthetic", or "trace" with a path
n_requests = 1000
seed = [0, 1] # two sets of requests, to see how much chance there is in the results
request_rate_rps = { from = 2, to = 48, count = 9 } # offered requests/s, log-spaced

# For kind = "synthetic":
# prompt = { mean = 400, sigma = 0.8, lo = 16, hi = 4000 } # lognormal, clipped; or an integer
# output = { mean = 150, sigma = 0.8, lo = 2, hi = 1000 }
# arrivals = "poisson" # or "uniform", or "bursty" with cv = 3

# For kind = "trace":
# path = "my-trace.csv" # relative to this file: Azure CSV, Mooncake JSON lines, CSV or Parquet

[instance] # GPUs, and the model on them
model = "llama-3.1-8b"
chip = "h100-sxm"
tp = [1, 2] # tensor-parallel degree
# step_times = "mine.toml" # what you measured: docs/calibration.md; otherwise constants that are known of the chip

[scheduler]
policy = ["mixed", "chunked", "prefill_first"]
block_size = 16 # tokens in a KV block; num_blocks follows from the memory that the weights leave
max_running = 256 # most requests that run at once
token_budget = [512, 1024] # tokens in a step; of chunked alone, so it multiplies no cell of the others

[slo] # a request that meets both counts in the attainment
ttft_ms = 500 # time to first token
tpot_ms = 30 # time per output token after it
"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "init", _init, "write a commented experiment that runs in seconds")
    parser.add_argument("file", metavar="FILE", nargs="?", default="experiment.toml", help="default: experiment.toml")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def _init(options: argparse.Namespace) -> int:
    from ..experiment.tables import ConfigError

    path = Path(options.file)
    try:
        with open(path, "w" if options.force else "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise ConfigError([f"{path} is there already; --force replaces it"]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be written: {error.strerror}"]) from None
    say(f"wrote {path}; next: servesweep run {shell_path(str(path))}")
    return 0
