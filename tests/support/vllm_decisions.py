"""What the reference's scheduler decides, step by step, in the words of the golden files of vLLM."""

from typing import Any

from servesweep.serving.reference import Observer, ReferenceScheduler, RequestState, Step, schedule

RENAMED = {"max_num_seqs": "max_running", "max_num_batched_tokens": "token_budget"}


class Decisions(Observer):
    """One entry a step, as tests/golden/vllm has them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.admitted: list[list[int]] = []
        self.preempted: list[int] = []

    def on_admit(self, request: RequestState, time: float) -> None:
        self.admitted.append([request.key, request.found])

    def on_preempt(self, request: RequestState, time: float) -> None:
        self.preempted.append(request.key)

    def on_step(self, source: ReferenceScheduler, step: Step) -> None:
        entry = {"step": int(step.start), "tokens": [[r.key, step.pieces.get(r, 1)] for r in step.batch]}
        lists = {"admitted": self.admitted, "preempted": self.preempted, "finished": [r.key for r in source.finished]}
        entry |= {name: found for name, found in lists.items() if found}
        self.steps.append({**entry, "free_run": source.free, "free": source.free})
        self.admitted, self.preempted, self.source = [], [], source

    def on_finish(self, request: RequestState, time: float) -> None:
        self.steps[-1]["free"] = self.source.free


def decide(inputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs that a golden case would have, from its inputs, by the reference."""
    options = dict(inputs)
    requests = options.pop("requests")
    options["order"] = "priority" if options.pop("policy", "fcfs") == "priority" else "arrival"
    options = {RENAMED.get(name, name): value for name, value in options.items()}
    columns = {
        "arrivals": [request["arrival"] for request in requests],
        "prompts": [tokens_of(request["prompt"]) for request in requests],
        "outputs": [request["output"] for request in requests],
        "priorities": [request.get("priority", 0) for request in requests],
    }
    texts = [
        [*([(f"p{i}", prompt)] if isinstance(prompt, int) else map(tuple, prompt)), (f"o{i}", request["output"])]
        for i, request in enumerate(requests)
        for prompt in [request["prompt"]]
    ]
    log = Decisions()
    _, served = schedule(**columns, step_time=lambda *_: 1, policy="vllm", texts=texts, observer=log, **options)
    return {
        "first_token": [int(request.first_token) - 1 for request in served],
        "finish": [int(request.finish) - 1 for request in served],
        "preemptions": [request.preemptions for request in served],
        "cached_tokens": [request.cached_tokens for request in served],
        "steps": log.steps,
    }


def tokens_of(prompt: int | list[list[Any]]) -> int:
    return prompt if isinstance(prompt, int) else sum(tokens for _, tokens in prompt)
