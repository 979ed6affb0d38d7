"""A benchmark of a real server, request by request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..arrays import Floats
from ..workloads.workload import Workload


@dataclass(frozen=True)
class MeasuredRun:
    """When the requests of a benchmark were sent and answered, in the order of arrival; the clock starts at 0. N
    requests.

    Attributes
    ----------
    name
        Of the file, and of the run in it where it holds several.
    format
        What the file is.
    arrival_s
        float64 [N], seconds.
    prompt_tokens, output_tokens
        int64 [N].
    first_token_s, finish_s
        float64 [N], seconds on the same clock.
    skipped
        Requests of the file that failed, were cancelled or got no token: left out, also from the load.
    """

    name: str
    format: str
    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    first_token_s: npt.NDArray[np.float64]
    finish_s: npt.NDArray[np.float64]
    skipped: int = field(default=0)

    def __len__(self) -> int:
        return self.arrival_s.size

    @property
    def workload(self) -> Workload:
        """Its requests, to be simulated."""
        return Workload(self.arrival_s, self.prompt_tokens, self.output_tokens, name=self.name)

    def latencies(self, first_token_s: Floats, finish_s: Floats) -> Floats:
        """TTFT, TPOT and e2e latency of its requests with these times; TPOT is NaN with one token. [..., 3, N]"""
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = (finish_s - first_token_s) / np.where(self.output_tokens > 1, self.output_tokens - 1.0, np.nan)
        found: Floats = np.stack([first_token_s - self.arrival_s, tpot, finish_s - self.arrival_s], axis=-2)
        return found

    @property
    def measured(self) -> Floats:
        """Measured TTFT, TPOT and e2e latency, seconds. [3, N]"""
        return self.latencies(self.first_token_s, self.finish_s)
