"""What a placement comes to, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..messages import number_text
from .bisection import CONVERGED, UPPER_END_PASSES
from .splits import Split

Row = Mapping[str, Any]  # of the placement table


def placement_verdict(rows: Sequence[Row], exhaustive: bool) -> str:
    """The outcome in a line.

    rows  of the placement table, in its order: the best of the joint search first
    """
    joint = [row for row in rows if row["part"] == "joint"]
    chosen = next(row for row in joint if row["is_chosen"])
    if chosen["max_rate_rps"] is None:
        reached = f"no rate reaches {100 * chosen['target']:.3g}%: {chosen['reason'] or chosen['error']}"
    else:
        reached = (
            f"{number_text(chosen['max_rate_rps'])} req/s, {number_text(chosen['goodput_per_gpu_rps'], 2)} per GPU"
        )
        if chosen["ending"] == UPPER_END_PASSES:
            reached = f"at least {reached}: nothing limits it up to there"
    parts = [f"{format_layout(chosen)}: {reached}"]
    if exhaustive:
        for what, system in (("jointly searched", "disaggregated"), ("colocated", "colocated")):
            others = [row for row in joint if row["system"] == system]
            if others:
                parts.append(_format_best(f"best of {len(others)} {what}", others[0], chosen))
    return "; ".join(parts)


def placement_cautions(rows: Sequence[Row], split: Split, balanced: Split) -> list[str]:
    """What the choice rests on that did not simply converge, and a split of other instances that promises more."""
    found = [
        f"{row['part']}, {format_layout(row)}: {row['ending'].replace('_', ' ')}: {row['reason']}"
        for row in rows
        if row["is_chosen"] and row["ending"] not in (None, CONVERGED)
    ]
    if balanced.predicted_rps > split.predicted_rps:
        found.append(
            f"the best instances do not divide the GPUs well: {format_layout(split.layout())} is predicted to take "
            f"{number_text(split.predicted_rps)} req/s, {format_layout(balanced.layout())} "
            f"{number_text(balanced.predicted_rps)}"
        )
    return found


def _format_best(what: str, best: Row, chosen: Row) -> str:
    if best["is_chosen"]:
        return f"the {what}"
    if best["max_rate_rps"] is None:
        return f"{what}: none reaches the SLOs"
    if chosen["max_rate_rps"] is None:
        return f"{what}: {format_layout(best)}, {number_text(best['max_rate_rps'])} req/s"
    more = 100 * (best["max_rate_rps"] / chosen["max_rate_rps"] - 1)
    return f"{what}: {format_layout(best)}, {abs(more):.2g}% {'more' if more >= 0 else 'less'}"


def format_layout(row: Row) -> str:
    """A system or an instance in words: "2 x prefill tp2 + 1 x decode tp4", "4 x tp2, chunked, budget 512"."""
    if row["system"] == "disaggregated":
        parts = (
            f"{row[f'n_{role}']} x {role} {format_degrees(row[f'{role}_tp'], row[f'{role}_pp'])}"
            for role in ("prefill", "decode")
        )
        return " + ".join(parts)
    text = f"{row['n_instances']} x {format_degrees(row['tp'], row['pp'])}"
    budget = row["chunk_budget"] or row["token_budget"]
    return ", ".join(
        [text, *([str(row["policy"])] if row["policy"] else []), *([f"budget {budget}"] if budget else [])]
    )


def format_degrees(tp: int, pp: int) -> str:
    return f"tp{tp}" + (f" pp{pp}" if pp > 1 else "")
