"""Profiles: step times as TOML files that can be shared, and whatever file step times come from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from .. import checks
from ..hardware import catalogue
from ..hardware.measured import MeasuredSteps, WorstStep
from ..hardware.operators import CONSTANTS, OperatorStepModel
from ..hardware.parts import Chip, Model
from ..hardware.profile import TableStepTimes
from ..messages import listed, meant, shown
from ..tables.atomic_write import write_whole
from ..workloads.trace_source import shown_path
from .columns import open_file
from .measured_steps import measured_step_times

KINDS = ("tables", "operators")
_NUMBERS = ("context_s", "mixed_context_s", "pair_s", "done_s", "prefill_s", "overhead_s")
_TABLES = ("kind", "about", "n_gpus", "first_token_s", "tokens_s", "emitting_s", *_NUMBERS, "measured")
_SHAPE = ("tp", "pp", "weight_bytes", "kv_bytes", "mem_reserve", "head_bytes", "compute_bytes")
_OPERATORS = ("kind", "about", "model", "chip", *_SHAPE, "constants", "first_token_s")


@checks.spelt_out
def save_step_times(steps: TableStepTimes | OperatorStepModel, path: str | PathLike[str], *, about: str = "") -> Path:
    """Write step times as a profile, a TOML file that `load_step_times` and experiments read.

    Parameters
    ----------
    steps
        TableStepTimes, or an OperatorStepModel with constants of its own.
    path
        The file; one that is there is replaced.
    about
        A line about where they come from, kept in the file.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        For other kinds of step times.
    """
    path = checks.path("path", path)
    if not isinstance(about, str):
        raise ValueError(f"about={shown(about)}: must be a string")
    if not isinstance(steps, TableStepTimes | OperatorStepModel):
        raise ValueError(f"steps={shown(steps)}: must be TableStepTimes or an OperatorStepModel")
    text = profile_text(steps, about)
    write_whole(path, lambda file: file.write(text.encode()))
    return path


def profile_text(steps: TableStepTimes | OperatorStepModel, about: str = "") -> str:
    """A profile as TOML."""
    lines = ['# Step times of servesweep: step_times = "this file" in [instance], or load_step_times().']
    if isinstance(steps, TableStepTimes):
        lines += [f"# content id {steps.content_id}", 'kind = "tables"', f"about = {_toml(about)}"]
        lines += [f"n_gpus = {steps.n_gpus}", f"first_token_s = {_toml(steps.first_token_s)}"]
        lines += [f"tokens_s = {_knots(steps.tokens_s)}"]
        lines += [f"emitting_s = {_knots(steps.emitting_s)}"]
        lines += [f"{name} = {_toml(getattr(steps, name))}" for name in _NUMBERS]
        if steps.measured is not None:
            lines += ["", "[measured]"]
            known = {field.name: getattr(steps.measured, field.name) for field in fields(steps.measured)}
            worst = known.pop("worst")
            lines += [f"{name} = {_toml(value)}" for name, value in known.items()]
            lines += [f"worst = [{', '.join(f'[{_list(one)}]' for one in worst)}]"]
        return "\n".join(lines) + "\n"
    lines += ['kind = "operators"', f"about = {_toml(about)}"]
    lines += [f"{name} = {_part(getattr(steps, name))}" for name in ("model", "chip")]
    shape = {name: getattr(steps, name) for name in (*_SHAPE, "first_token_s")}
    lines += [f"{name} = {_toml(value)}" for name, value in shape.items() if value is not None]
    lines += ["", "[constants]"]
    lines += [f"{name} = {_toml(value)}" for name, value in given_constants(steps).items()]
    return "\n".join(lines) + "\n"


def given_constants(steps: OperatorStepModel) -> dict[str, float]:
    """Constants that were given to it, and are not those of its chip."""
    return {name: getattr(steps, name) for name in CONSTANTS if getattr(steps, name) is not None}


@checks.spelt_out
def load_step_times(path: str | PathLike[str]) -> TableStepTimes | OperatorStepModel:
    """The step times of a profile that `save_step_times` wrote, or `servesweep steps` and `servesweep calibrate`.

    Parameters
    ----------
    path
        The TOML file.

    Returns
    -------
    TableStepTimes or OperatorStepModel
        As they were saved.

    Raises
    ------
    ValueError
        For what is no profile, with the file and the key.
    """
    path = checks.path("path", path)
    where = shown_path(path)
    entry = _read(path)
    try:
        kind = checks.one_of("kind", entry.get("kind"), KINDS)
        known = _TABLES if kind == "tables" else _OPERATORS
        for name in entry:
            if name not in known:
                raise ValueError(f"{name}: is unknown{meant(name, known)}; known: {listed(known, 40)}")
        return _tables(entry) if kind == "tables" else _operators(entry)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{where}: {error}") from None


@checks.spelt_out
def step_times_from(path: str | PathLike[str]) -> TableStepTimes | OperatorStepModel:
    """The step times of a file, whatever it is: a profile (TOML), or whole steps that were measured (CSV).

    Parameters
    ----------
    path
        A file for `load_step_times` where its name ends with ".toml", otherwise one for `measured_step_times`.

    Returns
    -------
    TableStepTimes or OperatorStepModel
        Whatever the file holds.

    Raises
    ------
    ValueError
        For what the function of its kind refuses.
    """
    path = checks.path("path", path)
    return load_step_times(path) if path.suffix.lower() == ".toml" else measured_step_times(path)


def _read(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        text = file.read()
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{shown_path(path)}: is no TOML: {error}") from None


def _tables(entry: Mapping[str, Any]) -> TableStepTimes:
    if "tokens_s" not in entry:
        raise ValueError("tokens_s: is missing")
    numbers = {name: entry[name] for name in ("emitting_s", "n_gpus", "first_token_s", *_NUMBERS) if name in entry}
    measured = None
    if "measured" in entry:
        known = dict(_table("measured", entry["measured"]))
        worst = tuple(WorstStep(*one) for one in known.pop("worst", []))
        measured = MeasuredSteps(**known, worst=worst)
    return TableStepTimes(entry["tokens_s"], **numbers, measured=measured)


def _operators(entry: Mapping[str, Any]) -> OperatorStepModel:
    for name in ("model", "chip"):
        if name not in entry:
            raise ValueError(f"{name}: is missing")
    given, kinds = entry["model"], entry["chip"]
    model = Model(**given) if isinstance(given, dict) else catalogue.model(given)
    chip = Chip(**kinds) if isinstance(kinds, dict) else catalogue.chip(kinds)
    shape = {name: entry[name] for name in (*_SHAPE, "first_token_s") if name in entry}
    constants = _table("constants", entry.get("constants", {}))
    for name in constants:
        checks.one_of("constants", name, CONSTANTS)
    return OperatorStepModel(model, chip, **shape, **constants)


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}={shown(value)}: must be a table")
    return value


def _part(part: Model | Chip) -> str:
    """The name of a model or chip of the catalogue, or all about another."""
    known = catalogue.model_names() if isinstance(part, Model) else catalogue.chip_names()
    if part.name in known and part == (catalogue.model if isinstance(part, Model) else catalogue.chip)(part.name):
        return _toml(part.name)
    return "{ " + ", ".join(f"{field.name} = {_toml(getattr(part, field.name))}" for field in fields(part)) + " }"


def _knots(knots: Any) -> str:
    return f"[{', '.join(f'[{_list(knot)}]' for knot in knots)}]"


def _list(values: Any) -> str:
    return ", ".join(map(_toml, values))


def _toml(value: Any) -> str:
    """A value as TOML, from which the same one is read."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escapes = {'"': '\\"', "\\": "\\\\"}
        plain = (escapes.get(one, one if one.isprintable() else f"\\U{ord(one):08x}") for one in value)
        return f'"{"".join(plain)}"'
    return repr(value)
