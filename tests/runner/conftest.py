"""What tests of runs share: a sweep that nothing disturbed, and a folder with the same sweep."""

import pytest
from servesweep.runner.runner import run_grid
from small_sweep import SWEEP


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.toml").write_text(SWEEP)
    return run_grid(folder / "small.toml", out=folder / "run", workers=1, progress=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SWEEP)
    return tmp_path
