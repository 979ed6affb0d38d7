"""How attainment, and the rate found, move with the number of requests: the figures of docs/goodput-endings.md.

    python benchmarks/goodput_requests.py

One configuration of the quickstart (chunked, roomy memory), its SLOs, eight seeds each of 250 to 16,000 requests: the
attainment at one rate near the boundary, and the rate that a search finds to 1 %.
"""

from __future__ import annotations

import tempfile

from servesweep import find_goodput, run_grid

REQUESTS = [250, 500, 1000, 2000, 4000, 8000, 16000]
RATE = 13.0
SETTINGS = {
    "mem_reserve": 0.1,
    "policy": "chunked",
    "max_tokens": None,
    "block_size": 16,
    "n_requests": REQUESTS,
    "seed": list(range(8)),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        at_rate = run_grid(
            "quickstart", settings={**SETTINGS, "request_rate_rps": RATE}, workers=1, out=folder, progress=False
        ).df
        found = find_goodput(
            "quickstart", settings=SETTINGS, lo=6.0, hi=24.0, rel_tol=0.01, workers=1, out=folder, progress=False
        ).df
    print(
        f"| requests | attainment at {RATE:g} req/s: mean | lowest to highest | rate found: mean | lowest to highest |"
    )
    print("|---|---|---|---|---|")
    for n in REQUESTS:
        shares = at_rate.loc[at_rate["n_requests"] == n, "attainment"] * 100
        rates = found.loc[found["n_requests"] == n, "max_rate_rps"]
        print(
            f"| {n:,} | {shares.mean():.1f} % | {shares.min():.1f} to {shares.max():.1f} % "
            f"| {rates.mean():.2f} | {rates.min():.2f} to {rates.max():.2f} |"
        )


if __name__ == "__main__":
    main()
