"""Phase *route*: each request of a group of lanes goes, when it arrives, to the lane that the group's router picks.

Between two arrivals of a group its lanes do not look at each other. So every lane runs up to the first end of a step
at or after the group's next arrival, `Inflow.horizon`, and stops there with that end still to be handled; when all
lanes of the group are there, or idle, the request is routed by what they hold (docs/routers.md), and they go on.
"""

from __future__ import annotations

import numpy as np

from .arrays import Bools, Floats, Ints
from .batch import Batch
from .clients import Clients, until_others
from .router import BETTER_OF_TWO, LEAST, Router


def route(batch: Batch) -> None:
    """Route one request in every group that has nothing else to do before it arrives."""
    router, inflow = batch.router, batch.inflow
    assert router is not None
    waiting = batch.queue.head < inflow.routed if not batch.listed else batch.running_list.number_done < inflow.routed
    busy = (batch.decodes.running > 0) | waiting
    if router.clients is not None:
        _route_clients(batch, router, router.clients, busy)
        return
    groups = router.ready((batch.clock.now < inflow.horizon) & busy)
    if not groups.size:
        return
    g = router.groups
    place = g.stream[groups] + g.next[groups]
    arrival = router.arrivals[place] / g.speed[groups]
    lanes = _pick(batch, router, groups, arrival)
    _send(batch, router, groups, lanes, place, arrival)
    inflow.wait_until(*router.advance(groups))
    batch.queue.look()


def _route_clients(batch: Batch, router: Router, clients: Clients, busy: Bools) -> None:
    """The same where clients wait for answers. The horizon of a lane is then also as far as other lanes have come."""
    g, inflow = router.groups, batch.inflow
    groups = router.ready((batch.clock.now < router.next_sent()[router.group_of]) & busy)
    if groups.size:
        place, arrival = g.stream[groups] + g.next[groups], clients.soonest[groups]
        router.note_arrival(place, arrival)
        if batch.pool is not None:
            batch.pool.note_arrival(place)
        lanes = _pick(batch, router, groups, arrival)
        clients.send(groups, g.cells[groups] + g.next[groups])
        _send(batch, router, groups, lanes, place, arrival)
        router.advance(groups)
        batch.queue.look()
        busy = busy.copy()
        busy[lanes] = True
    members = g.members.reshape(g.count.size, -1)
    until = until_others(batch.clock.now, busy, members, router.group_of, clients.think_s)
    comes = (g.next < g.count)[router.group_of]
    inflow.wait_for_groups(np.where(comes, np.minimum(until, router.next_sent()[router.group_of]), np.inf))


def _pick(batch: Batch, router: Router, groups: Ints, arrival: Floats) -> Ints:
    """The lane for the next request of each of `groups`. All [g]."""
    g = router.groups
    lanes = g.members[groups]
    there = lanes >= 0
    rule = g.rule[groups]
    load = _load(batch, router, groups, lanes, arrival)
    load *= there  # lanes that are not there add nothing to their instance
    of_instance = np.where(there[:, :, 0], load.sum(axis=2), np.inf)
    instance = of_instance.argmin(axis=1)
    rows = (rule != LEAST).nonzero()[0]
    if rows.size:
        first, second = router.drawn[g.drawn_row[groups[rows]] + g.next[groups[rows]]].T
        better = (rule[rows] == BETTER_OF_TWO) & (of_instance[rows, second] < of_instance[rows, first])
        instance[rows] = np.where(better, second, first)
    rows = np.arange(groups.size)
    if lanes.shape[2] == 1:
        picked: Ints = lanes[rows, instance, 0]
        return picked
    requests = queued_or_running(batch, lanes, arrival[:, None, None])
    of_lane = np.where(there[rows, instance], requests[rows, instance], np.inf)
    least: Ints = lanes[rows, instance, of_lane.argmin(axis=1)]
    return least


def _load(batch: Batch, router: Router, groups: Ints, lanes: Ints, arrival: Floats) -> Floats:
    """What the router of each group compares, of its `lanes` [g, I, P]."""
    if len(router.loads) == 1:
        return router.loads[0](batch, lanes, arrival[:, None, None])
    which, load = router.groups.load[groups], np.zeros(lanes.shape)
    for place, load_of in enumerate(router.loads):
        rows = (which == place).nonzero()[0]
        if rows.size:
            load[rows] = load_of(batch, lanes[rows], arrival[rows, None, None])
    return load


def _send(batch: Batch, router: Router, groups: Ints, lanes: Ints, place: Ints, arrival: Floats) -> None:
    """The request at `place` joins those of its lane: behind them, or where its order puts it later. All [g]."""
    p, g = batch.params, router.groups
    prompt, total = router.prompts[place], router.totals[place]
    cell = g.cells[groups] + g.next[groups]
    if batch.pool is None:
        batch.append(lanes, batch.inflow.routed[lanes], arrival, prompt, total, cell)
    else:
        batch.pool.send(lanes, g.next[groups])
        batch.requests.arrive(p.row[lanes] + batch.pool.placed_end[lanes], arrival)
    batch.times.serve(cell, p.lane[lanes])
    batch.inflow.send(lanes, prompt, total)


def queued_or_running(batch: Batch, lanes: Ints, arrival: Floats) -> Floats:
    """Requests queued or running, on prefill instances tokens queued, of `lanes`, when a request arrives. Shapes
    alike, -1: of no meaning."""
    reserved, rules = batch.reserved_memory, batch.rules
    if not rules.decodes:
        load: Floats = batch.inflow.sent_prompts[lanes] - batch.queue.prompts_at_head[lanes]
        return load
    load = not_done(batch, lanes, arrival)
    if rules.reserve and rules.prefills:
        # Not those taken up whose prefill has not ended, or ends with a step that is not over.
        load = load - (batch.queue.head[lanes] - reserved.prefilled_end[lanes])
    return load


def not_done(batch: Batch, lanes: Ints, arrival: Floats) -> Floats:
    """Requests that are not done. Shapes alike."""
    queue, decodes, rules = batch.queue, batch.decodes, batch.rules
    if batch.listed:
        left: Floats = (batch.inflow.routed - batch.running_list.number_done)[lanes].astype(np.float64)
        return left
    number, head = batch.inflow.routed[lanes], queue.head[lanes]
    outstanding: Floats
    if not rules.reserve:
        outstanding = decodes.running[lanes] + (number - head) + queue.preempted_waiting[lanes]
    elif not rules.decodes:
        in_batch = np.where(batch.clock.now[lanes] >= arrival, batch.inflow.batch_requests[lanes], 0)
        outstanding = in_batch + (number - head)
    else:
        outstanding = (number - batch.reserved_memory.decode_queue_head[lanes]) + decodes.decoding[lanes]
    return outstanding


def tokens_not_done(batch: Batch, lanes: Ints, arrival: Floats) -> Floats:
    """Tokens of requests that are not done: prompt + output, on prefill instances prompts. Shapes alike."""
    inflow = batch.inflow
    if batch.rules.decodes:
        tokens: Floats = inflow.outstanding_tokens[lanes]
        return tokens
    queued = inflow.sent_prompts[lanes] - batch.queue.prompts_at_head[lanes]
    waiting: Floats = queued + np.where(batch.clock.now[lanes] >= arrival, inflow.batch_tokens[lanes], 0)
    return waiting
