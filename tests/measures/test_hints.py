"""What a newcomer gets wrong in Python: each message says what was meant, and no argument ends in a raw TypeError."""

import inspect
import re
import warnings
from typing import Any

import numpy as np
import pytest
import servesweep as ss
from servesweep import plots
from servesweep.kernels.router import FIRST_DRAWN, LEAST
from servesweep.serving.policies import SCHEDULED, Policy
from servesweep.serving.routers import RouterKind

STEP = ss.ConstantStepTime(0.01)
WORK = ss.make_workload(10, 1.0, 20, 5)
RESULT = ss.run_scheduler(WORK, STEP, policy="mixed", max_running=4)

# A public function, and arguments of which one is a name.
NAMED = {
    "policy": lambda x: ss.run_scheduler(WORK, STEP, policy=x, max_running=4),
    "policy of instances": lambda x: ss.run_colocated(WORK, STEP, 1, x),
    "policy with options": lambda x: ss.run_colocated(WORK, STEP, 1, x, max_tokens=100, chunk_budget=100),
    "memory": lambda x: ss.run_scheduler(WORK, STEP, policy="mixed", max_running=4, memory=x),
    "memory of instances": lambda x: ss.run_colocated(WORK, STEP, memory=x, max_running=4),
    "memory of decode instances": lambda x: ss.run_decode_only(WORK, STEP, memory=x),
    "memory of both": lambda x: ss.run_disaggregated(WORK, STEP, STEP, memory=x),
    "order": lambda x: ss.run_scheduler(WORK, STEP, policy="mixed", max_running=4, order=x),
    "order of prefills": lambda x: ss.run_prefill_only(WORK, STEP, order=x),
    "router": lambda x: ss.run_colocated(WORK, STEP, router=x),
    "on_reject": lambda x: ss.run_scheduler(WORK, STEP, policy="mixed", max_running=4, on_reject=x),
    "name": lambda x: ss.percentile(RESULT, x, 99),
    "arrivals": lambda x: ss.make_workload(10, 1.0, 20, 5, arrivals=x),
    "backend": lambda x: ss.run_grid("quickstart", backend=x),
    "table": lambda x: ss.load("results/quickstart", x),
    "on_bad": lambda x: ss.load_trace("trace.csv", on_bad=x),
    "format": lambda x: ss.load_trace("trace.csv", format=x),
}
NO_NAMES = (["arrival"], None, {}, {"a": 1}, ("mixed",), 3, np.array(["mixed", "chunked"]), float("nan"), b"mixed")
OPTIONAL = {"memory", "format"}  # None is allowed


@pytest.mark.parametrize("value", NO_NAMES, ids=repr)
@pytest.mark.parametrize("what", NAMED)
def test_what_is_no_name_is_refused_by_a_list_of_names(what: str, value: Any) -> None:
    if value is None and what in OPTIONAL:
        pytest.skip("allowed")
    with pytest.raises(ValueError, match=rf"^{what.split()[0]}=.*: must be (None or )?one of [a-z_]+") as caught:
        NAMED[what](value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("what", "value", "close"),
    [
        ("policy", "chunkd", "chunked"),
        ("policy of instances", "prefil_first", "prefill_first"),
        ("memory", "page", "paged"),
        ("order", "priorty", "priority"),
        ("router", "roundrobin", "round_robin"),
        ("name", "ttf", "ttft"),
        ("arrivals", "poison", "poisson"),
        ("backend", "dusk", "dask"),
        ("table", "cell", "cells"),
        ("on_bad", "skp", "skip"),
        ("format", "parket", "parquet"),
        ("on_reject", "rejct", "reject"),
    ],
)
def test_a_misspelt_name_gets_the_closest(what: str, value: str, close: str) -> None:
    with pytest.raises(ValueError, match=rf'did you mean "{close}"\?$'):
        NAMED[what](value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ss.SLO(ttft_ms=500), r'SLO: ttft_ms= is unknown; did you mean "ttft_s"\?.* in seconds$'),
        (lambda: ss.run_scheduler(WORK, STEP, polciy="mixed"), r'polciy= is unknown; did you mean "policy"\?'),
        (lambda: ss.Colocated(WORK, STEP, routr="random"), r'routr= is unknown; did you mean "router"\?'),
        (lambda: ss.run_scheduler(WORK, STEP, "mixed"), r"run_scheduler: takes at most 2 .* as policy=, max_running="),
        (lambda: ss.Scheduler(WORK, STEP, "mixed"), r"Scheduler: takes at most 2 arguments without a name, got 3"),
        (lambda: ss.find_goodput("quickstart", ss.SLO(ttft_s=1)), r"find_goodput: .* got 2; pass it as slo=$"),
        (lambda: ss.load_trace("x.csv", "azure"), r"load_trace: takes at most 1 argument without a name"),
        (lambda: ss.attainment(RESULT, 1, 1, 0, 0, ss.SLO(ttft_s=1)), r"attainment: .* got 6; pass it as slo=$"),
    ],
)
def test_arguments_given_wrongly_say_how_they_are_given(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("limits", [ss.SLO(ttft_s=0.5), {"ttft_ms": 500}], ids=["SLO", "dict"])
def test_an_slo_by_position_is_told_its_name(limits: Any) -> None:
    with pytest.raises(ValueError, match=r"^ttft_slo=.*: must be seconds; pass it as slo="):
        ss.attainment(RESULT, limits)


PUBLIC = {name: getattr(ss, name) for name in ss.__all__ if name != "plots"}
PUBLIC |= {f"plots.{name}": getattr(plots, name) for name in plots.__all__}
# Handed out, or made from others of the same kind.
NOT_CALLED = {"Goodput", "Interrupted", "Placement", "RunStopped", "SearchInterrupted", "SearchStopped"}
NOT_CALLED |= {"Experiment", "GoodputOptions", "InstanceFacts", "Run", "System", "SystemResults", "EarlyStopOutcome"}


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - NOT_CALLED))
def test_every_public_function_with_keywords_only_says_so(name: str) -> None:
    value = PUBLIC[name]
    if not callable(value) or not re.match(r"servesweep", getattr(value, "__module__", "")):
        return
    parameters = inspect.signature(value).parameters.values()
    if any(one.kind is one.KEYWORD_ONLY for one in parameters):
        with pytest.raises(TypeError, match=r"takes at most \d+ arguments? without a name, got \d+; pass .*="):
            value(*[None] * (len(parameters) + 1))


def test_the_line_of_the_caller_is_shown_by_a_warning() -> None:
    for call in (lambda: ss.attainment(RESULT), lambda: ss.percentile(RESULT, "ttft", 0.99)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [one.filename for one in caught] == [__file__]


def test_priorities_that_are_missing_name_what_python_has() -> None:
    with pytest.raises(ValueError, match="an array of the Workload"):
        NAMED["order"]("priority")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy("x", "", True, dict.fromkeys(SCHEDULED, ()), phases="schedulr"), 'mean "scheduler"'),  # type: ignore[arg-type]
        (lambda: Policy("x", "", True, {"page": ()}), "options='page': must be one of reserve, paged, unlimited"),  # type: ignore[arg-type]
        (lambda: Policy("x", "", True, {"paged": ("tokn_budget",)}), 'did you mean "token_budget"'),  # type: ignore[arg-type]
        (lambda: RouterKind("x", "", rule=7), "rule=7: must be LEAST"),  # type: ignore[arg-type]
        (lambda: RouterKind("x", "", rule=FIRST_DRAWN), "draw=None: must be given"),  # type: ignore[arg-type]
        (lambda: RouterKind("x", "", rule=LEAST, splits=True), "splits=True: must go with"),  # type: ignore[arg-type]
    ],
)
def test_rows_are_checked_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_name_is_registered_once() -> None:
    from servesweep.checks import by_name
    from servesweep.serving.orders import Order

    rows = [Order("arrival", "first"), Order("arrival", "again")]
    with pytest.raises(ValueError, match="name='arrival': is registered already"):
        by_name(rows)
