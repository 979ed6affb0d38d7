"""Random requests with text in common, and what a reference scheduler with a prefix cache keeps at every boundary."""

from collections.abc import Iterator
from random import Random
from typing import Any

from servesweep.serving.reference import ReferenceScheduler, RequestState, blocks_of

Texts = list[tuple[str, int]]


def requests(rng: Random) -> dict[str, Any]:
    """Columns for `schedule`: prompts that begin alike, second turns, ties of arrival and priority."""
    n = rng.randint(1, 14)
    texts: list[Texts] = []
    for i in range(n):
        segments = [(rng.choice(["a", "b", "c"]), rng.randint(1, 20)) for _ in range(rng.randint(0, 2))]
        if i and rng.random() < 0.4:  # a prompt once more, or its next turn
            segments = texts[rng.randrange(i)][: rng.choice([-1, None])]
        if not segments or rng.random() < 0.5:
            segments = [*segments, (f"q{i}", rng.randint(1, 20))]
        texts.append([*segments, (f"o{i}", rng.randint(1, 20))])
    last = rng.choice([0, 10, 40])
    return {
        "arrivals": [rng.randint(0, last) for _ in range(n)],
        "prompts": [sum(tokens for _, tokens in text[:-1]) for text in texts],
        "outputs": [text[-1][1] for text in texts],
        "priorities": [rng.randint(0, 2) for _ in range(n)],
        "texts": texts,
    }


def limits(rng: Random, columns: dict[str, Any], policy: str) -> dict[str, Any]:
    """Options of a scheduler with scarce blocks, in which each request fits."""
    options: dict[str, Any] = {
        "policy": policy,
        "max_running": rng.randint(1, 8),
        "block_size": rng.choice([1, 2, 3, 8]),
    }
    tokens = (p + o - 1 for p, o in zip(columns["prompts"], columns["outputs"], strict=True))
    options["num_blocks"] = blocks_of(max(tokens), options["block_size"]) + rng.choice([0, 0, 1, 3, 10])
    options["order"] = rng.choice(["arrival", "priority"])
    if policy in ("chunked", "vllm"):
        options["token_budget"] = options["max_running"] + rng.randint(0, 30)
    if policy == "vllm":
        options |= {
            "long_prefill_token_threshold": rng.choice([0, 0, 1, 2, 7]),
            "reserve_full_isl": rng.random() < 0.6,
            "watermark": rng.choice([0.0, 0.0, 0.1]),
        }
    return options


def boundaries(columns: dict[str, Any], options: dict[str, Any]) -> Iterator[ReferenceScheduler]:
    """Run a scheduler, a step of one second at a time."""
    rows = zip(*(columns[name] for name in ("arrivals", "prompts", "outputs", "priorities")), strict=True)
    states = [RequestState(i, *row) for i, row in enumerate(rows)]
    for state, texts in zip(states, columns["texts"], strict=True):
        state.texts = texts
    yield from ReferenceScheduler(states, lambda *_: 1, **options).boundaries()
    assert all(state.emitted == state.output for state in states)


def check_boundary(state: ReferenceScheduler, policy: str) -> None:
    """Blocks are neither lost nor owned twice; what is known begins at the start, and is computed."""
    for request in state.running:
        computed = request.done if request.status == "prefill" else request.prompt + request.emitted - 1
        held = computed if policy == "vllm" or request.status == "decode" else request.prompt + request.emitted
        assert request.blocks == blocks_of(held, state.block_size)
        if state.cache is not None:
            assert len(state.cache.tables[request]) == request.blocks
            assert state.cache.registered[request] == computed // state.cache.block_size
    if state.cache is None:
        assert sum(request.blocks for request in state.running) + state.free == state.num_blocks
        return
    owned = {block for request in state.running for block in state.cache.tables[request]}
    assert len(owned) + state.free == state.num_blocks
    assert state.free == state.cache.free
    before = {number: parent for (parent, _), number in state.cache.contents.numbers.items()}
    assert {before[number] for number in state.cache.known} <= {-1, *state.cache.known}
    for request in state.cache.tables:
        assert request in state.running
