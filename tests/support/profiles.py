"""What the Hypothesis profile allows to expect of the cases drawn; the profiles are in tests/conftest.py."""

from hypothesis import settings

MANY_CASES = settings.default.max_examples >= 200
"""Whether there are so many cases that every kind of them must come up; with the profile `dev`, one may be missing."""
