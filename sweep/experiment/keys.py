"""What a key of an experiment may hold, and when it has an effect. The keys are in `config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Condition:
    """A value of another key must satisfy `test` (in words: `words`).

    key  of the same table, or "table.key"
    """

    key: str
    test: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Needs:
    """What other keys must hold: one of several ways, each of which is a number of conditions that all hold."""

    ways: tuple[tuple[Condition, ...], ...]

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.ways + other.ways)

    def __and__(self, other: Needs) -> Needs:
        return Needs(tuple(one + two for one in self.ways for two in other.ways))

    def met(self, point: Mapping[str, Any]) -> bool:
        """Whether single values, by key as `Condition` names them, meet this; a key without effect is None."""
        return any(all(condition.test(point.get(condition.key)) for condition in way) for way in self.ways)


ANYWHERE = Needs(((),))
"""Nothing is needed."""


def needs(key: str, *values: str) -> Needs:
    """The key holds one of these values."""
    words = " or ".join(f'{key} = "{value}"' for value in values)
    return Needs(((Condition(key, lambda value: value in values, words),),))


def above_one(key: str) -> Needs:
    """The key holds a number above 1."""
    return Needs(((Condition(key, lambda value: value is not None and value > 1, f"{key} above 1"),),))


def left_out(key: str) -> Needs:
    """The key is not given."""
    return Needs(((Condition(key, lambda value: value is None, f"leaving out {key}"),),))


@dataclass(frozen=True)
class Key:
    """What a key may hold.

    kind      int, float or str; LognormalLen for a length: an integer, or a table of mean, sigma, lo, hi; dict for the
              names of a trace's columns
    axis      a list of values is allowed, and multiplies the cells
    lowest, highest    limits that are allowed themselves;  above, below    limits that are not
    names     for strings: the names that there are; for numbers: names allowed beside them
    lookup    for strings: finds what a name stands for, or raises ValueError
    needs     the key has an effect only where this is met
    ranged    {from, to, count, spacing} stands for a list
    """

    kind: type
    axis: bool = True
    lowest: float | None = None
    highest: float | None = None
    above: float | None = None
    below: float | None = None
    names: tuple[str, ...] | None = None
    lookup: Callable[[str], object] | None = None
    needs: Needs | None = None
    ranged: bool = False


def as_key(kind: type, **limits: Any) -> dict[str, Key]:
    """The metadata of the field of a key."""
    return {"key": Key(kind, **limits)}


def key_of(table: type, name: str) -> Key:
    """The `Key` of one field of a table."""
    key: Key = next(f for f in fields(table) if f.name == name).metadata["key"]
    return key


def key_names(table: type) -> list[str]:
    """Keys of a table, in the order in which their axes multiply."""
    return [f.name for f in fields(table)]


def column_of(table: str, key: str) -> str:
    """The column of the cells table that holds a key."""
    if (table, key) == ("system", "kind"):
        return "system"
    role, _, rest = table.partition("_")
    return f"{role}_{key}" if rest == "instance" else key.replace("_ms", "_slo_s")


def in_use(tables: Mapping[str, Any], table: str, name: str) -> bool:
    """Whether a key has an effect at all, given the values of the keys that it depends on.

    tables  the tables of an experiment by name
    """
    return not unmet(tables, table, name)


def unmet(tables: Mapping[str, Any], table: str, name: str) -> str:
    """In words what a key lacks to have an effect; empty where it has one."""
    condition = key_of(type(tables[table]), name).needs
    if condition is None:
        return ""
    lacking = [[words for c in way if (words := _lacking(tables, table, c))] for way in condition.ways]
    shortest = min(map(len, lacking))
    if not shortest:
        return ""
    return " or ".join(dict.fromkeys(" and ".join(dict.fromkeys(way)) for way in lacking if len(way) == shortest))


def deciders(types: Mapping[str, type], table: str, name: str) -> set[tuple[str, str]]:
    """Tables and keys on which the effect of a key depends."""
    condition = key_of(types[table], name).needs
    direct = {_path(table, part.key) for way in condition.ways for part in way} if condition else set()
    return direct.union(*(deciders(types, *path) for path in direct))


def _path(table: str, key: str) -> tuple[str, str]:
    """Table and key of a condition of a key of `table`."""
    other, dot, name = key.partition(".")
    return (other, name) if dot else (table, key)


def _lacking(tables: Mapping[str, Any], table: str, condition: Condition) -> str:
    where = _path(table, condition.key)
    held = getattr(tables[where[0]], where[1])
    values = held if isinstance(held, tuple) else (held,)
    words = unmet(tables, *where)
    if words:
        return "" if condition.test(None) else words
    return "" if any(map(condition.test, values)) else condition.words
