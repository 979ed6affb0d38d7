"""Sets of small numbers, one a lane, of which the smallest is found at once.

A set is a row of 64-bit words: a bit for each number, then a bit for each word of these that has one, and so on up to a
single word. To put in, take out or find costs a few calls whatever the numbers, 64 times as many for one level more.
"""

from __future__ import annotations

import numpy as np

from .arrays import Ints, Words

_SIX = np.array(6)
_LOW = np.array(63)
_ONE = np.array(1, np.uint64)


class Levels:
    """How the words of a set of numbers below `size` lie in a row."""

    def __init__(self, size: int) -> None:
        self.begins: list[int] = []
        self.words = 0
        while not self.begins or size > 1:
            self.begins.append(self.words)
            size = max(-(-size // 64), 1)
            self.words += size

    def empty(self, lanes: int) -> Words:
        """Empty sets, [lanes, words]."""
        return np.zeros((lanes, self.words), np.uint64)

    def put(self, sets: Words, lanes: Ints, numbers: Ints) -> None:
        """Put numbers into the sets of `lanes`, several of a lane too. Both [n]."""
        flat, row = sets.ravel(), lanes * self.words
        for begin in self.begins:
            bit = _ONE << (numbers & _LOW).astype(np.uint64)
            numbers = numbers >> _SIX
            np.bitwise_or.at(flat, row + (begin + numbers), bit)

    def take(self, sets: Words, lanes: Ints, numbers: Ints) -> None:
        """Take a number out of the set of each of `lanes`, which are different ones. Both [n]."""
        flat, row = sets.ravel(), lanes * self.words
        for begin in self.begins:
            bit = _ONE << (numbers & _LOW).astype(np.uint64)
            numbers = numbers >> _SIX
            place = row + (begin + numbers)
            left = flat[place] & ~bit
            flat[place] = left
            empty = (left == 0).nonzero()[0]
            if not empty.size:
                return
            row, numbers = row[empty], numbers[empty]

    def smallest(self, sets: Words, lanes: Ints) -> Ints:
        """The smallest number in the set of each of `lanes`; of no meaning if there is none. [n]"""
        flat, row = sets.ravel(), lanes * self.words
        number = np.zeros(lanes.size, np.int64)
        for begin in reversed(self.begins):
            word = flat[row + (begin + number)]
            lowest = np.bitwise_count((word & (~word + _ONE)) - _ONE).astype(np.int64)
            number = (number << _SIX) + lowest
        return number
