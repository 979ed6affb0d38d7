"""Makes the page of columns from the schemas of the tables: python docs/columns.py writes docs/columns.md."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
from servesweep.experiment.instance_tables import InstanceTable
from servesweep.experiment.tables import SchedulerTable, SloTable, SystemTable, WorkloadTable
from servesweep.tables.schemas import SCHEMAS, column_facts

_PERCENTILE = re.compile(r"\d+th percentile, linearly interpolated, of .* over the window's requests that have it")
PAGE = Path(__file__).parent / "columns.md"
HEAD = """# What is in each column?

The columns of every table that a run or a search leaves, with their units. `servesweep schema` prints them with their
types, and `load` puts units and definitions into `df.attrs`. Missing is null, never 0. [Measures](measures.md) explains
the terms. Made by `python docs/columns.py`.
"""
ROWS = {
    "cells": "A row for each cell of a sweep, in the order of the plan.",
    "requests": "A row for each request of the chosen cells.",
    "steps": "A row for each step of the chosen cells.",
    "instances": "A row for each instance of the chosen cells.",
    "timings": "How each cell was simulated, in the order of `cells`. Only this table differs between equal runs.",
    "goodput": "A row for each configuration of a [search](goodput.md), in the order of the experiment.",
    "probes": "A row for each rate that a search simulated.",
    "placement": "A row for each candidate of a [placement](placement.md).",
}  # of each table
TABLES = (WorkloadTable, SystemTable, InstanceTable, SchedulerTable, SloTable)
KEYS = {field.name for table in TABLES for field in fields(table)} - {"n_gpus"}
PARAMETERS = (
    "the [keys](experiment-keys.md) of these names. Null where a key has no effect, and where the roles of a "
    "disaggregated system differ: then `prefill_...` and `decode_...` have the values"
)


def page() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    earlier: dict[str, pa.Schema] = {}
    for table, schema in SCHEMAS.items():
        parts.append(f"## {table}\n\n{ROWS[table]}\n\n{columns(schema, earlier)}")
        earlier[table] = schema
    return "\n".join(parts)


def columns(schema: pa.Schema, earlier: dict[str, pa.Schema]) -> str:
    """A Markdown list: names, unit, definition.

    Columns whose definitions differ in one word share an item. Keys of an experiment, and what is the same in a table
    `earlier` on the page, are only named below.
    """
    left = column_facts(schema)
    notes = []
    if not earlier:
        parameters = [name for name in left if _is_key(name)]
        notes.append(f"- {', '.join(_runs(parameters, schema))}: {PARAMETERS}")
        left = {name: facts for name, facts in left.items() if name not in parameters}
    for table, other in earlier.items():
        same = [name for name, facts in column_facts(other).items() if left.get(name) == facts]
        if same:
            notes.append(f"- As in {table}: {', '.join(_runs(same, other))}.")
        left = {name: facts for name, facts in left.items() if name not in same}
    groups: list[list[str]] = []
    for name in left:
        for group in groups:
            if _differ_in_a_word([left[one] for one in (*group, name)]):
                group.append(name)
                break
        else:
            groups.append([name])
    items = []
    groups, families = _families(groups, left)
    for group in groups:
        unit = left[group[0]]["unit"]
        names = ", ".join(f"`{name}`" for name in group) + families.get(group[0], "")
        items.append(f"- {names}{f' ({unit})' if unit else ''}: {_together([left[name] for name in group])}")
    return "\n".join([*items, *notes]) + "\n"


def _families(groups: list[list[str]], left: dict[str, dict[str, str]]) -> tuple[list[list[str]], dict[str, str]]:
    """The groups, of the same percentiles of several latencies only the first; and what that stands for."""
    alike = [group for group in groups if all(_PERCENTILE.fullmatch(left[name]["definition"]) for name in group)]
    if len(alike) < 2:
        return groups, {}
    others = ", ".join(f"`{group[0].partition('_p')[0]}_`" for group in alike[1:])
    return [group for group in groups if group not in alike[1:]], {alike[0][0]: f", and so with {others}"}


def _is_key(name: str) -> bool:
    """Whether a column holds a key of an experiment, or that of one role."""
    role, _, key = name.partition("_")
    return name in KEYS or (role in ("prefill", "decode") and key in KEYS)


def _differ_in_a_word(facts: list[dict[str, str]]) -> bool:
    """Whether columns have one type, one unit, and definitions that differ at most in the word at one place."""
    words = [one["definition"].split(" ") for one in facts]
    alike = {(one["type"], one["unit"], len(split)) for one, split in zip(facts, words, strict=True)}
    return len(alike) == 1 and sum(len(set(place)) > 1 for place in zip(*words, strict=True)) <= 1


def _together(facts: list[dict[str, str]]) -> str:
    """One definition: where those of the columns differ, their words stand one after the other."""
    words = [one["definition"].split(" ") for one in facts]
    separator = " or " if len(words) == 2 else ", "
    return " ".join(separator.join(dict.fromkeys(place)) for place in zip(*words, strict=True))


def _runs(names: list[str], schema: pa.Schema) -> Iterator[str]:
    """Names of columns; of more than three that follow each other in the schema, the first and the last."""
    pairs = set(itertools.pairwise(schema.names))
    runs: list[list[str]] = []
    for name in names:
        if runs and (runs[-1][-1], name) in pairs:
            runs[-1].append(name)
        else:
            runs.append([name])
    for run in runs:
        yield f"`{run[0]}` to `{run[-1]}`" if len(run) > 3 else ", ".join(f"`{name}`" for name in run)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
