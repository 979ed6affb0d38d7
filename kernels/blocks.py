"""KV blocks of decoding requests, counted from the context instead of being kept.

A decoding request whose cache holds t tokens, the newest counted, holds ceil((t - 1) / block_size) blocks until it
grows. It asks for one more at ticks congruent to a residue that never changes while it decodes (end + 1 - prompt -
output modulo block_size), so State.growth, the number of decoding requests by residue, gives both the demand of every
later step and what is held now:

    held = (context - decoding + sum over residues c of growth[c] x ((c - tick) mod block_size)) / block_size

All sums are of small integers and so exact in any order: a lane's numbers do not depend on the batch that it is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .state import Floats, Ints

if TYPE_CHECKING:
    from .engine import Engine


def block_ramp(block_sizes: list[int]) -> tuple[Ints, list[int]]:
    """((c - tick) mod block_size), c = 0 ..., for every tick: 0 ... b-1, 0 ... b-1 laid out per block size b.

    Returns them, and where each block size begins; those of a tick are at begin + block_size - tick mod block_size,
    ..., as many as the largest block size. From the b-th on they are of no meaning (nobody has such a residue).
    """
    pieces = [np.tile(np.arange(size), 2) for size in block_sizes]
    begins = np.cumsum([0, *[2 * size for size in block_sizes[:-1]]])
    return np.concatenate([*pieces, np.zeros(max(block_sizes), np.int64)]), begins.tolist()


def blocks_for(tokens: Floats, block_size: Floats) -> Floats:
    """ceil(tokens / block_size); exact, because a quotient of such integers never rounds across one."""
    return np.ceil(tokens / block_size)


def held(engine: Engine, lanes: Ints, context: Floats, tick: Ints) -> Floats:
    """Blocks of the decoding requests of `lanes` at `tick`, before that step's growth. All [n]."""
    p, s = engine.params, engine.state
    size = p.block_size[lanes]
    weights = engine.ramps(p.ramp[lanes] + size - tick % size)
    slack = np.einsum("ij,ij->i", s.growth.take(lanes, axis=0), weights)
    # rint: the quotient is whole, but a division by 3 or 7 can print it as 2.9999...
    blocks: Floats = np.rint((context - s.decoding[lanes] + slack) / p.size[lanes])
    return blocks


def residue_of(engine: Engine, lanes: Ints, tick: Floats, tokens: Floats) -> Ints:
    """Index into State.growth of requests of `lanes`: at ticks congruent to it they ask for a block.

    A request whose cache holds `tokens` at `tick`, but for the newest, asks when the others fill their last block. [n]
    """
    index: Ints = (tick - tokens).astype(np.int64) % engine.params.block_size[lanes]
    index += lanes * engine.residues
    return index


def demand(engine: Engine, lanes: Ints, tick: Ints) -> Floats:
    """Blocks that decoding requests of `lanes` ask for in the step at `tick`. All [n]."""
    index = lanes * engine.residues + tick % engine.params.block_size[lanes]
    asked: Floats = engine.state.growth.ravel()[index].astype(np.float64)
    return asked


def steps_until_full(engine: Engine, lanes: Ints, tick: Ints, free: Floats) -> tuple[Floats, Floats]:
    """Steps from `tick` on whose growth fits into `free` blocks, and the blocks that they take: whole turns of
    block_size steps, in which every decoding request grows once, then the residues in turn. All [n]."""
    p, s = engine.params, engine.state
    size, decoding = p.block_size[lanes], s.decoding[lanes]
    turns = np.floor(free / decoding)
    in_turns = turns * decoding
    # The residues from this tick on, down the rows. Where a turn is shorter than the columns, it has already asked for
    # more than what is left when it ends.
    residues = s.growth.shape[1]
    residue = engine.ramp[p.ramp[lanes] + tick % size + np.arange(residues)[:, None]]
    grown = s.growth.ravel()[residue + lanes * residues].cumsum(axis=0)
    fits = grown <= free - in_turns
    blocks = in_turns + (grown * fits).max(axis=0)
    return turns * p.size[lanes] + fits.sum(axis=0), blocks
