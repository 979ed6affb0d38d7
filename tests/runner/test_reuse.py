"""What a run reuses of an earlier one in the same directory, and when it reuses nothing."""

import base64
import math

import numpy as np
import pytest
import servesweep.experiment.plan as plan_module
import servesweep.runner.cells as finished_module
import servesweep.runner.execution as execution
import servesweep.runner.tasks as tasks
from servesweep.commands.main import command_line
from servesweep.runner.journal import decode_line, encode_line
from servesweep.runner.runner import run_grid
from small_sweep import FEASIBLE, digests, kept_cells

pytestmark = pytest.mark.usefixtures("folder")


def test_a_finished_run_does_nothing_again_and_says_so(undisturbed, folder, capsys, monkeypatch):
    assert command_line(["run", "small.toml", "--out", "out", "--workers", "1"]) == 0
    before = (folder / "out" / "journal.jsonl").read_bytes(), (folder / "out" / "timings.parquet").read_bytes()
    monkeypatch.setattr(tasks, "run_systems", None)
    capsys.readouterr()
    assert command_line(["run", "small.toml", "--out", "out"]) == 0
    out, err = capsys.readouterr()
    assert f"\n{FEASIBLE} reused, 0 to do\n" in err
    assert "Best configuration" in out
    assert digests(folder / "out") == digests(undisturbed.directory)
    assert before == (
        (folder / "out" / "journal.jsonl").read_bytes(),
        (folder / "out" / "timings.parquet").read_bytes(),
    )


def test_a_changed_axis_runs_the_new_cells_only(undisturbed, folder):
    part = run_grid("small.toml", out="out", progress=False, settings={"policy": ["chunked"], "seed": 1})
    assert part.counts["ok"] == FEASIBLE // 6
    whole = run_grid("small.toml", out="out", progress=False)
    assert whole.counts["reused"] == FEASIBLE // 6
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_tables_that_an_earlier_run_did_not_record_run_again(undisturbed, folder):
    run_grid("small.toml", out="out", progress=False, settings={"requests": None, "steps": None})
    assert sorted(path.suffixes[0] for path in (folder / "out").iterdir()) == [".json", ".jsonl", *[".parquet"] * 3]
    again = run_grid("small.toml", out="out", progress=False)
    asked = 2 * 3 * 2 + 2 * 12 - 2  # a rate; a policy with a block size; both
    assert again.counts["reused"] == FEASIBLE - asked
    assert digests(folder / "out") == digests(undisturbed.directory)
    assert sorted(path.name for path in (folder / "out").iterdir() if path.is_dir()) == []


def test_other_rules_reuse_nothing_and_say_why(folder, capsys, monkeypatch):
    run_grid("small.toml", out="out", progress=False, settings={"seed": 0})
    for module in (plan_module, finished_module, execution):
        monkeypatch.setattr(module, "RULES_VERSION", 99)
    again = run_grid("small.toml", out="out", settings={"seed": 0})
    assert again.counts["reused"] == 0
    words = f"nothing is reused of the {FEASIBLE // 2} cells in out: they were simulated by version 1 of the rules"
    assert words in capsys.readouterr().err
    assert again.notes[0].startswith(words)


def test_fresh_starts_over(folder):
    first = run_grid("small.toml", out="out", progress=False, settings={"seed": 0})
    again = run_grid("small.toml", out="out", progress=False, settings={"seed": 0}, fresh=True)
    assert (again.counts["reused"], again.counts["ok"]) == (0, first.counts["ok"])
    assert len(kept_cells(folder / "out")) == first.counts["ok"]


def test_failed_cells_run_again_when_asked(undisturbed, folder, monkeypatch):
    run_systems = tasks.run_systems

    def fail_at_4_rps(systems, **options):
        if any(system.rate == 4 for system in systems):
            raise ArithmeticError("of 4 rps")
        return run_systems(systems, **options)

    monkeypatch.setattr(tasks, "run_systems", fail_at_4_rps)
    broken = run_grid("small.toml", out="out", progress=False, workers=1)
    assert broken.counts["failed"] == FEASIBLE // 12
    assert set(broken.failed["error"]) == {"ArithmeticError: of 4 rps"}
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run_grid("small.toml", out="out", progress=False).counts["failed"] == FEASIBLE // 12
    healed = run_grid("small.toml", out="out", progress=False, retry_failed=True)
    assert (healed.counts["failed"], healed.counts["reused"]) == (0, FEASIBLE - FEASIBLE // 12)
    assert digests(folder / "out") == digests(undisturbed.directory)


def journal_of(directory):
    return [decode_line(line) for line in (directory / "journal.jsonl").read_bytes().splitlines(keepends=True)]


def write_journal(directory, records):
    (directory / "journal.jsonl").write_bytes(b"".join(map(encode_line, records)))


def test_a_journal_of_format_1_is_reused_but_for_rows_without_a_measure_of_this_version(undisturbed, folder):
    run_grid("small.toml", out="out", progress=False)
    begin, *records = journal_of(folder / "out")
    names, form = begin.pop("measures"), begin.pop("form")
    cells = [record for record in records if "cell" in record]
    for record in cells:
        assert record.pop("form") == form
        values = np.frombuffer(base64.b64decode(record.pop("values")), "<f8").tolist()
        record["measures"] = {name: None if math.isnan(x) else x for name, x in zip(names, values, strict=True)}
    del cells[0]["measures"]["utilization"]
    write_journal(folder / "out", [{**begin, "journal": 1}, *records])
    again = run_grid("small.toml", out="out", progress=False)
    assert again.counts["reused"] == len(cells) - 1
    assert digests(folder / "out") == digests(undisturbed.directory)


def test_measures_are_reused_by_their_names_and_not_without(undisturbed, folder):
    run_grid("small.toml", out="out", progress=False)
    begin, *records = journal_of(folder / "out")
    cells = [record for record in records if "cell" in record]
    for record in cells:  # as a version would write them that has the measures in another order, and one more
        values = np.frombuffer(base64.b64decode(record["values"]), "<f8")
        record["form"], record["values"] = "another", base64.b64encode(np.append(values[::-1], 1.0).tobytes()).decode()
    names = [*begin["measures"][::-1], "of_a_later_version"]
    write_journal(folder / "out", [{**begin, "form": "another", "measures": names}, *records])
    assert run_grid("small.toml", out="out", progress=False).counts["reused"] == len(cells)
    assert digests(folder / "out") == digests(undisturbed.directory)
    write_journal(folder / "out", records)  # without the line that names them
    assert run_grid("small.toml", out="out", progress=False).counts["reused"] == 0
    assert digests(folder / "out") == digests(undisturbed.directory)
