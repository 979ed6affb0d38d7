"""Values and tables as TOML writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def format_toml(tables: Mapping[str, Any]) -> str:
    """An experiment as TOML: plain tables, as `Experiment.tables` gives them."""
    lines = [f"{key} = {format_value(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {format_value(value)}" for key, value in table.items())]
    return "\n".join(lines).strip() + "\n"


def format_value(value: Any) -> str:
    """A value; "nothing" for None, which TOML has no word for."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a string is written alike
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_format_key(key)} = {format_value(item)}" for key, item in value.items()) + " }"
    return "nothing" if value is None else str(value)


def _format_key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return key if bare else json.dumps(key, ensure_ascii=False)
