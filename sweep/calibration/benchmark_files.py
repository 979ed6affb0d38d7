"""Result files of benchmarks, of the tools that people have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import checks
from ..messages import listed, shown
from ..profiles.columns import Columns, open_file, read_columns
from ..workloads.trace_source import shown_path
from .measured_run import MeasuredRun

FEWEST = 8  # requests of a run
_SYNONYMS = {
    "arrival_s": ("arrival_s", "arrival", "arrival_time", "start_s", "start_time", "sent_s"),
    "prompt_tokens": ("prompt_tokens", "prompt", "input_tokens", "input_len", "prompt_len"),
    "output_tokens": ("output_tokens", "output", "output_len", "completion_tokens", "generated_tokens"),
    "first_token_s": ("first_token_s", "first_token", "first_token_time"),
    "finish_s": ("finish_s", "finish", "end_s", "end_time", "last_token_s"),
}
_SERVING_SIM = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")


class _Request(NamedTuple):
    """One of a file. Seconds, on any clock."""

    arrival_s: Any
    prompt_tokens: Any
    output_tokens: Any
    first_token_s: Any
    finish_s: Any
    where: str  # for messages, such as ", line 3"


@checks.spelt_out
def load_benchmark(path: str | PathLike[str]) -> list[MeasuredRun]:
    """The runs of a benchmark's result file, which may be compressed with gzip.

    The formats are found out from the content: `vllm bench serve --save-result --save-detailed` (JSON), GuideLLM's
    benchmarks (JSON, one run each), AIPerf's `profile_export.jsonl`, LLMServingSim's requests (JSON lines), and CSV
    with the columns arrival_s, prompt_tokens, output_tokens, first_token_s and finish_s.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    list of MeasuredRun
        Sorted by arrival, the first at 0.

    Raises
    ------
    ValueError
        For files of other kinds, without times of single requests, or with values that cannot be; with the place.
    """
    path = checks.path("path", path)
    where = shown_path(path)
    with open_file(path) as file:
        head = file.read(1 << 16).lstrip()
        text = head + file.read() if head.startswith(("{", "[")) else head
    if not head.startswith(("{", "[")):
        return [_from_csv(read_columns(path))]
    first, _, more = text.partition("\n")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            content = None if isinstance(json.loads(first), dict) and more.strip() else 1
        except (ValueError, RecursionError):
            content = 1
        if content is not None:
            raise ValueError(f"{where}: is not JSON: {error}") from None
    if content is None or _is_line(content):
        return [_from_lines(path, text)]
    if isinstance(content, dict) and isinstance(content.get("benchmarks"), list):
        return _from_guidellm(path, content["benchmarks"])
    if isinstance(content, dict) and ("input_lens" in content or "mean_ttft_ms" in content):
        return [_from_vllm(path, content)]
    known = "vllm bench serve, GuideLLM, AIPerf (profile_export.jsonl), LLMServingSim and CSV"
    keys = f" with {listed(content, 8)}" if isinstance(content, dict) else ""
    raise ValueError(f"{where}: is JSON{keys}, of no kind with times of single requests that is known: {known}")


def _is_line(content: Any) -> bool:
    """Whether JSON is a line of a file of requests."""
    known = {"metadata", "metrics"}, set(_SERVING_SIM)
    return isinstance(content, dict) and any(names <= set(content) for names in known)


def _from_csv(columns: Columns) -> MeasuredRun:
    names = {key: next((one for one in of if one in columns.header), key) for key, of in _SYNONYMS.items()}
    columns.need(list(names.values()))
    # Empty fields are those of requests that were not answered.
    parts: list[Any] = [columns.numbers(names[key], least=-1e18, missing=np.nan) for key in ("arrival_s",)]
    parts += [columns.whole(names[key], missing=0) for key in ("prompt_tokens", "output_tokens")]
    parts += [columns.numbers(names[key], least=-1e18, missing=np.nan) for key in ("first_token_s", "finish_s")]
    found = []
    for arrival, prompt, output, first, finish, line in zip(
        *(part.tolist() for part in parts), columns.lines, strict=True
    ):
        if output > 0 and math.isfinite(first) and math.isfinite(finish):
            found.append(_Request(arrival, prompt, output, first, finish, f", line {line}"))
    return _run(columns.path, "CSV", found, len(columns) - len(found))


def _from_vllm(path: Path, content: Mapping[str, Any]) -> MeasuredRun:
    where = shown_path(path)
    needed = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
    missing = [name for name in needed if not isinstance(content.get(name), list)]
    if missing:
        raise ValueError(
            f"{where}: has no {', '.join(missing)}: has no times of single requests; run vllm bench serve with "
            "--save-result --save-detailed"
        )
    lists = [content[name] for name in needed]
    if len(set(map(len, lists))) > 1:
        sizes = ", ".join(f"{len(one)} {name}" for one, name in zip(lists, needed, strict=True))
        raise ValueError(f"{where}: has {sizes}: must have as many of each")
    errors = content.get("errors")
    errors = errors if isinstance(errors, list) else []
    found, failed = [], 0
    for i, (prompt, output, ttft, itls, start) in enumerate(zip(*lists, strict=True)):
        if (i < len(errors) and errors[i]) or not output or not ttft:
            failed += 1
            continue
        place = f", request {i}"
        numbers = [start, ttft, *(itls if isinstance(itls, list) else [None])]
        if not all(map(checks.finite, numbers)):
            raise ValueError(f"{where}{place}: start_times, ttfts, itls: must be numbers")
        found.append(_Request(start, prompt, output, start + ttft, start + ttft + sum(itls), place))
    return _run(path, "vllm bench serve", found, failed)


def _from_guidellm(path: Path, benchmarks: Sequence[Any]) -> list[MeasuredRun]:
    where = shown_path(path)
    runs = []
    for number, one in enumerate(benchmarks):
        requests = one.get("requests") if isinstance(one, dict) else None
        if not isinstance(requests, dict) or not isinstance(requests.get("successful"), list):
            raise ValueError(
                f"{where}, benchmark {number}: has no requests.successful: has no times of single requests"
            )
        found = []
        for i, request in enumerate(requests["successful"]):
            place = f", benchmark {number}, request {i}"
            if not isinstance(request, dict):
                raise ValueError(f"{where}{place}: must be an object")
            start = _first(request, "request_start_time", "start_time")
            ttft = _first(request, "time_to_first_token_ms")
            latency = _first(request, "request_latency")
            itl = _first(request, "inter_token_latency_ms")
            output = _first(request, "output_tokens")
            for name, value in (("request_start_time", start), ("time_to_first_token_ms", ttft)):
                if not checks.finite(value):
                    raise ValueError(f"{where}{place}: {name}={shown(value)}: must be a number")
            # The last token comes before the end of the answer, of which the latter's time is always there.
            if checks.finite(itl) and checks.finite(output) and output > 1:
                finish = start + ttft / 1e3 + itl / 1e3 * (output - 1)
            elif checks.finite(latency):
                finish = start + latency
            else:
                raise ValueError(f"{where}{place}: request_latency={shown(latency)}: must be a number")
            prompt = _first(request, "prompt_tokens")
            found.append(_Request(start, prompt, output, start + ttft / 1e3, finish, place))
        others = [requests.get(name) for name in ("errored", "incomplete")]
        failed = sum(len(other) for other in others if isinstance(other, list))
        runs.append(_run(path, "GuideLLM", found, failed, f" #{number}" if len(benchmarks) > 1 else ""))
    if not runs:
        raise ValueError(f"{where}: benchmarks is empty: must hold a run")
    return runs


def _from_lines(path: Path, text: str) -> MeasuredRun:
    where = shown_path(path)
    found: list[_Request] = []
    lags: list[float] = []
    kinds: set[str] = set()
    failed = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f", line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"{where}{place}: is not JSON, cut short perhaps") from None
        if not isinstance(record, dict):
            raise ValueError(f"{where}{place}: must be a JSON object")
        read: Callable[[str, Mapping[str, Any], str], _Request | None]
        kind, read = ("AIPerf", _aiperf) if "metadata" in record else ("LLMServingSim", _serving_sim)
        kinds.add(kind)
        request = read(where, record, place)
        if request is None:
            failed += 1
            continue
        found.append(request)
        if kind == "LLMServingSim":
            lags.append(record["queued_ts"] - record["arrival_time"])
    if len(kinds) > 1:
        raise ValueError(f"{where}: holds lines of {' and '.join(sorted(kinds))}: must be of one tool")
    # LLMServingSim's arrivals are on another clock; the request that was queued soonest was queued at once.
    lag = min(lags, default=0.0)
    found = [one._replace(arrival_s=one.arrival_s + lag) for one in found]
    return _run(path, min(kinds), found, failed)


def _aiperf(where: str, record: Mapping[str, Any], place: str) -> _Request | None:
    about, metrics = record.get("metadata"), record.get("metrics")
    if not isinstance(about, dict) or not isinstance(metrics, dict):
        raise ValueError(
            f"{where}{place}: has no metrics of a request: must be AIPerf's profile_export.jsonl, not its summary"
        )
    if record.get("error") or about.get("was_cancelled") or about.get("benchmark_phase") == "warmup":
        return None
    start: Any = about.get("request_start_ns")
    ttft, latency = _aiperf_value(metrics, "time_to_first_token"), _aiperf_value(metrics, "request_latency")
    if ttft is None:
        raise ValueError(f"{where}{place}: has no time_to_first_token: run aiperf profile with --streaming")
    if latency is None and checks.finite(about.get("request_end_ns")) and checks.finite(start):
        latency = (about["request_end_ns"] - start) / 1e9
    if not checks.finite(start) or latency is None:
        raise ValueError(f"{where}{place}: has no request_start_ns and request_latency: must have both")
    lengths = [_aiperf_value(metrics, f"{name}_sequence_length", 1.0) for name in ("input", "output")]
    if not lengths[1]:
        return None
    return _Request(start / 1e9, lengths[0], lengths[1], start / 1e9 + ttft, start / 1e9 + latency, place)


def _aiperf_value(metrics: Mapping[str, Any], name: str, scale: float | None = None) -> float | None:
    """A metric, in seconds where it is a time."""
    entry = metrics.get(name)
    value: Any = entry.get("value") if isinstance(entry, dict) else entry
    if not checks.finite(value):
        return None
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
    unit = entry.get("unit", "ms") if isinstance(entry, dict) else "ms"
    return float(value) * (units.get(str(unit), 1e-3) if scale is None else scale)


def _serving_sim(where: str, record: Mapping[str, Any], place: str) -> _Request | None:
    missing = [name for name in _SERVING_SIM if name not in record]
    if missing:
        raise ValueError(f"{where}{place}: has no {', '.join(missing)}")
    for name in _SERVING_SIM:
        if not checks.finite(record[name]):
            raise ValueError(f"{where}{place}: {name}={shown(record[name])}: must be a number")
    prompt, output, arrival, _, first, last = (record[name] for name in _SERVING_SIM)
    return _Request(arrival, prompt, output, first, last, place)


def _first(record: Mapping[str, Any], *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def _run(path: Path, format: str, found: Sequence[_Request], skipped: int, suffix: str = "") -> MeasuredRun:
    """Requests as a run; ValueError for values that cannot be."""
    where = shown_path(path)
    for one in found:
        for name in ("prompt_tokens", "output_tokens"):
            value = getattr(one, name)
            if not checks.finite(value) or value < 1 or value != int(value) or value > checks.MAX_TOKENS:
                raise ValueError(f"{where}{one.where}: {name}={shown(value)}: must be an integer of at least 1")
        if not checks.finite(one.arrival_s):
            raise ValueError(f"{where}{one.where}: arrival_s={shown(one.arrival_s)}: must be a number")
        if not one.first_token_s > one.arrival_s:
            after = one.first_token_s - one.arrival_s
            raise ValueError(
                f"{where}{one.where}: its first token comes {after:g} s after it was sent: must be above 0"
            )
        if not one.finish_s >= one.first_token_s:
            raise ValueError(f"{where}{one.where}: finishes before its first token: must not")
    if len(found) < FEWEST:
        raise ValueError(f"{where}: has {len(found)} answered requests{suffix}: must have at least {FEWEST}")
    columns = [np.array(column, np.float64) for column in list(zip(*found, strict=True))[:5]]
    order = np.argsort(columns[0], kind="stable")
    arrival, prompt, output, first, finish = (column[order] for column in columns)
    begin = arrival[0]
    return MeasuredRun(
        f"{path.name}{suffix}",
        format,
        arrival - begin,
        prompt.astype(np.int64),
        output.astype(np.int64),
        first - begin,
        finish - begin,
        skipped,
    )
