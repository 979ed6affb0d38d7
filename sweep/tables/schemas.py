"""The columns of the tables that a run leaves: name, type, unit and definition of each.

These schemas are the documentation: they are written into every Parquet file, and the tables of docs/columns.md
and `DataFrame.attrs` are made from them. Nothing else may add, drop or rename a column.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from ..measures.columns import COUNTED
from ..measures.instances import ROLES
from ..measures.latencies import LATENCIES, PERCENTILES
from ..measures.slo import SLOS
from ..serving.orders import ORDERS
from ..serving.policies import MEMORIES, POLICIES
from ..serving.system_kinds import SYSTEMS

CONFIG_KEY = b"servesweep.config"  # of the metadata of a file: the experiment, as JSON
SCHEMA_VERSION = 1  # goes up when a column changes its meaning, its type or its name, or goes; not when one is added

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_REPEATED_TEXT = pa.dictionary(pa.int32(), pa.string())  # one cell_id a row would be most of the file

_LATENCY_NAMES = {
    "ttft": ("TTFT", "first token - arrival, and first_token_s of its step times"),
    "tpot": ("TPOT", "(finish - first token) / (output tokens - 1), 0 for a one-token output"),
    "e2e": ("end-to-end latency", "finish - arrival, and first_token_s of its step times"),
    "queue_delay": ("queueing delay", "first admission - arrival"),
    "kv_transfer": ("KV transfer time", "KV at the decode instance - first token"),
    "itl_max": (
        "longest inter-token latency",
        "the longest time between two tokens of a request; null without its SLO",
    ),
}


def _field(name: str, kind: pa.DataType, unit: str, definition: str, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={"unit": unit, "definition": definition})


def _one_of(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


def _schema(table: str, fields: list[pa.Field]) -> pa.Schema:
    return pa.schema(fields, metadata={"servesweep.table": table, "servesweep.schema_version": str(SCHEMA_VERSION)})


def _latency_fields() -> list[pa.Field]:
    fields = []
    for latency in LATENCIES:
        name, formula = _LATENCY_NAMES[latency]
        fields.append(
            _field(
                f"{latency}_mean_s",
                _FLOAT,
                "s",
                f"mean {name} of the window's requests that have it; {name} = {formula}",
            )
        )
        for q in PERCENTILES:
            fields.append(
                _field(
                    f"{latency}_p{q}_s",
                    _FLOAT,
                    "s",
                    f"{q}th percentile, linearly interpolated, of {name} over the window's requests that have it",
                )
            )
    return fields


def _balance_fields() -> list[pa.Field]:
    fields = []
    for role in ROLES:
        prefix = "" if role == "colocated" else f"{role}_"
        for name, what in (("requests", "requests served"), ("busy", "time inside steps")):
            definition = f"most {what} by one of the {role} instances / their mean: 1 is perfectly even"
            fields.append(_field(f"{prefix}{name}_max_over_mean", _FLOAT, "1", definition))
        if prefix:
            definition = f"time inside steps / duration_s, mean over {role} instances"
            fields.append(_field(f"{prefix}utilization", _FLOAT, "share", definition))
    return fields


_INSTANCE: dict[str, tuple[pa.DataType, str, str]] = {
    "chip": (_TEXT, "", "name of the chip in the catalogue"),
    "step_times": (_TEXT, "", "where step times come from: operators, roofline, or the name of a file"),
    "tp": (_INT, "GPUs", "tensor-parallel degree"),
    "pp": (_INT, "stages", "pipeline stages"),
    "weight_bytes": (_FLOAT, "bytes", "bytes of one weight"),
    "kv_bytes": (_FLOAT, "bytes", "bytes of one number in the KV cache"),
    "mfu": (_FLOAT, "share", "share of the chip's peak FLOP/s that matrices reach; null: as the chip's constants say"),
    "mbu": (_FLOAT, "share", "the same of its memory bandwidth"),
    "overhead_s": (_FLOAT, "s", "fixed time added to every step; null: as the chip's constants say"),
    "mem_reserve": (_FLOAT, "share", "share of GPU memory kept free of weights and KV cache"),
    "link": (_TEXT, "", "name of the link between the GPUs of an instance; of the roofline"),
    "head_bytes": (_FLOAT, "bytes", "bytes of one weight of the output layer; null: 2"),
    "compute_bytes": (_INT, "bytes", "what matrices of layers compute in; null: by weight_bytes"),
    "mbu_attention": (_FLOAT, "share", "as mbu, of reading the KV cache"),
    "mfu_attention": (_FLOAT, "share", "as mfu, of the attention of prefills"),
    "mixed_attention": (_FLOAT, "1", "cost of context in steps with prefill / in others; null as of mfu"),
    "layer_s": (_FLOAT, "s", "seconds a layer, whatever is in the step; null as of mfu"),
    "allreduce_s": (_FLOAT, "s", "seconds of an empty all-reduce; null as of mfu"),
    "allreduce_bw": (_FLOAT, "bytes/s", "bandwidth of all-reduces; null as of mfu"),
    "sequence_s": (_FLOAT, "s", "seconds for each request that emits a token; null as of mfu"),
    "first_token_s": (_FLOAT, "s", "seconds outside the engine before the first token, part of TTFT and e2e; null: 0"),
}

_PARAMETERS = [
    _field("cell_id", _TEXT, "", "content id of the cell: a hash of everything that changes its answer", True),
    _field(
        "status",
        _TEXT,
        "",
        "ok, infeasible (the configuration cannot run, see error) or failed (an unexpected error)",
        True,
    ),
    _field("error", _TEXT, "", "why the cell has no measures; null when status is ok"),
    _field("workload", _TEXT, "", "name of the workload", True),
    _field(
        "arrivals", _TEXT, "", "arrival process of a synthetic workload: poisson, uniform or bursty; null for a trace"
    ),
    _field(
        "cv",
        _FLOAT,
        "1",
        "coefficient of variation of the gaps between arrivals, standard deviation / mean; null unless bursty",
    ),
    _field("prefix_tokens", _INT, "tokens", "of the system prompt of a group; null unless the workload has groups"),
    _field("prefix_groups", _INT, "", "groups that share a system prompt each; null unless the workload has groups"),
    _field(
        "urgent_share",
        _FLOAT,
        "share",
        "requests of priority 0, others have 1; null where none is drawn",
    ),
    _field("n_requests", _INT, "requests", "requests simulated", True),
    _field("seed", _INT, "", "seed of the workload; null where nothing is drawn"),
    _field(
        "request_rate_rps",
        _FLOAT,
        "requests/s",
        "offered request rate: arrival = arrival at unit rate / request_rate_rps",
        True,
    ),
    _field("system", _TEXT, "", f"serving system: {_one_of(SYSTEMS)}", True),
    _field("n_instances", _INT, "instances", "instances of the system; null when it is disaggregated"),
    _field("n_prefill", _INT, "instances", "prefill instances; null unless the system is disaggregated"),
    _field("n_decode", _INT, "instances", "decode instances; null unless the system is disaggregated"),
    _field("router", _TEXT, "", "who gets which request; null with one instance of each role"),
    _field("router_seed", _INT, "", "seed of a router that draws; null for the others"),
    _field("transfer_link", _TEXT, "", "name of the link that KV crosses; null unless the system is disaggregated"),
    _field("model", _TEXT, "", "name of the model in the catalogue"),
    *(
        _field(name, kind, unit, f"{definition}; null where the roles of a disaggregated system differ")
        for name, (kind, unit, definition) in _INSTANCE.items()
    ),
    _field("step_times_source", _TEXT, "", "which constants or measurements step times rest on, and what is guessed"),
    _field("n_gpus", _INT, "GPUs", "GPUs of the whole system: tp x pp of each instance, summed", True),
    *(
        _field(f"{role}_{name}", kind, unit, f"{definition}, of the {role} instances of a disaggregated system")
        for role in ("prefill", "decode")
        for name, (kind, unit, definition) in _INSTANCE.items()
    ),
    _field("policy", _TEXT, "", f"batching policy: {_one_of(POLICIES)}; null unless the system is colocated"),
    _field("memory", _TEXT, "", f"KV memory: {_one_of(MEMORIES)}; null for prefill_only"),
    _field("max_running", _INT, "requests", "most requests that run at once on an instance; null for reserved memory"),
    _field("block_size", _INT, "tokens", "tokens in a KV block; null when memory is not paged"),
    _field("num_blocks", _INT, "blocks", "KV blocks of an instance; null when memory is not paged"),
    _field(
        "token_budget",
        _INT,
        "tokens",
        "most tokens processed in a step; null unless the policy is chunked or vllm, with paged or unlimited memory",
    ),
    _field(
        "chunk_budget",
        _INT,
        "tokens",
        "tokens of a step for decodes and prompt pieces; null unless the policy is chunked, with reserved memory",
    ),
    _field(
        "max_tokens",
        _INT,
        "tokens",
        "most prompt tokens in a prefill step; null unless the policy is prefill_first or instances only prefill",
    ),
    _field(
        "long_prefill_token_threshold",
        _INT,
        "tokens",
        "most tokens of a request in a step while others are there, 0 without a limit; null unless the policy is vllm",
    ),
    _field("enable_chunked_prefill", _BOOL, "", "whether prompts may be split; null unless the policy is vllm"),
    _field(
        "reserve_full_isl",
        _BOOL,
        "",
        "whether an admission asks for the blocks of all tokens; null unless the policy is vllm, with paged memory",
    ),
    _field(
        "watermark",
        _FLOAT,
        "share",
        "of blocks that an admission leaves free while others run; null unless the policy is vllm, with paged memory",
    ),
    _field("max_model_len", _INT, "tokens", "most tokens of prompt and answer; null without a limit, or not vllm"),
    _field(
        "async_scheduling",
        _BOOL,
        "",
        "whether the batch of a step is fixed when the one before begins; null unless the policy is vllm",
    ),
    _field(
        "enable_prefix_caching",
        _BOOL,
        "",
        "whether blocks are found again by their content; null unless the system is colocated with paged memory",
    ),
    _field("order", _TEXT, "", f"service order: {_one_of(ORDERS)}; null where nothing waits for a prefill"),
    _field(
        "max_wait_s",
        _FLOAT,
        "s",
        "who has waited so long goes first; null where nobody does",
    ),
    _field("ttft_slo_s", _FLOAT, "s", "TTFT limit that attainment checks; null is not checked"),
    _field("tpot_slo_s", _FLOAT, "s", "TPOT limit that attainment checks; null is not checked"),
    _field("e2e_slo_s", _FLOAT, "s", "limit on the end-to-end latency that attainment checks; null is not checked"),
    _field(
        "itl_max_slo_s",
        _FLOAT,
        "s",
        "limit on the longest time between two tokens of a request that attainment checks; null is not checked",
    ),
    _field(
        "warmup", _FLOAT, "share", "the first int(n_requests x warmup) requests to arrive are outside the window", True
    ),
    _field(
        "cooldown",
        _FLOAT,
        "share",
        "the last int(n_requests x cooldown) requests to arrive are outside the window",
        True,
    ),
]

_MEASURES = [
    _field(
        "attainment",
        _FLOAT,
        "share",
        "requests of the window that meet every SLO set / attainment_requests; "
        "a missing time meets no SLO, a rejected request nothing",
    ),
    _field(
        "attainment_requests",
        _INT,
        "requests",
        "requests in the window: n_requests - int(n_requests x warmup) - int(n_requests x cooldown), at least 0",
    ),
    _field(
        "ttft_attainment",
        _FLOAT,
        "share",
        "requests of the window with TTFT <= ttft_slo_s / attainment_requests; null without that SLO",
    ),
    _field(
        "tpot_attainment",
        _FLOAT,
        "share",
        "requests of the window with TPOT <= tpot_slo_s / attainment_requests; null without that SLO",
    ),
    _field(
        "e2e_attainment",
        _FLOAT,
        "share",
        "requests of the window with end-to-end latency <= e2e_slo_s / attainment_requests; null without that SLO",
    ),
    _field(
        "itl_max_attainment",
        _FLOAT,
        "share",
        "requests of the window with no time between two tokens > itl_max_slo_s / attainment_requests; "
        "null without that SLO",
    ),
    _field(
        "request_goodput_rps", _FLOAT, "requests/s", "requests of the whole run that meet every SLO set / duration_s"
    ),
    _field("request_throughput_rps", _FLOAT, "requests/s", "finished / duration_s"),
    _field(
        "output_throughput_tps",
        _FLOAT,
        "tokens/s",
        "output tokens of the finished requests / duration_s; in prefill_only one token each",
    ),
    _field(
        "total_throughput_tps", _FLOAT, "tokens/s", "prompt and output tokens of the finished requests / duration_s"
    ),
    _field("request_throughput_per_gpu_rps", _FLOAT, "requests/s", "request_throughput_rps / n_gpus"),
    _field("output_throughput_per_gpu_tps", _FLOAT, "tokens/s", "output_throughput_tps / n_gpus"),
    _field("duration_s", _FLOAT, "s", "last finish - first arrival; in prefill_only last first token - first arrival"),
    *_latency_fields(),
    _field(
        "itl_mean_s", _FLOAT, "s", "inter-token latency: time between two tokens, mean over those of finished requests"
    ),
    *(
        _field(
            f"itl_p{q}_s",
            _FLOAT,
            "s",
            f"{q}th percentile of the inter-token latencies of the whole run, pooled, within 1 %; "
            "null unless itl_max_slo_s is set",
        )
        for q in PERCENTILES
    ),
    *(_field(row.name, _INT if row.whole else _FLOAT, row.unit, row.definition) for row in COUNTED),
    _field("utilization", _FLOAT, "share", "time inside steps / duration_s, mean over instances"),
    *_balance_fields(),
    _field(
        "finished",
        _INT,
        "requests",
        "requests of the whole run that got their last token; in prefill_only their first",
    ),
    _field("rejected", _INT, "requests", "requests of the whole run that were refused because they could never fit"),
]

CELLS_SCHEMA = _schema("cells", _PARAMETERS + _MEASURES)

REQUESTS_SCHEMA = _schema(
    "requests",
    [
        _field("cell_id", _REPEATED_TEXT, "", "the cell, as in the cells table", True),
        _field("request", _INT, "", "position in the workload, from 0", True),
        _field("arrival_s", _FLOAT, "s", "arrival; the clock starts at 0", True),
        _field("prompt_tokens", _INT, "tokens", "prompt length", True),
        _field("output_tokens", _INT, "tokens", "output length", True),
        _field("admitted_s", _FLOAT, "s", "start of the step that the request was first admitted to; null if rejected"),
        _field("first_token_s", _FLOAT, "s", "end of the step that made the first token; null if rejected"),
        _field(
            "kv_ready_s",
            _FLOAT,
            "s",
            "arrival of the KV cache at the decode instance; null where nothing is transferred",
        ),
        _field("finish_s", _FLOAT, "s", "end of the step that made the last token; null if the request did not finish"),
        *(
            _field(f"{latency}_s", _FLOAT, "s", f"{name} = {formula}")
            for latency, (name, formula) in (
                (x, _LATENCY_NAMES[x]) for x in ("queue_delay", "ttft", "tpot", "e2e", "kv_transfer")
            )
        ),
        _field("preemptions", _INT, "preemptions", "times that the request lost its KV blocks", True),
        _field(
            "cached_tokens", _INT, "tokens", "of the prompt, that its first admission found in a prefix cache", True
        ),
        _field("rejected", _BOOL, "", "refused because it could never fit", True),
    ],
)

STEPS_SCHEMA = _schema(
    "steps",
    [
        _field("cell_id", _REPEATED_TEXT, "", "the cell, as in the cells table", True),
        _field("role", _REPEATED_TEXT, "", "of the instance: colocated, prefill or decode", True),
        _field("instance", _INT, "", "instance of this role, from 0", True),
        _field("step", _INT, "", "number of the step in the cell, from 0; idle time is not a step", True),
        _field("start_s", _FLOAT, "s", "when the step begins", True),
        _field("end_s", _FLOAT, "s", "when the step ends; its tokens are stamped with this", True),
        _field("running", _INT, "requests", "requests admitted while the step runs", True),
        _field("emitted", _INT, "tokens", "tokens emitted by the step", True),
        _field("tokens", _INT, "tokens", "tokens processed by the step, prefill and decode", True),
        _field("blocks_used", _INT, "blocks", "KV blocks held while the step runs; 0 when memory is unlimited", True),
    ],
)

INSTANCES_SCHEMA = _schema(
    "instances",
    [
        _field("cell_id", _REPEATED_TEXT, "", "the cell, as in the cells table", True),
        _field("role", _REPEATED_TEXT, "", "of the instance: colocated, prefill or decode", True),
        _field("instance", _INT, "", "number of the instance among those of its role, from 0", True),
        _field("requests", _INT, "requests", "requests that the instance served", True),
        _field("streams", _INT, "streams", "batches worked on in turn: pp of a decode instance, else 1", True),
        _field("steps", _INT, "steps", "steps that were not idle, of all streams", True),
        _field(
            "busy_s",
            _FLOAT,
            "s",
            "time inside steps, summed over streams; of a prefill instance, until the next batch can start",
            True,
        ),
    ],
)

TIMINGS_SCHEMA = _schema(
    "timings",
    [
        _field("cell_id", _TEXT, "", "the cell, as in the cells table", True),
        _field("batch", _INT, "", "number of the batch that it was simulated in; null if infeasible"),
        _field("batch_cells", _INT, "cells", "cells of that batch"),
        _field("batch_wall_s", _FLOAT, "s", "time by the clock that the batch took; its cells share it"),
        _field("batch_cpu_s", _FLOAT, "s", "CPU time that the batch took; its cells share it"),
        _field("host", _REPEATED_TEXT, "", "machine that it ran on; null when the cell ended its worker"),
        _field("pid", _INT, "", "process that it ran in"),
        _field("ended_unix_s", _FLOAT, "s", "when the batch ended, seconds since 1970 by the clock of that machine"),
    ],
)

# A search finds the rate: its rows have every parameter but that.
_SEARCH_PARAMETERS = [
    _field("cell_id", _TEXT, "", "content id of the search: of its configuration, workload, SLOs and options", True),
    *(field for field in _PARAMETERS if field.name not in ("cell_id", "request_rate_rps")),
]
_INTERVAL = "end of the 95 % Wilson score interval of attainment, which takes its requests as independent"
_OR_BOUND = "; where stopped, the share of all requests in the window if the others all missed, or all met, the SLOs"

GOODPUT_SCHEMA = _schema(
    "goodput",
    [
        *_SEARCH_PARAMETERS,
        _field("target", _FLOAT, "share", "attainment asked for", True),
        _field(
            "max_rate_rps",
            _FLOAT,
            "requests/s",
            "highest request rate found whose attainment is at least target; null when the lower end misses it",
        ),
        _field("goodput_per_gpu_rps", _FLOAT, "requests/s", "max_rate_rps / n_gpus"),
        _field(
            "ending",
            _TEXT,
            "",
            "how the search ended: converged, upper_end_passes (max_rate_rps is a lower bound), lower_end_fails, "
            "not_monotone, unresolved or interrupted; null unless status is ok",
        ),
        _field("reason", _TEXT, "", "what stands behind an ending other than converged, in words"),
        _field(
            "next_rate_rps",
            _FLOAT,
            "requests/s",
            "lowest rate asked for that misses target: the true boundary, if there is one, lies between the two",
        ),
        _field(
            "rate_low_rps",
            _FLOAT,
            "requests/s",
            "highest rate asked for, up to max_rate_rps, at which attainment_low is at least target: a rate that "
            "passes beyond chance",
        ),
        _field(
            "rate_high_rps",
            _FLOAT,
            "requests/s",
            "lowest rate asked for, above max_rate_rps, at which attainment_high is below target: a rate that fails "
            "beyond chance",
        ),
        _field(
            "attainment",
            _FLOAT,
            "share",
            "at max_rate_rps: requests of the window that meet every SLO set / attainment_requests; in a search that "
            "is not joint, the lowest of the SLOs' own attainments",
        ),
        _field("attainment_requests", _INT, "requests", "requests in the window"),
        _field("attainment_low", _FLOAT, "share", f"lower {_INTERVAL}"),
        _field("attainment_high", _FLOAT, "share", f"upper {_INTERVAL}"),
        *(
            _field(f"{x}_attainment", _FLOAT, "share", f"at max_rate_rps: attainment of the {x} SLO alone")
            for x in SLOS
        ),
        _field(
            "binding_slo",
            _TEXT,
            "",
            "SLO with the lowest attainment of its own at next_rate_rps, the one that fails first above max_rate_rps",
        ),
        _field("output_throughput_tps", _FLOAT, "tokens/s", "at max_rate_rps"),
        _field("output_throughput_per_gpu_tps", _FLOAT, "tokens/s", "output_throughput_tps / n_gpus"),
        _field("ttft_p99_s", _FLOAT, "s", "at max_rate_rps: 99th percentile of TTFT over the window"),
        _field("tpot_p99_s", _FLOAT, "s", "at max_rate_rps: 99th percentile of TPOT over the window"),
        _field("probes", _INT, "probes", "rates that the search asked for; looking ahead not counted", True),
    ],
)

PROBES_SCHEMA = _schema(
    "probes",
    [
        _field("cell_id", _REPEATED_TEXT, "", "the search, as in the goodput table", True),
        _field("request_rate_rps", _FLOAT, "requests/s", "offered request rate", True),
        _field("round", _INT, "", "round in which the rate was simulated, from 1", True),
        _field(
            "asked",
            _BOOL,
            "",
            "whether the search asked for this rate; otherwise it was simulated ahead and then not needed",
            True,
        ),
        _field("met", _BOOL, "", "attainment >= target", True),
        _field(
            "stopped",
            _BOOL,
            "",
            "whether the simulation ended when it was certain that the rate passes, or fails, beyond chance: then "
            "attainment is of the first attainment_requests of the window, and the other measures are null",
            True,
        ),
        _field("attainment_low", _FLOAT, "share", f"lower {_INTERVAL}{_OR_BOUND}"),
        _field("attainment_high", _FLOAT, "share", f"upper {_INTERVAL}{_OR_BOUND}"),
        GOODPUT_SCHEMA.field("attainment").with_metadata(
            {
                "unit": "share",
                "definition": "requests of the window that meet every SLO set / attainment_requests; in a search that "
                "is not joint, the lowest of the SLOs' own attainments",
            }
        ),
        *(field for field in _MEASURES if field.name != "attainment"),
    ],
)

# Of the goodput table, what tells one candidate of a placement from another, and how it did.
_OF_GOODPUT = (
    *("system", "n_instances", "n_prefill", "n_decode", "tp", "pp", "prefill_tp", "prefill_pp"),
    *("decode_tp", "decode_pp", "n_gpus", "step_times_source", "policy", "token_budget", "chunk_budget"),
    *(f"{x}_slo_s" for x in SLOS),
    *("target", "max_rate_rps", "goodput_per_gpu_rps", "ending", "reason", "next_rate_rps", "rate_low_rps"),
    *("rate_high_rps", "attainment", "attainment_requests", "ttft_attainment", "tpot_attainment", "binding_slo"),
    *("output_throughput_tps", "ttft_p99_s", "tpot_p99_s"),
)

PLACEMENT_SCHEMA = _schema(
    "placement",
    [
        _field("cell_id", _TEXT, "", "the search, as in the goodput table of the part's directory", True),
        _field("status", _TEXT, "", "ok, infeasible (the configuration cannot run) or failed (see error)", True),
        _field("error", _TEXT, "", "why there is no rate; null when status is ok"),
        _field(
            "part",
            _TEXT,
            "",
            "prefill: one prefill_only instance, TTFT SLO alone; decode: one decode_only instance, TPOT SLO alone; "
            "joint: a whole system, every SLO",
            True,
        ),
        _field(
            "is_chosen",
            _BOOL,
            "",
            "the parallelism that the placement takes for this role; of joint rows, the system that it comes to",
            True,
        ),
        _field(
            "predicted_rps",
            _FLOAT,
            "requests/s",
            "min(n_prefill x max_rate_rps of its prefill row, n_decode x that of its decode row); null unless the "
            "system is disaggregated and both have one",
        ),
        *(GOODPUT_SCHEMA.field(name) for name in _OF_GOODPUT),
    ],
)

SCHEMAS: dict[str, pa.Schema] = {
    "cells": CELLS_SCHEMA,
    "requests": REQUESTS_SCHEMA,
    "steps": STEPS_SCHEMA,
    "instances": INSTANCES_SCHEMA,
    "timings": TIMINGS_SCHEMA,
    "goodput": GOODPUT_SCHEMA,
    "probes": PROBES_SCHEMA,
    "placement": PLACEMENT_SCHEMA,
}


def table_name(schema: pa.Schema) -> str:
    """Which table it is the schema of."""
    return str(schema.metadata[b"servesweep.table"].decode())


def units(schema: pa.Schema) -> dict[str, str]:
    """The unit of every column; empty for names, ids and flags, 1 for a plain number."""
    return {field.name: _about(field, b"unit") for field in schema}


def definitions(schema: pa.Schema) -> dict[str, str]:
    """The definition of every column."""
    return {field.name: _about(field, b"definition") for field in schema}


def _about(field: pa.Field, key: bytes) -> str:
    """What the metadata of a field say; empty for a column that is not ours."""
    found: bytes = (field.metadata or {}).get(key, b"")
    return found.decode("utf-8", "replace")


def column_facts(schema: pa.Schema) -> dict[str, dict[str, str]]:
    """Type, unit and definition of every column."""
    found = {}
    for name, unit in units(schema).items():
        kind = schema.field(name).type
        text = kind.value_type if pa.types.is_dictionary(kind) else kind
        found[name] = {"type": str(text), "unit": unit, "definition": definitions(schema)[name]}
    return found
