"""The scheduler's rules in plain Python, one step at a time: what the engine must compute, and at what speed to beat.

Written from docs/scheduler.md and not from the engine; it imports nothing of the package but its own parts. How a
policy makes up a step is a row of `POLICIES`, who is next one of `ORDERS`. An `Observer` is told of every admission,
step, preemption and finish.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .reference_cache import Contents, PrefixCache
from .reference_queue import ORDERS, Queue, RequestState
from .reference_vllm import VllmRules, follow_up, longest_of, vllm_step

__all__ = [
    "ORDERS",
    "POLICIES",
    "Observer",
    "ReferenceScheduler",
    "RequestState",
    "Step",
    "fits_alone",
    "reject",
    "schedule",
]

StepTime = Callable[[int, int, int, int, int, int], float]
"""Decoding, context, prefill tokens, attention pairs, prompt tokens done before, requests that emit -> duration."""


class Step(NamedTuple):
    """A step that has just ended. Whoever finishes in it still holds its blocks; lists are good until the next step."""

    start: float
    end: float
    running: list[RequestState]  # in order of admission
    batch: list[RequestState]  # those of them that took part
    pieces: dict[RequestState, int]  # those of the batch in prefill, and the tokens processed; 0: no share was left
    emitted: int
    tokens: int
    blocks: int

    def emitters(self) -> list[RequestState]:
        """Who emitted a token: all that decoded, and those whose prefill ended."""
        return [request for request in self.batch if request.status == "decode"]


class Observer:
    """Is told what happens as it happens. Subclasses say what they do with it."""

    def on_admit(self, request: RequestState, time: float) -> None:
        """A request was admitted, perhaps not for the first time."""

    def on_step(self, source: Any, step: Any) -> None:
        """A scheduler, `source`, has done a `Step`."""

    def on_preempt(self, request: RequestState, time: float) -> None:
        """A request lost its blocks and waits again."""

    def on_finish(self, request: RequestState, time: float) -> None:
        """A request has sent its last token."""


# How a step is made up: each says who takes part


def decodes_and_prefills(scheduler: "ReferenceScheduler") -> list[RequestState]:
    """Grow, admit, and all that run take part; a token budget, if there is one, splits prompts."""
    scheduler.grow()
    scheduler.admit()
    return scheduler.running


def prefills_or_decodes(scheduler: "ReferenceScheduler") -> list[RequestState]:
    """Those admitted now and nobody else; if nobody is, all grow and decode."""
    admitted = scheduler.admit()
    if admitted:
        return admitted
    scheduler.grow()
    return scheduler.running


POLICIES: dict[str, Callable[["ReferenceScheduler"], list[RequestState]]] = {
    "mixed": decodes_and_prefills,
    "chunked": decodes_and_prefills,
    "prefill_first": prefills_or_decodes,
    "vllm": vllm_step,
}
FOLLOW_UPS: dict[str, Callable[["ReferenceScheduler", list[RequestState], int], None]] = {"vllm": follow_up}
NOTHING: list[int] = []  # is found without a prefix cache
MAX_TOKENS: dict[str, float] = {"prefill_first": 4096}  # default of a policy; elsewhere all that fit are admitted


class ReferenceScheduler:
    """One instance. Loop over `boundaries()`, which pauses before each step, to run it.

    Parameters
    ----------
    requests       all that will arrive, in any order; each must fit alone (`fits_alone`)
    step_time      how long a step takes
    policy, order  rows of POLICIES and ORDERS
    max_running    most requests that run at a time
    block_size     tokens of a KV block; None: memory without limit, all block counts are 0
    num_blocks     KV blocks
    token_budget   most tokens processed in a step; None: no limit
    max_tokens     most prompt tokens admitted in a step, but for a single request; None: the policy's default
    max_wait_s     who has waited so long goes first; None: nobody does
    enable_prefix_caching  blocks are found again by their content (reference_cache.py)
    contents       numbers of contents, if instances share them
    rules          what is only for policy "vllm": the fields of VllmRules
    observer       is told what happens
    step_ends      when each step ends, in place of `step_time`: to follow a clock that is kept elsewhere
    """

    def __init__(
        self,
        requests: Iterable[RequestState],
        step_time: StepTime,
        policy: str,
        max_running: int,
        *,
        block_size: int | None = None,
        num_blocks: int | None = None,
        token_budget: int | None = None,
        max_tokens: int | None = None,
        order: str = "arrival",
        max_wait_s: float | None = None,
        observer: Observer | None = None,
        step_ends: Iterator[float] | None = None,
        enable_prefix_caching: bool = False,
        contents: Contents | None = None,
        **rules: Any,
    ) -> None:
        self.step_time, self.step_ends, self.observer = step_time, step_ends, observer
        self.compose, self.follow_up, self.max_running = POLICIES[policy], FOLLOW_UPS.get(policy), max_running
        self.block_size, self.num_blocks = block_size, num_blocks or 0
        self.token_budget = token_budget or math.inf
        self.max_tokens: float = max_tokens or MAX_TOKENS.get(policy, math.inf)
        self.cache: PrefixCache | None = None
        if enable_prefix_caching:
            assert block_size is not None
            self.cache = PrefixCache(self.num_blocks, contents or Contents(block_size))
        self.time: float = 0
        self.free = self.num_blocks
        self.arriving = deque(sorted(requests, key=ORDERS["arrival"].key))
        self.rules = VllmRules(order == "priority", **rules)
        self.shares: dict[RequestState, int] | None = None  # of the prefills, where the policy deals them out
        self.waiting = Queue(order, max_wait_s, preempted_first=policy != "vllm" or order != "priority")
        self.running: list[RequestState] = []  # in order of admission
        self.finished: list[RequestState] = []  # in the last step
        self.steps = self.prefill_tokens = self.recomputed_tokens = self.peak_blocks = 0
        self.running_steps = self.block_steps = 0  # sums over steps of running requests and of blocks held
        self.busy_s = 0.0
        self.refound_tokens = 0  # found in the prefix cache by admissions after a preemption
        self.preempting = False  # somebody has been preempted in this step
        assert all(fits_alone(request, block_size, num_blocks) for request in self.arriving)

    def boundaries(self) -> Iterator["ReferenceScheduler"]:
        """Yield before each step, with the clock at its beginning and all that it can see in `waiting`."""
        while self.running or self.waiting or self.arriving:
            if not self.running and not self.waiting:
                self.time = max(self.time, self.arriving[0].arrival)  # idle until the next arrival
            while self.arriving and self.arriving[0].arrival <= self.time:
                self.waiting.add(self.arriving.popleft())
            yield self
            self.step()
        assert self.free == self.num_blocks

    def step(self) -> None:
        """Make up a batch, process it, let go who is done."""
        self.preempting = False
        start, batch = self.time, self.compose(self)
        running, blocks = self.running, self.num_blocks - self.free
        pieces, emitted, tokens = self.process(batch)
        self.steps += 1
        self.running_steps += len(running)
        self.block_steps += blocks
        if blocks > self.peak_blocks:
            self.peak_blocks = blocks
        self.busy_s += self.time - start
        if self.observer is not None:
            self.observer.on_step(self, Step(start, self.time, running, batch, pieces, emitted, tokens, blocks))
        if self.follow_up is not None:
            self.follow_up(self, batch, emitted)
        if self.finished:
            self.finish()

    def grow(self) -> None:
        """Give each decoding request room for the token that it is about to write, the oldest first."""
        size = self.block_size
        if size is None:
            return
        for request in self.running:  # a preemption only cuts the list's end, and the loop ends there
            if request.status == "decode" and request.prompt + request.emitted > request.blocks * size:
                while request.status == "decode" and self.free == 0:
                    self.preempt(self.running.pop())
                if request.status == "decode":
                    request.blocks += 1
                    self.free -= 1
                    if self.cache is not None:
                        self.cache.take(request, 1)
        if self.cache is not None:
            for request in self.running:
                if request.status == "decode":
                    self.cache.register(request, request.prompt + request.emitted)

    def preempt(self, request: RequestState) -> None:
        """Who has just been taken off the running waits again."""
        self.preempting = True
        self.release(request)
        request.status, request.done = "waiting", 0  # prefill progress is lost, sent tokens stay sent
        request.preemptions += 1
        self.waiting.put_back(request)
        if self.observer is not None:
            self.observer.on_preempt(request, self.time)

    def admit(self) -> list[RequestState]:
        """Admit heads of the queue until one does not fit: nobody skips ahead. Returns those admitted."""
        cache, found, idle, left = self.cache, NOTHING, 0, 0
        if cache is not None:
            left = self.share_out()
            if self.preempting:
                return []  # without a cache nobody would fit
        if not self.waiting:
            return []
        before, tokens = len(self.running), 0
        if self.waiting.young:
            self.waiting.age(self.time)
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            target = request.prompt + request.emitted
            tokens += target
            blocks = blocks_of(target, self.block_size)
            if cache is not None:
                found, idle = cache.find(request)
                blocks -= len(found)
                tokens -= len(found) * cache.block_size
            if blocks + idle > self.free or (len(self.running) > before and tokens > self.max_tokens):
                break
            self.start(blocks, found, idle)
            if cache is not None:
                piece = min(left, target - request.done)
                left -= piece
                cache.register(request, request.done + piece)
        return self.running[before:]

    def share_out(self) -> Any:
        """What those that run leave of the token budget; what they will compute of their prompts becomes known."""
        assert self.cache is not None
        left: Any = self.token_budget
        for request in self.running:
            piece = 1
            if request.status == "prefill":
                piece = min(left, request.prompt + request.emitted - request.done)
                self.cache.register(request, request.done + piece)
            left -= piece
        return left

    def start(self, blocks: int, found: list[int], idle: int) -> None:
        """The head of the queue runs from now on, with blocks found, `idle` of them nobody's, and so many new ones."""
        request = self.waiting.admit(self.time)
        self.running.append(request)
        request.status = "prefill"
        if self.cache is not None:
            self.cache.share(request, found)
            request.blocks = len(found)
            self.free -= idle
            request.done = request.found = request.blocks * self.cache.block_size
            if request.preemptions:
                self.refound_tokens += request.found
            elif math.isnan(request.first_token):  # on an instance that decodes only nothing is saved
                request.cached_tokens = request.found
        self.take(request, blocks)
        if self.observer is not None:
            self.observer.on_admit(request, self.time)

    def process(self, batch: list[RequestState]) -> tuple[dict[RequestState, int], int, int]:
        """Process a batch and move the clock to the end of the step.

        Returns tokens processed of each prefill, tokens emitted in all, tokens processed in all.
        """
        prefilling, prefilled, finished = [], [], []
        ctx = chunk = pairs = before = 0
        for request in batch:
            if request.status == "decode":
                ctx += request.prompt + request.emitted
                request.emitted += 1
                if request.emitted == request.output:
                    finished.append(request)
            else:
                prefilling.append(request)
        decoding = len(batch) - len(prefilling)
        left: Any = self.token_budget - decoding
        shares = self.shares
        pieces = {}
        for request in prefilling:
            target = request.prompt + request.emitted
            pieces[request] = piece = min(left, target - request.done) if shares is None else shares[request]
            left -= piece
            chunk += piece
            before += request.done if piece else 0
            pairs += piece * request.done + piece * (piece + 1) // 2  # a token attends to those before it and to itself
            request.done += piece
            self.recomputed_tokens += piece if request.preemptions else 0
            if request.done == target:
                prefilled.append(request)
        self.prefill_tokens += chunk
        assert left >= 0
        assert decoding + chunk > 0, "nothing would ever change again"
        if self.step_ends is None:
            self.time += self.step_time(decoding, ctx, chunk, pairs, before, decoding + len(prefilled))
        else:
            self.time = next(self.step_ends)
        ahead = len(finished)
        for request in prefilled:
            request.status = "decode"
            request.emitted += 1
            if request.emitted == 1:
                request.first_token = self.time
            if request.emitted == request.output:
                finished.append(request)
        if 0 < ahead < len(finished):
            finished = [request for request in batch if request.emitted == request.output]  # in the order of the batch
        self.finished = finished
        return pieces, decoding + len(prefilled), decoding + chunk

    def finish(self) -> None:
        """Who has sent all tokens leaves; the blocks are free from the next step on."""
        for request in self.finished:
            if request.status == "waiting":  # preempted for the next step, which was fixed before
                self.waiting.drop(request)
            request.status, request.finish = "finished", self.time
            self.release(request)
            if self.observer is not None:
                self.observer.on_finish(request, self.time)
        self.running = [request for request in self.running if request.status != "finished"]

    def take(self, request: RequestState, blocks: int) -> None:
        request.blocks += blocks
        self.free -= blocks
        if self.cache is not None:
            self.cache.take(request, blocks)

    def release(self, request: RequestState) -> None:
        if request.blocks:
            self.free += request.blocks if self.cache is None else self.cache.release(request)
            request.blocks = 0


def blocks_of(tokens: int, block_size: int | None) -> int:
    """KV blocks that so many tokens take; none where memory has no limit."""
    return 0 if block_size is None else -(-tokens // block_size)


def fits_alone(request: RequestState, block_size: int | None, num_blocks: int | None) -> bool:
    """Whether the memory can ever hold a request: its last token is sent, and never kept."""
    return blocks_of(request.prompt + request.output - 1, block_size) <= (num_blocks or 0)


def reject(
    requests: Iterable[RequestState], block_size: int | None, num_blocks: int | None, longest: float = math.inf
) -> list[RequestState]:
    """Those that can be served, and have at most `longest` tokens with their answer; the others are marked."""
    served = []
    for request in requests:
        if fits_alone(request, block_size, num_blocks) and request.prompt + request.output <= longest:
            served.append(request)
        else:
            request.status = "rejected"
    return served


def schedule(
    arrivals: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    step_time: StepTime,
    *,
    priorities: Sequence[int] | None = None,
    texts: Sequence[list[tuple[Any, int]]] | None = None,
    **options: Any,
) -> tuple[ReferenceScheduler, list[RequestState]]:
    """Serve a workload, whose columns have one entry a request; the options are those of ReferenceScheduler.

    `texts` says what prompts and answers are made of (`RequestState.texts`), for the prefix cache.

    Returns the scheduler when all is done, and the requests as given; who can never fit has the status "rejected".
    """
    columns = zip(arrivals, prompts, outputs, priorities or [0] * len(arrivals), strict=True)
    requests = [RequestState(i, *row) for i, row in enumerate(columns)]
    for request, own in zip(requests, texts or (), strict=False):
        request.texts = own
    served = reject(requests, options.get("block_size"), options.get("num_blocks"), longest_of(options))
    scheduler = ReferenceScheduler(served, step_time, **options)
    deque(scheduler.boundaries(), maxlen=0)
    return scheduler, requests
