"""Small files of measured steps, made up here: no real measurement."""

import itertools

HEADER = "decodes,context_tokens,prefill_tokens,prefill_done_tokens,prefill_pairs,step_s"
TRUE = {"context_s": 2e-7, "mixed_context_s": 3e-7, "pair_s": 4e-9, "done_s": 1e-7, "prefill_s": 2e-4}


def true_seconds(decodes, context, prefill, done, pairs):
    """What a step takes in these files: F is 5 ms up to 64 tokens, and 50 us more a token after."""
    seconds = 5e-3 + 5e-5 * max(decodes + prefill - 64, 0) + 1e-5 * (decodes + (prefill > 0))
    if not prefill:
        return seconds + TRUE["context_s"] * context
    more = TRUE["mixed_context_s"] * context + TRUE["pair_s"] * pairs + TRUE["done_s"] * done
    return seconds + more + TRUE["prefill_s"]


def steps():
    """Steps of a grid, as tuples in the order of HEADER, without their seconds."""
    for decodes, each in itertools.product((1, 4, 16, 32, 64, 128), (100, 1000)):
        yield decodes, decodes * each, 0, 0, 0
    for decodes, chunk, done in itertools.product((0, 8, 32), (64, 128, 256, 512), (0, 1024)):
        yield decodes, 500 * decodes, chunk, done, chunk * done + chunk * (chunk + 1) // 2


def write_steps(path, noise=None):
    """A file of all of them, each time a factor of `noise`; its path."""
    rows = list(steps())
    factors = [1.0] * len(rows) if noise is None else noise(len(rows))
    lines = [",".join(map(str, (*row, true_seconds(*row) * f))) for row, f in zip(rows, factors, strict=True)]
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path
