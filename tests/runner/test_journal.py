"""The journal by itself: what it gives back, torn and damaged lines, its holder and its format."""

import re

import pytest
from servesweep.commands.main import command_line
from servesweep.runner.journal import Journal, JournalInUse, encode_line

pytestmark = pytest.mark.usefixtures("folder")


def test_a_journal_gives_back_what_was_appended(tmp_path):
    records = [{"cell": "a", "measures": {"x": 0.1, "y": None, "z": -0.0}}, {"cell": "b", "error": "Fehler: é\n"}]
    journal = Journal(tmp_path)
    journal.append(records[:1])
    journal.append(records[1:])
    assert list(journal.records()) == records
    journal.close()
    again = Journal(tmp_path)
    assert (list(again.records()), again.damage) == (records, [])
    again.close()
    emptied = Journal(tmp_path, fresh=True)
    assert list(emptied.records()) == []
    emptied.close()


@pytest.mark.parametrize("cut", [1, 5, 30, 100_000])
def test_a_torn_tail_is_cut_off_wherever_it_ends(tmp_path, cut):
    long = {"cell": "b", "error": "x" * 200_000}
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode_line({"cell": "a"}) + encode_line(long)[:-cut])
    journal = Journal(tmp_path)
    assert "the last line was not whole" in journal.damage[0]
    journal.append([{"cell": "c"}])
    assert [record["cell"] for record in journal.records()] == ["a", "c"]
    assert len(journal.damage) == 1
    journal.close()


def test_a_damaged_line_costs_itself(tmp_path):
    lines = [encode_line({"cell": name}) for name in "abc"]
    (tmp_path / "journal.jsonl").write_bytes(lines[0] + lines[1].replace(b"b", b"B") + b"\xff\n\n" + lines[2])
    journal = Journal(tmp_path)
    assert [record["cell"] for record in journal.records()] == ["a", "c"]
    assert re.search(r"3 lines \(2, 3, 4\) are damaged and left out; what stood there runs again", journal.damage[0])
    journal.close()


def test_a_journal_has_one_holder(tmp_path):
    journal = Journal(tmp_path)
    with pytest.raises(JournalInUse, match="in use by another run"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_journal_of_a_newer_servesweep_is_refused(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "journal.jsonl").write_bytes(encode_line({"journal": 99}))
    assert command_line(["run", "small.toml", "--out", "out", "--quiet"]) == 2
    assert "has format 99, but this servesweep reads up to 2: upgrade servesweep" in capsys.readouterr().err
