"""Read an experiment: a TOML file, tables and settings in, a checked `Experiment` out."""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from .. import checks
from ..measures.slo import SLO, doubts_of_milliseconds
from ..messages import clipped, closest, listed, shown
from .checking import Checker, name_of_file
from .instance_tables import ROLE_TABLES
from .keys import key_names
from .step_files import is_file
from .tables import TABLES, ConfigError, Experiment, WorkloadTable
from .toml_lines import deep_nesting_line, key_lines, long_key_line, long_number_line

MAX_FILE_BYTES = 1_000_000  # of an experiment: a list of 100,000 numbers takes some 600,000
_PACKAGE = str(Path(__file__).parents[1])
_DEEPEST = 3  # tables in tables of an experiment


@checks.spelt_out
def load_experiment(
    config: str | Path | Mapping[str, Any] | Experiment,
    *,
    trace: str | Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
    requests: str | None = None,
    steps: str | None = None,
    instances: str | None = None,
    options: Mapping[str, tuple[Any, str]] | None = None,
) -> Experiment:
    """Read and check an experiment.

    Parameters
    ----------
    config
        A TOML file, the name of a ready experiment (`ready_experiments()`), tables as a dict, in which an `SLO` may
        stand for [slo], or an `Experiment`.
    trace
        A trace file that takes the place of the experiment's own workload; its request rates stay. None: its own.
    settings
        Values that replace those of single keys: a dict such as `{"policy": "mixed", "slo.ttft_ms": [200, 500]}`, in
        which None removes the key, or "key=value" texts, in which the value is TOML, a bare word is a string, and no
        value removes the key. Other keys of the experiment that lose their effect by it are left out. None: no such
        values.
    requests, steps, instances
        Take the place of the keys of [output]. None: those keys.
    options
        Further values that replace those of single keys, each with where it came from, for messages. None: no such
        values.

    Returns
    -------
    Experiment
        Checked: every value is one that its key allows.

    Raises
    ------
    ConfigError
        Lists everything that is wrong, each with file, line, key, value and what is allowed.

    Warns
    -----
    UserWarning
        For a limit of [slo] below 1 ms, probably meant in seconds.
    """
    if not isinstance(config, Experiment | Mapping | str | os.PathLike) or config == "":
        problem = "must be a TOML file, the name of a ready experiment, tables as a dict, or an Experiment"
        raise ConfigError([f"config={shown(config)}: {problem}"])
    if isinstance(config, Experiment):
        config = {**config.tables(), **_with_path(config)}
    if isinstance(config, Mapping):
        _check_keys(config)
        tables: dict[str, Any] = {key: _as_table(value) for key, value in config.items()}
        checker = Checker("config", {}, Path())
    else:
        file, text = _read(config)
        tables = _parsed(str(config), text)
        tables.setdefault("name", name_of_file(file.stem))
        checker = Checker(str(config), key_lines(text), file.parent)
    if trace is not None and isinstance(tables.setdefault("workload", {}), dict):
        tables["workload"] = _on_trace(tables["workload"], trace)
        checker.places["workload", "path"] = "--trace"
    settings = () if settings is None else settings
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            _set_key(checker, tables, str(key), value, f"settings: {key!r}", "settings")
    elif isinstance(settings, str) or not (
        isinstance(settings, Sequence) and all(isinstance(setting, str) for setting in settings)
    ):
        must = "must be a dict of keys and values, or a list of 'key=value' texts"
        raise ConfigError([f"settings={shown(settings)}: {must}"])
    else:
        for setting in settings:
            _apply_setting(checker, tables, setting)
    for key, selection in (("requests", requests), ("steps", steps), ("instances", instances)):
        if selection is not None and isinstance(tables.setdefault("output", {}), dict):
            tables["output"][key] = selection
            checker.places["output", key] = f"--{key}"
    for key, (value, place) in (options or {}).items():
        _set_key(checker, tables, key, value, f"{place} {value}", place)
    experiment = checker.experiment(tables)
    for doubt in doubts_of_milliseconds(vars(experiment.slo)):
        _warn(f"{experiment.source}: slo.{doubt}")
    return experiment


def _warn(text: str) -> None:
    """A warning that shows the line where somebody else called this package."""
    depth = 1
    while sys._getframe(depth).f_code.co_filename.startswith(_PACKAGE) and sys._getframe(depth).f_back:
        depth += 1
    warnings.warn(text, UserWarning, stacklevel=depth + 1)


def _as_table(value: Any) -> Any:
    """A copy of a table; of an SLO the table [slo] that says the same."""
    if isinstance(value, SLO):
        return {key: limit for key, limit in value.milliseconds().items() if limit is not None}
    return dict(value) if isinstance(value, Mapping) else value


def ready_experiments() -> list[str]:
    """Names of the experiments that come with the package."""
    files = [file for file in resources.files("servesweep.configs").iterdir() if file.name.endswith(".toml")]
    # The catalogue lies in the same folder; only an experiment has an instance.
    return sorted(f.name.removesuffix(".toml") for f in files if "\n[instance]" in f.read_text(encoding="utf-8"))


def _read(config: str | Path) -> tuple[Path, str]:
    """Path and text of a file, or of the ready experiment of that name."""
    file = Path(config)
    ready = ready_experiments()
    try:
        if str(config) in ready and not file.exists():
            file = Path(str(resources.files("servesweep.configs") / f"{config}.toml"))
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError([f"{config}: has more than {MAX_FILE_BYTES:,} bytes: is no experiment"])
        # A byte order mark, as some editors write; lines may end as on any system.
        return file, content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        close = difflib.get_close_matches(file.stem[:100], ready, n=1)
        hint = f' Did you mean "{close[0]}"?' if close else ""
        raise ConfigError([f"{config}: no such file or ready experiment.{hint} Ready: {listed(ready)}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{config}: not UTF-8 text: {error.reason} at byte {error.start}"]) from None
    except OSError as error:
        raise ConfigError([f"{config}: cannot be read: {error.strerror}"]) from None


def _check_keys(config: Mapping[Any, Any]) -> None:
    """ConfigError for a key that is no text, at the top, in a table, or in a table there."""
    tables = [config]
    for _ in range(_DEEPEST):
        for table in tables:
            for key in table:
                if not isinstance(key, str):
                    raise ConfigError([f"config: {shown(key)} is a key: keys must be texts"])
        inner = {id(value): value for table in tables for value in table.values() if isinstance(value, Mapping)}
        tables = list(inner.values())


def _parsed(source: str, text: str) -> dict[str, Any]:
    """The tables of a TOML text; ConfigError, with the line where it is known, for what is none."""
    if (line := long_key_line(text)) is not None:
        raise ConfigError([f"{source}:{line}: TOML syntax: a key of too many parts"])
    try:
        return tomllib.loads(text)
    except RecursionError:
        line, what = deep_nesting_line(text), "brackets are nested too deeply"
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax_problem(source, str(error))]) from None
    except ValueError:
        line, what = long_number_line(text), "a number of too many digits"
    raise ConfigError([f"{source}{'' if line is None else f':{line}'}: TOML syntax: {what}"])


def _syntax_problem(source: str, error: str) -> str:
    """tomllib's message with its line in front."""
    found = re.search(r" \(at line (\d+), column (\d+)\)$", error)
    if found is None:
        return f"{source}: TOML syntax: {error}"
    return f"{source}:{found[1]}: TOML syntax: {error[: found.start()]} at column {found[2]}"


def _on_trace(workload: Mapping[str, Any], trace: str | Path) -> dict[str, Any]:
    """A [workload] table moved to another trace: rates, sizes and seeds stay, what describes the old requests goes."""
    is_trace = workload.get("kind") == "trace"
    kept = {
        key: value
        for key, value in workload.items()
        if key not in key_names(WorkloadTable)  # misspelt keys are still reported
        or key in ("request_rate_rps", "n_requests")
        or (key in ("seed", "spread_s") and "spread_s" in workload)
        or (is_trace and key in ("columns", "start_s", "end_s", "on_bad"))
    }
    return {**kept, "kind": "trace", "path": str(checks.path("trace", trace).absolute())}


def _with_path(experiment: Experiment) -> dict[str, Any]:
    """The tables of an experiment that name files, with the full paths of these."""
    path, tables = experiment.workload.path, experiment.tables()
    found = {} if path is None else {"workload": {**tables["workload"], "path": str(path.absolute())}}
    for table in ("instance", *ROLE_TABLES):
        steps = getattr(experiment, table).step_times
        if any(step is not None and is_file(step) for step in steps) and "step_times" in tables.get(table, {}):
            full = [str(Path(step).absolute()) if is_file(step) else step for step in steps]
            found[table] = {**tables[table], "step_times": full}
    return found


def _apply_setting(checker: Checker, tables: dict[str, Any], setting: str) -> None:
    """Apply one "key=value"."""
    key, equals, text = (part.strip() for part in setting.partition("="))
    try:
        if long_key_line(text) is not None:
            raise ValueError("a key of too many parts")
        value = tomllib.loads(f"value = {text}")["value"] if text else None
    except (ValueError, RecursionError) as error:
        if text[0] in "[{\"'":  # meant as TOML; anything else is a bare word
            hint = "strings in a list or a table must be quoted, as in " + (
                '\'policy=["mixed", "chunked"]\'' if text[0] == "[" else "'columns={prompt_tokens = \"in\"}'"
            )
            why = "nested too deeply" if isinstance(error, RecursionError) else error
            checker.problems.append((0, f"--set {clipped(setting, 100)}: is not valid TOML ({why}): {hint}"))
            checker.meant(path := _path_of(key), path)
            return
        value = text
    _set_key(checker, tables, key if equals else "", value, f"--set {clipped(setting, 100)}", "--set")


def _path_of(key: str | None) -> tuple[str, ...]:
    """A key as table and key; the table may be left out."""
    path = () if key is None else tuple(key.split("."))
    if len(path) == 1 and key != "name":
        return next(((table, path[0]) for table, keys in TABLES.items() if path[0] in key_names(keys)), path)
    return path


def _set_key(checker: Checker, tables: dict[str, Any], key: str, value: Any, what: str, place: str) -> None:
    """Replace one key, which may leave out its table; None removes it."""
    path = _path_of(key)
    if len(path) > 2 or path[0] not in ("name", *TABLES) or (path[0] in TABLES and len(path) == 1):
        known = ["name", *(name for keys in TABLES.values() for name in key_names(keys))]
        wanted = path[-1] or what.removeprefix("--set ")
        meant, words = closest(wanted, known)
        must = "must be key=value with a known key" if place == "--set" else "must be a known key"
        checker.problems.append((0, f"{what}: {must}{words}"))
        checker.meant(path, _path_of(meant))
        return
    table = tables if len(path) == 1 else tables.setdefault(path[0], {})
    checker.places[path] = place
    if not isinstance(table, dict):  # reported when the table is read
        return
    if value is None:
        table.pop(path[-1], None)
    else:
        table[path[-1]] = value
