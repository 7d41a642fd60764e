"""Hypothesis looks for new examples at every run, but where a run decides what is accepted: there it
repeats itself, so that a change is not turned down for a fault it has not brought."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
