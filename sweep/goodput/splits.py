"""The arithmetic of splitting GPUs between prefill and decode instances, from what one instance of each can take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..experiment.tables import ConfigError


@dataclass(frozen=True)
class Parallelism:
    """One instance of a role.

    Attributes
    ----------
    tp, pp
        Its degrees.
    rate_rps
        Requests/s that it can take on its own.
    """

    tp: int
    pp: int
    rate_rps: float

    @property
    def n_gpus(self) -> int:
        """GPUs of the instance."""
        return self.tp * self.pp


@dataclass(frozen=True)
class Split:
    """A disaggregated system, as far as its roles on their own tell what it can take.

    Attributes
    ----------
    n_prefill, n_decode
        Numbers of instances.
    prefill, decode
        One instance of each role.
    """

    n_prefill: int
    prefill: Parallelism
    n_decode: int
    decode: Parallelism

    @property
    def n_gpus(self) -> int:
        """GPUs of all instances."""
        return self.n_prefill * self.prefill.n_gpus + self.n_decode * self.decode.n_gpus

    @property
    def predicted_rps(self) -> float:
        """What the narrower of the two roles can take, requests/s."""
        return min(self.n_prefill * self.prefill.rate_rps, self.n_decode * self.decode.rate_rps)

    def layout(self) -> dict[str, Any]:
        """The columns of the goodput table that say which system it is."""
        return {
            "system": "disaggregated",
            **{"n_prefill": self.n_prefill, "prefill_tp": self.prefill.tp, "prefill_pp": self.prefill.pp},
            **{"n_decode": self.n_decode, "decode_tp": self.decode.tp, "decode_pp": self.decode.pp},
        }


def best_split(n_gpus: int, prefill: Parallelism, decode: Parallelism) -> Split | None:
    """The numbers of instances that fit `n_gpus` and take the most requests/s, then the fewest GPUs; None: none fits.

    >>> split = best_split(8, Parallelism(2, 1, 3.0), Parallelism(4, 1, 7.0))
    >>> split.n_prefill, split.n_decode, split.predicted_rps
    (2, 1, 6.0)
    """
    n_prefill = np.arange(1, (n_gpus - decode.n_gpus) // prefill.n_gpus + 1)
    if not n_prefill.size:
        return None
    room = (n_gpus - n_prefill * prefill.n_gpus) // decode.n_gpus
    taken = n_prefill * prefill.rate_rps
    # The fewest decode instances that take what the prefill instances do, rounding put right, or all that fit.
    enough = np.ceil(np.minimum(taken / decode.rate_rps, room)).astype(np.int64)
    enough -= (enough - 1) * decode.rate_rps >= taken
    enough += enough * decode.rate_rps < taken
    n_decode = np.clip(enough, 1, room)
    rate = np.minimum(taken, n_decode * decode.rate_rps)
    gpus = n_prefill * prefill.n_gpus + n_decode * decode.n_gpus
    best = np.lexsort((gpus, -rate))[0]
    return Split(int(n_prefill[best]), prefill, int(n_decode[best]), decode)


def choose_split(n_gpus: int, prefills: Sequence[Parallelism], decodes: Sequence[Parallelism]) -> Split:
    """The best split of the best pair of parallelisms that fits; ConfigError where no pair does.

    Pairs are ordered by the requests/s per GPU of a system with so many instances that its roles are balanced,
    1 / (gpus_p / r_p + gpus_d / r_d), then by GPUs: the first has the best parallelism of each role.
    """

    def order(pair: tuple[Parallelism, Parallelism]) -> tuple[float, int]:
        return sum(one.n_gpus / one.rate_rps for one in pair), sum(one.n_gpus for one in pair)

    for prefill, decode in sorted(itertools.product(prefills, decodes), key=order):
        split = best_split(n_gpus, prefill, decode)
        if split is not None:
            return split
    least = [min(one.n_gpus for one in role) for role in (prefills, decodes)]
    smallest = f"the smallest that meet their SLO, a prefill instance of {least[0]} and a decode instance of {least[1]}"
    raise ConfigError([f"n_gpus = {n_gpus}: no pair of instances fits: must be at least {sum(least)}, for {smallest}"])


def balanced_split(n_gpus: int, prefills: Sequence[Parallelism], decodes: Sequence[Parallelism]) -> Split:
    """What the same arithmetic makes of all pairs: it may pass over the best instances for the sake of the split."""
    splits = [best_split(n_gpus, *pair) for pair in itertools.product(prefills, decodes)]
    fitting = [split for split in splits if split is not None]
    return max(fitting, key=lambda split: (split.predicted_rps, -split.n_gpus))
