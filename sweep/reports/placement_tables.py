"""What a placement search tells: two tables for the terminal, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..analysis.selection import plain
from ..analysis.verdicts import format_slos, step_times_sources
from ..goodput.bisection import UPPER_END_PASSES
from ..goodput.placement_plans import ROLE_SLOS
from ..goodput.verdict import Row, format_degrees, format_layout
from ..messages import number_text
from .text_tables import print_table, with_unit

if TYPE_CHECKING:
    import pandas as pd

    from ..goodput.placement import Placement

SHOWN = 5  # systems of the joint search in the table


def print_placement(placement: Placement) -> None:
    """The roles on their own, and the systems: the chosen one, the best of the joint search and the best colocated."""
    df, target = placement.df, 100 * placement.options.attainment
    rows = _plain_rows(df)
    print_table(
        ("role", "instance", "", "GPUs", "req/s", "req/s/GPU", "ttft p99", "tpot p99", "ending"),
        [
            (
                row["part"],
                format_degrees(row["tp"], row["pp"]),
                "chosen" if row["is_chosen"] else "",
                str(row["n_gpus"]),
                *(_found(row, name) for name in ("max_rate_rps", "goodput_per_gpu_rps")),
                # A decode instance's requests come with their first token.
                *(_seconds(row[f"{name}_p99_s"] if row["part"] == part else None) for part, name in ROLE_SLOS.items()),
                row["ending"] or row["status"],
            )
            for row in rows
            if row["part"] != "joint"
        ],
        f"One instance on its own ({target:.3g}% attainment; prefill: ttft <= {_slo_ms(placement, 'ttft')} ms, "
        f"decode: tpot <= {_slo_ms(placement, 'tpot')} ms)",
        left=3,
    )
    print_table(
        ("", "system", "GPUs", "predicted", "req/s", "req/s/GPU", "binding", "ttft p99", "tpot p99", "ending"),
        [
            (
                what,
                format_layout(row),
                str(row["n_gpus"]),
                "-" if row["predicted_rps"] is None else number_text(row["predicted_rps"]),
                *(_found(row, name) for name in ("max_rate_rps", "goodput_per_gpu_rps")),
                row["binding_slo"] or "-",
                *(_seconds(row[name]) for name in ("ttft_p99_s", "tpot_p99_s")),
                row["ending"] or row["status"],
            )
            for what, row in _shown(rows, placement.is_exhaustive)
        ],
        f"Systems of at most {placement.n_gpus} GPUs ({target:.3g}% attainment; "
        f"{format_slos(df[df['part'] == 'joint'])})",
        left=2,
    )


def _shown(rows: Sequence[Row], exhaustive: bool) -> list[tuple[str, Row]]:
    """The systems worth a line, each with what it is."""
    joint = [row for row in rows if row["part"] == "joint"]
    found = [("chosen", row) for row in joint if row["is_chosen"]]
    if exhaustive:
        split = [row for row in joint if row["system"] == "disaggregated"]
        found += [(f"joint, {place}.", row) for place, row in enumerate(split[:SHOWN], 1)]
        best: dict[str, Row] = {}
        for row in joint:
            if row["system"] == "colocated":
                best.setdefault(row["policy"], row)
        found += [("colocated", row) for row in best.values()]
    return found


def placement_json(placement: Placement) -> dict[str, Any]:
    """The outcome as plain data; what there is not is null."""
    rows = _plain_rows(placement.df)
    joint = [row for row in rows if row["part"] == "joint"]
    return {
        "name": placement.experiment.name,
        "directory": str(placement.directory),
        "n_gpus": placement.n_gpus,
        "search": placement.options.tables(),
        "step_times": step_times_sources(placement.df),
        "predicted_rps": placement.split.predicted_rps,
        "chosen": next(row for row in joint if row["is_chosen"]),
        **{role: [row for row in rows if row["part"] == role] for role in ("prefill", "decode")},
        "exhaustive": joint if placement.is_exhaustive else None,
        "verdict": placement.verdict,
        "warnings": list(placement.warnings),
        "failed": placement.failed,
        "wall_s": round(placement.wall_s, 2),
    }


def _plain_rows(df: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values, None for what there is not."""
    return [{str(name): plain(value) for name, value in row.items()} for row in df.to_dict("records")]


def _slo_ms(placement: Placement, name: str) -> str:
    return f"{getattr(placement.experiment.slo, f'{name}_ms')[0]:g}"


def _found(row: Row, name: str) -> str:
    """A rate that was found; of an upper end that passed only a bound."""
    if row[name] is None:
        return "-"
    return f"{'>= ' if row['ending'] == UPPER_END_PASSES else ''}{number_text(row[name])}"


def _seconds(value: float | None) -> str:
    return with_unit(value, "s")
