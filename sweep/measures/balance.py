"""How evenly the instances of a system work. Definitions are in docs/measures.md.

C systems, K instances of all of them.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Bools, Floats, Ints
from .instances import ROLES, InstanceFacts
from .window import ratio

BALANCE = (
    *("requests_max_over_mean", "busy_max_over_mean"),  # of colocated instances
    *("prefill_requests_max_over_mean", "prefill_busy_max_over_mean", "prefill_utilization"),
    *("decode_requests_max_over_mean", "decode_busy_max_over_mean", "decode_utilization"),
)


def balance_measures(facts: InstanceFacts | None, duration_s: Floats) -> dict[str, Floats]:
    """The measures `BALANCE` of every system [C], and their utilization; NaN for roles that a system does not have.

    Parameters
    ----------
    facts
        Their instances; None where nothing is known of them.
    duration_s
        Of each system, [C].
    """
    columns = {name: np.full(len(duration_s), np.nan) for name in ("utilization", *BALANCE)}
    if facts is None:
        return columns
    busy, requests = facts.busy_s / facts.streams, facts.requests.astype(np.float64)
    everybody = np.ones(len(facts.role), dtype=np.bool_)
    columns["utilization"] = _utilization(facts.system, busy, everybody, duration_s)
    for name in ROLES:
        here = facts.role == name
        prefix = "" if name == "colocated" else f"{name}_"
        columns[f"{prefix}requests_max_over_mean"] = _max_over_mean(facts.system, requests, here, len(duration_s))
        columns[f"{prefix}busy_max_over_mean"] = _max_over_mean(facts.system, busy, here, len(duration_s))
        if prefix:
            columns[f"{prefix}utilization"] = _utilization(facts.system, busy, here, duration_s)
    return columns


def prefills_only(facts: InstanceFacts | None, systems: int) -> Bools:
    """Which systems have prefill instances and no others: bool [C]."""
    if facts is None:
        return np.zeros(systems, dtype=np.bool_)
    prefill = facts.role == "prefill"
    count = np.bincount(facts.system, minlength=systems)
    flags: Bools = (count > 0) & (np.bincount(facts.system, prefill, systems) == count)
    return flags


def _utilization(system: Ints, busy: Floats, here: Bools, duration_s: Floats) -> Floats:
    """Mean over some instances of their time inside steps (mean of their streams) / duration_s."""
    # bincount adds one by one, in order: the sum of a system does not depend on the others.
    count = np.bincount(system[here], minlength=len(duration_s))
    return ratio(np.bincount(system[here], busy[here], len(duration_s)), count) / duration_s


def _max_over_mean(system: Ints, values: Floats, here: Bools, systems: int) -> Floats:
    count = np.bincount(system[here], minlength=systems)
    sums = np.bincount(system[here], values[here], systems)
    most = np.zeros(systems)
    np.maximum.at(most, system[here], values[here])
    return ratio(most * count, sums)
