"""How Hypothesis looks for examples. The conftest.py of `tests` and of `integration` import it."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# One profile for every run. How fast the machine is, and how busy, decides nothing. Each run looks for new
# examples, but for one that decides what is accepted: it repeats itself, so that a change is not turned down
# for a fault that it has not brought.
settings.register_profile(
    "sluice",
    deadline=None,
    max_examples=int(os.environ.get("SLUICE_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize="CI" in os.environ,
)
settings.load_profile("sluice")
