"""Requests of groups that share a system prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import checks
from ..checks import MAX_TOKENS
from .texts import Texts
from .workload import ArrivalsName, LognormalLen, Workload, make_workload

_GROUP_STREAM = 0x6067  # of the generator that draws groups, so that lengths and arrivals are as without them


@checks.spelt_out
def shared_prefix_workload(
    n: int,
    *,
    rate: float,
    prefix_tokens: int,
    prompt: int | LognormalLen,
    output: int | LognormalLen,
    seed: int = 0,
    prefix_groups: int = 1,
    arrivals: ArrivalsName = "poisson",
    cv: float = 1.0,
) -> Workload:
    """Requests whose prompts begin with the system prompt of their group, and go on with a question of their own.

    What vllm bench calls prefix repetition, and inference-perf shared prefixes. Arrivals, questions and answers are
    those of `make_workload` with the same arguments; groups are drawn by a generator of their own.

    Parameters
    ----------
    n, rate, output, seed, arrivals, cv
        As of `make_workload`.
    prefix_tokens
        Tokens of a system prompt.
    prompt
        Tokens of a question: a number, or a distribution made by `lognormal_len`.
    prefix_groups
        How many system prompts there are, each as likely as the others.

    Returns
    -------
    Workload
        With `texts`.

    Raises
    ------
    ValueError
        For any argument out of range.
    """
    prefix = checks.whole("prefix_tokens", prefix_tokens, 1, MAX_TOKENS)
    groups = checks.whole("prefix_groups", prefix_groups, 1, MAX_TOKENS)
    drawn = make_workload(n, rate, prompt, output, seed, arrivals, cv)
    question = drawn.prompt_tokens
    longest = int(question.max(initial=0)) + prefix
    if longest > MAX_TOKENS:
        raise ValueError(f"prefix_tokens={prefix}: must leave room for the questions: at most {MAX_TOKENS} with them")
    group = np.random.default_rng([seed, _GROUP_STREAM]).integers(groups, size=len(drawn))
    requests = np.arange(len(drawn))
    # Texts by number: answers, then questions, then system prompts.
    texts = Texts(
        start=np.arange(0, 2 * len(drawn) + 1, 2),
        segment=np.stack([2 * len(drawn) + group, len(drawn) + requests], axis=1).ravel(),
        tokens=np.stack([np.full(len(drawn), prefix), question], axis=1).ravel(),
        answer=requests,
    )
    return replace(drawn, prompt_tokens=question + prefix, name="shared_prefix", texts=texts)
