"""What does not change while a lane runs."""

from __future__ import annotations

from dataclasses import dataclass

from .arrays import Bools, Floats, Ints

NO_LIMIT = 2.0**52
"""Token budget, or blocks, of a lane without a limit: finite, so that what is left of it can be compared."""


@dataclass
class Params:
    """What does not change while a lane runs; every field [L] unless said."""

    lane: Ints  # the lane's place in the batch as it was given
    row: Ints  # offset of the lane's requests in RequestRows
    block_row: Ints  # offset of its requests at its block size in RequestRows.blocks_before
    out: Ints  # offset of its row in RequestTimes
    n: Ints  # requests
    rate: Floats  # a request arrives at RequestRows.arrival / rate
    block_size: Ints  # 1 under unlimited memory
    block_size_f: Floats  # the same
    blocks_per_token: Floats  # 1 / block_size
    blocks_in_doubt: Floats  # by which a decoding request can exceed its share of blocks_per_token
    num_blocks: Floats  # NO_LIMIT under unlimited memory; under reserved memory the capacity in tokens
    max_running: Floats  # requests that run at a time, NO_LIMIT without one
    budget: Floats  # tokens a step, NO_LIMIT without one
    max_tokens: Floats  # prompt tokens a prefill batch (prefill_first, prefill instances)
    mixes_prefill: Floats  # 1 where steps that prefill decode too (Rules.decode_beside_prefill), else 0
    takes_chunks: Bools  # where prefills take blocks piece by piece (Rules.takes_chunks)
    chunk_fits: Bools  # where who takes chunks is admitted if the first fits, not the whole sequence
    unsplit: Bools  # where whoever is admitted must have all tokens in the first step (no chunked prefill)
    spare: Floats  # blocks that an admission leaves free while others run
    most_share: Floats  # tokens of a request in a step while others are there, inf without a limit (running lists)
    by_priority: Bools  # where the preempted wait among the others, and who is last by priority is the next of them
    caches: Bools  # where there is a prefix cache
    is_async: Bools  # where the batch of a step is fixed when the one before begins
    stages: Floats  # pipeline stages: the next prefill batch can start after this share of the last one
    coefficients: Floats  # [L, 9] columns of steptime.StepCoefficients, 0 in lanes with tables
    tables: Floats  # [L, 16] columns of step_tables.LaneTables, 0 in lanes without; [L, 0] if all are

    def widen_rows(self, old: int, new: int) -> None:
        """Rows of RequestRows that had `old` places have `new` ones."""
        self.row = self.row // old * new
        self.block_row = self.block_row // old * new
