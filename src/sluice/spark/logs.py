"""Logging in the Python processes that Spark's JVM starts on the driver host.

Logging is not configured there, and Python drops messages below WARNING unless it is. What such a
process writes to stderr appears in the driver's stderr.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["configure_driver_log"]


def configure_driver_log() -> None:
    """Writes Sluice's messages from INFO on to stderr, unless the application has configured logging."""
    root = logging.getLogger("sluice")
    if root.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.propagate = False
    if root.level == logging.NOTSET:
        root.setLevel(logging.INFO)
