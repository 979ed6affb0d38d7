"""How evenly the instances of a system work. Definitions are in docs/measures.md.

C systems, K instances of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .window import BoolArray, FloatArray, IntArray, ratio

if TYPE_CHECKING:
    from ..serving.run import InstanceFacts

ROLES = ("colocated", "prefill", "decode")  # of an instance
BALANCE = (
    *("requests_max_over_mean", "busy_max_over_mean"),  # of colocated instances
    *("prefill_requests_max_over_mean", "prefill_busy_max_over_mean", "prefill_utilization"),
    *("decode_requests_max_over_mean", "decode_busy_max_over_mean", "decode_utilization"),
)


def balance(facts: InstanceFacts | None, duration_s: FloatArray) -> dict[str, FloatArray]:
    """The measures `BALANCE` of every system [C], and their utilization; NaN for roles that a system does not have.

    Args:
        facts: their instances; None where nothing is known of them.
        duration_s: of each system, [C].
    """
    columns = {name: np.full(len(duration_s), np.nan) for name in ("utilization", *BALANCE)}
    if facts is None:
        return columns
    busy, requests = facts.busy_s / facts.lanes, facts.requests.astype(np.float64)
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


def prefills_only(facts: InstanceFacts | None, systems: int) -> BoolArray:
    """Which systems have prefill instances and no others: bool [C]."""
    if facts is None:
        return np.zeros(systems, dtype=np.bool_)
    prefill = facts.role == "prefill"
    count = np.bincount(facts.system, minlength=systems)
    flags: BoolArray = (count > 0) & (np.bincount(facts.system, prefill, systems) == count)
    return flags


def _utilization(system: IntArray, busy: FloatArray, here: BoolArray, duration_s: FloatArray) -> FloatArray:
    """Mean over some instances of their time inside steps (mean of their lanes) / duration_s."""
    # bincount adds one by one, in order: the sum of a system does not depend on the others.
    count = np.bincount(system[here], minlength=len(duration_s))
    return ratio(np.bincount(system[here], busy[here], len(duration_s)), count) / duration_s


def _max_over_mean(system: IntArray, values: FloatArray, here: BoolArray, systems: int) -> FloatArray:
    count = np.bincount(system[here], minlength=systems)
    sums = np.bincount(system[here], values[here], systems)
    most = np.zeros(systems)
    np.maximum.at(most, system[here], values[here])
    return ratio(most * count, sums)


def instance_columns(facts: InstanceFacts, system: int) -> dict[str, NDArray[Any]]:
    """The instances of one system, by column of the instances table; roles are places in `ROLES`."""
    rows = (facts.system == system).nonzero()[0]
    return {
        "role": np.array([ROLES.index(role) for role in facts.role[rows].tolist()], dtype=np.int8),
        **{name: getattr(facts, name)[rows] for name in ("instance", "requests", "lanes", "steps", "busy_s")},
    }
