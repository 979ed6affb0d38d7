"""Systems whose steps went beyond what their step times were measured for, and how far.

N requests of a system.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..arrays import Floats, Ints
from ..hardware.measured import MeasuredSteps
from ..measures.system_results import SystemResults
from .system import System

MOST_TOLD = 8


def beyond_measured(systems: Sequence[System], results: SystemResults) -> dict[int, str]:
    """What is extrapolated, by the place of the system. Where several instances share the load, their mean is looked
    at."""
    stopped = None if results.early_stop is None else results.early_stop.stopped
    found = {}
    for place, system in enumerate(systems):
        known = list(_measured(system))
        if not known or (stopped is not None and stopped[place]):
            continue
        parts = [part for role, measured in known for part in _parts(system, results, place, role, measured)]
        if parts:
            found[place] = f"steps are extrapolated: {', '.join(parts)}"
    return found


def told(texts: Iterable[tuple[str, str]]) -> list[str]:
    """A line of each of some systems, by name; of many, of the first."""
    lines = [f"{name}: {text}" for name, text in texts]
    if len(lines) > MOST_TOLD:
        more = f"... and {len(lines) - MOST_TOLD:,} more go beyond what their step times were measured for"
        lines[MOST_TOLD:] = [more]
    return lines


def tell(texts: Iterable[tuple[str, str]], stacklevel: int) -> None:
    """Warn of them."""
    for line in told(texts):
        warnings.warn(line, UserWarning, stacklevel=stacklevel + 1)


def _measured(system: System) -> Iterator[tuple[str, MeasuredSteps]]:
    for role in system.roles:
        name = f"{role}_step" if len(system.roles) > 1 else "step"
        measured = getattr(getattr(system, name, None), "measured", None)
        if measured is not None:
            yield role, measured


def _parts(system: System, results: SystemResults, place: int, role: str, measured: MeasuredSteps) -> Iterator[str]:
    n = int(results.n_requests[place])
    here = (results.instances.system == place) & (results.instances.role == role)
    instances = max(int(here.sum()), 1)
    prompt, output = results.prompt_tokens[place, :n], results.output_tokens[place, :n]
    first, finish = results.first_token_s[place, :n], results.finish_s[place, :n]
    if role != "decode":
        waiting = _most_at_once(results.arrival_s[place, :n], first, prompt / instances)
        yield from _part("prompt tokens", min(waiting, _budget(system, prompt)), measured.most_prefill_tokens)
    if role != "prefill":
        begin = results.kv_ready_s[place, :n] if role == "decode" and len(system.roles) > 1 else first
        several = output > 1
        requests = _most_at_once(begin, finish, several / instances)
        most = getattr(system, "max_running", None)
        requests = requests if most is None else min(requests, most)
        yield from _part("decoding requests", requests, measured.most_decodes)
        context = _most_at_once(begin, finish, several * (prompt + output) / instances)
        yield from _part("tokens in caches", context, measured.most_context_tokens)


def _part(what: str, reached: float, most: int) -> Iterator[str]:
    reached = float(np.ceil(reached - 1e-9))
    if reached > most:
        far = f", {reached / most:.2g} times as many" if most else ""
        yield f"up to {reached:,.0f} {what} in a step, measured were at most {most:,}{far}"


def _budget(system: System, prompt: Ints) -> float:
    """Most prompt tokens of a step."""
    longest = float(prompt.max(initial=0))
    for name in ("token_budget", "chunk_budget"):
        budget = getattr(system, name, None)
        if budget is not None:
            return float(budget)
    batch = getattr(system, "max_tokens", None)
    return np.inf if batch is None else max(float(batch), longest)


def _most_at_once(begin: Floats, end: Floats, size: Floats) -> float:
    """The largest sum of sizes of what is there at one time; what never begins or ends is left out."""
    there = np.isfinite(begin) & np.isfinite(end)
    times = np.concatenate([begin[there], end[there]])
    change = np.concatenate([size[there], -size[there]])
    order = np.lexsort((change, times))  # who leaves at a time has left when others come
    return float(np.cumsum(change[order]).max(initial=0.0))
