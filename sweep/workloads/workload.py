"""Requests with arrival times and lengths, as three arrays; drawn from distributions here, read from traces elsewhere.

`N` is the number of requests.
"""

import math
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from .. import checks
from ..checks import MAX_TOKENS
from .columns import times, whole_numbers
from .texts import Prompts, Texts, texts_of

ArrivalsName = Literal["poisson", "uniform", "bursty"]
ARRIVALS: tuple[ArrivalsName, ...] = get_args(ArrivalsName)
MAX_REQUESTS = 100_000_000  # of a workload that is drawn: its arrays take 2.4 GB
MAX_CLIENTS = 2**20
_PRIORITY_STREAM = 1  # of the random numbers of a seed
# Far beyond what traffic does, and far from where the distributions overflow.
CV_RANGE = (1e-3, 1e3)
MAX_SIGMA = 10.0


@checks.spelt_out
@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in a given order; they are served by (arrival, position in this order), whatever the order is.

    Anything that converts to such arrays is taken; the arrays kept are read-only.

    Parameters
    ----------
    arrival_s
        float64 [N], seconds, finite and at least 0.
    prompt_tokens
        int64 [N], 1 to 2**31 - 1.
    output_tokens
        int64 [N], 1 to 2**31 - 1; the first of them comes from prefill.
    name
        For tables and messages.
    rate_rps
        Requests/s that the arrivals were made for. None: measured from the arrivals.
    priority
        int64 [N], who is served first, the smallest, where the service order is by priority. None: without.
    texts
        Which tokens prompts and answers have in common (`Texts`). None: nothing.
    prompts
        The same in words, in place of `texts`: for each request its segments `[("sys", 100), ("q17", 350)]`, which add
        up to its prompt, or a number of tokens that no other request has. Each is the first so many tokens of the text
        of that name; the answer of request i is the text "o<i>". None: as `texts` say.
    concurrency
        Clients of a closed loop, each of which sends its next request when its last one is answered; `arrival_s` must
        be 0 then, see `at_concurrency`. None: requests come at `arrival_s`.
    think_time_s
        Seconds between an answer and the client's next request, of a closed loop.

    Raises
    ------
    ValueError
        Names the argument, the position and the value of what is not allowed.
    """

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    _: KW_ONLY
    name: str = "workload"
    rate_rps: float | None = None
    priority: npt.NDArray[np.int64] | None = None
    texts: Texts | None = None
    prompts: InitVar[Prompts | None] = None
    concurrency: int | None = None
    think_time_s: float = 0.0

    def __post_init__(self, prompts: Prompts | None) -> None:
        checks.text("name", self.name)
        if self.rate_rps is not None:
            object.__setattr__(self, "rate_rps", checks.positive("rate_rps", self.rate_rps))
        object.__setattr__(self, "arrival_s", times("arrival_s", self.arrival_s))
        object.__setattr__(self, "prompt_tokens", whole_numbers("prompt_tokens", self.prompt_tokens, 1))
        object.__setattr__(self, "output_tokens", whole_numbers("output_tokens", self.output_tokens, 1))
        sizes = [len(self.arrival_s), len(self.prompt_tokens), len(self.output_tokens)]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"arrival_s, prompt_tokens and output_tokens have {sizes[0]}, {sizes[1]} and {sizes[2]} entries: "
                "must have one for each request"
            )
        if self.priority is not None:
            object.__setattr__(self, "priority", whole_numbers("priority", self.priority, -MAX_TOKENS))
            if len(self.priority) != len(self):
                raise ValueError(
                    f"priority has {len(self.priority)} entries: must have one for each of {len(self)} requests"
                )
        self._check_clients()
        if prompts is not None:
            if self.texts is not None:
                raise ValueError("prompts and texts are both given: must be one of them")
            object.__setattr__(self, "texts", texts_of(prompts, self.prompt_tokens))
        elif self.texts is not None:
            self.texts.check(self.prompt_tokens)

    def _check_clients(self) -> None:
        think_s = checks.not_negative("think_time_s", self.think_time_s)
        object.__setattr__(self, "think_time_s", think_s)
        if self.concurrency is None:
            if think_s:
                raise ValueError(f"think_time_s={think_s!r}: has no effect without concurrency")
            return
        object.__setattr__(self, "concurrency", checks.whole("concurrency", self.concurrency, 1, MAX_CLIENTS))
        if self.rate_rps is not None:
            raise ValueError(f"rate_rps={self.rate_rps!r}: must not be given beside concurrency={self.concurrency}")
        for position in self.arrival_s.nonzero()[0][:1]:
            raise ValueError(
                f"arrival_s[{position}]={self.arrival_s[position]}: must be 0 under concurrency={self.concurrency}, as "
                "answers decide when requests arrive"
            )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def mean_rate_rps(self) -> float:
        """`rate_rps` where it is known; otherwise (N - 1) / (last - first arrival), NaN when that span is 0.

        A span so short that the rate is not a finite number counts as 0.
        """
        if self.rate_rps is not None:
            return self.rate_rps
        span = _span(self.arrival_s)
        rate = (len(self) - 1) / span if span > 0 else math.nan
        return rate if math.isfinite(rate) else math.nan

    def at_unit_rate(self) -> "Workload":
        """The same requests with time stretched to a mean rate of 1 request/s.

        Raises
        ------
        ValueError
            When there is no mean rate: all requests arrive at one time, and `rate_rps` is not given.
        """
        if self.concurrency is not None:
            raise ValueError(f"workload {self.name!r} has no rate: concurrency={self.concurrency} decides its arrivals")
        rate = self.mean_rate_rps
        if rate == 1.0 or len(self) == 0:
            arrival = self.arrival_s
        elif math.isnan(rate):
            raise ValueError(
                f"workload {self.name!r} has no mean rate to scale: must have two arrival times, or rate_rps"
            )
        else:
            with np.errstate(over="ignore"):
                arrival = _arrivals(self.arrival_s * rate, "rate_rps", rate, "large")
        return replace(self, arrival_s=arrival, rate_rps=1.0)

    def at_rate(self, rate: float) -> "Workload":
        """The same requests at another rate: arrival = arrival at unit rate / rate. Lengths and order stay.

        Parameters
        ----------
        rate
            Requests/s.

        Raises
        ------
        ValueError
            When there is no mean rate (see `at_unit_rate`), and for a rate so small that the last request would never
            arrive.
        """
        rate = checks.positive("rate", rate)
        with np.errstate(over="ignore"):
            arrival = _arrivals(self.at_unit_rate().arrival_s / rate, "rate", rate)
        return replace(self, arrival_s=arrival, rate_rps=rate)

    def at_concurrency(self, concurrency: int, *, think_time_s: float = 0.0) -> "Workload":
        """The same requests in a closed loop (docs/systems.md): so many clients, each of which sends its next request
        when its last one is answered. The requests are sent in their order here; their arrivals are forgotten.

        Parameters
        ----------
        concurrency
            Clients.
        think_time_s
            Seconds between an answer and the client's next request.

        Raises
        ------
        ValueError
            For a value out of range.
        """
        start = np.zeros(len(self))
        return replace(self, arrival_s=start, rate_rps=None, concurrency=concurrency, think_time_s=think_time_s)

    def describe(self) -> str:
        """A few lines of text: rows, span, mean rate, and how long prompts and outputs are."""
        lines = [f"{self.name}: {len(self):,} requests"]
        if self.concurrency is not None:
            lines[0] += f", {self.concurrency:,} at a time"
            if self.think_time_s:
                lines[0] += f", {self.think_time_s:g} s after an answer"
        elif len(self):
            lines[0] += f" over {_span(self.arrival_s):,.1f} s"
            if not math.isnan(self.mean_rate_rps):
                lines[0] += f", {self.mean_rate_rps:.4g} requests/s"
        if len(self):
            for label, lengths in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
                p50, p90, p99 = (f"{value:,.0f}" for value in np.percentile(lengths, [50, 90, 99]))
                lines.append(f"{label} tokens: mean {lengths.mean():,.1f}, p50 {p50}, p90 {p90}, p99 {p99}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LognormalLen:
    """Lengths in tokens: lognormal, rounded half to even, then clipped.

    Parameters
    ----------
    mean
        Tokens, before clipping.
    sigma
        Standard deviation of the logarithm, from 0 to 10.
    lo, hi
        The least and the most tokens. A length is never below 1, whatever `lo` is.

    Raises
    ------
    ValueError
        For a mean that is not positive and finite, a sigma outside [0, 10], lo > hi, hi below 1 or above 2**31 - 1.
    """

    mean: float
    sigma: float
    lo: int
    hi: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", checks.positive("mean", self.mean))
        object.__setattr__(self, "sigma", checks.between("sigma", self.sigma, 0, MAX_SIGMA))
        object.__setattr__(self, "lo", checks.whole("lo", self.lo, 0))
        object.__setattr__(self, "hi", checks.whole("hi", self.hi, 1, MAX_TOKENS))
        if self.lo > self.hi:
            raise ValueError(f"lo={self.lo}: must be at most hi={self.hi}")

    @property
    def mu(self) -> float:
        """Mean of the logarithm."""
        return math.log(self.mean) - self.sigma**2 / 2

    def lengths(self, drawn: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Lengths from lognormal numbers."""
        return np.clip(np.rint(drawn), max(self.lo, 1), self.hi).astype(np.int64)


def lognormal_len(mean: float, sigma: float, lo: int, hi: int) -> LognormalLen:
    """A distribution of lengths for `make_workload`.

    Parameters
    ----------
    mean, sigma, lo, hi
        See `LognormalLen`.

    Raises
    ------
    ValueError
        For a value out of range.
    """
    return LognormalLen(mean, sigma, lo, hi)


def make_workload(
    n: int,
    rate: float,
    prompt: int | LognormalLen,
    output: int | LognormalLen,
    seed: int = 0,
    arrivals: ArrivalsName = "poisson",
    cv: float = 1.0,
) -> Workload:
    """Requests drawn from distributions by one `numpy.random.default_rng(seed)`.

    The n gaps are drawn first, then prompt and output of request 0, of request 1, and so on: the first requests of a
    longer workload have other lengths than those of a shorter one. The rate scales the gaps and touches nothing else.

    Parameters
    ----------
    n
        Requests.
    rate
        Mean requests/s.
    prompt, output
        Tokens: a number, or a distribution made by `lognormal_len`.
    seed
        Of the random numbers.
    arrivals
        "poisson", "uniform" (equal gaps), or "bursty" (gamma-distributed gaps).
    cv
        Coefficient of variation of the gaps of "bursty", 0.001 to 1000: 1 is Poisson, more is burstier. Without effect
        on the other two.

    Raises
    ------
    ValueError
        For any argument out of range.
    """
    n = checks.whole("n", n, 0, MAX_REQUESTS)
    rate = checks.positive("rate", rate)
    cv = checks.between("cv", cv, *CV_RANGE)
    seed = checks.whole("seed", seed, 0)
    for name, length in (("prompt", prompt), ("output", output)):
        if not isinstance(length, LognormalLen):
            checks.whole(name, length, 1, MAX_TOKENS)
    checks.one_of("arrivals", arrivals, ARRIVALS)

    rng = np.random.default_rng(seed)
    if arrivals == "poisson":
        unit_gaps = rng.exponential(1.0, n)
    elif arrivals == "uniform":
        unit_gaps = np.ones(n)
    else:
        k = 1.0 / cv**2
        unit_gaps = rng.gamma(k, 1.0 / k, n)
    prompt_tokens, output_tokens = _draw_lengths(rng, n, prompt, output)
    return Workload(arrivals_at(rate, unit_gaps), prompt_tokens, output_tokens, rate_rps=rate)


def drawn_priority(n: int, urgent_share: float, seed: int) -> npt.NDArray[np.int64]:
    """Priorities of `n` requests: 0 for a share of them, 1 for the others, each drawn on its own. int64 [n].

    They have a generator of their own, so that the same seed gives the same requests with and without priorities.
    """
    urgent = np.random.default_rng([seed, _PRIORITY_STREAM]).random(n) < urgent_share
    return np.where(urgent, 0, 1)


def arrivals_at(rate: float, unit_gaps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Arrival times from gaps with a mean of 1; ValueError for a rate so small that the last one is infinite."""
    with np.errstate(over="ignore"):
        return _arrivals(np.cumsum(unit_gaps / rate), "rate", rate)


def _draw_lengths(
    rng: np.random.Generator, n: int, *lengths: int | LognormalLen
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Lengths of prompts and outputs, drawn in the order of one request after another."""
    random = [length for length in lengths if isinstance(length, LognormalLen)]
    # One column a distribution: NumPy fills row by row, which is the order of drawing request by request.
    drawn = rng.lognormal([d.mu for d in random], [d.sigma for d in random], (n, len(random)))
    columns = iter(drawn.T)
    prompt, output = (
        length.lengths(next(columns)) if isinstance(length, LognormalLen) else np.full(n, length, np.int64)
        for length in lengths
    )
    return prompt, output


def _arrivals(times: npt.NDArray[np.float64], name: str, rate: float, what: str = "small") -> npt.NDArray[np.float64]:
    """Scaled arrival times, or the rate that is to blame when they are not finite."""
    if not np.isfinite(times).all():
        raise ValueError(f"{name}={rate!r}: is so {what} that the last request would never arrive")
    return times


def _span(times: npt.NDArray[np.float64]) -> float:
    return float(times.max() - times.min()) if len(times) else 0.0
