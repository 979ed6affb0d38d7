"""Two runs joined cell by cell, and how far their measures are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .selection import axes, check_names, check_numbers, measured, parameters, plain

if TYPE_CHECKING:
    import pandas as pd

COMPARED = ("attainment", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "output_throughput_tps", "preemptions")


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common, and what not.

    keys        columns that cells were joined on
    names       measures compared
    cells       a row a cell that is in both: the keys, and every measure as NAME_a and NAME_b
    only_a, only_b    cells without a partner
    differing   parameters outside of the keys that differ: name -> (values in A, values in B)
    status      (status, cells in A, cells in B) for each status whose count differs
    """

    keys: list[str]
    names: list[str]
    cells: pd.DataFrame
    only_a: int
    only_b: int
    differing: dict[str, tuple[list[Any], list[Any]]]
    status: list[tuple[str, int, int]]
    units: dict[str, str]

    def changes(self, name: str) -> pd.Series[Any]:
        """Change of a measure, a value a cell; NaN where either is missing.

        B - A for a share, otherwise relative to A: B / A - 1, +-inf from 0.
        """
        a, b = (self.cells[f"{name}_{x}"].astype(float) for x in "ab")
        if self.units[name] == "share":
            return b - a
        with np.errstate(divide="ignore", invalid="ignore"):
            return (b - a).where(b != a, 0.0) / a.abs().where(b != a, 1.0)

    def summary(self, name: str) -> dict[str, Any]:
        """Medians, the median change, and in how many cells the measure is higher, lower and the same in B."""
        a, b = (self.cells[f"{name}_{x}"].astype(float) for x in "ab")
        both = a.notna() & b.notna()
        return {
            "median_a": float(a[both].median()),
            "median_b": float(b[both].median()),
            "median_change": float(self.changes(name)[both].median()),
            "higher": int((b > a).sum()),
            "lower": int((b < a).sum()),
            "same": int((b == a).sum()),
        }

    def largest(self, name: str, count: int) -> pd.DataFrame:
        """The cells whose measure changed most."""
        change = self.changes(name)
        table = self.cells.assign(change=change)[change.notna() & (change != 0)]
        return table.iloc[np.argsort(-table["change"].abs().to_numpy(), kind="stable")].head(count)

    def is_same(self) -> bool:
        return all(not (self.changes(name).fillna(0) != 0).any() for name in self.names)

    def plain(self, count: int) -> dict[str, Any]:
        """Everything as plain data; what there is not, or is not finite, is null."""
        return {
            "cells": len(self.cells),
            "only_a": self.only_a,
            "only_b": self.only_b,
            "keys": self.keys,
            "differing": {
                name: {"a": [plain(x) for x in a], "b": [plain(x) for x in b]}
                for name, (a, b) in self.differing.items()
            },
            "measures": {
                name: {key: _finite(value) for key, value in self.summary(name).items()} for name in self.names
            },
            "largest": {
                name: [
                    {
                        **{key: plain(row[key]) for key in self.keys},
                        **{
                            key: _finite(row[column])
                            for key, column in (("a", f"{name}_a"), ("b", f"{name}_b"), ("change", "change"))
                        },
                    }
                    for row in self.largest(name, count).to_dict("records")
                ]
                for name in self.names
            },
        }


def compare(a: pd.DataFrame, b: pd.DataFrame, names: Sequence[str] | None = None) -> Comparison:
    """Join two cells tables on what was swept in either of them.

    names  measures to compare; None: attainment, latencies, throughput and preemptions

    ValueError for a name that is no measure, or when the runs have no cell in common.
    """
    common = [name for name in measured(a) if name in set(measured(b))]
    names = [name for name in COMPARED if name in common] if names is None else list(names)
    if not names:
        raise ValueError("the runs have no measure in common that is compared; --columns chooses some")
    check_names(names, common, "measure of both runs")
    check_numbers(a, names)
    known = [name for name in parameters(a) if name in set(parameters(b))]
    varied = [name for name in known if any(df[name].nunique(dropna=False) > 1 for df in (a, b))]
    swept = {*axes(a), *axes(b)}
    keys = [name for name in varied if name in swept]
    if keys and any(df.duplicated(keys).any() for df in (a, b)):  # a table that is not the product of its axes
        keys = varied
    left, right = (_bare(df, keys, names) for df in (a, b))
    if keys:
        cells = left.merge(right, on=keys, suffixes=("_a", "_b"))
    else:
        cells = left.add_suffix("_a").join(right.add_suffix("_b"))
    if cells.empty:
        raise ValueError(
            f"the runs have no cell in common: they were joined on {', '.join(keys)}; "
            "a parameter with one value in each run is compared although the values differ, so --where can help"
        )
    differing = {}
    for name in known:
        values = [df[name].astype(object).where(df[name].notna(), None).unique().tolist() for df in (a, b)]
        if name not in keys and set(values[0]) != set(values[1]):
            differing[name] = (values[0], values[1])
    status = [
        (str(name), int((a["status"] == name).sum()), int((b["status"] == name).sum()))
        for name in dict.fromkeys([*a["status"].astype(str), *b["status"].astype(str)])
    ]
    return Comparison(
        keys,
        names,
        cells,
        len(a) - len(cells),
        len(b) - len(cells),
        differing,
        [one for one in status if one[1] != one[2]],
        a.attrs["units"],
    )


def _bare(df: pd.DataFrame, keys: list[str], names: list[str]) -> pd.DataFrame:
    """Keys and measures, as types that merge: text, and float64."""
    table = df[[*keys, *names]].reset_index(drop=True)
    for name in table.columns:
        number = table[name].dtype.kind in "iuf"
        table[name] = table[name].astype(float) if number else table[name].astype(object)
    return table


def _finite(value: Any) -> Any:
    value = plain(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value
