"""The tree of folders: imports go down only, and files stay small enough to read."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# From top to bottom: a module imports from its own floor and from those below. Imports inside functions count, and
# those that only type checkers see. `__init__` and `__main__` of the package stand above all of them.
FLOORS = (
    "commands",
    "plots",
    "reports",
    "goodput",
    "runner",
    "analysis",
    "experiment",
    "calibration",
    "profiles",
    "tables",
    "serving",
    "measures",
    "workloads",
    "hardware",
    "checks",
    "messages",
    "streams",
    "escapes",
    "arrays",
    "kernels",
)
MOST_LINES = 400
TABLES_OF_FACTS = ("sweep/tables/schemas.py",)  # a line or two a fact: they may be longer


def modules():
    """Path of every module of the package, by its name without the package's."""
    found = {}
    for folder, prefix in (("sweep", ()), ("kernels", ("kernels",))):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = (*prefix, *path.relative_to(ROOT / folder).with_suffix("").parts)
            found[".".join(part for part in parts if part != "__init__") or "__init__"] = path
    return found


MODULES = modules()


def imported(name):
    """Modules of the package that a module imports, wherever it does."""
    path = MODULES[name]
    here = [] if name == "__init__" else name.split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "servesweep"]
            found.update(name.partition(".")[2] or "__init__" for name in names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = package[: len(package) - node.level + 1]
            elif (node.module or "").partition(".")[0] == "servesweep":
                parts = []
            else:
                continue
            tail = (node.module or "").split(".") if node.module else []
            base = [*parts, *(tail if node.level else tail[1:])]
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                found.add(whole if whole in MODULES else ".".join(base) or "__init__")
    return found


IMPORTS = {name: imported(name) for name in MODULES}


def floor(name):
    return name.partition(".")[0]


def test_every_module_has_a_floor():
    assert {floor(name) for name in MODULES} == {*FLOORS, "__init__", "__main__"}
    assert {name for targets in IMPORTS.values() for name in targets} <= set(MODULES)


def test_imports_go_down():
    wrong = [
        f"{name} imports {target}"
        for name in MODULES
        for target in IMPORTS[name]
        if floor(name) in FLOORS
        and (floor(target) not in FLOORS or FLOORS.index(floor(target)) < FLOORS.index(floor(name)))
    ]
    assert not wrong


@pytest.mark.parametrize("which", FLOORS)
def test_no_circle_on_a_floor(which):
    here = {
        name: {target for target in IMPORTS[name] if floor(target) == which} for name in MODULES if floor(name) == which
    }
    while leaves := {name for name, targets in here.items() if not targets & set(here)}:
        for name in leaves:
            del here[name]
    assert not here, "these import each other, or what does"


def test_no_module_has_the_name_of_its_function():
    wrong = []
    for name, path in MODULES.items():
        functions = {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
        if name.rpartition(".")[2] in functions:
            wrong.append(name)
    assert not wrong


def test_files_are_short():
    lines = defaultdict(int)
    for folder in ("sweep", "kernels", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            lines[path.relative_to(ROOT).as_posix()] = len(path.read_text("utf-8").splitlines())
    assert set(TABLES_OF_FACTS) <= set(lines)
    long = {name: count for name, count in lines.items() if count > MOST_LINES and name not in TABLES_OF_FACTS}
    assert not long


def test_array_types_are_defined_once():
    """Aliases such as Floats stand in arrays.py, and nowhere else."""
    wrong = []
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(("npt.NDArray[", "NDArray[")):
                wrong.append(f"{name}: {ast.unparse(node)}")
    assert not [line for line in wrong if not line.startswith(("arrays:", "kernels.arrays:"))]
