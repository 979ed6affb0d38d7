"""Hypothesis profiles: `HYPOTHESIS_PROFILE=thorough pytest` tries twenty times as many cases as the default, `ci` the
same cases every time: what decides about a change must not depend on luck."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

# Cases are whole workloads, so drawing one takes milliseconds: that is no reason to fail a slow machine.
_common: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("default", max_examples=200, **_common)
settings.register_profile("thorough", max_examples=4000, **_common)
settings.register_profile("ci", max_examples=200, derandomize=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
