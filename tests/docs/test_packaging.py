"""What pyproject.toml says of the packages is what is in the folders."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from installed import PACKAGE_FOLDERS, not_as_installed

ROOT = Path(__file__).resolve().parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]


def packages():
    """Every folder that holds a Python file, by the name of its package."""
    found = {}
    for folder, package in PACKAGE_FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            place = path.parent.relative_to(ROOT / folder).parts
            found[".".join((package, *place))] = path.parent.relative_to(ROOT).as_posix()
    return found


def test_every_folder_with_python_files_is_a_package_that_is_listed():
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages())
    assert SETUPTOOLS["package-dir"] == packages()
    assert [folder for folder in packages().values() if not (ROOT / folder / "__init__.py").exists()] == []


def test_every_other_file_is_data_of_its_package():
    folders = {ROOT / folder: package for package, folder in packages().items()}
    left_out = []
    for folder in PACKAGE_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_dir() or path.suffix in (".py", ".pyc"):
                continue
            home = next(parent for parent in path.parents if parent in folders)
            name = path.relative_to(home).as_posix()
            patterns = SETUPTOOLS["package-data"].get(folders[home], [])
            if not any(fnmatch(name, pattern) for pattern in patterns):
                left_out.append(path.relative_to(ROOT).as_posix())
    assert left_out == []


def test_new_changed_and_left_files_are_not_as_installed(tmp_path):
    clone, installed = tmp_path / "clone", tmp_path / "installed"
    for path, text in {
        clone / "sweep/same.py": "1",
        clone / "sweep/tables/changed.py": "2",
        clone / "kernels/linked.py": "3",
        clone / "configs/new.toml": "4",
        installed / "same.py": "1",
        installed / "tables/changed.py": "of yesterday",
        installed / "kernels/gone.py": "5",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (installed / "kernels/linked.py").symlink_to(clone / "kernels/linked.py")
    folders = {"sweep": installed, "kernels": installed / "kernels"}
    assert not_as_installed(clone, folders) == ["configs/new.toml", "kernels/gone.py", "sweep/tables/changed.py"]
