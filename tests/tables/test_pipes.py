"""A pipe where a file of results was: opening it would wait for ever, as nobody writes into it."""

import os
import signal

import pytest
from servesweep.reports.html import read_facts
from servesweep.runner.journal import last_run
from servesweep.tables.filenames import JOURNAL_NAME, RUN_FACTS, UNFINISHED
from servesweep.tables.plain_files import open_plain
from servesweep.tables.unfinished import newer_work, worker_of


@pytest.fixture(autouse=True)
def _does_not_wait():
    """Waiting in a system call takes no work, so a limit of time is no question of how fast the machine is."""

    def stop(*_):
        raise AssertionError("waits for a writer")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", [RUN_FACTS, JOURNAL_NAME, UNFINISHED])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="is no plain file"):
        open_plain(tmp_path / name)
    with pytest.raises(OSError, match="is no plain file"):
        last_run(tmp_path / name)
    assert read_facts(tmp_path) == {}
    assert worker_of(tmp_path) == ({} if name == UNFINISHED else None)
    assert (newer_work(tmp_path, "cells") is None) == (name != UNFINISHED)


def test_a_plain_file_is_read(tmp_path):
    (tmp_path / RUN_FACTS).write_text('{"workers": 2}')
    assert read_facts(tmp_path) == {"workers": 2}
