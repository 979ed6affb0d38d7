"""Phase *route*: each request of a group of lanes goes, when it arrives, to the lane that the group's router picks.

Between two arrivals of a group its lanes do not look at each other. So every lane runs up to the first end of a step
at or after the group's next arrival, `Inflow.horizon`, and stops there with that end still to be handled; when all
lanes of the group are there, or idle, the request is routed by what they hold (docs/routers.md), and they go on.
"""

from __future__ import annotations

import numpy as np

from .arrays import Floats, Ints
from .batch import Batch
from .router import LEAST_LOADED, LEAST_TOKENS, POWER_OF_TWO, Router


def route(batch: Batch) -> None:
    """Route one request in every group that has nothing else to do before it arrives."""
    router, inflow = batch.router, batch.inflow
    assert router is not None
    blocked = (batch.clock.now < inflow.horizon) & ((batch.decodes.running > 0) | (batch.queue.head < inflow.routed))
    groups = router.ready(blocked)
    if not groups.size:
        return
    g = router.groups
    place = g.stream[groups] + g.next[groups]
    arrival = router.arrivals[place] / g.speed[groups]
    lanes = _pick(batch, router, groups, arrival)
    _send(batch, router, groups, lanes, place, arrival)
    inflow.wait_until(*router.advance(groups))
    batch.queue.look()


def _pick(batch: Batch, router: Router, groups: Ints, arrival: Floats) -> Ints:
    """The lane for the next request of each of `groups`. All [g]."""
    g = router.groups
    lanes = g.members[groups]
    there = lanes >= 0
    rule = g.rule[groups]
    requests, outstanding = _loads(batch, lanes, arrival[:, None, None])
    value = np.where((rule == LEAST_LOADED)[:, None, None], requests, outstanding)
    tokens = (rule == LEAST_TOKENS).nonzero()[0]
    if tokens.size:
        value[tokens] = _tokens(batch, lanes[tokens], arrival[tokens, None, None])
    value *= there  # lanes that are not there add nothing to their instance
    of_instance = np.where(there[:, :, 0], value.sum(axis=2), np.inf)
    instance = of_instance.argmin(axis=1)
    rows = (rule >= POWER_OF_TWO).nonzero()[0]
    if rows.size:
        first, second = router.drawn[g.drawn_row[groups[rows]] + g.next[groups[rows]]].T
        better = (rule[rows] == POWER_OF_TWO) & (of_instance[rows, second] < of_instance[rows, first])
        instance[rows] = np.where(better, second, first)
    rows = np.arange(groups.size)
    if lanes.shape[2] == 1:
        picked: Ints = lanes[rows, instance, 0]
        return picked
    of_lane = np.where(there[rows, instance], requests[rows, instance], np.inf)
    least: Ints = lanes[rows, instance, of_lane.argmin(axis=1)]
    return least


def _send(batch: Batch, router: Router, groups: Ints, lanes: Ints, place: Ints, arrival: Floats) -> None:
    """Append the request at `place` to the requests of its lane. All [g]."""
    p, g = batch.params, router.groups
    number = batch.inflow.routed[lanes]
    if int(number.max()) + 3 >= router.width:
        old = router.widen()
        batch.requests.widen(old, router.width)
        p.widen_rows(old, router.width)
    prompt, total = router.prompts[place], router.totals[place]
    cell = g.cells[groups] + g.next[groups]
    at = p.row[lanes] + number
    batch.requests.append(batch.rules, at, arrival, prompt, total, p.block_size_f[lanes], cell)
    batch.times.serve(cell, p.lane[lanes])
    batch.inflow.send(lanes, total)


def _loads(batch: Batch, lanes: Ints, arrival: Floats) -> tuple[Floats, Floats]:
    """Load of `least_loaded`, and requests that are not done, of `lanes`, shapes alike (-1: of no meaning)."""
    queue, reserved, decodes, rules = batch.queue, batch.reserved_memory, batch.decodes, batch.rules
    number, head = batch.inflow.routed[lanes], queue.head[lanes]
    load: Floats
    if not rules.reserve:
        load = decodes.running[lanes] + (number - head) + queue.preempted_waiting[lanes]
        return load, load
    if not rules.decodes:
        place = batch.params.row[lanes] + number
        load = batch.requests.prompts_before[place] - queue.prompts_at_head[lanes]
        in_batch: Floats = np.where(batch.clock.now[lanes] >= arrival, batch.inflow.batch_requests[lanes], 0)
        return load, in_batch + (number - head)
    outstanding: Floats = (number - reserved.decode_queue_head[lanes]) + decodes.decoding[lanes]
    if not rules.prefills:
        return outstanding, outstanding
    # Not those taken up whose prefill has not ended, or ends with a step that is not over.
    load = outstanding - (head - reserved.prefilled_end[lanes])
    return load, outstanding


def _tokens(batch: Batch, lanes: Ints, arrival: Floats) -> Floats:
    """Tokens of requests that are not done: prompt + output, on prefill instances prompts. Shapes alike."""
    inflow = batch.inflow
    if batch.rules.decodes:
        tokens: Floats = inflow.outstanding_tokens[lanes]
        return tokens
    place = batch.params.row[lanes] + inflow.routed[lanes]
    queued = batch.requests.prompts_before[place] - batch.queue.prompts_at_head[lanes]
    waiting: Floats = queued + np.where(batch.clock.now[lanes] >= arrival, inflow.batch_tokens[lanes], 0)
    return waiting
