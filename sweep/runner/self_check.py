"""What an installation runs on, and quick checks that it computes what it should; the tests go much further."""

from __future__ import annotations

import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..hardware.catalogue import chip, model
from ..hardware.step_times import StepModel
from ..serving.policies import DEFAULTS, POLICIES, PolicyName
from ..serving.reference_answers import answer, disagreement
from ..serving.run import run_systems
from ..serving.run_one import run_scheduler
from ..serving.scheduler import Scheduler
from ..serving.system import System
from ..serving.systems import Colocated, DecodeOnly, Disaggregated, PrefillOnly
from ..serving.whole_steps import Request, simulate
from ..tables.filenames import table_file
from ..workloads.conversation import conversation_workload
from ..workloads.workload import Workload
from .runner import run_grid

_LIBRARIES = ("numpy", "pandas", "pyarrow", "joblib", "rich", "matplotlib")
_OPTIONAL = {"dask": "dask.distributed", "ray": "ray"}


@dataclass(frozen=True)
class Check:
    """One check; `problem` is None when it passed."""

    name: str
    problem: str | None
    seconds: float


def installation() -> dict[str, str]:
    """Versions and machine facts by name."""
    facts = {"servesweep": metadata.version("servesweep"), "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    import joblib

    usable = joblib.cpu_count()
    facts["system"] = f"{platform.system()} {platform.release()}, {platform.machine()}"
    facts["cores"] = f"{usable} usable of {os.cpu_count()}"
    facts["memory"] = _memory()
    found = [name for name, module in _OPTIONAL.items() if _is_there(module)]
    facts["backends"] = ", ".join(["loky", "threading", *found])
    return facts


def run_checks() -> list[Check]:
    """Every check, none stopped by another's failure."""
    done = []
    for name, check in CHECKS.items():
        began = time.perf_counter()
        try:
            problem = check()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        done.append(Check(name, problem, round(time.perf_counter() - began, 3)))
    return done


def _one_request() -> str | None:
    """On an idle instance a request takes its prefill and output - 1 decode steps, no more and no less."""
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    prompt, output = 500, 20
    prefill = step.prefill_time([prompt])
    decodes = sum(step.decode_time(1, prompt + sent) for sent in range(1, output))
    workload = Workload(np.array([3.0]), np.array([prompt]), np.array([output]))
    for policy, options in _POLICIES.items():
        result = run_scheduler(workload, step, policy=policy, max_running=8, block_size=16, **options)
        for what, found, due in (
            ("first token", result.first_token_s[0], 3.0 + prefill),
            ("finish", result.finish_s[0], 3.0 + prefill + decodes),
        ):
            if not np.isclose(found, due, rtol=1e-12, atol=0):
                return f"{policy}: {what} at {found!r} s, but must be at {due!r} s"
        if result.steps != output:
            return f"{policy}: {result.steps} steps, but must be {output}"
    return None


def _every_scheduler() -> str | None:
    """Every policy and memory serves a few hundred requests, in order, and as the reference does."""
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    workload = conversation_workload(300, rate=10.0)
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    memories: list[dict[str, Any]] = [{}, {"block_size": 16}, {"block_size": 16, "num_blocks": 2 * longest // 16}]
    systems: dict[str, System] = {}
    for policy, options in _POLICIES.items():
        for memory in memories:
            name = f"{policy}, {memory or 'unlimited memory'}"
            systems[name] = Scheduler(workload, step, policy=policy, max_running=64, **memory, **options)
    return _as_the_reference(systems)


def _every_system() -> str | None:
    """Every kind of serving system, with two instances of each role, serves a few hundred requests likewise."""
    step = StepModel(model("llama-3.1-8b"), chip("h100-sxm"))
    workload = conversation_workload(300, rate=20.0)
    return _as_the_reference(
        {
            **{
                f"colocated, {row.name}": Colocated(workload, step, n_instances=2, policy=row.name)
                for row in POLICIES.values()
                if "reserve" in row.memories
            },
            "disaggregated": Disaggregated(workload, step, step, n_prefill=2, n_decode=2),
            "prefill_only": PrefillOnly(workload, step, n_instances=2),
            "decode_only": DecodeOnly(workload, step, n_instances=2),
        }
    )


def _as_the_reference(systems: dict[str, System]) -> str | None:
    """What is wrong with how the engine serves them, by name."""
    results = run_systems(list(systems.values()))
    for place, (name, system) in enumerate(systems.items()):
        result = results.result(place)
        times = [result.arrival_s, result.first_token_s, result.finish_s]
        if isinstance(system, PrefillOnly):
            times.pop()
        if np.isnan(times[-1]).any():
            return f"{name}: {np.isnan(times[-1]).sum()} of {len(result)} requests did not finish"
        if any((later < earlier).any() for earlier, later in pairwise(times)):
            return f"{name}: a request finished before its first token, or began before its arrival"
        problem = disagreement(result, answer(system))
        if problem is not None:
            return f"{name}: {problem}"
    return None


def _worked_examples() -> str | None:
    """The examples of docs/scheduler.md."""
    for requests, options, due in WORKED_EXAMPLES:
        outcome = simulate([Request(*request) for request in requests], **options)
        found = {rid: (times["first_token"], times["finish"], times["preemptions"]) for rid, times in outcome.items()}
        if found != due:
            return f"{options}: {found}, but must be {due}"
    return None


def _sweep() -> str | None:
    """A small sweep gives the same bytes in this process and in two workers, and its table can be read."""
    settings = ["n_requests=40", "request_rate_rps=[4,8]", "block_size=[16,64]"]
    with tempfile.TemporaryDirectory() as folder:
        content = []
        for workers in (1, 2):
            out = Path(folder) / str(workers)
            run = run_grid("quickstart", settings=settings, workers=workers, out=out, progress=False, max_batch_cells=6)
            if set(run.df["status"]) != {"ok"}:
                return f"with {workers} workers: {run.df['error'].dropna().iloc[0]}"
            content.append((out / table_file("cells")).read_bytes())
    return None if content[0] == content[1] else "one process and two workers give different tables"


_POLICIES: dict[PolicyName, dict[str, Any]] = {
    row.name: {name: DEFAULTS[name] for name in row.options["paged"]} for row in POLICIES.values()
}
WORKED_EXAMPLES: list[tuple[list[tuple[str, int, int, int]], dict[str, Any], dict[str, tuple[int, int, int]]]] = [
    (
        [("A", 0, 4, 3), ("B", 0, 2, 1), ("C", 1, 3, 2)],
        {"max_running": 2},
        {"A": (0, 2, 0), "B": (0, 0, 0), "C": (1, 2, 0)},
    ),
    (
        [("A", 0, 6, 4), ("B", 0, 4, 5), ("C", 1, 3, 2)],
        {"max_running": 3, "block_size": 4, "num_blocks": 4},
        {"A": (0, 3, 0), "B": (0, 5, 1), "C": (4, 5, 0)},
    ),
    (
        [("A", 0, 6, 3), ("B", 0, 3, 2)],
        {"max_running": 2, "token_budget": 4},
        {"A": (1, 3, 0), "B": (2, 3, 0)},
    ),
]
CHECKS: dict[str, Callable[[], str | None]] = {
    "one request on an idle instance takes its prefill and its decode steps": _one_request,
    "every policy and memory serves 300 requests as the reference does": _every_scheduler,
    "every serving system serves 300 requests as the reference does": _every_system,
    "the worked examples come out as documented": _worked_examples,
    "a sweep writes the same bytes with one process and with two": _sweep,
}


def _memory() -> str:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return "unknown"
    return f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB of it unused"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
