"""Names of the files in the directory of a run, a search or a placement."""

import re

RESULTS = "results"  # folder of runs, in the current directory, where none is named
JOURNAL_NAME = "journal.jsonl"  # what has ended, as it ends
RUN_FACTS = "run.json"  # how a run went, on which machine
GOODPUT_FACTS, PLACEMENT_FACTS = "goodput.json", "placement.json"  # likewise
PARTS = "parts"  # folder of what cells were asked to record, until the run ends

RECORDED = ("requests", "steps", "instances")  # tables of chosen cells


def as_file_name(text: str) -> str:
    """A text, such as columns of a table, as a file's name: in one folder, and not too long.

    >>> as_file_name("curves-../ttft_p99_s")
    'curves-.._ttft_p99_s'
    """
    return re.sub(r"[^A-Za-z0-9_.=+-]", "_", text)[:100]


def table_file(table: str) -> str:
    """The name of a table's file."""
    return f"{table}.parquet"


UNFINISHED = "unfinished.json"  # who works here; it stays when that process is killed

RUN_FILES = (*map(table_file, ("cells", *RECORDED, "timings")), RUN_FACTS, JOURNAL_NAME)
GOODPUT_FILES = (*map(table_file, ("goodput", "probes")), GOODPUT_FACTS)
PLACEMENT_FILES = (table_file("placement"), PLACEMENT_FACTS)
