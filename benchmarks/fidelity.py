"""python -m benchmarks.fidelity: `servesweep validate` on the measurements, where they lie beside the repository."""

import sys
from pathlib import Path

from servesweep.commands.main import command_line

MEASURED = Path(__file__).resolve().parents[2] / "shared" / "measured"
FILES = {
    "--kernels": MEASURED / "step_times" / "aiconfigurator.steps.csv",
    "--steps": MEASURED / "step_times" / "rtx4090-llama-3.1-8b-tp1.steps.csv",
    "--run": MEASURED / "llmservingsim_vllm_RTX4090_Llama-3.1-8B_requests.jsonl",
}
NUM_BLOCKS = 2588  # of the server of the run, as it printed


def main() -> int:
    """The exit code of the command."""
    there = [(option, str(path)) for option, path in FILES.items() if path.exists()]
    if not there:
        print(f"no measurements in {MEASURED}", file=sys.stderr)
        return 1
    return command_line(["validate", *(part for pair in there for part in pair), "--num-blocks", str(NUM_BLOCKS)])


if __name__ == "__main__":
    sys.exit(main())
