"""Full disks: what fits is kept, and the run goes on from there when there is room."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from patience import HANGS_S
from servesweep.runner.runner import run_grid
from small_sweep import CELLS, FEASIBLE, SWEEP, digests, kept_cells, limited, start

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("folder")]


def test_a_full_disk_stops_the_run_and_keeps_what_fits(undisturbed, folder):
    process = start("--workers", "2", "--out", "out", preexec_fn=limited("RLIMIT_FSIZE", 60_000))
    _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    kept = kept_cells(folder / "out")
    assert 0 < len(kept) < FEASIBLE
    assert re.search(rf"stopped: out.*: File too large; {len(kept)} of {CELLS} cells ended", err)
    assert err.splitlines()[-1] == "go on with: servesweep run small.toml --max-batch-cells 3 --workers 2 --out out"
    again = run_grid("small.toml", out="out", progress=False)
    assert again.counts["reused"] == len(kept)
    assert again.notes == ()  # no torn line was left behind
    assert digests(folder / "out") == digests(undisturbed.directory)


@pytest.fixture
def small_disk(folder):
    """A function that gives the folder "disk" so many KB, all that fit on it. It can be called again to make room."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root on Linux can mount a small disk")
    disk = folder / "disk"
    disk.mkdir()

    def resize(kb):
        options = f"size={kb}k" if not disk.is_mount() else f"remount,size={kb}k"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this machine mounts no small disk: {done.stderr.strip()}")

    yield resize
    if disk.is_mount():
        subprocess.run(["umount", "--lazy", disk], check=True)  # a process that hangs may still be there


FULL = (
    r"stopped: disk/out.*: No space left on device; (\d+) of 288 cells ended; "
    r"they are in journal\.jsonl, not all in the tables: make room, and go on\n"
    r"go on with: servesweep run small\.toml --max-batch-cells 3 --workers \d --out disk/out\n$"
)


@pytest.mark.parametrize("kb", [8, 120, 360])
def test_a_disk_that_is_really_full_loses_no_finished_cell(undisturbed, folder, small_disk, kb):
    small_disk(kb)
    for _ in range(2):  # without room, the second run gets no further and harms nothing
        process = start("--workers", "2", "--out", "disk/out")
        _, err = process.communicate(timeout=HANGS_S)
        assert (process.returncode, "Traceback" in err) == (1, False), err
        found = re.search(FULL, err)
        assert found, err
        kept = kept_cells(folder / "disk" / "out")
        assert len(kept) == int(found[1]) < FEASIBLE
    assert kb == 8 or kept
    small_disk(8000)
    again = run_grid("small.toml", out="disk/out", progress=False)
    assert again.counts["reused"] == len(kept)
    assert again.notes == ()
    assert digests(folder / "disk" / "out") == digests(undisturbed.directory)


def test_a_disk_that_fills_up_while_the_tables_are_written(undisturbed, folder, small_disk):
    (folder / "small.toml").write_text(SWEEP.partition("[output]")[0])
    small_disk(200)  # room for the journal, and then not for the cells
    for _ in range(2):
        process = start("--workers", "1", "--out", "disk/out")
        _, err = process.communicate(timeout=HANGS_S)
        assert (process.returncode, "Traceback" in err) == (1, False), err
        found = re.search(FULL, err)
        assert found, err
        assert int(found[1]) == len(kept_cells(folder / "disk" / "out")) == FEASIBLE
        assert sorted(path.name for path in (folder / "disk" / "out").iterdir()) == ["journal.jsonl"]
    small_disk(8000)
    again = run_grid("small.toml", out="disk/out", progress=False)
    assert again.counts["reused"] == FEASIBLE
    assert digests(folder / "disk" / "out", ["cells"]) == digests(undisturbed.directory, ["cells"])


def test_a_search_says_that_its_disk_is_full(folder, small_disk):
    small_disk(8)
    command = ["goodput", "small.toml", "--slo", "ttft:60", "--iters", "3", "--workers", "1", "--out", "disk/out"]
    done = subprocess.run(
        [sys.executable, "-m", "servesweep", *command], capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 1
    full = (
        r"stopped: disk/out.*: No space left on device; tables that were written before are kept: put that right, and"
    )
    assert re.search(rf"^{full} start the search again$", done.stderr, re.MULTILINE), done.stderr
    small_disk(8000)
    assert (
        subprocess.run([sys.executable, "-m", "servesweep", *command], capture_output=True, timeout=HANGS_S).returncode
        == 0
    )
