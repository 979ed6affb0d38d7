"""Whether the servesweep that is imported, and so tested, is that of this clone."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

PACKAGE_FOLDERS = {"sweep": "servesweep", "kernels": "servesweep.kernels", "configs": "servesweep.configs"}
_KINDS = {".py", ".toml", ".html", ".js", ".css"}


def installed_folders() -> dict[str, Path]:
    """Where Python finds what the folders of the clone become, by the names of these folders."""
    found = {}
    for folder, package in PACKAGE_FOLDERS.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found[folder] = Path(spec.origin).parent
    return found


def not_as_installed(clone: Path, installed: Mapping[str, Path]) -> list[str]:
    """Files that only one of the clone and the installed package has, or that differ; by their names in the clone."""
    ours, theirs = {}, {}
    for folder in PACKAGE_FOLDERS:
        ours |= _contents(clone / folder, folder)
        if folder in installed:
            theirs |= _contents(installed[folder], folder)
    for folder in ("kernels", "configs"):  # a wheel has them in the folder that is `sweep` in the clone
        theirs = {name: content for name, content in theirs.items() if not name.startswith(f"sweep/{folder}/")}
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def _contents(folder: Path, name: str) -> dict[str, bytes]:
    files = (Path(at, file) for at, _, names in os.walk(folder, followlinks=True) for file in names)
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in files
        if path.suffix in _KINDS and path.is_file()
    }
