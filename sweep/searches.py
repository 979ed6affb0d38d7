"""The searches of a plan, as they stand: what each asked for, what came of it, and the tables made from that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .batches import BATCH_BYTES, BYTES_PER_REQUEST
from .bisection import LOWER_END, UPPER_END, Search, likely_rates, walk
from .endings import ENDINGS, finding, wilson_interval
from .metrics import MEASURES, SLOS
from .plan import Plan, content_id
from .tasks import Outcome

ENOUGH_REQUESTS = 2000
MOST_AHEAD = 31  # rates of one search in a round
ROUND_LANES = 200  # what a round costs whatever is in it, in lanes; measured, and between 150 and 500 lanes


class Searches:
    """The searches of a plan's feasible cells, by position in the plan, and every probe so far."""

    def __init__(self, plan: Plan, start: Search, target: float, joint: bool, facts: Mapping[str, Any]) -> None:
        self.plan, self.start, self.target, self.joint, self.facts = plan, start, target, joint, facts
        self.states = dict.fromkeys(plan.feasible, start)
        self.met: dict[int, dict[float, bool]] = {at: {} for at in self.states}
        self.errors: dict[int, str] = {}
        self.columns: dict[str, list[Any]] = {name: [] for name in ("at", "request_rate_rps", "round", *MEASURES)}
        self.ids = [content_id({"cell": cell.cell_id, "search": facts})[:16] for cell in plan.cells]

    @property
    def going(self) -> list[int]:
        """Positions of the searches that need another rate."""
        return [at for at, state in self.states.items() if not state.ended and at not in self.errors]

    @property
    def decisions(self) -> int:
        """Decisions that are still to be made, as far as one can tell."""
        return sum(_decisions_left(self.states[at]) for at in self.going)

    def wanted(self, max_lanes: int, look_ahead: int | None) -> list[tuple[int, float]]:
        """Position and rate of the probes of the next round: for each search as many as fit one batch together."""
        going = self.going
        if not going:
            return []
        longest = max(len(self.plan.cells[at].traffic.workload) for at in going)
        lanes = max(1, min(max_lanes, BATCH_BYTES // (BYTES_PER_REQUEST * max(longest, 1))))
        count = look_ahead or rates_ahead(len(going), lanes)
        return [(at, rate) for at in going for rate in likely_rates(self.states[at], self.met[at], count)]

    def probe_plan(self, wanted: Sequence[tuple[int, float]]) -> Plan:
        """The probes as cells, which batches and tasks are made of."""
        cells = tuple(replace(self.plan.cells[at], request_rate_rps=rate) for at, rate in wanted)
        return Plan(self.plan.experiment, cells)

    def add(
        self, wanted: Sequence[tuple[int, float]], outcomes: Sequence[Outcome], number: int, death: str | None
    ) -> None:
        """Take in the outcomes of a round and let every search walk as far as they lead."""
        ended: set[int] = set()
        for outcome in outcomes:
            ended.update(outcome.positions)
            for place, error in outcome.errors.items():
                self.errors.setdefault(wanted[place][0], error)
            kept = [i for i, place in enumerate(outcome.positions) if place not in outcome.errors]
            probes = [wanted[outcome.positions[i]] for i in kept]
            values = {name: column[kept] for name, column in outcome.measures.items()}
            if not self.joint:
                values["attainment"] = np.fmin.reduce([values[f"{name}_attainment"] for name in SLOS])
            for (at, rate), attained in zip(probes, values["attainment"].tolist(), strict=True):
                self.met[at][rate] = attained >= self.target
            self.columns["at"] += [at for at, _ in probes]
            self.columns["request_rate_rps"] += [rate for _, rate in probes]
            self.columns["round"] += [number] * len(probes)
            for name in MEASURES:
                self.columns[name] += values[name].tolist()
        if death is not None:
            for place in set(range(len(wanted))) - ended:
                self.errors.setdefault(wanted[place][0], death)
        for at in self.states:
            *_, self.states[at] = walk(self.states[at], self.met[at])

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
        probes: dict[int, dict[float, int]] = {at: {} for at in self.states}  # row of each rate
        for row, (at, rate) in enumerate(zip(self.columns["at"], self.columns["request_rate_rps"], strict=True)):
            probes[at][rate] = row
        low, high = wilson_interval(self.columns["attainment"], self.columns["attainment_requests"])
        rows = []
        for at, cell in enumerate(self.plan.cells):
            found: dict[str, Any] = {**cell.columns(), "cell_id": self.ids[at], "status": "ok", "error": None}
            del found["request_rate_rps"]
            found |= {"target": self.target, "probes": 0}
            if at not in self.states:
                found |= {"status": "infeasible", "error": cell.setup.infeasible}
            elif at in self.errors:
                found |= {"status": "failed", "error": self.errors[at]}
            else:
                asked = [probes[at][rate] for rate in self.asked(at)]
                names = ("request_rate_rps", *MEASURES)
                views = [
                    {name: self.columns[name][i] for name in names}
                    | {"met": self.met[at][self.columns["request_rate_rps"][i]]}
                    | {"attainment_low": float(low[i]), "attainment_high": float(high[i])}
                    for i in asked
                ]
                found |= finding(cell, self.states[at], self.target, views)
            rows.append(found)
        return rows

    def asked(self, at: int) -> list[float]:
        """The rates that a search has asked for so far, in order."""
        states = list(walk(self.start, self.met[at]))
        rates = [state.rate for state in states if not state.ended and state.rate in self.met[at]]
        return list(dict.fromkeys(rates))

    def warnings(self) -> tuple[str, ...]:
        """What to know before the numbers are used."""
        few = min(len(cell.traffic.workload) for cell in self.plan.cells)
        lines = []
        if few < ENOUGH_REQUESTS:
            lines.append(
                f"{few:,} requests are few for a search: with fewer than {ENOUGH_REQUESTS:,} the rate found is largely "
                "chance (docs/goodput.md)"
            )
        return tuple(lines)

    def config(self) -> dict[str, Any]:
        """The experiment without its rates, and the options of the search."""
        tables = {key: value for key, value in self.plan.experiment.tables().items() if key != "output"}
        tables["workload"] = {key: x for key, x in tables["workload"].items() if key != "request_rate_rps"}
        return {**tables, "goodput": dict(self.facts)}

    def write_probes(self, directory: Path) -> None:
        """Write the table of probes, by cell in plan order and then by rate."""
        from .tables import probes_table, write_table

        asked = {at: set(self.asked(at)) for at in self.states}
        order = np.lexsort((self.columns["request_rate_rps"], self.columns["at"])).tolist()
        columns: dict[str, Any] = {
            name: [column[i] for i in order] for name, column in self.columns.items() if name != "at"
        }
        places = [self.columns["at"][i] for i in order]
        pairs = list(zip(places, columns["request_rate_rps"], strict=True))
        columns["cell_id"] = [self.ids[at] for at in places]
        columns["asked"] = [rate in asked[at] for at, rate in pairs]
        columns["met"] = [self.met[at][rate] for at, rate in pairs]
        low, high = wilson_interval(columns["attainment"], columns["attainment_requests"])
        columns |= {"attainment_low": low, "attainment_high": high}
        write_table(directory / "probes.parquet", probes_table(columns, self.config()))

    def write(self, directory: Path) -> None:
        """Write both tables."""
        from .tables import goodput_table, write_table

        self.write_probes(directory)
        write_table(directory / "goodput.parquet", goodput_table(self.rows(), self.config()))


def rates_ahead(searches: int, lanes: int) -> int:
    """How many rates of each search a round should simulate, so that a halving costs least.

    2^j - 1 rates decide j halvings; numbers between those, some more. More rates share the cost of a round, but fewer
    of them are needed. `lanes` is how many fit a batch.
    """
    most = max(1, min(MOST_AHEAD, lanes // searches))
    return min(range(1, most + 1), key=lambda count: (ROUND_LANES + searches * count) / _halvings(count))


def _halvings(count: int) -> float:
    """Halvings that so many rates decide: j, and of one more where some of the middles of the next level are there."""
    j = (count + 1).bit_length() - 1
    return float(j + (count + 1 - 2**j) / 2**j)


def _decisions_left(state: Search) -> int:
    """How often a search is still to be told whether a rate passes, if its upper end fails."""
    ends = {LOWER_END: 2, UPPER_END: 1}.get(state.phase, 0)
    if state.rel_tol is None:
        return ends + max(state.halvings, 0)
    # Each halves the distance of the ends in logarithms.
    distance = math.log(state.hi / state.lo) / math.log1p(state.rel_tol)
    return ends + math.ceil(math.log2(max(distance, 1)))
