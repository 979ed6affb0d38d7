"""The names that `import servesweep` offers."""

import ast
import importlib
from pathlib import Path

import pytest
import servesweep

SOURCE = ast.parse(Path(servesweep.__file__).read_text("utf-8"))


def for_type_checkers() -> dict[str, str]:
    """Name -> module of the imports that only type checkers see."""
    block = next(node for node in SOURCE.body if isinstance(node, ast.If))
    return {
        alias.name: str(line.module)
        for line in block.body
        if isinstance(line, ast.ImportFrom) and line.module is not None
        for alias in line.names
    }


def test_the_three_lists_agree():
    assert for_type_checkers() == servesweep._MODULE_OF
    assert sorted(servesweep.__all__) == sorted([*servesweep._MODULE_OF, "plots"])
    assert len(set(servesweep.__all__)) == len(servesweep.__all__)


@pytest.mark.parametrize("name", servesweep._MODULE_OF)
def test_every_name_is_that_of_its_module(name):
    module = importlib.import_module(f"servesweep.{servesweep._MODULE_OF[name]}")
    assert getattr(servesweep, name) is getattr(module, name)
    assert name in dir(servesweep)


def test_plots_are_a_module_that_is_loaded_when_it_is_used():
    from servesweep import plots

    assert servesweep.plots is plots
    assert "plots" in dir(servesweep)


def test_what_callers_catch_and_pass_on_is_public():
    wanted = {"ConfigError", "Interrupted", "Run", "LognormalLen", "NVLINK_4", "IB_NDR"}
    assert wanted < set(servesweep.__all__)
    assert issubclass(servesweep.ConfigError, ValueError)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = servesweep.nothing
