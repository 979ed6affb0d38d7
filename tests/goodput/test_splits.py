"""The arithmetic of splits against trying them all."""

import random

import pytest
from servesweep.experiment.tables import ConfigError
from servesweep.goodput.placement import find_placement
from servesweep.goodput.placement_plans import MAX_GPUS
from servesweep.goodput.splits import Parallelism, Split, best_split
from system_plans import tables


def tried(n_gpus, prefill, decode):
    splits = [
        Split(n_prefill, prefill, n_decode, decode)
        for n_prefill in range(1, n_gpus // prefill.n_gpus + 1)
        for n_decode in range(1, (n_gpus - n_prefill * prefill.n_gpus) // decode.n_gpus + 1)
    ]
    return max(splits, key=lambda split: (split.predicted_rps, -split.n_gpus), default=None)


def test_the_best_split_is_that_of_trying_all():
    """With rates whose multiples are often equal, or nearly."""
    rng = random.Random(0)

    def parallelism():
        rate = rng.choice([rng.random() * 10, rng.randint(1, 9), rng.randint(1, 30) / 10, 1e-9, 1e9])
        return Parallelism(rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 2]), rate)

    for _ in range(2000):
        case = rng.randint(2, 40), parallelism(), parallelism()
        assert best_split(*case) == tried(*case), case


def test_a_split_of_very_many_gpus():
    split = best_split(MAX_GPUS, Parallelism(1, 1, 3.0), Parallelism(1, 1, 7.0))
    assert (split.n_prefill, split.n_decode) == (70_000, 30_000)


@pytest.mark.parametrize(
    "n_gpus", [10**9, MAX_GPUS + 1, 10**5000, [2] * 10**5], ids=["1e9", "one more", "1e5000", "list"]
)
def test_numbers_of_gpus_that_are_none(n_gpus):
    config = tables(slo={"ttft_ms": 100, "tpot_ms": 10})
    with pytest.raises(ConfigError, match=r"n_gpus = .{1,100}: must be one number of at least 2 and at most 100000"):
        find_placement(config, n_gpus=n_gpus, progress=False)
