"""Logging in the Python processes that Spark starts beside the driver's JVM.

Nobody configures logging there, and Python then drops whatever is not a warning. What such a process
writes to stderr reaches the driver's own stderr.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["configure_driver_log"]

_ROOT = "sluice"


def configure_driver_log(name: str) -> logging.Logger:
    """The logger called `name`; lets INFO through to stderr unless the application configured logging."""
    root = logging.getLogger(_ROOT)
    if not root.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
        if root.level == logging.NOTSET:
            root.setLevel(logging.INFO)
    return logging.getLogger(name)
