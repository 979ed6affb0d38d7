"""What others may do to the directory of a run: to its tables, its journal, its JSON, and the files around them.

Every function takes a random generator and a file or a directory, does one thing to it, and returns it in words. What
cannot be told from an honest table, such as rows in another order, has a star.
"""

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
from servesweep.runner.journal import decode_line, encode_line

NAMES = (
    "../../outside/x",
    "[red]boo[/red]",
    "\x1b[31mred",
    "two\nlines",
    "=1+1",
    "$x_",
    "a" * 300,
    "caf\u00e9",
    "_x",
    "",
)
TEXTS = (*NAMES[:6], "[link=file:///etc/passwd]x[/link]", "</script><b>", "\u202egnp", "x" * 5000, "@sum", "ok", "-")
CONFIGS = (
    b"",
    b"{",
    b"[1]",
    b"\xff",
    b'{"name": 3}',
    b'{"workload": [1], "slo": 3}',
    b'{"a":' * 400 + b"1" + b"}" * 400,
)
CONFIGS += (b'{"name": "\\u001b[31m[red]x\\n", "slo": {"ttft_ms": NaN}}', b'{"scheduler": {"policy": ["a", {"b": 1}]}}')
ODD_NAMES = ("parts", "parts/1e.requests.parquet", "parts/7.requests.parquet", "parts/99999999999.steps.parquet")
ODD_NAMES += ("parts/0.steps.parquet", "plots", "report.html", "exports", "\x1b[31m", "prefill", "cells.parquet.tmp")
NO_RECORDS = (b"[1]", b"3", b"{}", b"", b'{"cell":NaN}', b'{"cell":"a","cell":"b"}', b"[" * 3000, b"\xff\xfe")
NO_RECORDS += (b'{"batch":1' + b"0" * 5000 + b"}", '{"end":1}'.encode("utf-16"))
NUMBERS = (float("nan"), float("inf"), -1.0, 0.0, 1e300, 2.0**60, 0.5)


def write(path, table):
    with open(path, "wb") as file:
        pq.write_table(table, file)


def read(path):
    with open(path, "rb") as file:
        return pq.ParquetFile(file).read()


def pick(rng, table):
    return rng.randrange(table.num_columns)


# ------------------------------------------------------------------------------------------------------ a column


def drop(rng, table):
    at = pick(rng, table)
    return table.remove_column(at), f"column {table.column_names[at]} dropped"


def rename(rng, table):
    at = pick(rng, table)
    new = rng.choice([*NAMES, "cell_id", table.column_names[pick(rng, table)]])
    names = [new if i == at else name for i, name in enumerate(table.column_names)]
    return table.rename_columns(names), f"column {table.column_names[at]} renamed to {new!r}"


def add(rng, table):
    values = rng.choice([other_values(rng, table.num_rows), pa.array(range(table.num_rows))])
    name = rng.choice([*NAMES, "__index_level_0__", "note", "ttft_p98_s"])
    return table.append_column(name, values), f"column {name!r} of {values.type} added"


def retype(rng, table):
    at = pick(rng, table)
    values = other_values(rng, table.num_rows)
    return table.set_column(at, table.column_names[at], values), f"column {table.column_names[at]} made {values.type}"


def other_values(rng, rows):
    kinds = (
        lambda: pa.array([rng.choice(TEXTS) for _ in range(rows)], pa.string()),
        lambda: pa.array([[1, 2]] * rows),
        lambda: pa.array([{"a": [1]}] * rows),
        lambda: pa.nulls(rows),
        lambda: pa.array([True] * rows),
        lambda: pa.array([b"\xff\xfe"] * rows),
        lambda: pa.array([b"\xff\xfe"] * rows).view(pa.string()),
        lambda: pa.array([0] * rows, pa.timestamp("ns")),
        lambda: pa.array([rng.choice(NUMBERS) for _ in range(rows)], pa.float64()),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([1.5] * rows, pa.float16()),
        lambda: pa.array(["1.50"] * rows).cast(pa.decimal128(9, 2)),
        lambda: pa.array(["x"] * rows).dictionary_encode(),
        lambda: pa.array([str(i) for i in range(rows)], pa.large_string()),
    )
    return rng.choice(kinds)()


def numbers_of_another_type(rng, table):
    kind = rng.choice([pa.float64(), pa.float32(), pa.large_string()])
    fields = [
        pa.field(f.name, kind) if str(f.type) in ("int64", "double") and rng.random() < 0.5 else f for f in table.schema
    ]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata), safe=False), f"numbers made {kind}"


def values(rng, table):
    """Some values of a column that keeps its type."""
    at = pick(rng, table)
    kind = table.schema.field(at).type
    found = table.column(at).to_pylist()
    choice = [None]
    if str(kind) == "double":
        choice = [None, *NUMBERS]
    elif str(kind) == "int64":
        choice = [None, 0, -1, 2**62]
    elif str(kind) in ("string", "dictionary<values=string, indices=int32, ordered=0>"):
        choice = [None, *TEXTS]
    new, share = rng.choice(choice), rng.choice([0.1, 1.0])
    found = [new if rng.random() < share else value for value in found]
    field = pa.field(table.column_names[at], kind)
    return table.set_column(at, field, pa.array(found, kind)), f"{new!r} in column {field.name} *"


# ------------------------------------------------------------------------------------------------------ a whole table


def columns_in_another_order(rng, table):
    names = rng.sample(table.column_names, table.num_columns)
    return table.select(names), "columns in another order"


def rows_in_another_order(rng, table):
    return table.take(rng.sample(range(table.num_rows), table.num_rows)), "rows in another order *"


def rows(rng, table):
    keep = [row for row in range(table.num_rows) for _ in range(rng.choice([0, 1, 1, 2]))]
    return table.take(pa.array(keep, pa.int64())), "rows left out and repeated *"


def no_rows(rng, table):
    return table.slice(0, 0), "no rows"


def through_pandas(rng, table):
    frame = table.to_pandas()
    if rng.random() < 0.5:
        frame = frame[frame.index % 2 == 0]
    for name in frame.columns:
        # A name may be there twice, and then gives both columns.
        if rng.random() < 0.3 and frame[name].ndim == 1 and str(frame[name].dtype) == "str":
            frame[name] = frame[name].astype("category")
    if rng.random() < 0.5:
        frame.attrs = {"config": {"name": "x", "scheduler": {"policy": ["mixed", "chunked"]}}}
    return pa.Table.from_pandas(frame), "written by pandas"


def metadata(rng, table):
    new = {
        b"servesweep.config": rng.choice(CONFIGS),
        b"servesweep.schema_version": rng.choice([b"1", b"x", b"\xff", b"9" * 5000, b"", b"-1"]),
        b"servesweep.table": rng.choice([b"cells", b"requests", b"", b"\xff"]),
    }
    chosen = rng.sample(sorted(new), rng.randint(1, 2))
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if rng.random() < 0.9}
    return table.replace_schema_metadata(kept | {key: new[key] for key in chosen}), f"metadata {chosen}"


OF_A_TABLE = (drop, rename, add, retype, numbers_of_another_type, values, columns_in_another_order)
OF_A_TABLE += (rows_in_another_order, rows, no_rows, through_pandas, metadata)


def table(rng, directory):
    found = sorted(path for path in directory.rglob("*.parquet") if path.is_file())  # a pipe would be waited for
    first = [path for path in found if path.name in ("cells.parquet", "goodput.parquet", "placement.parquet")]
    path = rng.choice(found + 3 * first)
    words = []
    changed = read(path)
    for _ in range(rng.choice([1, 1, 2])):
        changed, text = rng.choice(OF_A_TABLE)(rng, changed)
        words.append(text)
    write(path, changed)
    return f"{path.name}: {', '.join(words)}"


# ------------------------------------------------------------------------------------------------------ bytes and files


def any_bytes(rng, directory):
    path = rng.choice([path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()])
    content = bytearray(path.read_bytes())
    what = rng.choice(["flipped", "cut", "emptied", "replaced", "doubled"])
    if what == "flipped":
        for _ in range(rng.randint(1, 30)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif what == "cut":
        content = content[: rng.randrange(len(content))]
    elif what == "emptied":
        content = bytearray()
    elif what == "replaced":
        content = bytearray(rng.randbytes(rng.randint(1, 3000)))
    else:
        content = content * 2
    path.write_bytes(content)
    return f"bytes of {path.name} {what} *"


def json_file(rng, directory):
    found = sorted(path for path in directory.rglob("*.json") if path.is_file())
    path = rng.choice(found)
    text = rng.choice(
        ["[]", "3", "{", "[" * 5000, '{"versions": 3, "machine": [1]}', '{"versions": {"\x1b": "\\u001b"}}', ""]
    )
    path.write_text(text)
    return f"{path.name} holds {text[:40]!r}"


def odd_files(rng, directory):
    """Files and folders under names that mean something to a run."""
    name = rng.choice([*ODD_NAMES, f".cells.parquet.{os.getpid()}"])
    path = directory / name
    if os.path.lexists(path):
        return None
    path.parent.mkdir(exist_ok=True)
    if rng.random() < 0.5:
        path.mkdir()
        return f"a folder {name!r}"
    path.write_bytes(rng.choice([b"", b"junk", b"PAR1"]))
    return f"a file {name!r}"


def links(rng, directory):
    """A link to what lies outside in place of a file or a folder, or where one will be made."""
    outside = directory.parent.parent / "outside"
    names = ["parts", "plots", "report.html", "timelines", "prefill", "decode", "joint", "parts/0.steps.parquet"]
    names += [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    name = rng.choice(sorted(set(names)))
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    targets = [outside / "file", outside / "folder", outside / "nothing", path, "/dev/null"]
    if path.is_file():
        copy = outside / f"copy of {path.name}"
        copy.write_bytes(path.read_bytes())
        targets += [copy, copy, copy]
        path.unlink()
    elif os.path.lexists(path):
        return None
    target = rng.choice(targets)
    path.symlink_to(target)
    return f"{name} a link to {os.path.basename(target)}"


def not_a_file(rng, directory):
    path = rng.choice(sorted(path for path in directory.rglob("*") if path.is_file()))
    path.unlink()
    what = rng.choice(["a folder", "a pipe", "gone"])
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    return f"{path.name} {what}"


# ------------------------------------------------------------------------------------------------------ the journal


def journal(rng, directory):
    path = directory / "journal.jsonl"
    if not path.is_file() or path.is_symlink():
        return None
    lines = path.read_bytes().splitlines(keepends=True)
    if not lines:
        return None
    words = []
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(lines))
        change = rng.choice([wrong_record, wrong_line, lambda rng, line: line * 2, lambda rng, line: b""])
        lines[at], text = with_words(change(rng, lines[at]))
        words.append(text)
    if rng.random() < 0.2:
        rng.shuffle(lines)
    path.write_bytes(b"".join(lines))
    return f"journal: {', '.join(words)}"


def with_words(change):
    return change if isinstance(change, tuple) else (change, "a line repeated or left out")


def wrong_line(rng, line):
    damaged = [
        b"\n",
        b"\xff\n",
        b"3f 4\n",
        b"x" * 100_000 + b"\n",
        line[:-1],
        line.replace(b"{", b"[", 1),
        line.upper(),
    ]
    text = rng.choice([*damaged, *map(raw, NO_RECORDS)])
    return text, f"the line {text[:30]!r}"


def raw(text):
    import zlib

    return b"%08x %b\n" % (zlib.crc32(text), text)


def wrong_record(rng, line):
    """A whole line of which one value cannot be."""
    record = decode_line(line)
    if record is None:
        return line
    key = rng.choice(sorted(record))
    wrong = [None, True, 3.5, -1, 10**30, "x", "", [], [1], {}, {"a": None}, "\x1b[31m[red]", "\ud800", "QUJD"]
    value = rng.choice(
        [value for value in wrong if type(value) is not type(record[key]) or key in ("status", "values")]
    )
    if key in ("servesweep", "time", "host", "to_do", "pid", "error", "end"):  # nothing hangs on them
        value = rng.choice([[], {}, 3.5])
    return encode_line(record | {key: value}), f"{key} {value!r} in a record"


DAMAGE = (table, table, table, any_bytes, json_file, odd_files, links, not_a_file, journal, journal)


def damage(rng: random.Random, directory):
    """Some damage to a directory, in words."""
    words = []
    while len(words) < rng.choice([1, 1, 2, 3]):
        try:
            text = rng.choice(DAMAGE)(rng, directory)
        except (pa.ArrowException, ValueError, LookupError, NotImplementedError, OSError, TypeError):
            continue  # no table that anybody could write; or what one damage left is not what another needs
        if text is not None:
            words.append(text)
    return words
