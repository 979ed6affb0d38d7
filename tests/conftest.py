"""Markers, Hypothesis profiles, and the check that the package is that of this clone.

A test has the markers of its module, its folder and the browser; one that has none of the slow markers is `unit`.

`HYPOTHESIS_PROFILE` chooses the profile: `dev`, the default, draws few new cases each time; `ci`, the default where
the variable CI is set, draws many, the same ones every time, for what decides about a change must not depend on luck;
`thorough` draws twenty times as many, new ones each time.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent

# A failed assertion in a support module shows its values, like one in a test.
pytest.register_assert_rewrite(*(path.stem for path in HERE.joinpath("support").glob("*.py")))

# Cases are whole workloads, so drawing one takes milliseconds: that is no reason to fail a slow machine.
_common: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("dev", max_examples=20, **_common)
settings.register_profile("ci", max_examples=200, derandomize=True, **_common)
settings.register_profile("thorough", max_examples=4000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to test another servesweep than that of this clone, as one that was installed before a change."""
    from installed import installed_folders, not_as_installed

    installed = installed_folders()
    if differ := not_as_installed(HERE.parent, installed):
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise pytest.UsageError(
            f"servesweep is imported from {installed.get('sweep', 'nowhere')}, which differs from this folder in "
            f"{', '.join(differ[:3])}{more}: install it again (CONTRIBUTING.md)"
        )


SLOW = {"process", "docs", "browser", "slow"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        if item.path.relative_to(HERE).parts[0] == "docs":
            item.add_marker("docs")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        if not SLOW.intersection(mark.name for mark in item.iter_markers()):
            item.add_marker("unit")
