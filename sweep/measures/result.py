"""What one simulated run gives back: when every request got its first and last token, and the run's counters.

Letters: N requests, in the order of the workload.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from .. import checks
from ..arrays import Bools, Floats, Ints
from .columns import measures
from .instances import InstanceFacts
from .latencies import ITL, ROWS, SystemArrays, from_outside, tpot_s
from .slo import SLO, check_slo

if TYPE_CHECKING:
    import pandas as pd


@checks.spelt_out
class Result:
    """The outcome of one run; entry i of every array belongs to request i of the workload.

    Only the first five arrays are needed, so a result can also be built from measurements of a real server. They are
    attributes of the same names.

    Parameters
    ----------
    arrival_s
        float64 [N], seconds; the clock starts at 0.
    prompt_tokens, output_tokens
        int64 [N].
    first_token_s
        float64 [N], seconds: the end of the step that made the first token; NaN for a rejected request.
    finish_s
        float64 [N], seconds: the end of the step that made the last token; NaN for a request that did not finish
        (rejected, or a run that only prefills).
    kv_ready_s
        float64 [N], seconds: when the KV cache reached the decode instance; NaN where nothing is transferred. None: NaN
        for all.
    admitted_s
        float64 [N], seconds: the start of the first step that the request was admitted to; NaN where unknown. None: NaN
        for all.
    preemptions
        int64 [N], how often the request lost its KV blocks. None: never.
    cached_tokens
        int64 [N], prompt tokens that the first admission found in a prefix cache. None: none.
    rejected
        bool [N], refused because it could never fit. None: none was.
    steps, prefill_tokens, recomputed_tokens, peak_blocks
        Counters of the whole run.
    running_steps, block_steps
        Running requests, and blocks held, summed over the steps; NaN where not counted.
    busy_s
        Seconds spent inside steps; NaN where not counted.
    outside_s
        Seconds of each request outside the engine before its first token: part of TTFT and of end-to-end latency, and
        of no other time.
    num_blocks
        KV blocks of the instance; NaN for unlimited memory.
    batch_steps
        Steps that running_steps and block_steps are sums over. None: all steps.
    instances
        What each instance of a system did. None: unknown.
    itl_max_s
        float64 [N], seconds: the longest time between two tokens. None: not kept (`run_systems` keeps it with `itl`).
    itl_counts
        Times between tokens, counted by length. None: not kept.
    counters
        Every counter of the engine by name (kernels/counters.py), those above among them. None: unknown.

    Raises
    ------
    ValueError
        For an array that is not one-dimensional or not as long as `arrival_s`.
    """

    def __init__(
        self,
        arrival_s: ArrayLike,
        prompt_tokens: ArrayLike,
        output_tokens: ArrayLike,
        first_token_s: ArrayLike,
        finish_s: ArrayLike,
        *,
        kv_ready_s: ArrayLike | None = None,
        admitted_s: ArrayLike | None = None,
        preemptions: ArrayLike | None = None,
        cached_tokens: ArrayLike | None = None,
        rejected: ArrayLike | None = None,
        steps: int = 0,
        prefill_tokens: int = 0,
        recomputed_tokens: int = 0,
        peak_blocks: int = 0,
        running_steps: float = np.nan,
        block_steps: float = np.nan,
        busy_s: float = np.nan,
        outside_s: float = 0.0,
        num_blocks: float = np.nan,
        batch_steps: int | None = None,
        instances: InstanceFacts | None = None,
        itl_max_s: ArrayLike | None = None,
        itl_counts: Floats | None = None,
        counters: Mapping[str, float] | None = None,
    ) -> None:
        self.arrival_s: Floats = np.asarray(arrival_s, dtype=np.float64)
        if self.arrival_s.ndim != 1:
            raise ValueError(
                f"arrival_s has shape {self.arrival_s.shape}: must be one-dimensional, one entry a request"
            )
        n = len(self.arrival_s)
        self.prompt_tokens: Ints = _column("prompt_tokens", prompt_tokens, np.int64, n)
        self.output_tokens: Ints = _column("output_tokens", output_tokens, np.int64, n)
        self.first_token_s: Floats = _column("first_token_s", first_token_s, np.float64, n)
        self.finish_s: Floats = _column("finish_s", finish_s, np.float64, n)
        self.kv_ready_s: Floats = _column("kv_ready_s", kv_ready_s, np.float64, n, missing=np.nan)
        self.admitted_s: Floats = _column("admitted_s", admitted_s, np.float64, n, missing=np.nan)
        self.preemptions: Ints = _column("preemptions", preemptions, np.int64, n, missing=0)
        self.cached_tokens: Ints = _column("cached_tokens", cached_tokens, np.int64, n, missing=0)
        self.rejected: Bools = _column("rejected", rejected, np.bool_, n, missing=False)
        self.steps = int(steps)
        self.prefill_tokens = int(prefill_tokens)
        self.recomputed_tokens = int(recomputed_tokens)
        self.peak_blocks = int(peak_blocks)
        self.running_steps = float(running_steps)
        self.block_steps = float(block_steps)
        self.busy_s = float(busy_s)
        self.outside_s = checks.not_negative("outside_s", outside_s)
        self.num_blocks = float(num_blocks)
        self.batch_steps = self.steps if batch_steps is None else int(batch_steps)
        self.instances = instances
        self.itl_max_s = None if itl_max_s is None else _column("itl_max_s", itl_max_s, np.float64, n)
        self.itl_counts = itl_counts
        self.counters = dict(counters or {})

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __repr__(self) -> str:
        finished = int(np.count_nonzero(~np.isnan(self.finish_s)))
        rejected = int(np.count_nonzero(self.rejected))
        return f"Result({len(self)} requests, {finished} finished, {rejected} rejected, {self.steps} steps)"

    @property
    def ttft_s(self) -> Floats:
        """Time to first token, float64 [N], seconds: first token - arrival + outside_s."""
        return from_outside(self.first_token_s - self.arrival_s, np.asarray(self.outside_s))

    @property
    def tpot_s(self) -> Floats:
        """Time per output token, float64 [N], seconds: (finish - first token) / (output tokens - 1).

        0 for a one-token output, NaN for a request that did not finish.
        """
        return tpot_s(self.first_token_s, self.finish_s, self.output_tokens - 1)

    @property
    def e2e_s(self) -> Floats:
        """End-to-end latency, float64 [N], seconds: finish - arrival + outside_s."""
        return from_outside(self.finish_s - self.arrival_s, np.asarray(self.outside_s))

    @property
    def queue_delay_s(self) -> Floats:
        """Queueing delay, float64 [N], seconds: first admission - arrival."""
        return self.admitted_s - self.arrival_s

    @property
    def kv_transfer_s(self) -> Floats:
        """KV transfer time, float64 [N], seconds: KV at the decode instance - first token; NaN without a transfer."""
        return self.kv_ready_s - self.first_token_s

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame of one row a request, in the order of the workload; `request` is the position in it."""
        import pandas as pd

        return pd.DataFrame(
            {
                "request": np.arange(len(self)),
                "arrival_s": self.arrival_s,
                "prompt_tokens": self.prompt_tokens,
                "output_tokens": self.output_tokens,
                "admitted_s": self.admitted_s,
                "first_token_s": self.first_token_s,
                "kv_ready_s": self.kv_ready_s,
                "finish_s": self.finish_s,
                "queue_delay_s": self.queue_delay_s,
                "ttft_s": self.ttft_s,
                "tpot_s": self.tpot_s,
                "e2e_s": self.e2e_s,
                "kv_transfer_s": self.kv_transfer_s,
                "preemptions": self.preemptions,
                "cached_tokens": self.cached_tokens,
                "rejected": self.rejected,
            }
        )

    def summary(
        self, *, slo: SLO | None = None, warmup: float = 0.2, cooldown: float = 0.2, n_gpus: int = 1
    ) -> dict[str, float | int]:
        """Every measure of the run: the columns of a sweep's cells table, defined in docs/columns.md.

        Parameters
        ----------
        slo
            Limits that the attainments and the request goodput check, in seconds. None: nothing is checked.
        warmup, cooldown
            Shares of the requests, in order of arrival, that the window of the latency measures leaves out at the start
            and at the end.
        n_gpus
            What the measures per GPU divide by.

        Returns
        -------
        dict
            Name to number; NaN where a measure does not exist.

        Raises
        ------
        ValueError
            No SLO, a share outside [0, 1], or fewer than one GPU.

        Warns
        -----
        UserWarning
            When no limit is set: a request that was not rejected then counts as one that meets all.
        """
        limits = {} if slo is None else check_slo(slo).limits
        if not limits:
            text = "summary: no SLO is set, so attainment is the share of requests not rejected; set one, as slo=SLO("
            warnings.warn(f"{text}ttft_s=0.5)", UserWarning, stacklevel=2)
        values: dict[str, Any] = measures(
            one_system(self), limits=limits, warmup=warmup, cooldown=cooldown, n_gpus=n_gpus
        )
        return {name: column[0].item() for name, column in values.items()}


def one_system(result: Result) -> SystemArrays:
    """A result seen as a batch of one system; the arrays are views."""
    columns = {name: np.asarray(getattr(result, name))[None] for name in ROWS if name != "n_requests"}
    itl = {name: None if getattr(result, name) is None else getattr(result, name)[None] for name in ITL}
    counters = {name: np.array([value]) for name, value in result.counters.items()}
    others = {"n_requests": np.array([len(result)]), "instances": result.instances, "counters": counters, **itl}
    return cast(SystemArrays, SimpleNamespace(**others, **columns))


def _column(name: str, values: ArrayLike | None, dtype: Any, n: int, missing: Any = None) -> npt.NDArray[Any]:
    if values is None:
        if missing is None:
            raise ValueError(f"{name}=None: must be an array of {n} entries")
        return np.full(n, missing, dtype=dtype)
    column = np.asarray(values, dtype=dtype)
    if column.shape != (n,):
        raise ValueError(f"{name} has shape {column.shape}: must have {n} entries as arrival_s, one a request")
    return column
