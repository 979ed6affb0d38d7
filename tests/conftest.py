"""Hypothesis profiles: `HYPOTHESIS_PROFILE=thorough pytest` tries twenty times as many cases as the default, `ci` the
same cases every time: what decides about a change must not depend on luck."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A failed assertion in a support module shows its values, like one in a test.
pytest.register_assert_rewrite(*(path.stem for path in Path(__file__).parent.joinpath("support").glob("*.py")))

# Cases are whole workloads, so drawing one takes milliseconds: that is no reason to fail a slow machine.
_common: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("default", max_examples=200, **_common)
settings.register_profile("thorough", max_examples=4000, **_common)
settings.register_profile("ci", max_examples=200, derandomize=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
