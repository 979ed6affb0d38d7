"""Statistics of the Azure conversation trace: how configs/conversation_statistics.toml was made, and how good it is.

    python benchmarks/conversation_statistics.py AzureLLMInferenceTrace_conv.csv --toml
    python benchmarks/conversation_statistics.py AzureLLMInferenceTrace_conv.csv

The first prints configs/conversation_statistics.toml, the second a table that compares the trace with the synthetic
workload, whose figures are means over seeds. The trace is in github.com/Azure/AzurePublicDataset.
"""

import argparse

import numpy as np
from servesweep.workloads.conversation import conversation_workload
from servesweep.workloads.traces import load_trace
from servesweep.workloads.workload import Workload

SEGMENTS, PERIODS, BINS = 60, 6, 12
LEVELS = [*(i / 100 for i in range(100)), 0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0]
HEADER = """\
# Statistics of the Azure LLM inference trace 2023, conversation ({n:,} requests in {span:,.0f} s): no rows of it.
# Source: Azure Public Dataset, github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv, licensed
# CC-BY-4.0 by Microsoft; described in Patel et al., "Splitwise: Efficient generative LLM inference using phase
# splitting", ISCA 2024. Derived by benchmarks/conversation_statistics.py; docs/conversation.md says what is matched.
"""


def shares(values, rng):
    """Rank of each value as a share in (0, 1), equal values in random order."""
    share = np.empty(len(values))
    share[np.lexsort((rng.random(len(values)), values))] = (np.arange(len(values)) + 0.5) / len(values)
    return share


def toml(trace: Workload) -> str:
    """The statistics that `servesweep.workloads.conversation` draws from, as TOML."""
    n, gaps = len(trace), np.diff(trace.arrival_s)
    segment = np.arange(n - 1) * SEGMENTS // (n - 1)
    mean_gap = np.bincount(segment, gaps) / np.bincount(segment)
    rng = np.random.default_rng(0)
    cells = np.zeros((PERIODS, BINS, BINS), int)
    at = [(shares(x, rng) * BINS).astype(int) for x in (trace.prompt_tokens, trace.output_tokens)]
    np.add.at(cells, (np.arange(n) * PERIODS // n, *at), 1)

    def numbers(values, form, per_line):
        words = [format(value, form) for value in values]
        lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
        return "[\n    " + ",\n    ".join(lines) + ",\n]"

    text = HEADER.format(n=n, span=trace.arrival_s[-1])
    text += "\n[arrivals]\n# Mean gap in each sixtieth of the requests, relative to that of all.\n"
    text += f"relative_gap = {numbers(mean_gap / gaps.mean(), '.3f', 12)}\n"
    text += "# Standard deviation of the gaps over their mean, inside a sixtieth; 1 would be Poisson.\n"
    text += f"gap_cv = {np.std(gaps / mean_gap[segment]):.3f}\n"
    text += f"\n[lengths]\n# Quantiles of both lengths at these levels.\nlevels = {numbers(LEVELS, 'g', 20)}\n"
    for name, lengths in (("prompt_tokens", trace.prompt_tokens), ("output_tokens", trace.output_tokens)):
        text += f"{name} = {numbers(np.quantile(lengths, LEVELS), '.0f', 20)}\n"
    text += (
        "# Requests in each sixth of the trace, by twelfths of prompt length (rows) and of output length (columns).\n"
    )
    text += "cells = [\n"
    for period in cells:
        rows = [f"        [{', '.join(f'{count:3}' for count in row)}],\n" for row in period]
        text += f"    [\n{''.join(rows)}    ],\n"
    return text + "]\n"


def rank_correlation(a, b) -> float:
    def ranks(values):
        _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[group]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def figures(workload: Workload) -> dict[str, float]:
    """What the table compares. Counts are of windows of time at the workload's own rate."""
    arrival = workload.arrival_s - workload.arrival_s[0]
    lengths = {"prompt": workload.prompt_tokens, "output": workload.output_tokens}
    lengths["total"] = lengths["prompt"] + lengths["output"]
    out = {}
    for name, values in lengths.items():
        out[f"{name} mean"] = float(values.mean())
        out |= {f"{name} p{q}": float(np.percentile(values, q)) for q in (50, 90, 99)}
        out[f"{name} max"] = float(values.max())
    out["rank correlation of prompt and output"] = rank_correlation(lengths["prompt"], lengths["output"])
    gaps = np.diff(arrival)
    out["gap cv"] = float(gaps.std() / gaps.mean())

    def windows(seconds, weights=None):  # without the last, which is not full
        return np.bincount((arrival // seconds).astype(int), weights)[: int(arrival[-1] // seconds)]

    for seconds in (1, 10, 60):
        counts = windows(seconds)
        out[f"dispersion of counts, {seconds} s"] = float(counts.var() / counts.mean())
    counts = windows(60) - windows(60).mean()
    out["autocorrelation of counts, 60 s, lag 1"] = float((counts[1:] * counts[:-1]).mean() / counts.var())
    for name in ("prompt", "output"):
        tokens = windows(60, lengths[name])
        out[f"cv of {name} tokens a minute"] = float(tokens.std() / tokens.mean())
    drift = lengths["output"] - lengths["output"].mean()
    out["autocorrelation of output lengths, lag 1"] = float((drift[1:] * drift[:-1]).mean() / drift.var())
    return out


def table(trace: Workload, seeds: int = 20) -> str:
    real = figures(trace)
    drawn = [figures(conversation_workload(len(trace), rate=trace.mean_rate_rps, seed=seed)) for seed in range(seeds)]
    lines = ["| figure | trace | synthetic | standard deviation over seeds |", "|---|---:|---:|---:|"]
    for name, value in real.items():
        values = [one[name] for one in drawn]
        form = ",.0f" if value > 20 else ".3f" if abs(value) < 2 else ".2f"
        lines.append(f"| {name} | {value:{form}} | {np.mean(values):{form}} | {np.std(values):{form}} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="AzureLLMInferenceTrace_conv.csv")
    parser.add_argument("--toml", action="store_true", help="print the file of statistics")
    args = parser.parse_args()
    trace = load_trace(args.trace)
    print(toml(trace) if args.toml else table(trace), end="" if args.toml else "\n")


if __name__ == "__main__":
    main()
