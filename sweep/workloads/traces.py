"""Recorded traffic: read a trace, cut it, spread coarse arrival times, scale it to a rate, and say what was understood.

N is the number of requests kept. docs/traces.md describes the formats and every option.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from .. import checks
from ..arrays import Floats, Ints
from .trace_formats import FORMATS, Ask, FormatName, read_rows
from .trace_rows import Rows
from .workload import Workload

OnBad = Literal["error", "skip"]
ON_BAD: tuple[OnBad, ...] = get_args(OnBad)


@dataclass(frozen=True)
class TraceReport:
    """What `read_trace` understood. Times and the mean rate are those of the trace's own clock, before scaling.

    Attributes
    ----------
    path, format
        The file, and "azure", "mooncake", "csv" or "parquet".
    columns
        arrival_s, prompt_tokens, output_tokens, perhaps priority: the file's own names.
    arrivals
        What the arrival column holds: "ISO 8601 times", "timestamps", "numbers in seconds" or "numbers in
        milliseconds".
    rows_read
        Blank lines are no rows.
    stopped_early
        The file may have more rows, which the cuts did not need.
    skipped
        Bad rows left out, by reason.
    examples
        The first bad rows, each with file, line and reason.
    out_of_order
        Rows with an earlier arrival than the row before; they were sorted.
    first_arrival
        Of the first good row, as the file writes it.
    tick_s
        Arrival times come in steps of about so many seconds. None: they are fine enough.
    spread_s
        Arrivals were spread over so many seconds. None: they were left alone.
    requests
        How many were kept.
    span_s
        Seconds from the first arrival to the last.
    mean_rate_rps
        (requests - 1) / span_s; NaN without a span.
    rate_rps
        The rate that was asked for. None: the trace's own was kept.
    prompt_tokens, output_tokens
        mean, p50, p90, p99 and max.
    """

    path: str
    format: str
    columns: Mapping[str, str]
    arrivals: str
    rows_read: int
    stopped_early: bool
    skipped: Mapping[str, int]
    examples: tuple[str, ...]
    out_of_order: int
    first_arrival: str
    tick_s: float | None
    spread_s: float | None
    requests: int
    span_s: float
    mean_rate_rps: float
    rate_rps: float | None
    prompt_tokens: Mapping[str, float]
    output_tokens: Mapping[str, float]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The report as lines of text."""
        arrival, prompt, output, *priority = self.columns.values()
        skipped = sum(self.skipped.values())
        text = [
            f"{self.path}: {self.format} format; arrivals from {arrival} ({self.arrivals}), lengths from {prompt} and "
            f"{output}" + "".join(f", priorities from {name}" for name in priority),
            f"rows: {self.rows_read:,} read{' (no more were needed)' * self.stopped_early}, {skipped:,} bad and "
            f"skipped, {self.requests:,} kept",
        ]
        text += [f"  {reason}: {count:,}" for reason, count in self.skipped.items()]
        text += [f"  e.g. {example}" for example in self.examples]
        if self.out_of_order:
            text.append(f"order: {self.out_of_order:,} rows come earlier than the row before; sorted by arrival")
        rate = "" if math.isnan(self.mean_rate_rps) else f", mean rate {self.mean_rate_rps:.4g} requests/s"
        text.append(f"span: {self.span_s:,.1f} s{rate}; the file begins at {self.first_arrival}")
        if self.rate_rps is not None:
            text.append(f"scaled: to {self.rate_rps:.4g} requests/s")
        if self.spread_s is not None:
            text.append(f"spread: each arrival within {self.spread_s:g} s, order kept")
        elif self.tick_s is not None:
            text.append(
                f"caution: arrivals come in ticks of about {self.tick_s:.3g} s; spread_s spreads them within a tick"
            )
        for name, lengths in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            text.append(f"{name} tokens: " + ", ".join(f"{key} {value:,.0f}" for key, value in lengths.items()))
        return text


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
) -> Workload:
    """The requests of a trace file as a `Workload`, sorted by arrival, the first at 0.

    Parameters
    ----------
    path, format, columns, on_bad, spread_s, seed, start_s, end_s, limit, rate, name
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
    )[0]


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
    """
    path = Path(path)
    _check(format, columns, on_bad, start_s, end_s)
    seed = checks.whole("seed", seed, 0)
    limit = None if limit is None else checks.whole("limit", limit, 1)
    rate = None if rate is None else checks.positive("rate", rate)
    if isinstance(spread_s, str):
        if spread_s != "auto":
            raise ValueError(f'spread_s={spread_s!r}: must be "auto" or a positive finite number')
    elif spread_s is not None:
        spread_s = checks.positive("spread_s", spread_s)
    start = 0.0 if start_s is None else start_s
    end = math.inf if end_s is None else end_s

    rows = read_rows(Ask(path, format, columns, on_bad == "error", _Enough(start, end, limit)))
    _refuse_bad(rows, on_bad)
    ticks, whole = rows.arrays()
    out_of_order = int(np.count_nonzero(np.diff(ticks) < 0))
    if out_of_order:
        order = np.argsort(ticks, kind="stable")
        ticks, whole = ticks[order], [column[order] for column in whole]
    ticks = ticks - ticks[0]
    tick_s = _tick(ticks / rows.ticks_per_s)
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
    )
    report = TraceReport(
        path=str(path),
        format=rows.format,
        columns=rows.columns,
        arrivals=_clock(rows),
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
        prompt_tokens=_summary(prompt),
        output_tokens=_summary(output),
    )
    if rate is not None:
        if not arrival[-1] > 0:
            raise ValueError(f"rate={rate}: {path} has no mean rate to scale: what is kept of it arrives at one time")
        workload = workload.at_rate(rate)
    return workload, report


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
    if format is not None and format not in FORMATS:
        raise ValueError(f"format={format!r}: must be None or one of {', '.join(FORMATS)}")
    if on_bad not in ON_BAD:
        raise ValueError(f"on_bad={on_bad!r}: must be one of {', '.join(ON_BAD)}")
    if columns is not None and format in ("azure", "mooncake"):
        raise ValueError(f"columns={dict(columns)!r}: has no effect with format={format!r}")
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
        raise ValueError(f"{rows.file}: has no rows after its header")
    if bad == rows.read:
        raise ValueError(f"{rows.file}: has no good row: all {bad:,} are bad, the first is {rows.examples[0]}")


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


def _clock(rows: Rows) -> str:
    if rows.arrivals == "stamps":
        return "ISO 8601 times" if rows.format != "parquet" else "timestamps"
    return "numbers in milliseconds" if rows.ticks_per_s == 1e3 else "numbers in seconds"


def _stem(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.stem or path.name


def _summary(lengths: Ints) -> dict[str, float]:
    p50, p90, p99 = np.percentile(lengths, [50, 90, 99]).tolist()
    return {"mean": float(lengths.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(lengths.max())}
