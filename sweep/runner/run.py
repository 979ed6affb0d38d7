"""What a run gives back: its tables, counts and facts; and the two ways in which it can stop before its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiment.tables import Experiment

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """A run that has ended, as its directory holds it.

    Attributes
    ----------
    experiment
        What was asked.
    directory
        Where the tables are.
    counts
        Cells, ok, infeasible, failed, unfinished (those of an interrupted run, which have no row), and reused (those
        whose outcome was there before).
    wall_s
        Seconds that the run took.
    notes
        Sentences about what an earlier run left that could not be used.
    """

    experiment: Experiment
    directory: Path
    counts: Mapping[str, int]
    wall_s: float
    notes: tuple[str, ...] = ()

    @cached_property
    def df(self) -> pd.DataFrame:
        """One row a cell: every parameter and every measure; units and definitions in `df.attrs`."""
        from ..tables.reading import load

        return load(self.directory)

    @property
    def failed(self) -> pd.DataFrame:
        """Rows of the cells that failed; `error` says why."""
        return self.df[self.df["status"] == "failed"]

    @property
    def config(self) -> dict[str, Any]:
        """The experiment as plain tables, defaults filled in."""
        return self.experiment.tables()

    @property
    def any_ended(self) -> bool:
        """Whether any cell was simulated, now or before."""
        return self.counts["ok"] + self.counts["failed"] > 0

    def __repr__(self) -> str:
        return f"<Run {self.experiment.name}: {counts_text(self.counts)}; {self.directory}>"

    def _repr_html_(self) -> str:
        """Counts, the verdict and the best configurations, for a notebook."""
        from ..analysis.ranking import best_by_policy, best_json
        from ..analysis.verdicts import format_slos, format_verdict

        head = f"<b>{escape(self.experiment.name)}</b>: {counts_text(self.counts)}"
        if not self.counts["ok"]:
            return f"<div>{head}</div>"
        import pandas as pd

        best = best_by_policy(self.df)
        table = pd.DataFrame(best_json(best)).drop(columns="is_top").to_html(index=False, float_format="{:.4g}".format)
        return f"<div>{head}<br>{escape(format_verdict(best, format_slos(self.df)))}</div>{table}"


class Interrupted(KeyboardInterrupt):
    """A run stopped by the user; the same run again goes on.

    Attributes
    ----------
    run
        What had ended, which is on disk.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(f"interrupted: {_kept(run)}")
        self.run = run


class RunStopped(RuntimeError):
    """A run that could not go on, though nothing is wrong with the experiment: a full disk, a cluster that is gone.

    What had ended is kept in the journal of `run.directory`: the same run again goes on from there.

    Attributes
    ----------
    run
        The run as far as it came.
    """

    def __init__(self, run: Run, reason: str, advice: str | None = None, *, alone: bool = False) -> None:
        super().__init__(f"stopped: {reason}; {_kept(run) if advice is None else f'{_ended(run)}; {advice}'}")
        self.run = run
        self.alone = alone  # whether it would go on with one worker, which is this process


def counts_text(counts: Mapping[str, int]) -> str:
    """Counts in words: those that are not zero."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _kept(run: Run) -> str:
    return f"{_ended(run)}; " + (f"their rows are in {run.directory}" if run.any_ended else "nothing was written")


def _ended(run: Run) -> str:
    return f"{run.counts['ok'] + run.counts['failed']:,} of {run.counts['cells']:,} cells ended"
