"""The searches of a plan, as they stand: what each asked for, what came of it, and the tables made from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..experiment.plan import Plan, content_id
from ..measures.columns import MEASURES
from ..measures.intervals import wilson_interval
from ..measures.slo import SLOS
from ..runner.batches import BATCH_BYTES, BYTES_PER_REQUEST
from ..runner.tasks import Stopping, TaskResult
from ..serving.early_stop import EarlyStopCriterion
from ..serving.extrapolation import told
from .bisection import LOWER_END, UPPER_END, Search, likely_rates, next_to_answer, walked
from .expected_rate import averages, rate_by_averages
from .findings import ENDINGS, finding

if TYPE_CHECKING:
    import pyarrow as pa

ENOUGH_REQUESTS = 2000
MOST_AHEAD = 31  # rates of one search in a round
ROUND_CELLS = 900  # what a round costs whatever is in it, in cells: 500 to 1,100 by loops of 50 and of 1,000 cells
TO_THE_END = 6  # halvings that follow: a probe with fewer is likely to be next to the answer, and runs to its end
LEAST_CHANCE = 1 / ROUND_CELLS  # a rate that is needed with a lower one is not simulated ahead
INTERVAL = ("attainment_low", "attainment_high")


class Wanted(NamedTuple):
    """A probe to be simulated: of which cell, by position in the plan, at what rate; whether it ends as soon as it is
    certain to pass, and to fail."""

    at: int
    rate: float
    on_pass: bool
    on_fail: bool


class Searches:
    """The searches of a plan's feasible cells, by position in the plan, and every probe so far."""

    def __init__(self, plan: Plan, start: Search, criterion: EarlyStopCriterion, facts: Mapping[str, Any]) -> None:
        self.plan, self.start, self.criterion, self.facts = plan, start, criterion, facts
        self.target = criterion.target
        self.states = dict.fromkeys(plan.feasible, start)
        traffics = {id(cell.traffic): cell.traffic for cell in plan.cells}
        known = {key: averages(traffic.workload) for key, traffic in traffics.items()}
        self.expected = {
            at: rate_by_averages(plan.cells[at].system(), known[id(plan.cells[at].traffic)]) for at in self.states
        }
        self.asked: dict[int, list[float]] = {at: [] for at in self.states}  # rates that a search asked for, in order
        self.attained: dict[int, dict[float, float]] = {at: {} for at in self.states}
        self.errors: dict[int, str] = {}
        self.beyond: dict[tuple[int, float], str] = {}  # what is extrapolated of a cell's rate
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("at", "request_rate_rps", "round", "stopped", *INTERVAL, *MEASURES)
        }
        self.row: dict[tuple[int, float], int] = {}  # of a cell's rate in the columns
        self.ids = [content_id({"cell": cell.cell_id, "search": facts})[:16] for cell in plan.cells]

    @property
    def going(self) -> list[int]:
        """Positions of the searches that need another rate."""
        return [at for at, state in self.states.items() if not state.ended and at not in self.errors]

    @property
    def decisions(self) -> int:
        """Decisions that are still to be made, as far as one can tell."""
        return sum(self.states[at].decisions_left for at in self.going)

    def wanted(self, max_batch_cells: int, look_ahead: int | None) -> list[Wanted]:
        """The probes of the next round: for each search as many as fit one batch together; when all have ended, those
        next to the answers that had been stopped."""
        going = self.going
        if not going:
            return [Wanted(at, rate, False, False) for at in self.states for rate in self._incomplete(at)]
        longest = max(len(self.plan.cells[at].traffic.workload) for at in going)
        cells = max(1, min(max_batch_cells, BATCH_BYTES // (BYTES_PER_REQUEST * max(longest, 1))))
        count = look_ahead or rates_ahead(len(going), cells)
        wanted = []
        for at in going:
            ahead = likely_rates(
                self.states[at], self.attained[at], self.target, count, expected=self.expected[at], least=LEAST_CHANCE
            )
            for _, rate, state in ahead:
                early = state.decisions_left > TO_THE_END
                # An end of the first interval that goes the unusual way is where the search ends.
                wanted.append(Wanted(at, rate, early and state.phase != UPPER_END, early and state.phase != LOWER_END))
        return wanted

    def _incomplete(self, at: int) -> list[float]:
        """Rates next to the answer of an ended search that were stopped when it was certain whether they pass."""
        if at in self.errors:
            return []
        beside = next_to_answer(self.states[at], self.asked[at], self.attained[at], self.target)
        return [rate for rate in beside if rate is not None and self.columns["stopped"][self.row[at, rate]]]

    def probe_plan(self, wanted: Sequence[Wanted]) -> Plan:
        """The probes as cells, which batches and tasks are made of."""
        cells = tuple(replace(self.plan.cells[probe.at], request_rate_rps=probe.rate) for probe in wanted)
        return Plan(self.plan.experiment, cells)

    def stopping(self, wanted: Sequence[Wanted]) -> Stopping:
        """Which of the probes, by place, end early."""
        on_pass, on_fail = (
            {place for place, probe in enumerate(wanted) if getattr(probe, name)} for name in ("on_pass", "on_fail")
        )
        return Stopping(self.criterion, on_pass, on_fail)

    def add(self, wanted: Sequence[Wanted], outcomes: Sequence[TaskResult], number: int) -> None:
        """Take in the outcomes of a round and let every search walk as far as they lead."""
        for outcome in outcomes:
            for place, error in outcome.errors.items():
                self.errors.setdefault(wanted[place].at, error)
            for place, text in outcome.beyond.items():
                self.beyond[wanted[place].at, wanted[place].rate] = text
            for i, place in enumerate(outcome.positions):
                if place not in outcome.errors:
                    values = {name: float(column[i]) for name, column in outcome.measures.items()}
                    self._keep(wanted[place], values, outcome.stopped.get(place), number)
        for at in self.states:
            self.states[at], self.asked[at] = walked(self.start, self.attained[at], self.target)

    def _keep(self, probe: Wanted, values: dict[str, float], stopped: tuple[float, float] | None, number: int) -> None:
        """Keep what came of a probe, in place of what is known of the same rate; `stopped` as in TaskResult."""
        if not self.criterion.joint and stopped is None:
            values["attainment"] = float(np.fmin.reduce([values[f"{name}_attainment"] for name in SLOS]))
        self.attained[probe.at][probe.rate] = values["attainment"]
        interval = stopped or wilson_interval(values["attainment"], values["attainment_requests"])
        found = {"at": probe.at, "request_rate_rps": probe.rate, "round": number, "stopped": stopped is not None}
        found |= dict(zip(("attainment_low", "attainment_high"), map(float, interval), strict=True)) | values
        row = self.row.setdefault((probe.at, probe.rate), len(self.row))
        for name, column in self.columns.items():
            column[row : row + 1] = [found[name]]

    def counts(self) -> dict[str, int]:
        """Cells in all, and by what became of them."""
        endings = [row["ending"] for row in self.rows() if row.get("ending") is not None]
        ended = {ending: endings.count(ending) for ending in ENDINGS if ending in endings}
        return {
            "cells": len(self.plan.cells),
            **ended,
            "infeasible": len(self.plan.cells) - len(self.states),
            "failed": len(self.errors),
        }

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the goodput table, in plan order."""
        rows = []
        for at, cell in enumerate(self.plan.cells):
            found: dict[str, Any] = {**cell.columns(), "cell_id": self.ids[at], "status": "ok", "error": None}
            del found["request_rate_rps"]
            found |= {"target": self.target, "probes": 0}
            if at not in self.states:
                found |= {"status": "infeasible", "error": cell.spec.infeasible}
            elif at in self.errors:
                found |= {"status": "failed", "error": self.errors[at]}
            else:
                views = []
                for rate in self.asked[at]:
                    row = self.row[at, rate]
                    view = {name: column[row] for name, column in self.columns.items()}
                    views.append({**view, "met": self.attained[at][rate] >= self.target})
                found |= finding(cell, self.states[at], self.target, views)
            rows.append(found)
        return rows

    def warnings(self) -> tuple[str, ...]:
        """What to know before the numbers are used."""
        few = min(len(cell.traffic.workload) for cell in self.plan.cells)
        lines = []
        if few < ENOUGH_REQUESTS:
            lines.append(
                f"{few:,} requests are few for a search: with fewer than {ENOUGH_REQUESTS:,} the rate found is largely "
                "chance (docs/goodput-endings.md)"
            )
        found = {
            at: next_to_answer(self.states[at], self.asked[at], self.attained[at], self.target)[0] for at in self.states
        }
        beyond = [
            (f"{self.ids[at]}, at the rate found", self.beyond.get((at, rate))) for at, rate in found.items() if rate
        ]
        return (*lines, *told((name, text) for name, text in beyond if text))

    def config(self) -> dict[str, Any]:
        """The experiment without its rates, and the options of the search."""
        tables = {key: value for key, value in self.plan.experiment.tables().items() if key != "output"}
        tables["workload"] = {key: x for key, x in tables["workload"].items() if key != "request_rate_rps"}
        return {**tables, "goodput": dict(self.facts)}

    def probes_table(self) -> pa.Table:
        """The table of probes, by cell in plan order and then by rate."""
        from ..tables.build import probes_table

        asked = {at: set(rates) for at, rates in self.asked.items()}
        order = np.lexsort((self.columns["request_rate_rps"], self.columns["at"])).tolist()
        columns: dict[str, Any] = {
            name: [column[i] for i in order] for name, column in self.columns.items() if name != "at"
        }
        places = [self.columns["at"][i] for i in order]
        pairs = list(zip(places, columns["request_rate_rps"], strict=True))
        columns["cell_id"] = [self.ids[at] for at in places]
        columns["asked"] = [rate in asked[at] for at, rate in pairs]
        columns["met"] = [self.attained[at][rate] >= self.target for at, rate in pairs]
        return probes_table(columns, self.config())

    def goodput_table(self) -> pa.Table:
        """The table of configurations."""
        from ..tables.build import goodput_table

        return goodput_table(self.rows(), self.config())


def rates_ahead(searches: int, cells: int) -> int:
    """How many rates of each search a round should simulate, so that a halving costs least.

    2^j - 1 rates decide j halvings; numbers between those, some more. More rates share the cost of a round, but fewer
    of them are needed. `cells` is how many fit a batch.
    """
    most = max(1, min(MOST_AHEAD, cells // searches))
    return min(range(1, most + 1), key=lambda count: (ROUND_CELLS + searches * count) / _halvings(count))


def _halvings(count: int) -> float:
    """Halvings that so many rates decide: j, and of one more where some of the middles of the next level are there."""
    j = (count + 1).bit_length() - 1
    return float(j + (count + 1 - 2**j) / 2**j)
