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
    """What each of K instances did, by system, then role. A decode instance has a stream in each pipeline stage.

    Attributes
    ----------
    system
        int64 [K], place of its system.
    role
        str [K], "colocated", "prefill" or "decode".
    instance
        int64 [K], its number among those of its role.
    requests
        int64 [K], that it served.
    streams
        int64 [K], pp if it decodes only, else 1.
    steps
        int64 [K], of all its streams.
    busy_s
        float64 [K], seconds inside steps, summed over its streams; of a prefill instance until the next batch can
        start.
    """

    system: Ints
    role: npt.NDArray[np.str_]
    instance: Ints
    requests: Ints
    streams: Ints
    steps: Ints
    busy_s: Floats

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
