"""The scheduler's oracle in plain Python, one step at a time: a yardstick for the engine's answers and for its speed.

On a clock of whole steps it is `simulate`, on one of seconds `run_scheduler`. It imports nothing of the package.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

StepTime = Callable[[int, int, int, int], float]  # mixed(decoding, ctx, prefill_tokens, attention_pairs) -> duration
Row = tuple[Any, Any, int, int, int, int]  # one step: start, end, running, emitted, tokens processed, blocks held


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through the scheduler."""

    key: Any  # breaks ties of arrival: the rid, or the position in the workload
    arrival: float
    prompt: int
    output: int
    status: str = "waiting"  # -> prefill -> decode -> finished; back to waiting when preempted
    emitted: int = 0
    done: int = 0  # tokens prefilled since the last admission, of prompt + emitted
    blocks: int = 0
    preemptions: int = 0
    admitted: float = math.nan  # start of the step of its first admission
    first_token: float = math.nan
    finish: float = math.nan


class Scheduler:
    """One instance. Loop over `boundaries()`, which pauses before each step, to run it."""

    def __init__(
        self, sequences: Iterable[Sequence], step_time: StepTime, policy: str, max_running: int, **limits: Any
    ):
        self.step_time, self.policy, self.max_running = step_time, policy, max_running
        self.block_size: int | None = limits.pop("block_size", None)  # None: unlimited memory, all block counts are 0
        self.num_blocks: int = limits.pop("num_blocks", None) or 0
        self.token_budget = limits.pop("token_budget", None) or math.inf
        self.max_tokens = limits.pop("max_tokens", 4096 if policy == "prefill_first" else math.inf)
        self.log: list[Row] | None = limits.pop("log", None)
        assert not limits, limits
        self.time: float = 0
        self.free, self.finished = self.num_blocks, list[Sequence]()  # finished: in the last step
        self.arriving = deque(sorted(sequences, key=lambda seq: (seq.arrival, seq.key)))
        self.waiting: deque[Sequence] = deque()  # arrived, preempted ones in front
        self.running: list[Sequence] = []  # in order of admission
        self.steps = self.prefill_tokens = self.recomputed_tokens = self.peak_blocks = 0
        self.running_steps = self.block_steps = 0  # sums over steps of running requests and of blocks held
        self.busy_s = 0.0
        assert all(self.fits_alone(seq) for seq in self.arriving)

    def boundaries(self) -> Iterator["Scheduler"]:
        """Yield before each step, with the clock at its beginning and all that it can see in `waiting`."""
        while self.running or self.waiting or self.arriving:
            if not self.running and not self.waiting:
                self.time = max(self.time, self.arriving[0].arrival)  # idle until the next arrival
            while self.arriving and self.arriving[0].arrival <= self.time:
                self.waiting.append(self.arriving.popleft())
            yield self
            self.step()
        assert self.free == self.num_blocks

    def step(self) -> None:
        start = self.time
        batch = self.admit() if self.policy == "prefill_first" else []
        if not batch:
            self.grow()
            if self.policy != "prefill_first":
                self.admit()
            batch = self.running
        running, blocks = len(self.running), self.num_blocks - self.free
        emitted, tokens = self.process(batch)
        if self.log is not None:
            self.log.append((start, self.time, running, emitted, tokens, blocks))
        self.steps += 1
        self.running_steps += running
        self.block_steps += blocks
        self.peak_blocks = max(self.peak_blocks, blocks)
        self.busy_s += self.time - start

    def grow(self) -> None:
        if self.block_size is None:
            return
        for seq in self.running:  # a preemption only cuts the list's end, and the loop ends there
            if seq.status == "decode" and seq.prompt + seq.emitted > seq.blocks * self.block_size:
                while seq.status == "decode" and self.free == 0:
                    self.preempt_youngest()
                if seq.status == "decode":
                    seq.blocks += 1
                    self.free -= 1

    def preempt_youngest(self) -> None:
        seq = self.running.pop()
        self.release(seq)
        seq.status, seq.done = "waiting", 0  # prefill progress is lost, sent tokens stay sent
        seq.preemptions += 1
        self.waiting.appendleft(seq)

    def admit(self) -> list[Sequence]:
        before, tokens = len(self.running), 0
        while self.waiting and len(self.running) < self.max_running:
            seq = self.waiting[0]
            tokens += seq.prompt + seq.emitted
            if not self.can_allocate(seq) or (len(self.running) > before and tokens > self.max_tokens):
                break
            self.allocate(seq)
            seq.status = "prefill"
            if math.isnan(seq.admitted):
                seq.admitted = self.time
            self.running.append(self.waiting.popleft())
        return self.running[before:]

    def process(self, batch: list[Sequence]) -> tuple[int, int]:
        """Run one step of the batch and move the clock to its end. Returns tokens emitted and tokens processed."""
        prefilling, prefilled, self.finished = [], [], []
        ctx = chunk = pairs = 0
        for seq in batch:
            if seq.status == "decode":
                ctx += seq.prompt + seq.emitted
                seq.emitted += 1
                if seq.emitted == seq.output:
                    self.finished.append(seq)
            else:
                prefilling.append(seq)
        decoding = len(batch) - len(prefilling)
        left: Any = self.token_budget - decoding
        for seq in prefilling:
            target = seq.prompt + seq.emitted
            piece = min(left, target - seq.done)
            left -= piece
            chunk += piece
            pairs += piece * seq.done + piece * (piece + 1) // 2  # a token attends to those before it and to itself
            seq.done += piece
            self.recomputed_tokens += piece if seq.preemptions else 0
            if seq.done == target:
                prefilled.append(seq)
        self.prefill_tokens += chunk
        assert left >= 0
        assert decoding + chunk > 0, "nothing would ever change again"
        self.time += self.step_time(decoding, ctx, chunk, pairs)
        for seq in prefilled:
            seq.status = "decode"
            seq.emitted += 1
            if seq.emitted == 1:
                seq.first_token = self.time
            if seq.emitted == seq.output:
                self.finished.append(seq)
        for seq in self.finished:
            seq.status, seq.finish = "finished", self.time
            self.release(seq)
        if self.finished:
            self.running = [seq for seq in self.running if seq.status != "finished"]
        return decoding + len(prefilled), decoding + chunk

    def blocks_for(self, tokens: int) -> int:
        return 0 if self.block_size is None else -(-tokens // self.block_size)

    def fits_alone(self, seq: Sequence) -> bool:
        return self.blocks_for(seq.prompt + seq.output - 1) <= self.num_blocks

    def can_allocate(self, seq: Sequence) -> bool:
        return self.blocks_for(seq.prompt + seq.emitted) <= self.free

    def allocate(self, seq: Sequence) -> None:
        seq.blocks = self.blocks_for(seq.prompt + seq.emitted)
        self.free -= seq.blocks

    def release(self, seq: Sequence) -> None:
        self.free += seq.blocks
        seq.blocks = 0


def run_scheduler(
    arrivals: Iterable[float], prompts: Iterable[int], outputs: Iterable[int], step_time: StepTime, **options: Any
) -> tuple[Scheduler, list[Sequence]]:
    """The scheduler when all is done, and the sequences as given; those that could never fit are still waiting."""
    sequences = [Sequence(i, *request) for i, request in enumerate(zip(arrivals, prompts, outputs, strict=True))]
    fits_alone = Scheduler([], step_time, **options).fits_alone
    scheduler = Scheduler(filter(fits_alone, sequences), step_time, **options)
    deque(scheduler.boundaries(), maxlen=0)
    return scheduler, sequences


def simulate(
    requests: Iterable[tuple[str, int, int, int]], max_running: int, **limits: Any
) -> tuple[dict[str, dict[str, float]], list[tuple[int, ...]]]:
    """Result, and log as (step, running, emitted, tokens, blocks_used). Each step lasts 1: stamp s + 1 is step s."""
    sequences, rows = [Sequence(*request) for request in requests], list[Row]()
    deque(Scheduler(sequences, lambda *_: 1, "mixed", max_running, log=rows, **limits).boundaries(), maxlen=0)
    result = {
        seq.key: {"first_token": seq.first_token - 1, "finish": seq.finish - 1, "preemptions": seq.preemptions}
        for seq in sequences
    }
    busy = {start: tuple(counts) for start, _, *counts in rows}
    return result, [(step, *busy.get(step, (0, 0, 0, 0))) for step in range(max(busy, default=-1) + 1)]
