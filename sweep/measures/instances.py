"""What each instance of some systems did. K instances of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Ints

ROLES = ("colocated", "prefill", "decode")  # of an instance
_COLUMNS = ("instance", "requests", "streams", "steps", "busy_s")


@dataclass
class InstanceFacts:
    """One entry an instance, [K], by system, then role."""

    system: Ints  # place of its system
    role: npt.NDArray[np.str_]  # colocated, prefill or decode
    instance: Ints
    requests: Ints  # that it served
    streams: Ints  # of which it has pp if it decodes only, else 1
    steps: Ints  # of all its streams
    busy_s: Floats  # seconds inside steps, summed over its streams; prefill: until the next batch can start

    def of(self, system: int) -> InstanceFacts:
        """The instances of one system, as those of the only one."""
        rows = (self.system == system).nonzero()[0]
        return InstanceFacts(
            np.zeros(rows.size, np.int64), self.role[rows], *(getattr(self, name)[rows] for name in _COLUMNS)
        )


def instance_columns(facts: InstanceFacts, system: int) -> dict[str, npt.NDArray[Any]]:
    """The instances of one system, by column of the instances table; roles are places in `ROLES`."""
    rows = (facts.system == system).nonzero()[0]
    return {
        "role": np.array([ROLES.index(role) for role in facts.role[rows].tolist()], dtype=np.int8),
        **{name: getattr(facts, name)[rows] for name in _COLUMNS},
    }
