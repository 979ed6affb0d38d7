"""Makes the pictures of the documentation: python docs/pictures.py writes docs/images/. They are kept in git."""

from pathlib import Path
from tempfile import TemporaryDirectory

import servesweep
from servesweep import plots
from servesweep.commands.init import TEMPLATE
from servesweep.commands.plot import save
from servesweep.runner.self_check import WORKED_EXAMPLES

IMAGES = Path(__file__).parent / "images"


def draw_examples(folder: Path) -> None:
    """The three worked examples of docs/scheduler.md."""
    for number, (requests, options, _) in enumerate(WORKED_EXAMPLES, 1):
        found = servesweep.timeline_of_requests([servesweep.Request(*request) for request in requests], **options)
        title = ", ".join(f"{name}={value}" for name, value in options.items())
        save(plots.timeline_figure(found, title=title), None, folder, f"example-{number}", ["png"])


def draw_cell(folder: Path) -> None:
    """Some seconds of a cell of the quickstart that preempts."""
    step = servesweep.OperatorStepModel(servesweep.model("llama-3.1-8b"), servesweep.chip("h100-sxm"), mem_reserve=0.77)
    lane = servesweep.Scheduler(
        servesweep.conversation_workload(2000, rate=8.0),
        step,
        policy="chunked",
        max_running=256,
        block_size=16,
        token_budget=512,
    )
    figure = plots.timeline_figure(servesweep.timeline(lane), begin=29.0, end=32.5, most=32)
    save(figure, None, folder, "timeline", ["png"])


def draw_quickstart(folder: Path) -> None:
    """Plots of the quickstart."""
    with TemporaryDirectory() as place:
        cells = servesweep.run_grid("quickstart", out=place, progress=False).df
    for kind, name, options in (("curves", "attainment", {}), ("pareto", "pareto", {})):
        save(*plots.panels(cells, kind, panel="mem_reserve", **options), folder, f"quickstart-{name}", ["png"])


def draw_first_hour(folder: Path) -> None:
    """The plot of docs/first-hour.md."""
    with TemporaryDirectory() as place:
        path = Path(place, "experiment.toml")
        path.write_text(TEMPLATE, encoding="utf-8")
        cells = servesweep.run_grid(path, out=place, progress=False).df
    save(*plots.panels(cells, "curves", panel="tp", by=["policy", "token_budget"]), folder, "first-hour", ["png"])


if __name__ == "__main__":
    draw_examples(IMAGES)
    draw_cell(IMAGES)
    draw_quickstart(IMAGES)
    draw_first_hour(IMAGES)
