"""The report of a run: one HTML file with its data, plots and tables in it, which needs no network."""

from __future__ import annotations

import json
import math
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.ranking import TARGET, best_by_policy, ranked
from ..analysis.selection import BadTable, axes, measured, parameters, plain, plain_text
from ..analysis.verdicts import format_rejections, format_slos, format_step_times, format_verdict, step_times_sources
from ..escapes import in_json, lines, one_line
from ..experiment.toml_values import format_toml
from ..tables.filenames import RUN_FACTS
from ..tables.plain_files import open_plain
from .sweep_tables import best_rows

if TYPE_CHECKING:
    import pandas as pd

STATUSES = ("ok", "infeasible", "failed")
DIGITS = 5  # significant, of a measure; the tables of the run have all
BEST = 12  # configurations in the table at the top


def report_html(df: pd.DataFrame, facts: dict[str, Any] | None = None, target: float = TARGET) -> str:
    """The report of a cells table, as `load` gives it.

    facts   what run.json holds, or nothing
    target  attainment that the best rate must keep

    ValueError for a table without rows.
    """
    if df.empty:
        raise BadTable("the table has no cell, so there is nothing to report")
    data = json.dumps(report_data(df, facts or {}, target), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    page = files("servesweep.reports").joinpath("page")
    parts = {
        "title": escape(f"{_name(df)} - servesweep"),
        "style": page.joinpath("report.css").read_text("utf-8"),
        "script": page.joinpath("report.js").read_text("utf-8"),
        # Nothing in the data may end the element that it is in.
        "data": in_json(data).replace("<", "\\u003c"),
    }
    html = page.joinpath("report.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], html)  # once: what is put in may hold such a place


def report_data(df: pd.DataFrame, facts: dict[str, Any], target: float) -> dict[str, Any]:
    """All that the page shows, as plain data; cells are columns of one value a cell."""
    config = df.attrs.get("config", {})
    swept = [name for name in axes(df) if df[name].nunique(dropna=False) > 1] or ["request_rate_rps"]
    shown = [name for name in measured(df) if df[name].notna().any()]
    best, unit = ranked(df, target), df.attrs["units"]
    headers, rows = best_rows(best[:BEST]) if best else ([], [])
    text = len(best[0].parameters) if best else 0
    counts = [
        f"{int((df['status'] == status).sum()):,} {status}" for status in STATUSES if (df["status"] == status).any()
    ]
    errors = df["error"].dropna().unique().tolist()
    step_times = format_step_times(step_times_sources(df))
    return {
        "name": _name(df),
        "verdict": format_verdict(best_by_policy(df, target), format_slos(df), target),
        "counts": f"{len(df):,} cells: {', '.join(counts)}. {_workloads(df)} {step_times}",
        "warning": format_rejections(df),
        "target": target,
        "slo": {
            name.removesuffix("_slo_s"): df[name].dropna().unique().tolist()
            for name in parameters(df)
            if name.endswith("_slo_s")
        },
        "axes": [_axis(df, name, unit[name]) for name in swept],
        "measures": [{"name": name, "unit": unit[name]} for name in shown],
        "id": list(map(one_line, df["cell_id"])),
        "statuses": STATUSES,
        "status": [STATUSES.index(status) for status in df["status"]],
        "errors": list(map(lines, errors)),
        "error": [errors.index(error) if isinstance(error, str) else -1 for error in df["error"]],
        "axis": [_places(df, name) for name in swept],
        "measure": [_rounded(df[name]) for name in shown],
        "bestTitle": f"Best {len(rows):,} of {len(best):,} configurations, at {target:.0%} attainment",
        "bestColumns": [[header, "text" if place < text else ""] for place, header in enumerate(headers)],
        "best": rows,
        "definitions": {
            name: {"unit": unit[name], "definition": df.attrs["definitions"][name]}
            for name in (*parameters(df), *shown)
        },
        "toml": lines(format_toml(config)),
        "file": f"{_name(df)}.toml",
        "facts": _facts(facts),
        "fixed": [
            [name, plain_text(df[name].iloc[0])]
            for name in parameters(df)
            if name not in swept and df[name].notna().any() and df[name].nunique(dropna=False) == 1
        ],
    }


def _name(df: pd.DataFrame) -> str:
    return one_line(df.attrs.get("config", {}).get("name", "run"))


def _workloads(df: pd.DataFrame) -> str:
    names = ", ".join(map(plain_text, df["workload"].drop_duplicates()))
    low, high = int(df["n_requests"].min()), int(df["n_requests"].max())
    return f"Workload {names}, {low:,}{f' to {high:,}' if high > low else ''} requests a cell."


def _axis(df: pd.DataFrame, name: str, unit: str) -> dict[str, Any]:
    values = [one_line(value) if isinstance(value, str) else plain(value) for value in _values(df, name)]
    number = all(isinstance(value, int | float) or value is None for value in values)
    return {"name": name, "unit": unit, "values": values, "number": number}


def _values(df: pd.DataFrame, name: str) -> list[Any]:
    """Distinct values: numbers ascending, text in the order of the configuration; missing last."""
    found = df[name].dropna().drop_duplicates()
    values = (found.sort_values() if df[name].dtype.kind in "iuf" else found).tolist()
    return [*values, None] if df[name].isna().any() else values


def _places(df: pd.DataFrame, name: str) -> list[int]:
    values = {value: place for place, value in enumerate(_values(df, name))}
    return [
        values[None if missing else value] for value, missing in zip(df[name].tolist(), df[name].isna(), strict=True)
    ]


def _rounded(column: pd.Series[Any]) -> list[int | float | None]:
    """Values with DIGITS significant digits, whole ones without a point; None for missing."""
    values = column.astype(float).to_numpy()
    found: list[int | float | None] = []
    for value in values.tolist():
        if not math.isfinite(value):
            found.append(None)
        elif value.is_integer() and abs(value) < 2**53:
            found.append(int(value))
        else:
            found.append(float(f"{value:.{DIGITS}g}"))
    return found


def _facts(facts: dict[str, Any]) -> list[list[str]]:
    """Versions, machine and times of run.json."""
    tables = [facts.get("versions"), facts.get("machine")]
    found = [pair for table in tables if isinstance(table, dict) for pair in table.items()]
    found += [(name, facts[name]) for name in ("rules_version", "workers", "wall_s") if name in facts]
    return [[one_line(name), one_line(value)] for name, value in found]


def read_facts(directory: Path) -> dict[str, Any]:
    """What run.json of a run holds; empty when it is not there or cannot be read."""
    try:
        with open_plain(directory / RUN_FACTS) as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
