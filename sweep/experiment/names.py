"""Every name that an experiment can use, with a line about each."""

from __future__ import annotations

from importlib.resources import files

from ..hardware import catalogue
from ..serving.orders import ORDERS
from ..serving.policies import MEMORIES, POLICIES
from ..serving.routers import ROUTERS
from ..serving.system_kinds import SYSTEMS
from .presets import PRESETS

WORKLOADS = {
    "conversation": "lengths and arrivals like the Azure conversation trace, no file needed",
    "synthetic": "lengths and arrivals drawn from distributions",
    "shared_prefix": "as synthetic, with a system prompt before each prompt, which a group of requests shares",
    "trace": "the requests of a file: Azure CSV, Mooncake JSON lines, CSV or Parquet",
}
ARRIVALS = {
    "poisson": "independent arrivals",
    "uniform": "evenly spaced arrivals",
    "bursty": "gamma gaps of coefficient of variation cv",
}


def listed() -> dict[str, dict[str, str]]:
    """Kind of name -> name -> a line about it."""
    models = [catalogue.model(name) for name in catalogue.model_names()]
    chips = [catalogue.chip(name) for name in catalogue.chip_names()]
    links = [catalogue.link(name) for name in catalogue.link_names()]
    return {
        "models": {
            m.name: f"{m.n_params() / 1e9:,.1f}B parameters, {m.n_layers} layers, "
            f"{m.kv_bytes_per_token(2) / 1e3:,.0f} kB of KV a token at 2 bytes"
            for m in models
        },
        "chips": {
            c.name: f"{c.bf16_flops / 1e12:,.0f} TFLOP/s bf16, "
            + (f"{c.fp8_flops / 1e12:,.0f} fp8, " if c.fp8_flops else "no fp8, ")
            + f"{catalogue.printed_gb(c.name)} GB ({c.mem_bytes / 1e9:.1f}e9 bytes) at "
            + f"{c.mem_bytes_per_s / 1e12:.2f} TB/s"
            for c in chips
        },
        "links": {x.name: f"{x.bytes_per_s / 1e9:g} GB/s, {1e6 * x.alpha_s:g} us" for x in links},
        "systems": {row.name: row.meaning for row in SYSTEMS.values()},
        "presets": {row.name: row.meaning for row in PRESETS.values()},
        "policies": {row.name: row.meaning for row in POLICIES.values()},
        "orders": {row.name: row.meaning for row in ORDERS.values()},
        "routers": {row.name: row.meaning for row in ROUTERS.values()},
        "memories": MEMORIES,
        "workloads": WORKLOADS,
        "arrivals": ARRIVALS,
        "experiments": _experiments(),
    }


def _experiments() -> dict[str, str]:
    """Ready experiments, each with the first sentence of its file's comment."""
    found = {}
    for file in sorted(files("servesweep.configs").iterdir(), key=lambda file: file.name):
        text = file.read_text("utf-8") if file.name.endswith(".toml") else ""
        if "[workload]" in text:
            comment = " ".join(line[1:].strip() for line in text.partition("\n\n")[0].splitlines())
            found[file.name.removesuffix(".toml")] = comment.partition(". ")[0].partition(": ")[0].rstrip(".")
    return found
