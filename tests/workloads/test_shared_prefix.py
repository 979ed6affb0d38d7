"""Groups that share a system prompt; blocks of a trace by their hash ids; what an unlimited cache would find."""

import json

import numpy as np
import pytest
from servesweep import Workload, load_trace, lognormal_len, make_workload, shared_prefix_workload
from servesweep.workloads.contents import found_tokens

LENGTHS = {"prompt": lognormal_len(200, 0.5, 10, 1000), "output": 100}


def found(workload, block_size):
    columns = workload.prompt_tokens, workload.output_tokens, workload.arrival_s
    return found_tokens(workload.texts, *columns, block_size).tolist()


def test_it_is_make_workload_with_system_prompts():
    plain = make_workload(500, 4.0, **LENGTHS, seed=3, arrivals="bursty", cv=2.0)
    made = shared_prefix_workload(
        500, rate=4.0, prefix_tokens=1000, **LENGTHS, seed=3, prefix_groups=5, arrivals="bursty", cv=2.0
    )
    np.testing.assert_array_equal(made.arrival_s, plain.arrival_s)
    np.testing.assert_array_equal(made.output_tokens, plain.output_tokens)
    np.testing.assert_array_equal(made.prompt_tokens, plain.prompt_tokens + 1000)
    system, question = made.texts.segment.reshape(-1, 2).T
    assert np.bincount(np.unique(system, return_inverse=True)[1]).min() > 60  # of 100 each
    assert len(set(question)) == 500
    assert not set(question) & set(system)
    assert (made.texts.tokens.reshape(-1, 2)[:, 0] == 1000).all()


def test_all_but_the_first_of_a_group_find_its_system_prompt():
    made = shared_prefix_workload(40, rate=1.0, prefix_tokens=50, prompt=30, output=20, prefix_groups=3)
    group = made.texts.segment.reshape(-1, 2)[:, 0].tolist()
    # Whole blocks of 16: 48 of 50 tokens.
    assert found(made, 16) == [48 if one in group[:i] else 0 for i, one in enumerate(group)]


def test_what_is_found_by_hand():
    """Blocks of 4: the second turn finds prompt and answer; the same prompt all but a token; later requests nothing."""
    served = Workload(
        [3.0, 0.0, 1.0, 2.0],
        [8, 8, 16, 8],
        [4, 8, 4, 4],
        prompts=[[("a", 8)], [("a", 8)], [("a", 8), ("o1", 8)], [("b", 8)]],
    )
    assert found(served, 4) == [4, 0, 12, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_tokens": 0}, "prefix_tokens=0: must be an integer of at least 1"),
        ({"prefix_groups": 0}, "prefix_groups=0: must be an integer of at least 1"),
        ({"prefix_tokens": 2**31 - 5}, "prefix_tokens=2147483643: must leave room for the questions"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        shared_prefix_workload(5, rate=1.0, **{"prefix_tokens": 10, "prompt": 10, "output": 10, **options})


# ------------------------------------------------------------------------------------------------------------ hash ids


def trace(folder, *rows):
    file = folder / "trace.jsonl"
    lines = [
        {
            "timestamp": 1000 * i,
            "input_length": length,
            "output_length": 3,
            **({} if ids is None else {"hash_ids": ids}),
        }
        for i, (length, ids) in enumerate(rows)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_blocks_of_one_number_are_the_same(tmp_path):
    file = trace(tmp_path, (1100, [7, 8, 9]), (600, [7, 4]), (1100, [7, 8, 9]), (300, None))
    read = load_trace(file)
    assert read.texts.start.tolist() == [0, 3, 5, 8, 9]
    assert read.texts.tokens.tolist() == [512, 512, 76, 512, 88, 512, 512, 76, 300]
    assert found(read, 512) == [0, 512, 1024, 0]
    assert found(read, 16) == [0, 512, 1088, 0]
    assert found(load_trace(file, limit=2), 512) == [0, 512]
    assert load_trace(file, start_s=1.0).texts.start.tolist() == [0, 2, 5, 6]
    assert load_trace(file, hash_ids=False).texts is None
    assert load_trace(file, rate=5.0).texts is not None


def test_a_file_without_says_nothing(tmp_path):
    assert load_trace(trace(tmp_path, (10, None), (20, None))).texts is None


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("7, 8", r"trace.jsonl, line 2: hash_ids = '7, 8' is no list of whole numbers"),
        ([7, -1], r"line 2: hash_ids = \[7, -1\] is no list of whole numbers"),
        ([7, True], r"line 2: hash_ids = \[7, True\] is no list of whole numbers"),
        ([7], r"line 2: has 1 hash_ids: 600 tokens have 2 blocks of 512"),
    ],
)
def test_bad_hash_ids_are_bad_rows(tmp_path, ids, message):
    file = trace(tmp_path, (512, [7]), (600, ids), (512, [7]))
    with pytest.raises(ValueError, match=message):
        load_trace(file)
    kept = load_trace(file, on_bad="skip")
    assert kept.texts.segment.tolist() == [9, 9]
