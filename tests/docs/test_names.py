"""Lists of names that pages and docstrings write by hand hold what is registered, all of it and nothing else."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from servesweep import Colocated, DecodeOnly, Scheduler, percentile
from servesweep.experiment.keys import key_names
from servesweep.experiment.tables import TABLES
from servesweep.measures.latencies import LATENCIES
from servesweep.serving.orders import ORDERS
from servesweep.serving.policies import MEMORIES, POLICIES
from servesweep.serving.routers import ROUTERS
from servesweep.serving.system_kinds import SYSTEMS
from servesweep.workloads.trace_formats import FORMATS
from servesweep.workloads.workload import ARRIVALS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("key", "registered"),
    [
        ("kind", SYSTEMS),
        ("policy", POLICIES),
        ("memory", MEMORIES),
        ("order", ORDERS),
        ("arrivals", ARRIVALS),
        ("format", FORMATS),
    ],
)
def test_keys_name_every_value(key: str, registered: Any) -> None:
    text = (DOCS / "experiment-keys.md").read_text("utf-8")
    lines = [re.sub(r"\([^)]*\)", "", line, count=1) for line in re.findall(rf"^- `{key}` .*$", text, re.MULTILINE)]
    lines = lines[-1:] if key == "kind" else lines  # that of [workload] comes first
    assert set(re.findall(r'`"(\w+)"`', lines[0])) == set(registered)


def test_every_key_is_on_the_page_of_keys() -> None:
    text = (DOCS / "experiment-keys.md").read_text("utf-8")
    told = {name for names in re.findall(r"^- ((?:`\w+`(?:, )?)+)", text, re.MULTILINE) for name in names.split("`")}
    known = {name for keys in TABLES.values() for name in key_names(keys)}
    assert told - {"", ", "} == known


@pytest.mark.parametrize(("page", "registered"), [("policies.md", POLICIES), ("routers.md", ROUTERS)])
def test_pages_have_an_entry_for_every_row(page: str, registered: Any) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert set(re.findall(r"^- `(\w+)`", text, re.MULTILINE)) == set(registered)


def described(value: Any, parameter: str) -> set[str]:
    """Names in quotes that the docstring of a class or function gives for a parameter."""
    text = inspect.cleandoc(value.__doc__)
    found = re.search(rf"^(?:\w+, )*{parameter}(?:, \w+)*\n((?: {{4}}.*\n?)+)", text, re.MULTILINE)
    assert found, parameter
    return set(re.findall(r'"(\w+)"', found[1]))


@pytest.mark.parametrize(
    ("value", "parameter", "registered"),
    [
        (Scheduler, "policy", POLICIES),
        (Scheduler, "order", ORDERS),
        (Colocated, "policy", POLICIES),
        (Colocated, "memory", MEMORIES),
        (Colocated, "router", ROUTERS),
        (DecodeOnly, "memory", DecodeOnly.memories),
        (percentile, "name", LATENCIES),
    ],
)
def test_docstrings_name_every_value(value: Any, parameter: str, registered: Any) -> None:
    told = described(value, parameter)
    if (value, parameter) == (Scheduler, "order"):
        told |= described(value, "max_wait_s")  # no further names
    assert told == set(registered)
