"""The batching policies: one row each. What else lists policies, memories or their options derives it from here.

A new policy is a row here, its order of phases where none of today's will do (kernels/phases.py), and its rules in the
reference scheduler (reference.py). The rules themselves are in docs/scheduler.md and docs/systems.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .. import checks
from ..hardware.parts import Chip
from ..kernels.phases import PHASES
from ..kernels.rules import Rules

PolicyName = Literal["mixed", "chunked", "prefill_first", "vllm"]
MemoryName = Literal["reserve", "paged", "unlimited"]

MEMORIES: dict[str, str] = {
    "reserve": "prompt + output tokens are set aside at admission; no preemption",
    "paged": "blocks of block_size tokens, taken as a request grows; preemption when they run out",
    "unlimited": "KV memory never runs out",
}
SCHEDULED = ("paged", "unlimited")  # memories of instances that follow docs/scheduler.md
VLLM_OPTIONS = (
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "reserve_full_isl",
    "watermark",
    "max_model_len",
    "async_scheduling",
)
"""Options of policy "vllm" beside `token_budget`, under vLLM's names; defaults are vLLM's."""
DEFAULTS = {"token_budget": 512, "chunk_budget": 512, "max_tokens": 4096}
"""Options of policies, and their values where an experiment gives none."""


@dataclass(frozen=True)
class Policy:
    """What an instance does in a step.

    Parameters
    ----------
    name, meaning
        What it is called, and a line about it.
    mixes_prefill
        Steps that prefill decode too.
    options
        The memories that it can have, and under each the options that are its own.
    phases
        Its row of kernels/phases.py. None: one of the usual ones will do.
    takes_chunks
        Blocks are taken for the tokens of a step, not for whole prompts, and nobody is admitted without tokens.
    """

    name: PolicyName
    meaning: str
    mixes_prefill: bool
    options: Mapping[str, tuple[str, ...]]
    phases: str | None = None
    takes_chunks: bool = False

    def __post_init__(self) -> None:
        if self.phases is not None:
            checks.one_of("phases", self.phases, PHASES)
        for memory, options in self.options.items():
            checks.one_of("options", memory, MEMORIES)
            for option in options:
                checks.one_of(f"options[{memory!r}]", option, DEFAULTS)

    @property
    def memories(self) -> tuple[str, ...]:
        """The memories that it can have."""
        return tuple(self.options)

    def rules(self, memory: str) -> Rules:
        """What kind of instance the engine runs."""
        return Rules(
            self.phases,
            decode_beside_prefill=self.mixes_prefill,
            reserve=memory == "reserve",
            takes_chunks=self.takes_chunks,
        )


POLICIES: dict[str, Policy] = checks.by_name(
    (
        Policy("mixed", "whole prompts run beside the decodes", True, dict.fromkeys(SCHEDULED, ())),
        Policy(
            "chunked",
            "prompts in pieces beside the decodes, at most token_budget tokens a step",
            True,
            {"reserve": ("chunk_budget",), **dict.fromkeys(SCHEDULED, ("token_budget",))},
        ),
        Policy(
            "prefill_first",
            "a step either prefills (at most max_tokens tokens) or decodes",
            False,
            dict.fromkeys(MEMORIES, ("max_tokens",)),
        ),
        Policy(
            "vllm",
            "as vLLM V1 schedules: one token budget, blocks taken for the tokens of a step",
            True,
            dict.fromkeys(SCHEDULED, ("token_budget",)),
            takes_chunks=True,
        ),
    )
)


def policy_of(name: str, memory: str | None = None) -> Policy:
    """The policy of this name; ValueError for one that there is not, or not with this memory."""
    known = [row.name for row in POLICIES.values() if memory is None or memory in row.options]
    elsewhere = memory is not None and isinstance(name, str) and name in POLICIES
    where = f" with {_IN_WORDS[memory]} memory" if memory is not None and elsewhere else ""
    return POLICIES[checks.one_of("policy", name, known, where)]


def used_or_none(option: str, value: int, policy: str, memory: str) -> int | None:
    """An option as the systems take it: None for the default value of one that the policy does not use."""
    named = isinstance(policy, str) and isinstance(memory, str)  # what is no name is refused elsewhere
    row = POLICIES.get(policy) if named else None
    used = row is not None and option in row.options.get(memory, ())
    return value if used or value != DEFAULTS[option] else None


_GIB = 2**30


def server_limits(chip: Chip | None) -> tuple[int, int]:
    """`token_budget` and `max_running` of vLLM's server when nothing is said, by the memory of the chip; None: of one
    that is not known."""
    memory = 0.0 if chip is None else chip.mem_bytes
    if memory < 70 * _GIB or (chip is not None and "a100" in chip.name.lower()):
        return 2048, 256
    return (16384 if memory >= 160 * _GIB else 8192), 1024


_IN_WORDS = {"reserve": "reserved", "paged": "paged", "unlimited": "unlimited"}
