"""What was understood of a trace file, in numbers and in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..arrays import Floats, Ints
from .trace_rows import Rows, shortened
from .trace_source import shown_path

# Where nobody said the unit of arrivals, it is doubted beyond these: no service gets so many requests/s, or has times
# so fine; and seconds since 1970 get that large in the year 5138. JSON lines hold milliseconds in Mooncake's traces,
# and seconds in some that look like them.
MAX_PLAIN_RATE_RPS = {"mooncake": 1e3}
MAX_PLAIN_RATE_RPS_ELSE = 1e4
MIN_PLAIN_GAP_S = 1e-6
MAX_PLAIN_SECONDS = 1e11
_UNITS = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}


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
        What the arrival column holds: "ISO 8601 times", "timestamps", "durations", "numbers in seconds" or "numbers in
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
    unit_doubt
        Why `arrivals` may be wrong, and how to say what is right. None: it is plausible, or was told.
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
    unit_doubt: str | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The report as lines of text."""
        arrival, prompt, output, *priority = map(shortened, self.columns.values())
        skipped = sum(self.skipped.values())
        text = [
            f"{shown_path(self.path)}: {self.format} format; arrivals from {arrival} ({self.arrivals}), lengths from "
            f"{prompt} and {output}" + "".join(f", priorities from {name}" for name in priority),
            f"rows: {self.rows_read:,} read{' (no more were needed)' * self.stopped_early}, {skipped:,} bad and "
            f"skipped, {self.requests:,} kept",
        ]
        text += [f"  {reason}: {count:,}" for reason, count in self.skipped.items()]
        text += [f"  e.g. {example}" for example in self.examples]
        if self.out_of_order:
            text.append(f"order: {self.out_of_order:,} rows come earlier than the row before; sorted by arrival")
        rate = "" if math.isnan(self.mean_rate_rps) else f", mean rate {self.mean_rate_rps:.4g} requests/s"
        text.append(f"span: {self.span_s:,.1f} s{rate}; the file begins at {shortened(self.first_arrival)}")
        if self.unit_doubt is not None:
            text.append(f"caution: {self.unit_doubt}")
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


def clock(rows: Rows) -> str:
    """What the arrival column holds, as in `TraceReport.arrivals`."""
    if rows.arrivals == "numbers":
        return "numbers in milliseconds" if rows.ticks_per_s == 1e3 else "numbers in seconds"
    return "ISO 8601 times" if rows.arrivals == "stamps" else rows.arrivals


def unit_doubt(rows: Rows, earliest: float, seconds: Floats) -> str | None:
    """Why sorted arrivals, after the earliest, cannot be in the unit that was assumed; None where they can, or where
    somebody told it."""
    numbers = rows.arrivals == "numbers"
    if (numbers and rows.unit_told) or not seconds[-1] > 0:
        return None
    rate = (len(seconds) - 1) / float(seconds[-1])
    if np.diff(seconds).max() < MIN_PLAIN_GAP_S:
        makes = "no gap of a microsecond between any two"
    elif rate > MAX_PLAIN_RATE_RPS.get(rows.format, MAX_PLAIN_RATE_RPS_ELSE):
        makes = f"{rate:,.0f} requests/s"
    elif numbers and rows.ticks_per_s == 1 and earliest > MAX_PLAIN_SECONDS:
        makes = "years after 5138 if they count from 1970"
    else:
        return None
    name = shortened(rows.columns["arrival_s"])
    if not numbers:
        how = "another unit is told by numbers, named arrival_s or arrival_ms"
    elif rows.format == "mooncake":
        how = "another unit is told by CSV or Parquet with a column arrival_s"
    else:
        how = (
            f"milliseconds are told by columns={{'arrival_ms': '{name}'}}, seconds by 'arrival_s' there "
            f"(--set 'columns={{arrival_ms = \"{name}\"}}'), and other units must be converted"
        )
    unit = "" if numbers or rows.arrivals == "stamps" else f" in {_UNITS[rows.ticks_per_s]}"
    return f"arrivals from {name} were read as {clock(rows)}{unit}, which makes {makes}: {how}"


def summary(lengths: Ints) -> dict[str, float]:
    """Mean and percentiles of lengths."""
    p50, p90, p99 = np.percentile(lengths, [50, 90, 99]).tolist()
    return {"mean": float(lengths.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(lengths.max())}
