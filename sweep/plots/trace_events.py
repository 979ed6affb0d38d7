"""A timeline in the trace event format of Chrome, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", the JSON object form. Process 1 is the system: a track a instance with its steps, and
counters. Process 2 has a track a request.
"""

from __future__ import annotations

from typing import Any

from ..serving.timelines import PREFILL, Timeline

_SYSTEM, _REQUESTS = 1, 2
_ROLES = ("prefill", "decode")
# Of the viewers' palette: waiting grey, prefill orange, decode green, paused yellow, preempted red, transfer violet.
_COLOURS = {
    "waiting": "grey",
    "prefill": "thread_state_iowait",
    "decode": "thread_state_running",
    "paused": "thread_state_runnable",
    "preempted": "terrible",
    "transfer": "rail_animation",
}


def chrome_trace(timeline: Timeline, title: str = "servesweep") -> dict[str, Any]:
    """The trace as plain data for json.dump; times in microseconds, a whole step as one millisecond."""
    scale = 1e6 if timeline.clock == "s" else 1e3
    events: list[dict[str, Any]] = [
        _name("process_name", _SYSTEM, 0, title),
        _name("process_name", _REQUESTS, 0, "requests"),
        *_steps(timeline, scale),
    ]
    for place, (name, segments) in enumerate(zip(timeline.names, timeline.segments, strict=True)):
        track = place + 1
        events.append(_name("thread_name", _REQUESTS, track, f"request {name}"))
        for s in segments:
            facts = {"tokens": s.tokens, "emitted": s.emitted, "blocks": s.blocks, "steps": s.steps}
            events.append(
                {
                    "name": f"{s.what} {s.tokens}" if s.what == PREFILL else s.what,
                    "cat": s.what,
                    "ph": "X",
                    "ts": scale * s.start_s,
                    "dur": scale * (s.end_s - s.start_s),
                    "pid": _REQUESTS,
                    "tid": track,
                    "cname": _COLOURS[s.what],
                    "args": facts if s.steps else {},
                }
            )
        for at in timeline.preempted_s[place]:
            events.append({"name": "preempted", "ph": "i", "s": "t", "ts": scale * at, "pid": _REQUESTS, "tid": track})
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "clock": timeline.clock, "rejected": timeline.rejected},
    }


def _steps(timeline: Timeline, scale: float) -> list[dict[str, Any]]:
    """A slice a step, and the counters of running requests and blocks, of every instance."""
    columns = timeline.steps
    count = len(columns["start_s"])
    instance = columns["instance"].tolist() if "instance" in columns else [0] * count
    role = columns["role"].tolist() if "role" in columns else [-1] * count
    tracks = sorted(set(zip(role, instance, strict=True)))
    names = {(r, i): f"{_ROLES[r] + ' ' if r >= 0 else ''}instance {i}" for r, i in tracks}
    events = [_name("thread_name", _SYSTEM, tid + 1, names[track]) for tid, track in enumerate(tracks)]
    rows = zip(
        *(columns[x].tolist() for x in ("start_s", "end_s", "running", "emitted", "tokens", "blocks_used")),
        role,
        instance,
        strict=True,
    )
    ended: dict[tuple[int, int], float] = {}
    for step, (start, end, running, emitted, tokens, blocks, r, i) in enumerate(rows):
        track = (r, i)
        after = "" if len(tracks) == 1 else f", {names[track]}"
        if track in ended and ended[track] < start:
            events += _counters(scale * ended[track], 0, 0, after)
        events += _counters(scale * start, running, blocks, after)
        facts = {"step": step, "running": running, "emitted": emitted, "tokens": tokens, "blocks_used": blocks}
        where = {"pid": _SYSTEM, "tid": tracks.index(track) + 1}
        events.append(
            {
                "name": f"{tokens} tokens",
                "ph": "X",
                "ts": scale * start,
                "dur": scale * (end - start),
                **where,
                "args": facts,
            }
        )
        ended[track] = end
    for track, end in ended.items():
        events += _counters(scale * end, 0, 0, "" if len(tracks) == 1 else f", {names[track]}")
    return events


def _counters(at: float, running: int, blocks: int, after: str) -> list[dict[str, Any]]:
    return [
        {"name": f"{name}{after}", "ph": "C", "ts": at, "pid": _SYSTEM, "args": {name: value}}
        for name, value in (("running requests", running), ("blocks used", blocks))
    ]


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
