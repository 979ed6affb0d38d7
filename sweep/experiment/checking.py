"""Check an experiment: plain tables in, an `Experiment` or all that is wrong with it out."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import checks
from ..checks import MAX_TOKENS
from ..hardware import catalogue
from ..messages import MOST_PROBLEMS, MOST_VALUES, clipped, closest, likeness, nearest, shown_as_toml
from ..workloads.workload import MAX_SIGMA, LognormalLen
from .cell_selection import check_columns
from .combinations import clashes, defaults, impossible_degrees
from .instance_tables import ROLE_TABLES
from .keys import Key, deciders, key_names, key_of, unmet
from .step_files import in_file, is_file
from .tables import TABLES, TRACE_COLUMNS, ConfigError, Experiment
from .toml_lines import line_of

_RANGE_KEYS = ("from", "to", "count", "spacing")
_LENGTH_KEYS = {"mean": Key(float, above=0), "sigma": Key(float, lowest=0, highest=MAX_SIGMA)}  # as `LognormalLen`
_LENGTH_KEYS |= {"lo": Key(int, lowest=0), "hi": Key(int, lowest=1, highest=MAX_TOKENS)}
_NAME_LENGTH = 200
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_NAME_LENGTH - 1}}}")


def name_of_file(stem: str) -> str:
    """The name of an experiment that a file of this name gives to itself: a dash for what a name cannot hold.

    >>> name_of_file("my sweep (2)")
    'my-sweep-2-'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("-._")[:_NAME_LENGTH] or "experiment"


class Checker:
    """Checks tables against the keys of an experiment and collects problems instead of stopping at the first."""

    def __init__(self, source: str, lines: dict[tuple[str, ...], int], folder: Path) -> None:
        self.source = source
        self.lines = lines
        self.folder = folder  # relative paths in the file start here
        self.places: dict[tuple[str, ...], str] = {}  # keys that came from the command line
        self.problems: list[tuple[int, str]] = []  # line (0 where there is none) and text
        self.failed: set[tuple[str, ...]] = set()  # tables and keys that have a problem
        self.has_unknown: set[str] = set()  # tables with unknown keys

    def problem(self, path: tuple[str, ...], message: str) -> None:
        """Note what is wrong with a table or key."""
        self.failed.add(path[:2])
        ends = range(len(path), 0, -1)
        place = next((self.places[path[:end]] for end in ends if path[:end] in self.places), None)
        line = 0 if place else line_of(self.lines, path) or 0
        place = place or (f"{self.source}:{line}" if line else self.source)
        self.problems.append((line, f"{place}: {'.'.join(clipped(part, 100) for part in path)}{message}"))

    def sound(self, table: str, *keys: str) -> bool:
        """Whether checks that look at these keys make sense: none of them has a problem already."""
        return not self.failed & {(table,), *((table, key) for key in keys)}

    def unknown_key(self, path: tuple[str, ...], known: Sequence[str], place: int, kind: str = "key") -> None:
        """Note a key or a table that there is not. What follows from the absence of the one that was meant is no news.

        place  its number among the unknown ones
        """
        meant, words = _nearest_key(path[-1], known, place)
        self.problem(path, f": unknown {kind}{words}")
        self.meant(path, (*path[:-1], *meant) if len(meant) == 1 else meant)

    def meant(self, path: tuple[str, ...], meant: tuple[str, ...]) -> None:
        """Count what was probably meant by an unknown key as given, though wrong.

        meant  table and key of it, or the table; nothing where none is like it, when it may be any of its table
        """
        if meant:
            self.failed.add(meant)
        if len(path) > 1:
            self.has_unknown.add(path[0])

    def wrong(self, path: tuple[str, ...], value: Any, allowed: str) -> None:
        """Note a value that is not allowed."""
        self.problem(path, f" = {shown_as_toml(value)}: {allowed}")

    def experiment(self, tables: dict[str, Any]) -> Experiment:
        """The experiment that tables describe; ConfigError with all that is wrong."""
        for place, key in enumerate(key for key in tables if key not in ("name", *TABLES)):
            kind = "table" if isinstance(tables[key], Mapping) else "key"
            self.unknown_key((key,), ["name", *TABLES], place, kind)
        name = tables.get("name", "experiment")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            allowed = (
                f"must be a string of letters, digits, dots, dashes and underscores, at most {_NAME_LENGTH} of them"
            )
            self.wrong(("name",), name, f"{allowed}: it names a folder")
        read = {table: self.table(table, tables.get(table, {}), defaults(table, tables)) for table in TABLES}
        self.effects(read, tables)
        self.across(read, tables)
        if self.problems:
            raise ConfigError([text for _, text in sorted(self.problems, key=lambda problem: problem[0])])
        return Experiment(name=name, source=self.source, origins=self.places, **read)

    def table(self, table: str, entries: Any, defaults: Mapping[str, Any]) -> Any:
        """One table as its dataclass. A value that is wrong is left at the default, so that other checks can go on."""
        keys = TABLES[table]
        if not isinstance(entries, Mapping):
            self.wrong((table,), entries, "must be a table")
            return keys()
        known = key_names(keys)
        for place, name in enumerate(name for name in entries if name not in known):
            self.unknown_key((table, name), known, place)
        values: dict[str, Any] = dict(defaults)
        for name in [name for name in known if name in entries]:
            before = len(self.problems)
            value = self.value((table, name), entries[name], key_of(keys, name))
            if len(self.problems) == before:
                values[name] = value
        return keys(**values)

    def effects(self, read: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
        """Every key that is given has an effect, and those that must be given are."""
        for table, name in (("workload", "request_rate_rps"), ("instance", "model"), ("instance", "chip")):
            if self.sound(table, name) and not getattr(read[table], name) and not unmet(read, table, name):
                self.problem((table, name), " is missing: must be given")
        for table in TABLES:
            entries = tables.get(table, {})
            for name in key_names(TABLES[table]) if isinstance(entries, Mapping) else ():
                if name in entries and self.sound(table, name) and self.judged(table, name):
                    words = unmet(read, table, name)
                    if words and not (self.has_unknown & {path[0] for path in deciders(TABLES, table, name)}):
                        self.wrong((table, name), entries[name], f"has no effect without {words}: remove it")

    def judged(self, table: str, name: str) -> bool:
        """Whether the keys that decide on the effect of a key are sound, and it was not the command line that took
        its effect away: then the file is not to blame for it."""
        paths = deciders(TABLES, table, name)
        elsewhere = {*self.places, *(("system", "scheduler") if ("system", "preset") in self.places else ())}
        if (table, name) not in self.places and any(path in elsewhere or path[0] in elsewhere for path in paths):
            return False
        return all(self.sound(*path) for path in paths)

    def value(self, path: tuple[str, ...], value: Any, key: Key) -> Any:
        """A value or, for an axis, the tuple of its values."""
        value = value.tolist() if hasattr(value, "tolist") else value  # NumPy's arrays and numbers, from Python
        if not key.axis:
            return self.scalar(path, value, key)
        if key.ranged and isinstance(value, Mapping):
            value = self.range(path, value)
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            self.wrong(path, value, "must hold at least one value")
        read: dict[Any, int] = {}
        before = len(self.problems)
        for place, item in enumerate(items):
            value = self.scalar(path, item, key)
            read[value] = read.get(value, 0) + 1
            if read[value] == 2 and value is not None:
                self.wrong(path, item, "is given twice")
            if len(self.problems) - before >= MOST_VALUES:
                rest = len(items) - place - 1
                if rest:
                    self.problem(path, f": its other {rest:,} values were not looked at")
                break
        return tuple(read)

    def scalar(self, path: tuple[str, ...], value: Any, key: Key) -> Any:
        if key.kind is dict:
            return self.columns(path, value)
        if key.kind is LognormalLen and isinstance(value, Mapping):
            return self.length(path, value)
        if key.kind is float and key.names is not None and isinstance(value, str) and value in key.names:
            return value
        if key.kind is str:
            if not isinstance(value, str) or not value:
                self.wrong(path, value, "must be a string that is not empty")
            elif key.names is not None and value not in key.names:
                self.wrong(path, value, f"is unknown{nearest(value, key.names)}")
            elif key.lookup is not None:
                try:
                    key.lookup(value)
                except ValueError as error:
                    self.wrong(path, value, str(error).partition(": ")[2])
            if not isinstance(value, str):
                return None
            if path[1:] == ("step_times",) and is_file(value):
                return self.steps_in_file(path, value)
            return self.folder / value if path == ("workload", "path") else value
        if key.kind is bool:
            if not isinstance(value, bool):
                self.wrong(path, value, "must be true or false")
            return value
        number = int | float if key.kind is float else int
        right = isinstance(value, number) and (checks.finite(value) or (key.kind is not float and type(value) is int))
        within = right and (
            (key.lowest is None or value >= key.lowest)
            and (key.highest is None or value <= key.highest)
            and (key.above is None or value > key.above)
            and (key.below is None or value < key.below)
        )
        if not within:
            above = key.kind is not float and right and key.highest is not None and value > key.highest
            self.wrong(path, value, f"must be at most {key.highest}" if above else f"must be {_format_limits(key)}")
            return None
        return float(value) if key.kind is float else value

    def steps_in_file(self, path: tuple[str, ...], name: str) -> str:
        """The path of a file of step times, which must hold some."""
        file = str(self.folder / name)
        try:
            in_file(file)
        except ValueError as error:
            self.wrong(path, name, str(error).removeprefix(f"{file}: "))
        return file

    def range(self, path: tuple[str, ...], entries: Mapping[str, Any]) -> list[float]:
        """The list that {from, to, count, spacing} stands for, at four significant digits between its ends."""
        before = len(self.problems)
        self.unknown(path, entries, _RANGE_KEYS)
        missing = [name for name in ("from", "to", "count") if name not in entries]
        if missing:
            if len(self.problems) == before:
                self.wrong(path, dict(entries), f"{' and '.join(missing)} must be given")
            return [1.0]
        first, last = (self.scalar((*path, end), entries.get(end), Key(float, above=0)) for end in ("from", "to"))
        count = self.scalar((*path, "count"), entries.get("count"), Key(int, lowest=2, highest=100_000))
        spacing = self.scalar((*path, "spacing"), entries.get("spacing", "log"), Key(str, names=("log", "linear")))
        if len(self.problems) == before and first >= last:
            self.wrong((*path, "to"), entries["to"], f"must be above from = {first}")
        if len(self.problems) > before:
            return [1.0]
        shares = [step / (count - 1) for step in range(1, count - 1)]
        between = [first * (last / first) ** s if spacing == "log" else first + (last - first) * s for s in shares]
        values = [first, *(float(f"{value:.4g}") for value in between), last]
        if len(set(values)) < len(values):
            allowed = f"must give different values: of four significant digits, these are {len(set(values)):,}"
            self.wrong((*path, "count"), count, allowed)
            return [1.0]
        return values

    def unknown(
        self, path: tuple[str, ...], entries: Mapping[str, Any], known: Sequence[str], what: str = "key"
    ) -> None:
        """Note the keys of an inline table that there are not."""
        for place, name in enumerate(name for name in entries if name not in known):
            self.problem((*path, name), f": unknown {what}{nearest(name, known) if place < MOST_PROBLEMS else ''}")

    def length(self, path: tuple[str, ...], entries: Mapping[str, Any]) -> LognormalLen | None:
        before = len(self.problems)
        self.unknown(path, entries, list(_LENGTH_KEYS))
        missing = [name for name in _LENGTH_KEYS if name not in entries]
        if missing and len(self.problems) == before:
            self.wrong(path, dict(entries), f"{' and '.join(missing)} must be given")
        read = {
            name: self.scalar((*path, name), entries[name], key)
            for name, key in _LENGTH_KEYS.items()
            if name in entries
        }
        if len(self.problems) > before:
            return None
        if read["lo"] > read["hi"]:
            self.wrong((*path, "lo"), read["lo"], f"must be at most hi = {read['hi']}")
            return None
        return LognormalLen(**read)

    def columns(self, path: tuple[str, ...], entries: Any) -> dict[str, str]:
        if not isinstance(entries, Mapping) or not entries:
            self.wrong(path, entries, "must be a table of the file's names for its columns")
            return {}
        self.unknown(path, entries, TRACE_COLUMNS, "column")
        for name in [name for name in TRACE_COLUMNS if name in entries]:
            if not isinstance(entries[name], str) or not entries[name]:
                self.wrong((*path, name), entries[name], "must be a string that is not empty")
        return dict(entries)

    def across(self, read: dict[str, Any], tables: dict[str, Any]) -> None:
        """Checks that look at several keys at once."""
        workload, scheduler, slo = read["workload"], read["scheduler"], read["slo"]
        if workload.kind in ("synthetic", "shared_prefix") and self.sound("workload", "kind"):
            for name in ("prompt", "output", *["prefix_tokens"] * (workload.kind == "shared_prefix")):
                if getattr(workload, name) in (None, (None,)) and self.sound("workload", name):
                    self.problem(("workload", name), f' is missing: kind = "{workload.kind}" needs a length for it')
        if workload.kind == "trace" and self.sound("workload", "path"):
            if workload.path is None:
                self.problem(("workload", "path"), ' is missing: kind = "trace" needs a file, here or by --trace')
            elif (reason := _no_file(workload.path)) is not None:
                self.wrong(("workload", "path"), str(workload.path), reason)
        if workload.kind == "trace" and self.sound("workload", "start_s", "end_s", "spread_s"):
            if workload.spread_s is None and "seed" in tables["workload"]:
                self.wrong(
                    ("workload", "seed"), tables["workload"]["seed"], "has no effect without spread_s: remove it"
                )
            if None not in (workload.start_s, workload.end_s) and workload.start_s >= workload.end_s:
                self.wrong(("workload", "end_s"), workload.end_s, f"must be above start_s = {workload.start_s:g}")
        if self.sound("system", "kind") and self.sound("scheduler", "policy", "memory"):
            for key, values, message in clashes(read["system"], scheduler):
                self.wrong(("scheduler", key), values[0] if len(values) == 1 else values, message)
        self.degrees(read)
        if not unmet(read, "scheduler", "token_budget") and self.sound("scheduler", "token_budget", "max_running"):
            budget, running = min(scheduler.token_budget), max(scheduler.max_running)
            if budget < running:
                allowed = f"must be at least max_running = {running}, a token for each running request"
                self.wrong(("scheduler", "token_budget"), budget, allowed)
        for key, selection in vars(read["output"]).items():
            try:
                check_columns(selection or "all")
            except ValueError as error:
                self.problem(("output", key), f" = {error}")
        if self.sound("slo", "warmup", "cooldown") and slo.warmup + slo.cooldown >= 1:
            self.wrong(("slo", "warmup"), slo.warmup, f"must leave requests: below 1 with cooldown = {slo.cooldown:g}")

    def degrees(self, read: Mapping[str, Any]) -> None:
        """Degrees of tensor and pipeline parallelism that no cell could have."""
        if not self.sound("instance", "model"):
            return
        models = [catalogue.model(name) for name in read["instance"].model]
        for table in ("instance", *ROLE_TABLES):
            for key in ("tp", "pp"):
                held = [n for n in getattr(read[table], key) if n is not None]
                if not models or not self.sound(table, key) or unmet(read, table, key):
                    continue
                wrong = impossible_degrees(models, key, held)
                for n, must in itertools.islice(wrong.items(), MOST_VALUES):
                    self.wrong((table, key), n, must)
                if len(wrong) > MOST_VALUES:
                    self.problem((table, key), f": {len(wrong) - MOST_VALUES:,} more of its values are wrong")


def _no_file(path: Path) -> str | None:
    """Why there is no file to read at a path; None where there is one."""
    try:
        if path.is_dir():
            return "is a directory: must be a file"
        return None if path.is_file() else "is no regular file" if path.exists() else "no such file"
    except OSError as error:  # a name that is too long, or a folder that must not be searched
        return f"cannot be read: {error.strerror}"


def _format_limits(key: Key) -> str:
    """The numbers that a key allows, in words."""
    kind = "an integer" if key.kind is int or key.kind is LognormalLen else "a finite number"
    limits = [
        f"{words} {limit}" if isinstance(limit, int) else f"{words} {limit:g}"
        for words, limit in (
            ("of at least", key.lowest),
            ("above", key.above),
            ("at most", key.highest if key.kind is float else None),  # of counts it is far off, and told when met
            ("below", key.below),
        )
        if limit is not None
    ]
    other = ", or a table of mean, sigma, lo and hi" if key.kind is LognormalLen else ""
    if key.names is not None:
        other = f" or {', '.join(map(shown_as_toml, key.names))}"
    return f"{kind} {' and '.join(limits)}".strip() + other


def _nearest_key(name: str, known: Sequence[str], place: int) -> tuple[tuple[str, ...], str]:
    """What a key that is unknown may have been meant for, in this table or another, and `nearest` for it.

    Of the first few, as it takes a while.
    """
    if place >= MOST_PROBLEMS:
        return (), ""
    name = clipped(name, 100)
    keys = {key: table for table, keys in TABLES.items() for key in key_names(keys)}
    close = difflib.get_close_matches(name, keys, n=1, cutoff=0.75)
    meant, words = closest(name, known)
    if close and likeness(close[0], name) > (0 if meant is None else likeness(meant, name)):
        return (keys[close[0]], close[0]), f'; did you mean "{close[0]}" in [{keys[close[0]]}]?'
    return (() if meant is None else (meant,)), words
