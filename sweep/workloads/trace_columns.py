"""Which column of a trace file is which."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ..arrays import Floats
from ..messages import shown
from .trace_rows import Rows, shortened
from .trace_source import shown_path

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
PRIORITY = "priority"  # a further column, of CSV and Parquet, that a file need not have
# What tools and public traces call these columns, the best name first; case does not matter, and a space counts as "_".
# A name that ends in "_ms" holds milliseconds.
SYNONYMS = {
    "arrival_s": (
        *("arrival_s", "arrival_time_s", "timestamp_s", "time_s", "arrival_ms", "arrival_time_ms", "timestamp_ms"),
        *("arrival", "arrival_time", "arrival_timestamp", "arrived_at", "timestamp", "time"),
    ),
    "prompt_tokens": (
        *("prompt_tokens", "input_tokens", "context_tokens", "contexttokens", "request_tokens", "num_prefill_tokens"),
        *("prompt_len", "prompt_length", "prompt_size", "input_len", "input_length"),
    ),
    "output_tokens": (
        *("output_tokens", "completion_tokens", "generated_tokens", "generatedtokens", "response_tokens"),
        *("num_decode_tokens", "output_len", "output_length", "output_size", "token_size"),
    ),
    PRIORITY: (PRIORITY,),
}


class Ask(NamedTuple):
    """How a file is to be read."""

    path: Path
    format: str | None  # None: found out
    columns: Mapping[str, str] | None  # ours -> the file's; None: by SYNONYMS
    stop_at_bad: bool
    enough: Callable[[Floats], bool]
    hash_ids: bool = True  # whether names of blocks are read, where there are any

    @property
    def shown(self) -> str:
        """The path, for messages."""
        return shown_path(self.path)

    def expect(self, what: str, *formats: str) -> None:
        if self.format is not None and self.format not in formats:
            raise ValueError(f"{self.shown}: holds {what}: format={self.format!r} does not fit")

    def rows(self, format: str, columns: dict[str, str], unit: str, ticks_per_s: float, unit_told: bool) -> Rows:
        return Rows(self.shown, format, columns, unit, ticks_per_s, unit_told, self.stop_at_bad, self.enough)


class Found(NamedTuple):
    """The columns of a file."""

    at: dict[str, int]  # positions of COLUMNS in the header, in that order, and of PRIORITY behind where there is one
    ticks_per_s: float  # of arrivals that are numbers
    unit_told: bool  # whether the name of the arrival column or `columns` says their unit; else seconds are assumed


def find_columns(where: str, header: list[str], columns: Mapping[str, str] | None) -> Found:
    """The columns in a header; ValueError without one that is needed, or with two of its name."""
    given = dict(columns or {})
    told = shown(given)
    for key in given:
        if key not in (known := (*COLUMNS, PRIORITY, "arrival_ms")):
            raise ValueError(f"columns={told}: has {shown(key)}: must have keys of {', '.join(known)}")
    if "arrival_s" in given and "arrival_ms" in given:
        raise ValueError(f"columns={told}: must have one of arrival_s and arrival_ms")
    in_ms = "arrival_ms" in given
    if in_ms:
        given["arrival_s"] = given.pop("arrival_ms")
    unit_told = "arrival_s" in given
    plain = [_plain(name) for name in header]
    at = {}
    for key in (*COLUMNS, PRIORITY):
        wanted = (_plain(given[key]),) if key in given else SYNONYMS[key]
        name = next((name for name in wanted if name in plain), None)
        if name is None:
            has = f"{where}: has no column for {key}, but {shortened(', '.join(header), 200) or 'nothing'}"
            if key in given:
                raise ValueError(f"{has}: columns names {shown(given[key])}")
            if key == PRIORITY:
                continue
            raise ValueError(
                f"{has}: must have one of {', '.join(wanted)}, or be told by columns={{{key!r}: its name}} "
                f"(--set 'columns={{{key} = \"its name\"}}')"
            )
        if plain.count(name) > 1:
            raise ValueError(f"{where}: has {plain.count(name)} columns named {shortened(header[plain.index(name)])!r}")
        at[key] = plain.index(name)
        if key == "arrival_s" and key not in given:
            in_ms = name.endswith("_ms")
            unit_told = name.endswith(("_ms", "_s"))
    return Found(at, 1e3 if in_ms else 1.0, unit_told)


def is_azure(header: list[str]) -> bool:
    """Whether these are the columns of the Azure traces, and no others."""
    return sorted(map(_plain, header)) == ["contexttokens", "generatedtokens", "timestamp"]


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")
