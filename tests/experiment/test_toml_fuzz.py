"""Experiments changed at random: each is planned, or refused in a few short lines, soon and in little memory.

`SERVESWEEP_FUZZ` is how many files are tried (150). Each file has a seed of its own, so that one that fails can be had
again: `mutated(seed)`.
"""

import contextlib
import os
import random
import re
import resource
import time

import pytest
from drawn_experiments import drawn_experiment
from servesweep.experiment.outlines import outline
from servesweep.experiment.plan import expand
from servesweep.experiment.reader import load_experiment, ready_experiments
from servesweep.experiment.tables import TABLES, ConfigError
from servesweep.experiment.toml_values import format_toml
from servesweep.messages import MOST_CHARACTERS, MOST_PROBLEMS
from servesweep.runner.batches import estimate_outline, outline_workers

FILES = int(os.environ.get("SERVESWEEP_FUZZ") or 150)
SECONDS = 10
BYTES = 10**9
BUILT_CELLS, BUILT_REQUESTS = 2000, 10_000  # up to so many are also expanded, which draws them

KEYS = [(table, name) for table, keys in TABLES.items() for name in keys.__dataclass_fields__]
SCALARS = (
    *(
        "0",
        "-1",
        "1",
        "true",
        '""',
        '"x"',
        "nan",
        "inf",
        "-inf",
        "1e308",
        "1e-308",
        "-0.0",
        "0.5",
        "1979-05-27",
        "07:32:00",
    ),
    *("9223372036854775807", "9223372036854775808", "100000000", "65536", "0x7fffffff", "1_000", "1e9", "[]", "{}"),
    *('"all"', '"paged"', '"chunked"', '"disaggregated"', '"llama-3.1-8b"', '"h100-sxm"', '"policy=chunked"', '"~"'),
    *("{ from = 1, to = 9, count = 5 }", "{ from = 1, to = 64, count = 100000 }", "{ from = 9, to = 1, count = 2 }"),
    *("{ mean = 9, sigma = 1, lo = 1, hi = 99 }", "{ mean = 1e300, sigma = 10, lo = 0, hi = 2147483647 }"),
    *(r'"\u0000"', r'"\u001b[31m\u007f"', r'"\u202e\u2028"', '"[bold]x[/bold]"', '"' + "a" * 5000 + '"'),
)


def a_value(rng):
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(SCALARS)
    if kind < 0.6:
        return f"[{', '.join(rng.choice(SCALARS) for _ in range(rng.randint(1, 6)))}]"
    if kind < 0.75:
        begin, count = rng.choice([0, 1, 512, -5]), rng.choice([3, 40, 1000, 20_000, 60_000])
        return f"[{','.join(map(str, range(begin, begin + count)))}]"
    if kind < 0.8:
        return f"[{','.join(f'{rng.random():.6f}' for _ in range(rng.choice([5, 500, 20_000])))}]"
    if kind < 0.87:
        depth = rng.choice([3, 90, 400, 30_000])
        return rng.choice(["[" * depth + "]" * depth, "{a=" * depth + "1" + "}" * depth])
    if kind < 0.93:
        return rng.choice(["9" * 5000, "0x" + "f" * 9000, "[" + "1," * 40_000 + "]", f"{'9' * 400}.0", "1e99999"])
    return rng.choice(["[1, 2", "'''x", "{a = 1, a = 2}", "not a value", "1 2", '"\\q"', "--5"])


def change(rng, text):
    """One change of a TOML text."""
    lines = text.split("\n")
    kind = rng.random()
    values = [at for at, line in enumerate(lines) if " = " in line]
    if kind < 0.5 and values:
        at = rng.choice(values)
        lines[at] = f"{lines[at].partition(' = ')[0]} = {a_value(rng)}"
    elif kind < 0.7:
        table, name = rng.choice(KEYS)
        where = next((at for at, line in enumerate(lines) if line == f"[{table}]"), None)
        if where is None:
            lines += [f"[{table}]", f"{name} = {a_value(rng)}"]
        else:
            lines.insert(where + 1, f"{name} = {a_value(rng)}")
    elif kind < 0.8:
        key = rng.choice(["polcy", "x" * 3000, '"a b"', r'"\u001b"', "a.b.c", ".".join("k" * 5000), "'é'", "name"])
        lines.insert(rng.randrange(len(lines) + 1), f"{key} = {a_value(rng)}")
    elif kind < 0.85:
        lines += [f"k{i} = {i}" for i in range(rng.choice([10, 30_000]))]
    elif kind < 0.9 and len(lines) > 1:
        del lines[rng.randrange(len(lines))]
    else:
        lines.insert(
            rng.randrange(len(lines) + 1), rng.choice(["[slo]", "[[instance]]", "[a.b.c]", "[", "]", "\0", "\r"])
        )
    return "\n".join(lines)


SOUND = {  # keys that most experiments can have, and values that they can hold
    "workload": {"seed": (0, 10**6), "n_requests": (1, 10**5), "request_rate_rps": (1, 10**6)},
    "instance": {"mfu": (0.01, 1), "mbu": (0.01, 1), "mem_reserve": (0, 0.99), "weight_bytes": (0.5, 4)},
    "scheduler": {"max_running": (1, 400), "block_size": (1, 5000), "max_tokens": (1, 9000)},
    "slo": {"ttft_ms": (1, 10**5), "tpot_ms": (1, 10**4), "e2e_ms": (1, 10**6)},
}


def with_sound_axes(rng, tables):
    """Tables with some axes of any length, whose values are all allowed."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        table = rng.choice(list(SOUND))
        name, (low, high) = rng.choice(list(SOUND[table].items()))
        count = rng.choice([1, 2, 10, 300, 3000, 30_000])
        if isinstance(low, int) and isinstance(high, int) and high > 1:
            values = rng.sample(range(low, high), min(count, high - low))
        else:
            values = list(dict.fromkeys(round(low + (high - low) * rng.random(), 7) for _ in range(count)))
        tables.setdefault(table, {})[name] = values
    return tables


def mutated(seed):
    """The bytes of a file; of every second one all values are allowed, though not always together."""
    rng = random.Random(seed)
    base = rng.choice([name for name in ready_experiments() if not name.endswith("-conversation")])
    tables = load_experiment(base).tables() if rng.random() < 0.5 else {"name": "drawn", **drawn_experiment(rng)}
    if seed % 2:
        return format_toml(with_sound_axes(rng, tables)).encode()
    text = format_toml(tables)
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        text = change(rng, text)
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice([b"\xff", b"\xc3", b"\x00", b"\xed\xa0\x80", b"\x1b"]) + content[at:]
    return rng.choice([b"", b"", b"", b"\xef\xbb\xbf"]) + content


def planned(file):
    """What a dry run does, and for a small experiment what a run does before it starts."""
    experiment = load_experiment(file)
    found = outline(experiment)
    estimate_outline(found, outline_workers(found, 4))
    if found.cells <= BUILT_CELLS and found.requests <= BUILT_REQUESTS and found.is_exact:
        plan = expand(experiment)
        assert (len(plan.cells), len(plan.feasible)) == (found.cells, found.feasible)


@contextlib.contextmanager
def limited_memory():
    """At most `BYTES` more than now: more is a MemoryError."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("part", range(5))
def test_files_changed_at_random_are_planned_or_refused(part, tmp_path):
    file = tmp_path / "fuzz.toml"
    refused = accepted = 0
    for seed in range(part, FILES, 5):
        file.write_bytes(mutated(seed))
        began = time.process_time()
        try:
            with limited_memory():
                planned(file)
            accepted += 1
        except ConfigError as error:
            refused += 1
            text = str(error)
            lines = text.split("\n")
            assert len(lines) <= MOST_PROBLEMS + 1, seed
            assert all(0 < len(line) <= MOST_CHARACTERS for line in lines), seed
            assert all(line.isprintable() for line in lines), seed
            assert not re.search(r"Traceback|Error:|<.* object at 0x", text), seed
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}"[:500])
        assert time.process_time() - began <= SECONDS, seed
    assert refused
    assert accepted
