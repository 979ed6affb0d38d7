"""Files that are no TOML, or more of it than an experiment can be: a message with the line, and soon."""

import re
import tomllib

import pytest
from servesweep.experiment import reader
from servesweep.experiment.reader import MAX_FILE_BYTES, load_experiment
from servesweep.experiment.toml_lines import key_lines, long_key_line
from small_experiment import SMALL, problem, problems

TEXT = """\
[workload]
kind = "synthetic"
prompt = 100
output = 10
request_rate_rps = {}
[instance]
model = "llama-3.1-8b"
chip = "h100-sxm"
"""
DEEP = 20_000


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_byte_order_marks_and_line_ends_of_any_system(tmp_path, newline, mark):
    file = tmp_path / "e.toml"
    file.write_bytes(mark + TEXT.format(4).replace("\n", newline).encode())
    assert load_experiment(file).workload.request_rate_rps == (4.0,)
    file.write_bytes(mark + TEXT.format(0).replace("\n", newline).encode())
    assert problem(file).startswith(f"{file}:5: workload.request_rate_rps = 0: must be")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[" * DEEP + "]" * DEEP, "5: TOML syntax: brackets are nested too deeply"),
        ("{a=" * DEEP + "1" + "}" * DEEP, "5: TOML syntax: brackets are nested too deeply"),
        ('["]", # ]\n' + "[" * DEEP, "6: TOML syntax: brackets are nested too deeply"),
        ("9" * 5000, "5: TOML syntax: a number of too many digits"),
        ("[1,\n2,\n" + "9" * 5000 + "]", "7: TOML syntax: a number of too many digits"),
        ("4\n" + ".".join("a" * DEEP) + " = 1", "6: TOML syntax: a key of too many parts"),
        ("4\n[" + ".".join("a" * DEEP) + "]", "6: TOML syntax: a key of too many parts"),
        ("4\n[" + ".".join(['"a,b"'] * DEEP) + "]", "6: TOML syntax: a key of too many parts"),
        ("{ " + ".".join("a" * DEEP) + " = 1}", "5: TOML syntax: a key of too many parts"),
        ("2020-02-30", "5: TOML syntax: Invalid date or datetime at column 20"),
        ("\0", "5: TOML syntax: Invalid value at column 20"),
        ("0x" + "f" * 10_000, "5: workload.request_rate_rps = <an integer of 40,000 bits>: must be a finite number"),
        ("[" * 50 + "]" * 50, "5: workload.request_rate_rps = [[[[[...]]]]]: must be a finite number above 0"),
        ('"""' + "x\n" * DEEP + '"""', r'5: workload.request_rate_rps = "x\nx\n'),
        (r'"\u001b[31m\u007f\u202e"', r'5: workload.request_rate_rps = "\u001b[31m\x7f\u202e": must be'),
    ],
)
def test_what_is_no_toml_or_no_number(tmp_path, value, what):
    file = tmp_path / "e.toml"
    file.write_text(TEXT.format(value), encoding="utf-8")
    text = problem(file)
    assert text.startswith(f"{file}:{what}")
    assert text.isprintable()
    assert len(text) < 300 + len(str(file))


def test_a_long_key_is_none_in_a_string_or_a_comment():
    dots = ".".join("a" * 200)
    for text in (
        f'x = "{dots}"',
        f"x = 1 # {dots}",
        f"# {dots}",
        f"x = '''\n{dots}\n'''",
        "x = [" + "1.5,\n" * 500 + "]",
    ):
        assert long_key_line(text) is None
        tomllib.loads(text)
    assert long_key_line(f"x = '{dots}'\n{dots} = 1") == 2


def test_lines_of_long_keys_take_no_more_memory_than_the_text():
    lines = key_lines("\n".join(f"{'.'.join(f'a{i}' for i in range(99))}.k{n} = 1" for n in range(100)))
    assert lines == {("a0",): 1, ("a0", "a1"): 1, ("a0", "a1", "a2"): 1}


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path, monkeypatch):
    file = tmp_path / "large.toml"
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    parsed = []
    monkeypatch.setattr(reader.tomllib, "loads", parsed.append)
    assert problem(file) == f"{file}: has more than 1,000,000 bytes: is no experiment"
    assert problem("/dev/zero") == "/dev/zero: has more than 1,000,000 bytes: is no experiment"
    assert parsed == []


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (TEXT.format(4).encode("utf-16"), "not UTF-8 text: invalid start byte at byte 0"),
        (TEXT.format(4).encode() + b"# \xff", "not UTF-8 text: invalid start byte at byte 130"),
    ],
)
def test_what_is_not_utf_8(tmp_path, content, what):
    file = tmp_path / "e.toml"
    file.write_bytes(content)
    assert problem(file) == f"{file}: {what}"


def test_names_that_no_file_can_have(tmp_path):
    assert problem("x" * 5000).endswith(": cannot be read: File name too long")
    assert problem(str(tmp_path)).endswith(": cannot be read: Is a directory")
    trace = {"workload": {"kind": "trace", "request_rate_rps": 1}, "instance": SMALL["instance"]}
    for path, reason in (("x" * 5000, "cannot be read: File name too long"), ("a\0b", "no such file")):
        trace["workload"]["path"] = path
        assert problem(trace).endswith(f": {reason}")
    assert "names a folder" in problem({**SMALL, "name": "x" * 201})
    assert load_experiment({**SMALL, "name": "x" * 200}).name == "x" * 200


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("policy=" + "[" * DEEP + "]" * DEEP, r"is not valid TOML \(nested too deeply\): strings in a list"),
        ("columns={" + ".".join("a" * DEEP) + " = 1}", r"is not valid TOML \(a key of too many parts\): strings"),
        ("n_requests=" + "9" * 5000, r'workload\.n_requests = "9{60,} \.\.\. 9+": must be an integer of at least 1'),
        (
            "n_requests=0x" + "9" * 5000,
            r"workload\.n_requests = <an integer of 20,000 bits>: must be at most 100000000",
        ),
        ("seed=[" + "1," * DEEP + "]", r"workload\.seed = 1: is given twice"),
        ("x" * DEEP + "=1", r"must be key=value with a known key; known: name, kind, "),
        ("a." * DEEP + "a=1", r"must be key=value with a known key; known: name, kind, "),
    ],
)
def test_settings_of_any_size(setting, what):
    text = problem(SMALL, settings=[setting])
    assert text.startswith("--set")
    assert re.search(what, text)
    assert len(text) <= 600


def test_values_from_python_of_any_size():
    for value in ([[[1]]] * 3, {"from": {"to": 1}}, 10**5000, object(), {1, 2}, b"x"):
        assert all(len(text) < 300 for text in problems(SMALL, settings={"request_rate_rps": value}))
    assert "config=[1, 2" in problem(list(range(1, 10**5)))
    assert "settings=[0, 1" in problem(SMALL, settings=list(range(10**5)))
