"""Who may change what in the engine: each record's fields only in the file of its class; imports go down only."""

import ast
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servesweep import ConstantStepTime, make_workload
from servesweep.kernels.batch import Batch
from servesweep.kernels.prefix_cache import new_prefix_cache
from servesweep.serving.scheduler import Scheduler, new_engine

KERNELS = Path(__file__).parents[2] / "kernels"
MODULES = sorted(path.stem for path in KERNELS.glob("*.py") if path.stem != "__init__")
FLOORS = (
    {"arrays", "rules", "steptime"},
    {
        "bitset",
        "chains",
        "clients",
        "itl_bins",
        "params",
        "ranges",
        "records",
        "request_rows",
        "request_times",
        "residues",
        "slots",
        "steplog",
    },
    {"step_tables"},
    {
        "clock",
        "counters",
        "decodes",
        "inflow",
        "pool",
        "prefills",
        "prefix_cache",
        "router",
        "running_list",
        "step_times",
        "waiting_queue",
    },
    {"memory", "reserved_memory"},
    {"batch"},
    {"itl", "logging_steps", "observation", "lines", "order_changes", "totals"},
    {"repeated_prefills", "starting"},
    {"admitting", "entering", "finishing", "growing", "leaping", "ordering", "prefilling", "routing", "waking"},
    {"finishing_ahead", "sharing"},
    {"listed_steps"},
    {"phases"},
    {"engine"},
)
NO_CACHE = new_prefix_cache(0, [], np.zeros(0, np.int64), np.zeros(0))
IN_PLACE = ("putmask", "copyto", "place", "put", "fill_diagonal")  # of numpy: what comes first is changed
METHODS = ("fill", "sort", "put", "partition", "resize", "itemset")  # of arrays


def tree_of(module: str) -> ast.Module:
    return ast.parse((KERNELS / f"{module}.py").read_text())


def batch() -> Batch:
    """A batch that has every record."""
    work = make_workload(20, 1.0, 10, 5)
    step = ConstantStepTime(0.1)
    options = {"policy": "mixed", "max_running": 4, "block_size": 4, "num_blocks": 20, "order": "shortest_prompt"}
    lanes = [Scheduler(work, step, rate=float(rate), max_wait_s=1.0, **options) for rate in (1, 5, 20)]
    return new_engine(lanes).batch


def owners() -> dict[str, str]:
    """The module that may change a field, by the field's name."""
    made = batch()
    records = (*made.records, made.requests, made.times, made.running_list, NO_CACHE)
    found: dict[str, str] = {}
    for record in records:
        module = type(record).__module__.rpartition(".")[2]
        for field in fields(record):
            assert field.name not in found, f"{field.name} is a field of two records"
            found[field.name] = module
    return found


def changed(tree: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """What a module assigns to or changes in place: the line and the expression."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((node.lineno, target) for target in node.targets if not isinstance(target, ast.Name))
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.lineno, node.target
        elif isinstance(node, ast.Delete):
            yield from ((node.lineno, target) for target in node.targets)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, word.value) for word in node.keywords if word.arg == "out")
            if not isinstance(node.func, ast.Attribute):
                continue
            numpy = isinstance(node.func.value, ast.Name) and node.func.value.id == "np"
            ufunc_at = node.func.attr == "at" and isinstance(node.func.value, ast.Attribute)
            if node.args and (ufunc_at or (numpy and node.func.attr in IN_PLACE)):
                yield node.lineno, node.args[0]
            if not numpy and node.func.attr in METHODS and isinstance(node.func.value, ast.Attribute):
                yield node.lineno, node.func.value


def field_in(target: ast.expr, aliases: dict[str, str]) -> Iterator[str]:
    """The attribute that a target changes: of `x.name`, `x.name[...]`, `x.name.ravel()[...]`, `name[...]` for an alias,
    and of all of several targets."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from field_in(part, aliases)
    elif isinstance(target, ast.Starred):
        yield from field_in(target.value, aliases)
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Subscript):
        yield from inside(target.value, aliases)


def inside(value: ast.expr, aliases: dict[str, str]) -> Iterator[str]:
    """The attribute whose array an expression is, or is a view of."""
    while isinstance(value, ast.Subscript) or (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        value = value.value if isinstance(value, ast.Subscript) else value.func.value  # type: ignore[attr-defined]
    if isinstance(value, ast.Attribute):
        yield value.attr
    elif isinstance(value, ast.Name) and value.id in aliases:
        yield aliases[value.id]


def aliases_in(function: ast.AST, names: Any) -> dict[str, str]:
    """Names that a function gives to arrays of records, `slots = decodes.slots.ravel()` too."""
    found = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = (
                zip(target.elts, node.value.elts, strict=False)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            for name, value in pairs:
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "ravel":
                    value = value.func.value
                if isinstance(name, ast.Name) and isinstance(value, ast.Attribute) and value.attr in names:
                    found[name.id] = value.attr
    return found


def violations(module: str, tree: ast.Module, owner: dict[str, str]) -> list[str]:
    found = []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for scope in (tree, *functions):
        aliases = {} if scope is tree else aliases_in(scope, owner)
        for line, target in changed(scope):
            names = inside(target, aliases) if isinstance(target, ast.Name) else field_in(target, aliases)
            found += [f"{module}.py:{line} {name}" for name in names if owner.get(name, module) != module]
    return sorted(set(found))


@pytest.mark.parametrize("module", MODULES)
def test_only_its_owner_changes_a_field(module: str) -> None:
    assert violations(module, tree_of(module), owners()) == []


@pytest.mark.parametrize(
    "line",
    [
        "batch.clock.now = end",
        "batch.clock.now += end",
        "batch.clock.now[lanes] = end",
        "batch.clock.now[lanes] -= end",
        "a, batch.clock.now = 1, 2",
        "batch.decodes.slots.ravel()[index] = 0",
        "np.add.at(batch.clock.now, lanes, 1)",
        "np.minimum(steps, most, out=batch.clock.now)",
        "np.putmask(batch.clock.now, mask, 0)",
        "batch.clock.now.fill(0)",
        "now = batch.clock.now\n    now[lanes] = 1",
        "slots = batch.decodes.slots.ravel()\n    slots[index] = 1",
        "now, tick = batch.clock.now, 1\n    np.add.at(now, lanes, 1)",
    ],
)
def test_what_the_test_of_owners_finds(line: str) -> None:
    code = f"def phase(batch):\n    {line}\n"
    assert violations("leaping", ast.parse(code), owners())
    assert not violations(
        "leaping", ast.parse("def phase(batch):\n    now = batch.clock.now\n    now = now + 1\n"), owners()
    )


def test_fields_of_records_have_a_shape_and_a_meaning() -> None:
    made = batch()
    for record in (*made.records, made.requests, made.times):
        assert is_dataclass(record)
        lines = (KERNELS / f"{type(record).__module__.rpartition('.')[2]}.py").read_text().splitlines()
        shared = "every field [" in str(type(record).__doc__).lower()
        for field in fields(record):
            comments = [line.partition("#")[2].strip() for line in lines if line.startswith(f"    {field.name}: ")]
            said = [comment for comment in comments if shared or comment.startswith("[")]
            assert said, field.name
            assert all(len(comment) > 5 for comment in said), field.name


def test_all_arrays_of_records_have_an_entry_a_lane() -> None:
    made = batch()
    for lanes, keep in ((3, [True, False, True]), (2, [False, True])):
        for record in made.records:
            sizes = {field.name: len(getattr(record, field.name)) for field in fields(record)}
            assert set(sizes.values()) == {lanes}, sizes
        made.compact(np.array(keep))
    assert made.params.lane.tolist() == [2]


# Imports.


def imports(module: str) -> set[str]:
    """Modules of kernels that a module imports, for types only too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1, f"{module} imports from outside kernels"
            if node.level == 1:
                found |= {node.module} if node.module else {name.name for name in node.names}
    return found


def test_every_module_of_kernels_has_a_floor() -> None:
    assert sorted(module for floor in FLOORS for module in floor) == MODULES


def test_imports_go_down_only() -> None:
    floor_of = {module: number for number, floor in enumerate(FLOORS) for module in floor}
    for module in MODULES:
        higher = sorted(name for name in imports(module) if floor_of[name] >= floor_of[module])
        assert not higher, f"{module} imports {higher}"


def test_no_module_shares_its_name_with_what_it_defines() -> None:
    for module in MODULES:
        defined = {node.name for node in tree_of(module).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert module not in defined


# Whether blocks fit.


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"memory"}))
def test_nobody_but_memory_decides_whether_blocks_fit(module: str) -> None:
    """What an answer could be made from is read in one file only."""
    read = {node.attr for node in ast.walk(tree_of(module)) if isinstance(node, ast.Attribute)}
    assert not read & {"free", "used", "blocks_per_token", "blocks_in_doubt"}
