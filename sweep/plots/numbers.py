"""The numbers behind the plots of a run, a table for each plot: what is drawn, and what is written as CSV.

Every function takes the cells table of a run, as `load` gives it. Several seeds become one point: their mean, with the
lowest and the highest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.ranking import SEEDS, TARGET, BestRate, competing_axes, ranked
from ..analysis.selection import BadTable, axes, check_names, check_numbers, parameters, plain, plain_text

if TYPE_CHECKING:
    import pandas as pd

RATE = "request_rate_rps"
FOUND_RATE = "max_rate_rps"  # of a goodput table
USER_RATE, GPU_RATE = "output_rate_per_user_tps", "output_throughput_per_gpu_tps"


def curves(
    df: pd.DataFrame, y: str = "attainment", *, x: str = RATE, by: Sequence[str] | None = None, target: float = TARGET
) -> pd.DataFrame:
    """A measure along a parameter, a curve for each value of `by`; None: of system, policy and router, if swept.

    Where more than `x`, `by` and the seed was swept, a curve is that of one configuration: the best by `ranked`.

    Returns columns curve, the x column, y, y_low and y_high (the lowest and the highest of the seeds), seeds, status:
    "ok", or "infeasible" or "failed" where no seed has a value, and configuration: what was chosen, in words.

    Raises:
        ValueError: a column that is unknown or holds no numbers, or a request rate that is neither x nor chosen.
    """
    import pandas as pd

    check_numbers(df, [y, x])
    by = competing_axes(df) if by is None else by
    check_names(by, parameters(df), "parameter")
    _one_rate(df, x)
    rows = []
    for name, chosen, cells in _groups(df, by, x, target):
        for value, here in cells.groupby(x, sort=True):
            found = here[y].astype(float).dropna()
            status = "ok" if len(found) else _status(here)
            low, high = (found.min(), found.max()) if len(found) else (np.nan, np.nan)
            rows.append((name, float(value), found.mean(), low, high, len(found), status, chosen))
    return pd.DataFrame(rows, columns=["curve", x, y, f"{y}_low", f"{y}_high", "seeds", "status", "configuration"])


def frontier(
    df: pd.DataFrame, x: str, *, by: Sequence[str] | None = None, target: float = TARGET, per_gpu: bool = True
) -> pd.DataFrame:
    """The highest request rate that keeps `target` attainment, along a parameter: of those that were swept, or, from a
    goodput table, the rates found.

    At each point the best configuration of what else was swept. Returns columns curve, x, rate, rate_low and rate_high
    (of that configuration for single seeds), seeds, is_top (it is the highest rate of the sweep: there may be more),
    status, and configuration, in words. The rate is 0 where no rate of the sweep keeps the target.

    Raises:
        ValueError: an unknown column, or a sweep of a single request rate.
    """
    import pandas as pd

    by = [name for name in competing_axes(df) if name != x] if by is None else by
    check_names([x, *by], parameters(df), "parameter")
    if FOUND_RATE in df:
        return _searched(df, x, by, per_gpu)
    if df[RATE].nunique() < 2:
        raise BadTable(f"{RATE} has a single value: a frontier needs a sweep of request rates")
    rows = []
    for name, cells in _split(df, by):
        for value, here in _values(cells, x):
            best = ranked(here, target)
            if not best:
                rows.append((name, value, np.nan, np.nan, np.nan, 0, False, _status(here), ""))
                continue
            single = [ranked(one, target)[0] for _, one in _split(_only(here, best[0].parameters), SEEDS)]
            rates = [_rate(one, per_gpu) for one in single]
            rate = _rate(best[0], per_gpu)
            words = ", ".join(f"{key} {plain_text(v)}" for key, v in best[0].parameters.items() if v is not None)
            low, high = min(rate, *rates), max(rate, *rates)
            rows.append((name, value, rate, low, high, len(rates), best[0].is_top, "ok", words))
    rate_name = "request_rate_per_gpu_rps" if per_gpu else RATE
    names = [rate_name, f"{rate_name}_low", f"{rate_name}_high"]
    table = pd.DataFrame(rows, columns=["curve", x, *names, "seeds", "is_top", "status", "configuration"])
    return _typed(table, x, df)


def _searched(df: pd.DataFrame, x: str, by: Sequence[str], per_gpu: bool) -> pd.DataFrame:
    """The frontier of a goodput table; `is_top` where the search ended at its upper end."""
    import pandas as pd

    found = "goodput_per_gpu_rps" if per_gpu else FOUND_RATE
    others = chosen_for_curves(df, by, x)
    rows = []
    for name, cells in _split(df, by):
        for value, here in _values(cells, x):
            ok = here[here[found] > 0]
            if ok.empty:
                rows.append((name, value, np.nan, np.nan, np.nan, 0, False, str(here["ending"].iloc[0]), ""))
                continue
            groups = [seeds for _, seeds in _split(ok, others)]
            best = max(groups, key=lambda seeds: float(seeds[found].mean()))
            rates = best[found].to_numpy(float)
            words = ", ".join(f"{key} {plain_text(plain(best[key].iloc[0]))}" for key in others)
            top = bool((best["ending"] == "upper_end_passes").any())
            rows.append((name, value, rates.mean(), rates.min(), rates.max(), len(rates), top, "ok", words))
    rate_name = "request_rate_per_gpu_rps" if per_gpu else RATE
    names = [rate_name, f"{rate_name}_low", f"{rate_name}_high"]
    table = pd.DataFrame(rows, columns=["curve", x, *names, "seeds", "is_top", "status", "configuration"])
    return _typed(table, x, df)


def pareto(df: pd.DataFrame, *, by: Sequence[str] | None = None) -> pd.DataFrame:
    """Throughput per GPU against tokens per second of a user, a point a configuration and rate, means over seeds.

    A user gets 1 / (median TPOT) tokens a second. `on_front` marks the points of a curve that no other point of it
    equals or exceeds in both; of equal points the first is kept.
    """
    import pandas as pd

    by = competing_axes(df) if by is None else by
    check_names(by, parameters(df), "parameter")
    ok = df[(df["status"] == "ok") & (df["tpot_p50_s"] > 0)]
    others = [name for name in axes(df) if name not in (*by, *SEEDS)]
    rows = []
    for name, cells in _split(ok, by):
        for _, here in _split(cells, others):
            user = 1 / here["tpot_p50_s"].astype(float)
            gpu = here[GPU_RATE].astype(float)
            settings = {other: plain(here[other].iloc[0]) for other in others}
            rows.append(
                {
                    "curve": name,
                    USER_RATE: user.mean(),
                    GPU_RATE: gpu.mean(),
                    "seeds": len(here),
                    **settings,
                }
            )
    table = pd.DataFrame(rows, columns=["curve", USER_RATE, GPU_RATE, "seeds", *others])
    front = np.zeros(len(table), bool)
    for name in table["curve"].unique():
        at = np.flatnonzero(table["curve"] == name)
        front[at] = on_front(table[USER_RATE].to_numpy()[at], table[GPU_RATE].to_numpy()[at])
    return table.assign(on_front=front)


def on_front(x: Any, y: Any) -> Any:
    """Which points [n] no other point equals or exceeds in both coordinates; of equal points the first."""
    order = np.lexsort((np.arange(len(x)), -np.asarray(y), -np.asarray(x)))
    found = np.zeros(len(x), bool)
    best = -np.inf
    for at in order:
        if y[at] > best:
            found[at], best = True, y[at]
    return found


def heatmap(df: pd.DataFrame, x: str, y: str, *, value: str = RATE, target: float = TARGET) -> pd.DataFrame:
    """A value for each pair of two parameters.

    value  RATE: the highest rate of the sweep that keeps `target` attainment, of the best configuration of what else
           was swept; or a measure, and then everything but x, y and the seed must have been chosen

    Returns columns x, y, the value (missing where nothing is feasible), and status.

    Raises:
        ValueError: an unknown column, x and y the same, or a measure of several configurations.
    """
    import pandas as pd

    check_names([x, y], parameters(df), "parameter")
    if x == y:
        raise ValueError(f"x and y are both {x!r}: a heat map needs two parameters")
    if value != RATE:
        check_numbers(df, [value])
        left = [name for name in axes(df) if name not in (x, y, *SEEDS) and df[name].nunique(dropna=False) > 1]
        if left:
            raise ValueError(f"{value} has several values for a {x} and {y}: choose one of each {', '.join(left)}")
    rows = []
    for (at_x, at_y), here in _pairs(df, x, y):
        if value == RATE:
            best = ranked(here, target)
            found = best[0].rate_rps if best else np.nan
        else:
            found = float(here[value].astype(float).mean())
        rows.append((at_x, at_y, found, "ok" if (here["status"] == "ok").any() else _status(here)))
    return _typed(_typed(pd.DataFrame(rows, columns=[x, y, value, "status"]), x, df), y, df)


def over_time(steps: pd.DataFrame, num_blocks: float | None, bins: int = 600) -> pd.DataFrame:
    """Batch size and KV use of one cell along its time: its steps, in at most `bins` pieces of equal length.

    steps       the steps of one cell, as load(run, "steps") gives them
    num_blocks  KV blocks of the cell; None or missing: unlimited memory

    Returns columns time_s, the beginning of a piece, and running, running_max, kv_utilization, kv_utilization_max:
    means over its time, idle time counting 0, and the highest. A log of few steps keeps a piece for each step.
    """
    import pandas as pd

    start, end = steps["start_s"].to_numpy(float), steps["end_s"].to_numpy(float)
    blocks = np.nan if num_blocks is None or num_blocks != num_blocks else float(num_blocks)
    values = {
        "running": steps["running"].to_numpy(float),
        "kv_utilization": steps["blocks_used"].to_numpy(float) / blocks,
    }
    if len(steps) * 2 <= bins:
        edges = np.unique(np.concatenate([start, end]))
    else:
        edges = np.linspace(start[0], end[-1], bins + 1)
    columns: dict[str, Any] = {"time_s": edges[:-1]}
    first = np.searchsorted(end, edges[:-1], side="right")  # the steps that each piece touches
    last = np.searchsorted(start, edges[1:], side="left")
    for name, value in values.items():
        area = np.concatenate([[0.0], np.cumsum(value * (end - start))])
        reached = np.interp(edges, *_corners(start, end, area))
        columns[name] = np.diff(reached) / np.diff(edges)
        columns[f"{name}_max"] = [value[a:b].max() if b > a else 0.0 for a, b in zip(first, last, strict=True)]
    return pd.DataFrame(columns)


def _corners(start: Any, end: Any, area: Any) -> tuple[Any, Any]:
    """The area under a log as a piecewise linear function: it rises inside of steps and is flat between them."""
    return np.column_stack([start, end]).ravel(), np.column_stack([area[:-1], area[1:]]).ravel()


def chosen_for_curves(df: pd.DataFrame, by: Sequence[str] | None, x: str) -> list[str]:
    """Axes of which `curves` takes the best value for each curve."""
    by = competing_axes(df) if by is None else by
    swept = [name for name in axes(df) if df[name].nunique(dropna=False) > 1]
    return [name for name in swept if name not in (*by, x, RATE, *SEEDS)]


# -------------------------------------------------------------------------------------------------------- small helpers


def _groups(df: pd.DataFrame, by: Sequence[str], x: str, target: float) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Name of each curve, the configuration chosen for it in words, and its cells."""
    others = chosen_for_curves(df, by, x)
    for name, cells in _split(df, by):
        if others:
            best = ranked(cells, target)
            given = best[0].parameters if best else {other: plain(cells[other].iloc[0]) for other in others}
            chosen = {other: given[other] for other in others}
            words = ", ".join(f"{key} {plain_text(value)}" for key, value in chosen.items() if value is not None)
            yield name, words, _only(cells, chosen)
        else:
            yield name, "", cells


def _split(df: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Cells by the values of some columns, in the order of the table; the key of a single parameter is its value."""
    if not names:
        yield "", df
        return
    for key, cells in df.groupby(list(names), observed=True, dropna=False, sort=False):
        cells.attrs = df.attrs
        yield _name(names, key), cells


def _values(df: pd.DataFrame, x: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Cells by the values of one column, less those that have none."""
    for key, cells in df.groupby(x, observed=True, sort=False):
        cells.attrs = df.attrs
        yield plain(key), cells


def _pairs(df: pd.DataFrame, x: str, y: str) -> Iterator[tuple[tuple[Any, Any], pd.DataFrame]]:
    for key, cells in df.groupby([x, y], observed=True, dropna=False, sort=False):
        cells.attrs = df.attrs
        yield (plain(key[0]), plain(key[1])), cells


def _name(names: Sequence[str], key: tuple[Any, ...]) -> str:
    """Values in words: a policy or a model names itself, a number needs the name of its column.

    What is missing is left out, unless nothing else is there.
    """
    words = []
    there = [pair for pair in zip(names, key, strict=True) if plain(pair[1]) is not None]
    for name, value in there or zip(names, key, strict=True):
        text = plain_text(value)
        words.append(text if isinstance(plain(value), str) else f"{name} {text}")
    return ", ".join(words)


def _only(df: pd.DataFrame, values: dict[str, Any]) -> pd.DataFrame:
    chosen = np.ones(len(df), bool)
    for name, value in values.items():
        chosen &= (df[name].isna() if value is None else (df[name] == value).fillna(False)).to_numpy(bool)
    return df[chosen]


def _one_rate(df: pd.DataFrame, x: str) -> None:
    if x != RATE and df[RATE].nunique() > 1:
        rates = ", ".join(plain_text(value) for value in df[RATE].drop_duplicates())
        raise ValueError(f"{RATE} has several values, and the plot is along {x}: choose one of {rates}")


def _status(cells: pd.DataFrame) -> str:
    return str(cells["status"].iloc[0])


def _rate(best: BestRate, per_gpu: bool) -> float:
    return best.rate_per_gpu_rps if per_gpu else best.rate_rps


def _typed(table: pd.DataFrame, name: str, df: pd.DataFrame) -> pd.DataFrame:
    """The table with a parameter's column as numbers where it holds numbers."""
    if df[name].dtype.kind in "iuf":
        table[name] = table[name].astype(float)
    return table
