"""The reference's policy `vllm`: recorded decisions of vLLM, step by step, and what holds on any run."""

from typing import Any

import pytest
from strategies import golden
from vllm_decisions import decide

FILES = ("fcfs", "options", "prefix-caching", "more")
CASES = [
    pytest.param(case, id=f"{name}: {case['name']}")
    for name in FILES
    for case in golden(f"vllm/{name}")
    if not case["inputs"].get("enable_prefix_caching")
]


@pytest.mark.parametrize("case", CASES)
def test_it_decides_as_vllm_did(case: dict[str, Any]) -> None:
    decided = decide(case["inputs"])
    for step, recorded in zip(decided["steps"], case["outputs"]["steps"], strict=False):
        assert step == recorded
    assert decided == case["outputs"]
