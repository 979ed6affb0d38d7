"""Rows of measurements as text, as Parquet, and beside those of another version."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from .phases import PHASES

KEY = ["case", "systems", "requests", "load"]
SHARES = (*PHASES, "between", "outside")
COMPARED = ("requests_per_cpu_s", "ratio", "us_per_event", "loops", "bytes_per_request")
NAME_WIDTH = 39


def _bar(row: dict[str, Any]) -> str:
    if not math.isnan(row["bar_ratio"]):
        return f"{row['bar_ratio']:.0f}x {'met' if row['ratio'] >= row['bar_ratio'] else 'missed'}"
    if not math.isnan(row["bar_requests_per_cpu_s"]):
        met = row["requests_per_cpu_s"] >= row["bar_requests_per_cpu_s"]
        return f"{row['bar_requests_per_cpu_s']:,.0f}/s {'met' if met else 'missed'}"
    return "-"


# Title, width, and how a row writes it.
COLUMNS: tuple[tuple[str, int, Callable[[dict[str, Any]], str]], ...] = (
    ("systems", 8, lambda row: f"{row['systems']:,}"),
    ("requests", 10, lambda row: f"{row['requests']:,}"),
    ("load", 11, lambda row: str(row["load"])),
    ("req/CPU s", 10, lambda row: f"{row['requests_per_cpu_s']:,.0f}"),
    ("reference", 10, lambda row: f"{row['reference_requests_per_cpu_s']:,.0f}"),
    ("ratio", 7, lambda row: f"{row['ratio']:.1f}x"),
    ("bar", 17, _bar),
    ("loops", 9, lambda row: f"{row['loops']:,}"),
    ("events/req", 11, lambda row: f"{row['events_per_request']:.2f}"),
    ("us/event", 9, lambda row: f"{row['us_per_event']:.2f}"),
    ("us/loop", 8, lambda row: f"{row['us_per_loop']:.0f}"),
    ("preempted", 10, lambda row: f"{row['preemptions_per_request']:.2f}"),
    ("bytes/req", 10, lambda row: f"{row['bytes_per_request']:.0f}"),
)


def heading() -> str:
    return f"{'case':{NAME_WIDTH}}" + "".join(f"{title:>{width}}" for title, width, _ in COLUMNS)


def line(row: dict[str, Any]) -> str:
    return f"{row['case']:{NAME_WIDTH}}" + "".join(f"{write(row):>{width}}" for _, width, write in COLUMNS)


def _width(name: str) -> int:
    return max(9, len(name) + 2)


def shares(rows: list[dict[str, Any]]) -> str:
    """Percentages of the CPU time by phase; between: the driver itself; outside: queues, outcomes, results."""
    lines = [f"{'% of CPU time':{NAME_WIDTH}}{'systems':>8}{'requests':>10}{'load':>11}"]
    lines[0] += "".join(f"{name:>{_width(name)}}" for name in SHARES)
    for row in rows:
        size = f"{row['systems']:8,}{row['requests']:10,}{row['load']:>11}"
        parts = (f"{100 * row[f'{name}_share']:{_width(name)}.0f}" for name in SHARES)
        lines.append(f"{row['case']:{NAME_WIDTH}}{size}{''.join(parts)}")
    return "\n".join(lines)


def comparison(new: pd.DataFrame, old: pd.DataFrame) -> str:
    """New figures over old ones, of the cases that both have."""
    both = new.merge(old, on=KEY, suffixes=("", "_old"))
    if both.empty:
        return "no case in common"
    quotients = {name: both[name] / both[f"{name}_old"] for name in COMPARED}
    table = pd.concat([both[KEY], pd.DataFrame(quotients)], axis=1)
    text: str = table.to_string(index=False, float_format=lambda value: f"{value:.2f}")
    return "new / old\n" + text
