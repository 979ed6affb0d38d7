"""Prompts that have text in common: how they are given, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from servesweep.workloads.texts import Texts
from servesweep.workloads.workload import Workload


def workload(prompts, prompt_tokens=(450, 300, 40)):
    return Workload([0.0, 1.0, 2.0], prompt_tokens, [7, 8, 9], prompts=prompts)


def test_texts_have_numbers():
    texts = workload([[("sys", 100), ("q", 350)], 300, [("sys", 30), ("o0", 7), ("q", 3)]]).texts
    assert texts.start.tolist() == [0, 2, 3, 6]
    assert texts.tokens.tolist() == [100, 350, 300, 30, 7, 3]
    system, question, own = texts.segment[:3].tolist()
    assert texts.segment.tolist() == [system, question, own, system, texts.answer[0], question]
    assert len({system, question, own, *texts.answer.tolist()}) == 6


def test_no_texts_unless_given():
    assert workload(None).texts is None


def test_scaling_keeps_them():
    texts = workload([450, 300, 40]).texts
    given = Workload([0.0, 1.0, 2.0], [450, 300, 40], [7, 8, 9], texts=texts)
    assert given.at_rate(3.0).texts is texts
    assert replace(given, name="other").texts is texts


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("sys", r"prompts='sys': must be a list with an entry for each request"),
        ([450, 300], r"prompts has 2 entries: must have one for each of 3 requests"),
        ([450, 300, 41], r"prompts\[2\]: its segments have 41 tokens: must have as many as prompt_tokens\[2\], 40"),
        ([450, [("a", 299)], 40], r"prompts\[1\]: its segments have 299 tokens: .* prompt_tokens\[1\], 300"),
        ([450, 300, []], r"prompts\[2\]=\[\]: must be a list of \(text, tokens\), or a number"),
        ([450, 300, ["a"]], r"prompts\[2\]\[0\]='a': must be \(text, tokens\)"),
        ([450, 300, [("a", 20, 20)]], r"prompts\[2\]\[0\]=\('a', 20, 20\): must be \(text, tokens\)"),
        ([450, 300, [(5, 40)]], r"prompts\[2\]\[0\]=\(5, 40\): must be \(text, tokens\)"),
        ([450, 300, [("a", 0), ("b", 40)]], r"prompts\[2\]\[0\]=0: tokens must be an integer from 1"),
        ([450, 300, [("a", 40.0)]], r"prompts\[2\]\[0\]=40.0: tokens must be an integer"),
        ([450, True, 40], r"prompts\[1\]=True: must be a list"),
        ([450, 300, [("o3", 40)]], r"prompts\[2\]\[0\]=\('o3', 40\): is named as an answer, and there is no such"),
        ([450, 300, [("o01", 40)]], r"prompts\[2\]\[0\]=\('o01', 40\): is named as an answer"),
    ],
)
def test_refused(prompts, message):
    with pytest.raises(ValueError, match=message):
        workload(prompts)


def test_texts_of_other_requests_are_refused():
    texts = workload([450, 300, 40]).texts
    with pytest.raises(ValueError, match=r"texts are of 3 requests: must be of 2"):
        Workload([0.0, 1.0], [450, 300], [7, 8], texts=texts)
    with pytest.raises(ValueError, match=r"prompts\[0\]: its segments have 450 tokens: must have as many as .* 451"):
        Workload([0.0, 1.0, 2.0], [451, 300, 40], [7, 8, 9], texts=texts)
    with pytest.raises(ValueError, match="prompts and texts are both given"):
        Workload([0.0, 1.0, 2.0], [450, 300, 40], [7, 8, 9], texts=texts, prompts=[450, 300, 40])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("start", [0, 2], r"start=.*: must be 3 numbers that rise from 0"),
        ("start", [0, 2, 2], r"start=.*: must be 3 numbers that rise from 0"),
        ("segment", [0, 1], r"segment has 2 entries: must have the 3 that start ends with"),
        ("tokens", [3, 0, 1], r"tokens\[1\]=0: must be an integer of at least 1"),
        ("answer", [0, -1], r"answer\[1\]=-1: must be an integer of at least 0"),
    ],
)
def test_arrays_that_are_no_texts_are_refused_by_name(name, values, message):
    good = {"start": [0, 2, 3], "segment": [2, 3, 2], "tokens": [3, 4, 5], "answer": [0, 1]}
    Texts(**{key: np.array(value) for key, value in good.items()})
    with pytest.raises(ValueError, match=message):
        Texts(**{key: np.array(value) for key, value in (good | {name: values}).items()})
