"""The points of tables counted without building them: what a dry run and the limit on cells go by.

A product of axes in which a key can lack effect is no plain product of lengths. So axes are walked one by one, and
points that are alike are kept as one with their number. Alike are points with the same values of the keys that somebody
wants to tell apart, and with the same answers to what other keys need.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .keys import key_of

EVERY = 2**63
"""Of the values of an axis: each is told apart, however many there are."""

Test = Callable[[Any], bool]
Point = dict[str, Any]  # values by key


class Alike(NamedTuple):
    """Points that are alike: one of them, and how many there are."""

    point: Point
    number: int


@dataclass(frozen=True)
class Axis:
    """A key and its values.

    met    whether it has an effect at a point of the keys before it; None: everywhere. Without effect it is None there
    tests  what later keys ask about it
    """

    name: str
    values: Sequence[Any]
    met: Callable[[Mapping[str, Any]], bool] | None = None
    tests: tuple[Test, ...] = ()

    def kinds(self, most: int | None) -> list[tuple[Any, int]]:
        """Values that stand for others, each with the number of those: about `most`, or None: as few as can be."""
        if most is not None and len(self.values) <= most:
            return [(value, 1) for value in self.values]
        by_answers: dict[tuple[bool, ...], list[Any]] = {}
        for value in self.values:
            by_answers.setdefault(tuple(test(value) for test in self.tests), []).append(value)
        kinds = []
        for values in by_answers.values():
            parts = 1 if most is None else max(1, most * len(values) // len(self.values))
            ends = [len(values) * place // parts for place in range(parts + 1)]
            kinds += [(values[begin], end - begin) for begin, end in itertools.pairwise(ends)]
        return kinds


def axes_of(table: Any, given: Mapping[str, Any] | None = None, skip: Collection[str] = ()) -> list[Axis]:
    """The axes of a table, as `specs.points` multiplies them.

    given  values of keys of other tables, by "table.key"
    skip   keys that multiply nothing
    """
    elsewhere = {} if given is None else dict(given)
    tests: dict[str, list[Test]] = defaultdict(list)
    for name in vars(table):
        needs = key_of(type(table), name).needs
        for condition in (condition for way in needs.ways for condition in way) if needs else ():
            tests[condition.key].append(condition.test)
    axes = []
    for name, held in vars(table).items():
        key = key_of(type(table), name)
        met = None if key.needs is None else _met(key.needs.met, elsewhere)
        if name not in skip:
            axes.append(Axis(name, held if key.axis else (held,), met, tuple(tests[name])))
    return axes


def alike(axes: Sequence[Axis], tell_apart: Mapping[str, int]) -> Iterator[Alike]:
    """The points of a product of axes, those that are alike as one, in the order of the axes.

    tell_apart  keys whose values are told apart; of the values of a longer axis so many stand for all
    """
    kinds = [axis.kinds(tell_apart.get(axis.name)) for axis in axes]
    point: Point = {}

    def walk(place: int, number: int) -> Iterator[Alike]:
        if place == len(axes):
            yield Alike(dict(point), number)
            return
        axis = axes[place]
        for value, n in kinds[place] if axis.met is None or axis.met(point) else [(None, 1)]:
            point[axis.name] = value
            yield from walk(place + 1, number * n)
        point.pop(axis.name, None)

    return walk(0, 1)


def _met(met: Callable[[Mapping[str, Any]], bool], given: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda point: met({**given, **point})
