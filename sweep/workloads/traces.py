"""Recorded traffic: read a trace, cut it, spread coarse arrival times, scale it to a rate, and say what was understood.

N is the number of requests kept. docs/traces.md describes the formats and every option.
"""

import math
import sys
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from .. import checks
from ..arrays import Floats
from ..messages import meant, shown
from .texts import texts_of_blocks
from .trace_columns import Ask
from .trace_formats import FORMATS, FormatName, read_rows
from .trace_report import TraceReport, clock, summary, unit_doubt
from .trace_rows import MAX_ARRIVAL, Rows, shortened
from .trace_source import shown_path
from .workload import Workload

OnBad = Literal["error", "skip"]
ON_BAD: tuple[OnBad, ...] = get_args(OnBad)


@checks.spelt_out
def load_trace(
    path: str | PathLike[str],
    *,
    format: FormatName | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad: OnBad = "error",
    spread_s: float | Literal["auto"] | None = None,
    seed: int = 0,
    start_s: float | None = None,
    end_s: float | None = None,
    limit: int | None = None,
    rate: float | None = None,
    name: str | None = None,
    hash_ids: bool = True,
) -> Workload:
    """The requests of a trace file as a `Workload`, sorted by arrival, the first at 0.

    Parameters
    ----------
    path, format, columns, on_bad, spread_s, seed, start_s, end_s, limit, rate, name, hash_ids
        As for `read_trace`, which also says what was understood.

    Raises
    ------
    ValueError
        Names the file, the line and the reason, or the argument.
    FileNotFoundError
        Where there is no file.
    """
    return read_trace(
        path,
        format=format,
        columns=columns,
        on_bad=on_bad,
        spread_s=spread_s,
        seed=seed,
        start_s=start_s,
        end_s=end_s,
        limit=limit,
        rate=rate,
        name=name,
        hash_ids=hash_ids,
    )[0]


@checks.spelt_out
def read_trace(
    path: str | PathLike[str],
    *,
    format: FormatName | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad: OnBad = "error",
    spread_s: float | Literal["auto"] | None = None,
    seed: int = 0,
    start_s: float | None = None,
    end_s: float | None = None,
    limit: int | None = None,
    rate: float | None = None,
    name: str | None = None,
    hash_ids: bool = True,
) -> tuple[Workload, TraceReport]:
    """The requests of a trace file as a `Workload`, sorted by arrival, the first at 0, and what was understood.

    Parameters
    ----------
    path
        The file, which may be compressed with gzip.
    format
        "azure", "mooncake", "csv" or "parquet", to insist on one. None: found out from the content.
    columns
        Of "csv" and "parquet": `{"arrival_s": name, "prompt_tokens": name, "output_tokens": name}`, each optional;
        "priority" for a further column, which a file need not have; "arrival_ms" in place of "arrival_s" for a column
        of milliseconds. None: found out from the names.
    on_bad
        "error" refuses a file with a bad row, "skip" leaves bad rows out and counts them.
    spread_s
        Move each arrival to a uniformly random place within so many seconds after it, but not past the next arrival
        time of the file, order kept; "auto" finds the tick of coarse times, and does nothing where there is none. None:
        leave them.
    seed
        Of the random numbers, drawn by `numpy.random.default_rng(seed)`.
    start_s, end_s
        Keep arrivals in [start_s, end_s), in seconds after the first of the file, on its own clock. None: no cut.
    limit
        Then keep the first so many. None: all.
    rate
        Requests/s to scale to: time is stretched, and the mean rate of what was kept, (N - 1) / span, is its unit.
        None: the trace's own.
    name
        Of the workload. None: the file's.
    hash_ids
        Read what prompts have in common from the `hash_ids` of "mooncake", a number for each 512 tokens; two blocks of
        one number are the same, and all before them. False: leave it out.

    Returns
    -------
    tuple of Workload and TraceReport
        The requests, and what was read, skipped, cut and scaled.

    Raises
    ------
    ValueError
        Names the file, the line and the reason, or the argument.
    FileNotFoundError
        Where there is no file.

    Warns
    -----
    UserWarning
        Where nobody told the unit of arrivals, and they cannot be in what was assumed.
    """
    path = checks.path("path", path)
    _check(format, columns, on_bad, start_s, end_s)
    seed = checks.whole("seed", seed, 0)
    hash_ids = checks.whether("hash_ids", hash_ids)
    limit = None if limit is None else checks.whole("limit", limit, 1)
    rate = None if rate is None else checks.positive("rate", rate)
    if isinstance(spread_s, str):
        if spread_s != "auto":
            raise ValueError(f'spread_s={shown(spread_s)}: must be "auto" or a positive finite number')
    elif spread_s is not None:
        spread_s = min(checks.positive("spread_s", spread_s), MAX_ARRIVAL)
    start = 0.0 if start_s is None else start_s
    end = math.inf if end_s is None else end_s

    rows = read_rows(Ask(path, format, columns, on_bad == "error", _Enough(start, end, limit), hash_ids))
    _refuse_bad(rows, on_bad)
    ticks, whole = rows.arrays()
    places = np.arange(len(ticks))
    out_of_order = int(np.count_nonzero(np.diff(ticks) < 0))
    if out_of_order:
        order = np.argsort(ticks, kind="stable")
        ticks, whole, places = ticks[order], [column[order] for column in whole], order
    earliest = float(ticks[0])
    ticks = ticks - ticks[0]
    tick_s = _tick(ticks / rows.ticks_per_s)
    doubt = unit_doubt(rows, earliest, ticks / rows.ticks_per_s)
    spread = tick_s if isinstance(spread_s, str) else spread_s
    if spread is not None:
        ticks = _spread(ticks, spread * rows.ticks_per_s, np.random.default_rng(seed))
    kept = _cut(rows, ticks, start, end, limit)
    ticks, (prompt, output, *priority) = ticks[kept], [column[kept] for column in whole]
    arrival = (ticks - ticks[0]) / rows.ticks_per_s
    workload = Workload(
        arrival,
        prompt,
        output,
        name=_stem(path) if name is None else name,
        priority=priority[0] if priority else None,
        texts=texts_of_blocks([rows.hash_ids[i] for i in places[kept].tolist()], prompt) if rows.hash_ids else None,
    )
    report = TraceReport(
        path=str(path),
        format=rows.format,
        columns=rows.columns,
        arrivals=clock(rows),
        rows_read=rows.read,
        stopped_early=rows.stopped,
        skipped=rows.refused,
        examples=tuple(rows.examples),
        out_of_order=out_of_order,
        first_arrival=rows.first,
        tick_s=tick_s,
        spread_s=spread,
        requests=len(workload),
        span_s=float(arrival[-1]),
        mean_rate_rps=workload.mean_rate_rps,
        rate_rps=rate,
        prompt_tokens=summary(prompt),
        output_tokens=summary(output),
        unit_doubt=doubt,
    )
    if rate is not None:
        if math.isnan(workload.mean_rate_rps):
            raise ValueError(
                f"rate={rate}: {shown_path(path)} has no mean rate to scale: what is kept of it arrives at one time"
            )
        workload = workload.at_rate(rate)
    if doubt is not None:
        _warn(f"{shown_path(path)}: {doubt}")
    return workload, report


def _warn(text: str) -> None:
    depth = 1
    while sys._getframe(depth).f_code.co_filename in (__file__, checks.__file__):
        depth += 1
    warnings.warn(text, UserWarning, stacklevel=depth + 1)  # where somebody else called


class _Enough:
    """Told the arrivals of one block of rows after another, says when the cuts need no more.

    Never for a file that was out of order so far. A time is complete when a later one has been seen.
    """

    def __init__(self, start: float, end: float, limit: int | None) -> None:
        self.start, self.end, self.limit = start, end, math.inf if limit is None else limit
        self.first = self.last = math.nan
        self.ordered = True
        self.kept = 0  # in the blocks before

    def __call__(self, seconds: Floats) -> bool:
        if len(seconds) == 0:
            return False
        if math.isnan(self.first):
            self.first = self.last = float(seconds[0])
        self.ordered = self.ordered and bool(seconds[0] >= self.last) and bool(np.all(np.diff(seconds) >= 0))
        self.last = float(seconds[-1])
        after = seconds - self.first
        inside = after >= self.start
        complete = self.kept + np.count_nonzero(inside & (after < after[-1])) if after[0] < after[-1] else 0
        self.kept += int(np.count_nonzero(inside))
        return self.ordered and bool(after[-1] >= self.end or complete >= self.limit)


def _check(
    format: str | None,
    columns: Mapping[str, str] | None,
    on_bad: str,
    start_s: float | None,
    end_s: float | None,
) -> None:
    if format is not None and not (isinstance(format, str) and format in FORMATS):
        known = f"None or one of {', '.join(FORMATS)}"
        raise ValueError(f"format={shown(format)}: must be {known}{meant(format, FORMATS)}")
    checks.one_of("on_bad", on_bad, ON_BAD)
    if columns is not None and not (
        isinstance(columns, Mapping) and all(isinstance(text, str) for pair in columns.items() for text in pair)
    ):
        raise ValueError(f"columns={shown(columns)}: must be names of columns, by ours")
    if columns is not None and format in ("azure", "mooncake"):
        raise ValueError(f"columns={shown(dict(columns))}: has no effect with format={format!r}")
    if start_s is not None:
        checks.not_negative("start_s", start_s)
    if end_s is not None:
        checks.positive("end_s", end_s)
        if end_s <= (start_s or 0.0):
            raise ValueError(f"end_s={end_s}: must be above start_s={start_s or 0.0}")


def _refuse_bad(rows: Rows, on_bad: str) -> None:
    bad = sum(rows.refused.values())
    if bad and on_bad == "error":
        more = f" ({bad - 1:,} more bad in the first {rows.read:,} rows)" if bad > 1 else ""
        raise ValueError(
            f'{rows.examples[0]}{more}; on_bad="skip" (--set on_bad=skip) leaves bad rows out and counts them'
        )
    if rows.read == 0:
        raise ValueError(f"{rows.file}: has no rows{' after its header' * (rows.format != 'parquet')}")
    first = f"are bad, the first is {rows.examples[0]}" if bad else ""
    if bad == rows.read and not rows.stopped:
        raise ValueError(f"{rows.file}: has no good row: all {bad:,} {first}")
    if rows.is_no_trace:
        raise ValueError(f"{rows.file}: is no trace: {bad:,} of its first {rows.read:,} rows {first}")


def _tick(seconds: Floats) -> float | None:
    """Step of coarse arrival times: at least two requests a time on average, and times in steps of this or more.

    The lower quartile of the steps, because ticks without requests make some steps longer, and clocks jitter.
    """
    times = np.unique(seconds)
    if len(times) < 2 or len(times) > len(seconds) / 2:
        return None
    return float(np.quantile(np.diff(times), 0.25))


def _spread(ticks: Floats, width: float, rng: np.random.Generator) -> Floats:
    """Sorted times, each moved by a uniform share of `width`, or of the step to the next time where that is less.

    One number is drawn for each request in turn, so that cutting a trace leaves the others where they are.
    """
    times, group = np.unique(ticks, return_inverse=True)
    widths = np.minimum(np.diff(times, append=np.inf), width)
    shares = rng.random(len(ticks))
    shares = shares[np.lexsort((shares, group))]  # ascending within a time: the order of the file stays
    moved: Floats = ticks + shares * widths[group]
    return moved


def _cut(rows: Rows, ticks: Floats, start: float, end: float, limit: int | None) -> npt.NDArray[np.intp]:
    """Places of the rows that are kept."""
    seconds = ticks / rows.ticks_per_s
    kept: npt.NDArray[np.intp] = np.flatnonzero((seconds >= start) & (seconds < end))[:limit]
    if len(kept) == 0:
        raise ValueError(
            f"start_s={start}, end_s={end}: keep nothing of {rows.file}, which goes from 0 to {seconds[-1]:.6g} s"
        )
    return kept


def _stem(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return shortened(plain.stem or path.name, 255)
