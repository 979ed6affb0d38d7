"""Messages stay short whatever they quote, and say how much they leave out."""

import doctest
import re

import numpy as np
import pytest
from servesweep import checks, escapes, messages
from servesweep.experiment import checking
from servesweep.experiment.reader import load_experiment
from servesweep.experiment.tables import ConfigError
from servesweep.messages import (
    MOST_CHARACTERS,
    MOST_PROBLEMS,
    MOST_VALUES,
    clipped,
    closest,
    listed,
    nearest,
    nearest_numbers,
    number_text,
    shown,
)
from small_experiment import SMALL, changed, problem, problems


@pytest.mark.parametrize("module", [messages, escapes, checking], ids=lambda module: module.__name__)
def test_the_doctests(module):
    failures, attempts = doctest.testmod(module)
    assert attempts > 0
    assert failures == 0


class Breaks:
    def __repr__(self):
        raise RuntimeError

    __str__ = __repr__


def cycle():
    holds = []
    holds.append({"itself": holds})
    return holds


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "begin"),
    [
        (list(range(10**6)), "[0, 1, 2, "),
        ("x" * 10**6, "'xxx"),
        (10**10_000, "<an integer of 33,220 bits>"),
        (cycle(), "[{'itself': ["),
        (nested(10**5), "[[[[["),
        (np.arange(10**6), "array([ 0, 1, 2, "),
        (Breaks(), "<Breaks>"),
        ({f"key{i}": i for i in range(10**5)}, "{'key0': 0, 'key1': 1, "),
        (True, "True"),
    ],
    ids=["list", "text", "integer", "cycle", "nested", "array", "breaks", "dict", "bool"],
)
def test_a_value_is_shown_in_a_line(value, begin):
    assert shown(value).startswith(begin)
    assert len(shown(value)) <= 100
    assert "\n" not in shown(value)
    with pytest.raises(ValueError, match=r"rate=.{1,100}: must be a positive finite number"):
        checks.positive("rate", [value])
    (text,) = problems({**SMALL, "slo": {"ttft_ms": [[value]]}})
    assert re.fullmatch(r"config: slo\.ttft_ms = .{1,100}: must be a finite number above 0", text)


def test_values_are_shown_as_toml_writes_them():
    value = {"a b": [True, None, "x\n", 1.5], "lo": {"x": ()}}
    assert messages.shown_as_toml(value) == '{ "a b" = [true, nothing, "x\\n", 1.5], lo = { x = [] } }'


def test_lists_say_how_much_they_leave_out():
    assert listed([1, 2, 3]) == "1, 2, 3"
    assert listed("abcdefgh") == "a, b, c, d, e, f, g, h"
    assert listed("abcdefghij") == "a, b, c, d, e, f, g, h, ... and 2 more"
    assert nearest_numbers(5, [8, 1]) == [1, 8]
    assert nearest_numbers(50, range(0, 100, 7))[:3] == [49, 56, 42]


def test_the_nearest_name_comes_first():
    names = [f"model-{i}" for i in range(100)]
    assert nearest("modl-77", names).startswith('; did you mean "model-77"? Known: model-77, ')
    assert nearest("modl-77", names).endswith(" ... and 60 more")
    assert nearest("zzz", ["a", "b"]) == "; known: a, b"
    assert nearest("17", [str(i) for i in range(0, 800, 8)]).startswith('; did you mean "16"? Known: 16, 24, 8, 32, ')
    assert nearest("x" * 10**6, ["y"]) == "; known: y"
    assert nearest(7, ["a"]) == "; known: a"
    assert nearest("rotuer", ["kind", "tp", "router_seed", "tp", "router"]) == (
        '; did you mean "router"? Known: router, router_seed, kind, tp'
    )
    assert nearest("7", ["1", "64", "8", "8"]) == '; did you mean "8"? Known: 8, 1, 64'
    assert closest("zzz", ["a"]) == (None, "; known: a")
    assert closest("7", []) == (None, "; known: ")


@pytest.mark.parametrize(
    ("value", "text"),
    [(67108864.0, "67,100,000"), (1234.5, "1,230"), (150.2, "150"), (0.0512, "0.0512"), (0.0, "0"), (1e20, "1e+20")],
)
def test_numbers_have_no_exponent_where_people_write_none(value, text):
    assert number_text(value) == text


def test_a_text_is_clipped_in_its_middle_and_shows_control_characters():
    assert clipped("short") == "short"
    text = clipped("begin" + "\x1b[31m" * 1000 + "\u202e\ud800end")
    assert text.startswith("begin\\x1b[31m")
    assert text.endswith("\\u202e\\ud800end")
    assert len(text) <= MOST_CHARACTERS
    assert text.isprintable()


def test_an_error_has_its_first_problems_and_their_number():
    error = ConfigError([f"problem {i}" for i in range(4331)])
    assert str(error).splitlines() == [*(f"problem {i}" for i in range(10)), "... and 4,321 more"]
    assert len(error.problems) == 4331
    assert str(ConfigError(["one", "two"])) == "one\ntwo"
    assert str(ConfigError(["x" * 10**6])) == clipped("x" * 10**6)


# ------------------------------------------------------------------------------------------- what experiments get wrong


def test_unknown_keys_are_compared_with_others_only_while_that_is_told(monkeypatch):
    compared = []
    close = messages.difflib.get_close_matches
    monkeypatch.setattr(messages.difflib, "get_close_matches", lambda *a, **k: compared.append(a) or close(*a, **k))
    wrong = {f"key{i}": 1 for i in range(50_000)}
    for table in ({**SMALL, **wrong}, changed(slo=wrong), changed(workload={"prompt": wrong})):
        compared.clear()
        found = problems(table)
        assert len([text for text in found if "unknown key" in text]) == 50_000
        assert len(compared) <= 2 * MOST_PROBLEMS


def test_of_an_axis_the_first_wrong_values_are_told():
    found = problems(changed(instance={"model": [f"model{i}" for i in range(1000)]}))
    assert [text.split(":")[1] for text in found[:2]] == [' instance.model = "model0"', ' instance.model = "model1"']
    assert found[MOST_VALUES:] == ["config: instance.model: its other 995 values were not looked at"]
    assert len(problems(changed(instance={"model": ["a", "b"]}))) == 2


def test_a_value_that_is_given_often_is_told_once():
    assert problem(changed(workload={"seed": [1, 2, *[1] * 1000]})) == "config: workload.seed = 1: is given twice"
    found = problems(changed(workload={"request_rate_rps": [1, 2, 2.0, 1.0]}))
    assert found == [f"config: workload.request_rate_rps = {x}: is given twice" for x in ("2.0", "1.0")]


class Counted(int):
    """A number that counts with how many others it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return int.__eq__(self, other)


def test_values_given_twice_are_found_without_comparing_all_with_all():
    seeds = [Counted(i) for i in range(20_000)]
    assert load_experiment(changed(workload={"seed": seeds})).workload.seed == tuple(range(20_000))
    assert Counted.compared <= 4 * len(seeds)


def test_a_range_of_more_values_than_there_are_digits_names_the_count():
    rates = {"from": 1, "to": 64, "count": 100_000}
    assert problem(changed(workload={"request_rate_rps": rates})) == (
        "config: workload.request_rate_rps.count = 100000: must give different values: of four significant digits, "
        "these are 14,401"
    )
    several = {"from": 1, "to": 1.0004, "count": 3}
    assert "these are 2" in problem(changed(workload={"request_rate_rps": several}))


def test_a_dict_that_holds_itself_or_odd_keys_is_an_error():
    holds = {}
    holds |= {"mean": holds, "sigma": holds, "lo": holds, "hi": holds}
    found = problems(changed(workload={"prompt": holds}))
    assert len(found) == 4
    assert problem(changed(workload={"prompt": {1: 2}})) == "config: 1 is a key: keys must be texts"
    whole = {}
    whole |= {"workload": whole, "slo": whole}
    assert problems(whole)
