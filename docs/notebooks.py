"""Makes the notebooks of the documentation: python docs/notebooks.py writes and executes docs/notebooks/*.ipynb.

They are kept in git with their output. Needs nbformat, nbclient and ipykernel (the extra `docs`).
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"

POLICIES = [
    """\
# Which batching policy?

One H100 serves llama-3.1-8b to people who chat. Their prompts are read while others wait for the next word of
their answers: how should a step divide itself between the two? We compare the three policies on a workload
with the lengths and the drifting rate of a recorded hour of conversations.""",
    """\
```python
import servesweep as ss
from servesweep import plots

traffic = ss.conversation_workload(1500)
print(traffic.describe())
```""",
    """\
A tenth of the prompts are longer than 3,200 tokens, and each takes as long as ten decode steps. That is the
problem. We sweep the policies over request rates, with three budgets for `chunked` and two sets of requests
each.""",
    """\
```python
sweep = {
    "name": "policies",
    "workload": {"n_requests": 1500, "seed": [0, 1], "request_rate_rps": [6, 8, 10, 12, 14, 16, 18]},
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm"},
    "scheduler": {
        "policy": ["mixed", "chunked", "prefill_first"],
        "block_size": 16,
        "token_budget": [512, 1024, 2048],
    },
    "slo": {"ttft_ms": 500, "tpot_ms": 30},
}
run = ss.run_grid(sweep, progress=False)
cells = run.df
print(len(cells), "cells")
```""",
    """\
## Attainment""",
    """\
```python
ax = plots.curves(cells, "attainment", by=["policy", "token_budget"])
```""",
    """\
Which limit breaks? At 14 requests per second:""",
    """\
```python
at_14 = cells[cells["request_rate_rps"] == 14]
groups = at_14.groupby(["policy", "token_budget"], observed=True, dropna=False)
print((100 * groups[["ttft_attainment", "tpot_attainment", "attainment"]].mean()).round(1).to_string())
print((1000 * groups[["ttft_p99_s", "tpot_p99_s"]].mean()).round(1).to_string())
```""",
    """\
Whole prompts beside decodes (`mixed`) and prompts before decodes (`prefill_first`) break the limit of TPOT: a
decoding request waits for every prompt that arrives. Chunks trade that for TTFT, and the budget sets the
exchange rate: a small one protects TPOT more than needed here and makes prompts wait, a large one comes near
`mixed`.""",
    """\
## What it looks like""",
    """\
```python
step = ss.OperatorStepModel(ss.model("llama-3.1-8b"), ss.chip("h100-sxm"))
some = ss.conversation_workload(60, rate=14.0)
for policy, options in {"prefill_first": {}, "chunked": {"token_budget": 1024}}.items():
    scheduler = ss.Scheduler(some, step, policy=policy, max_running=256, block_size=16, **options)
    plots.gantt(ss.timeline(scheduler), begin=1.0, end=3.0, most=25).set_xlabel(f"{policy}: time (s)")
```""",
    """\
Hatched is a request that is admitted and has no share of the step: under `prefill_first` every answer stops
whenever a prompt comes in. Under `chunked` answers go on, and it is prompts that wait for their share of the
budget.""",
    """\
## The answer""",
    """\
```python
from servesweep.analysis.ranking import best_by_policy
from servesweep.analysis.verdicts import format_slos, format_verdict

print(format_verdict(best_by_policy(cells), format_slos(cells)))
```""",
    """\
The order of the policies depends on the limits more than on the model: with a limit of TTFT alone,
`prefill_first` would win. Change `slo` and run it again; the cells cost seconds.""",
]

DISAGGREGATED = [
    """\
# Sizing a disaggregated system

Eight H100s, llama-3.1-8b, and strict limits: the first token within 500 ms, the others every 15 ms. Should
instances prefill and decode, or should some prefill and others decode? And how many of each?""",
    """\
```python
import servesweep as ss
from servesweep import plots

sweep = {
    "name": "sizing",
    "workload": {"n_requests": 1500, "request_rate_rps": [20, 40, 60, 80, 100, 120]},
    "system": {
        "kind": ["colocated", "disaggregated"],
        "n_gpus": 8,
        "n_instances": [8, 4],
        "n_prefill": [1, 2, 3, 4, 5, 6, 7],
        "n_decode": [1, 2, 3, 4, 5, 6, 7],
        "router": "least_outstanding",
    },
    "instance": {"model": "llama-3.1-8b", "chip": "h100-sxm", "tp": [1, 2]},
    "scheduler": {"memory": "reserve", "policy": ["prefill_first", "chunked"]},
    "slo": {"ttft_ms": 500, "tpot_ms": 15},
}
cells = ss.run_grid(sweep, progress=False).df
print(len(cells), "cells, all with", cells["n_gpus"].unique().tolist(), "GPUs")
```""",
    """\
## The split

For each number of prefill instances the rest decodes. Too few on one side, and its limit breaks:""",
    """\
```python
split = cells[(cells["system"] == "disaggregated") & (cells["tp"] == 1) & (cells["request_rate_rps"] == 80)]
columns = ["n_prefill", "n_decode", "ttft_attainment", "tpot_attainment", "prefill_utilization", "decode_utilization"]
print(split[columns].round(3).to_string(index=False))
```""",
    """\
With few prefill instances TTFT breaks, with few decode instances TPOT does. The split that carries most is
the one in which both break at about the same rate:""",
    """\
```python
ax = plots.frontier(cells[cells["system"] == "disaggregated"], "n_prefill", by=["tp"])
```""",
    """\
## Against colocated instances""",
    """\
```python
ax = plots.curves(cells, "attainment")
```""",
    """\
```python
from servesweep.analysis.ranking import best_by_policy
from servesweep.analysis.verdicts import format_slos, format_verdict

best = best_by_policy(cells)
print(format_verdict(best, format_slos(cells)))
for one in best:
    print(one.rate_rps, {name: value for name, value in one.parameters.items() if value is not None})
```""",
    """\
## What the transfer costs

The KV cache of a prompt crosses a link. Over InfiniBand NDR, at 80 requests per second:""",
    """\
```python
p50, p99 = split[["kv_transfer_p50_s", "kv_transfer_p99_s"]].iloc[0]
print(f"half of the transfers take up to {1000 * p50:.1f} ms, 99 of 100 up to {1000 * p99:.1f} ms")
```""",
    """\
Milliseconds, once for each request: it delays the second token and does not matter for TPOT. Over a slower
link it would; `transfer_link` is an axis too.""",
]


def source(text: str) -> tuple[bool, str]:
    """Whether a cell is Python, and what it holds."""
    is_code = text.startswith("```python\n")
    return is_code, text.removeprefix("```python\n").removesuffix("\n```").strip() if is_code else text


def notebook(cells: list[str]) -> Any:
    """A notebook of Markdown and Python cells, not executed."""
    import nbformat

    made = []
    for number, text in enumerate(cells):
        is_code, content = source(text)
        cell = nbformat.v4.new_code_cell(content) if is_code else nbformat.v4.new_markdown_cell(content)
        cell["id"] = f"cell-{number}"
        made.append(cell)
    return nbformat.v4.new_notebook(cells=made, metadata={"language_info": {"name": "python"}})


def write(name: str, cells: list[str]) -> None:
    """Execute a notebook in an empty directory, and write it with its output."""
    import nbformat
    from nbclient import NotebookClient

    made = notebook(cells)
    with TemporaryDirectory() as place:
        NotebookClient(made, timeout=600, resources={"metadata": {"path": place}}).execute()
    for cell in made.cells:
        cell.metadata.pop("execution", None)  # times of day
    made.metadata = {"language_info": {"name": "python"}}
    path = FOLDER / f"{name}.ipynb"
    path.write_text(nbformat.writes(made).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write("policies", POLICIES)
    write("disaggregated", DISAGGREGATED)
