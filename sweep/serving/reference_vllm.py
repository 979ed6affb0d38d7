"""A step of vLLM's V1 scheduler (0.33.0) in plain Python: the reference's policy `vllm`, and its rules.

Words are those of docs/scheduler.md. Besides, *tokens* of a request are prompt + sent ones, and *computed* are those
of them whose keys and values exist: none of a preempted request, all but one of a request that decodes.

There are no phases, and one budget of `token_budget` tokens. A request gets at most `long_prefill_token_threshold` in a
step, if that is not 0 and anybody else runs or waits when the step begins.

1. Running requests, in the order of admission, until the budget is spent: each gets min(tokens - computed, limit,
   budget left), and takes the blocks that it lacks for computed + these. While they are not all free, the request
   admitted last is preempted; if that is the asker, this part ends. Who is reached without budget gets nothing.
2. Heads of the queue, only if nobody was preempted in this step, while budget is left and fewer than `max_running` run.
   The gate asks for the blocks of all tokens, though those alone are taken that the tokens of this step need; without
   `reserve_full_isl` it asks for these alone. If others run, floor(watermark x (num_blocks + 1)) blocks must stay free
   besides: vLLM counts one that it never hands out. The first that does not fit ends this part, and so does, without
   `enable_chunked_prefill`, the first whose share is larger than the budget left.
3. Who has all tokens computed now sends one. A step's time counts a request as prefill from its admission until it
   sends a token, then as decode.
4. Who has sent the last token leaves, in the order of 1 and 2.

Priority (`order="priority"`) means vLLM's own: the queue is in the order of (priority, arrival, position), preempted
requests among the others. The victim is the running request with the largest (priority, arrival); of several, the one
admitted first. If it has tokens of this step already, they return to the budget; the share of the asker stays what it
was. If the victim is the asker, the next running request follows. Other orders: who was preempted waits in front.

Guard. Of equals in (priority, arrival) the oldest goes, so two split prompts could evict each other for ever, as they
do in vLLM. When 1,000 steps have preempted somebody since a token was last sent by anybody (in a step that sends
tokens the count returns to 0 at its end), the victim among equals is the one admitted *last*, until a token is sent.
The one admitted first then stays and gets on, so a token comes.

Async scheduling: the batch of a step is fixed when the step before it begins, right after that one's own. This is our
rule; unlike all above it is not tested against vLLM.

- What the step under way computes counts as computed, and the tokens that it sends as sent, so decodes go on. But they
  are not known: a block with such a token is registered when that step ends, and nobody finds it before.
- Who sends its last token in the step under way gets nothing (its length is known), but keeps place and blocks until
  that step has ended. So they are free one step later than otherwise.
- Those are seen that have arrived when the step under way begins. So a request mostly waits one step more.
- If nobody gets a token nothing is fixed: the next batch is made up when the step under way has ended, or on an idle
  instance when a request arrives; it begins at once, and then the one after it is fixed.
- A victim that takes part in the step under way keeps the token that it sends there. If that is its last, it leaves the
  queue when that step ends. *Admitted* is the beginning of the step for whose batch a request was taken.

Refused are requests that never fit into the blocks; with prompt + output > `max_model_len`, as by vLLM's server; and
without chunked prefill with prompt + output > `token_budget`. With unlimited memory there is no gate and no preemption.

It imports nothing of the package but the reference's own parts, and of `scheduler` it knows what it uses.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from .reference_queue import RequestState

STALLS = 1000  # so many steps may preempt somebody and no token be sent before the guard against livelock works


@dataclass(slots=True)
class VllmRules:
    """What policy `vllm` can be told, and what it keeps in mind.

    Parameters
    ----------
    priority                      the victim is who has the largest (priority, arrival), not who was admitted last
    long_prefill_token_threshold  most tokens of a request in a step while others are there; 0: no limit
    enable_chunked_prefill        prompts may be split
    reserve_full_isl              admission asks whether the whole sequence fits, not only the first chunk
    watermark                     part of the blocks that an admission leaves free while others run
    async_scheduling              the batch of a step is fixed when the step before begins
    max_model_len                 most tokens of prompt and answer; None: no limit. It matters to `longest_of` alone
    """

    priority: bool = False
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = False
    max_model_len: int | None = None
    stalls: int = field(default=0, init=False)  # steps that preempted somebody since the last token was sent
    fixed: list[RequestState] = field(default_factory=list, init=False)  # the next batch, if it is fixed
    unknown: set[RequestState] = field(default_factory=set, init=False)  # their last token is not known yet


def longest_of(limits: dict[str, Any]) -> float:
    """Most tokens of prompt and answer that a scheduler with these options serves."""
    longest: float = limits.get("max_model_len") or math.inf
    if not limits.get("enable_chunked_prefill", True):
        longest = min(longest, limits.get("token_budget") or math.inf)
    return longest


def vllm_step(scheduler: Any) -> list[RequestState]:
    """The batch that was fixed a step ago, or one that is made up now."""
    batch: list[RequestState]
    if scheduler.rules.fixed:
        batch, scheduler.rules.fixed = scheduler.rules.fixed, []
        return batch
    return make_up(scheduler)


def make_up(scheduler: Any) -> list[RequestState]:
    """Who runs gets tokens in the order of admission, then heads of the queue, all from one budget."""
    threshold = scheduler.rules.long_prefill_token_threshold
    cap: float = threshold if threshold and len(scheduler.running) + len(scheduler.waiting) > 1 else math.inf
    scheduler.shares = {}
    batch: list[RequestState] = []
    left = go_on(scheduler, batch, cap)
    if scheduler.preempting:
        scheduler.rules.stalls += 1
    elif scheduler.waiting:
        begin(scheduler, batch, cap, left)
    return batch


def go_on(scheduler: Any, batch: list[RequestState], cap: float) -> float:
    """Tokens for the running. Returns what is left of the budget."""
    running, size, shares = scheduler.running, scheduler.block_size, scheduler.shares
    ends = scheduler.finished if scheduler.rules.async_scheduling else None
    left: float = scheduler.token_budget
    i = 0
    while i < len(running) and left > 0:
        request = running[i]
        if (
            request.status == "decode"
            and (size is None or request.prompt + request.emitted < request.blocks * size)
            and not ends
        ):
            batch.append(request)  # nothing is to be decided
            left -= 1
            i += 1
            continue
        n: Any = 1
        computed = request.prompt + request.emitted - 1
        if request.status == "prefill":
            n = min(computed + 1 - request.done, cap, left)
            computed = request.done
        elif ends and request.emitted == request.output:
            i += 1
            continue
        if size is not None and computed + n > request.blocks * size:
            need = -(-(computed + n) // size) - request.blocks
            while need > scheduler.free:
                at = victim(scheduler)
                loser = running.pop(at)
                scheduler.preempt(loser)
                if at < i:
                    i -= 1
                    if loser in batch:  # it has tokens of this step, and gives them back
                        batch.remove(loser)
                        left += shares.pop(loser, 1)
                elif at == i:
                    break
            else:
                scheduler.take(request, need)
            if request.status == "waiting":
                continue  # with who has moved up to its place; there is nobody if the last is always the victim
        if scheduler.cache is not None:
            scheduler.cache.register(request, min(computed + n, known(scheduler, request)))
        batch.append(request)
        if request.status == "prefill":
            shares[request] = n
        left -= n
        i += 1
    return left


def known(scheduler: Any, request: RequestState) -> int:
    """Tokens of a request that are known."""
    return request.prompt + request.emitted - (request in scheduler.rules.unknown)


def follow_up(scheduler: Any, batch: list[RequestState], emitted: int) -> None:
    """A batch has been processed. Under async scheduling its step only begins now: fix the next one."""
    if emitted:
        scheduler.rules.stalls = 0
    if scheduler.rules.async_scheduling:
        fix_next(scheduler, batch)


def fix_next(scheduler: Any, batch: list[RequestState]) -> None:
    """Make up the batch after this one, whose tokens are not known yet."""
    scheduler.rules.unknown = {request for request in batch if request.status == "decode"}
    scheduler.preempting = False
    scheduler.rules.fixed = make_up(scheduler)
    scheduler.rules.unknown = set()
    if scheduler.cache is not None:  # the step ends, and all is known
        for request in scheduler.rules.fixed:
            piece = scheduler.shares.get(request, 1)
            done = request.done if request.status == "prefill" else request.prompt + request.emitted - 1
            scheduler.cache.register(request, done + piece)


def victim(scheduler: Any) -> int:
    """Place in the running list of who is preempted next."""
    running = scheduler.running
    last = len(running) - 1
    if not scheduler.rules.priority:
        return last
    ranks = [(request.priority, request.arrival) for request in running]
    worst = max(ranks)
    if scheduler.rules.stalls < STALLS:
        return ranks.index(worst)
    return last - ranks[::-1].index(worst)  # who was admitted first stays, and gets on


def begin(scheduler: Any, batch: list[RequestState], cap: float, left: float) -> None:
    """Admit heads of the queue while the budget lasts, until one does not fit."""
    waiting, running, rules, size = scheduler.waiting, scheduler.running, scheduler.rules, scheduler.block_size
    shares, cache = scheduler.shares, scheduler.cache
    found: list[int] = []
    idle = done = 0
    spare = math.floor(rules.watermark * (scheduler.num_blocks + 1))  # vLLM counts the null block
    if waiting.young:
        waiting.age(scheduler.time)
    while waiting and left > 0 and len(running) < scheduler.max_running:
        request = waiting[0]
        target = request.prompt + request.emitted
        if cache is not None:
            found, idle = cache.find(request)
            done = len(found) * size
        n: Any = min(target - done, cap)
        if n > left:
            if not rules.enable_chunked_prefill:
                break
            n = left
        blocks = 0
        if size is not None:
            blocks = -(-(done + n) // size) - len(found)
            asked = idle + (-(-target // size) - len(found) if rules.reserve_full_isl else blocks)
            if asked + (spare if running else 0) > scheduler.free:
                break
        scheduler.start(blocks, found, idle)
        if cache is not None:
            cache.register(request, min(done + n, known(scheduler, request)))
        shares[request] = n
        batch.append(request)
        left -= n
