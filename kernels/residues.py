"""KV blocks of decoding requests by residue: pure functions over rows of counts.

A decoding request whose cache holds t tokens, the newest counted, holds ceil((t - 1) / block_size) blocks until it
grows. It asks for one more at ticks congruent to a residue that never changes while it decodes (end + 1 - prompt -
output modulo block_size), so the number of decoding requests by residue gives both the demand of every later step and
what is held now:

    held = (context - decoding + sum over residues c of growing[c] x ((c - tick) mod block_size)) / block_size

All sums are of small integers and so exact in any order: a lane's numbers do not depend on the batch that it is in.
"""

from __future__ import annotations

import numpy as np

from .arrays import AnyFloats, Floats, Ints

_FEW_WEIGHTS = 2**18  # numbers that may be written out so that they are found faster


class ResidueWeights:
    """((c - tick) mod block_size), c = 0 ..., for every tick: 0 ... b-1, 0 ... b-1 laid out per block size b.

    `begins` says where each block size begins; the weights of a tick are at begin + block_size - tick mod block_size,
    ..., as many as the largest block size. From the b-th on they are of no meaning (nobody has such a residue).
    """

    def __init__(self, block_sizes: list[int], kind: type[np.floating]) -> None:
        widest = max(block_sizes)
        pieces = [np.tile(np.arange(size), 2) for size in block_sizes]
        self.flat: Ints = np.concatenate([*pieces, np.zeros(widest, np.int64)])
        self.begins: Ints = np.cumsum([0, *[2 * size for size in block_sizes[:-1]]])
        windows = np.lib.stride_tricks.sliding_window_view(self.flat.astype(kind), widest)
        self._rows = windows.copy() if windows.size < _FEW_WEIGHTS else windows

    def rows(self, begin: Ints) -> AnyFloats:
        """Weights from `begin` [n] on, [n, B]."""
        if self._rows.flags.c_contiguous:
            return self._rows.take(begin, axis=0)  # a third of the time
        rows: AnyFloats = self._rows[begin]
        return rows


def steps_until_full(growing: AnyFloats, decoding: Floats, block_size: Floats, free: Floats) -> tuple[Floats, Floats]:
    """Steps whose growth fits into `free` blocks, and the blocks that they take: whole turns of block_size steps, in
    which every decoding request grows once, then the residues in turn, `growing` [B, n], from the next tick's on.
    All [n]."""
    turns = np.floor(free / decoding)
    in_turns = turns * decoding
    # Where a turn is shorter than the rows, it has already asked for more than what is left when it ends.
    grown = growing.cumsum(axis=0)
    fits = grown <= free - in_turns
    blocks = in_turns + (grown * fits).max(axis=0)
    return turns * block_size + fits.sum(axis=0), blocks
