"""What kind of instance the lanes of a batch are."""

from __future__ import annotations

from dataclasses import dataclass

LISTED = "running list"
"""The row of phases.PHASES of instances that keep a running list (running_list.py)."""


@dataclass(frozen=True)
class Rules:
    """What kind of instance the lanes of a batch are; each kind has its row of phases (phases.py).

    own_row                the row of a policy for which none of the usual ones will do; None: by what follows
    decode_beside_prefill  steps that prefill decode too (mixed, chunked); False: they do not (prefill_first). Without
                           reserved memory each lane has its own
    reserve                KV for prompt + output is set aside at admission to a lane; False: blocks, or no limit
    prefills               False: requests come with their KV and their first token (decode instances)
    decodes                False: requests are done with their first token (prefill instances)
    takes_chunks           a prefill takes blocks piece by piece, and nobody is admitted without tokens (vllm). Each
                           lane has its own
    ordered                requests are not served in order of arrival (pool.py)
    """

    own_row: str | None = None
    decode_beside_prefill: bool = True
    reserve: bool = False
    prefills: bool = True
    decodes: bool = True
    takes_chunks: bool = False
    ordered: bool = False

    @property
    def kind(self) -> str:
        """The row of phases.PHASES."""
        if self.own_row is not None:
            return self.own_row
        if not self.decodes:
            return "prefill"
        if not self.prefills:
            return "decode, reserved" if self.reserve else "decode"
        return "colocated, reserved" if self.reserve else "scheduler"
