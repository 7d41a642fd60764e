"""What a process needs that another process of ours starts."""

from __future__ import annotations

import os
import sys

__all__ = ["child_environment"]


def child_environment() -> dict[str, str]:
    """The environment of this process, with the module path that Spark has set up in it.

    glibc gives threads their own arenas, up to eight for each core, and each arena keeps freed memory for
    itself. An agent of fan-out has a thread for each shard, and its events go through all of them, so two
    arenas are enough for it.
    """
    path = os.pathsep.join(path for path in sys.path if path)
    return {"MALLOC_ARENA_MAX": "2", **os.environ, "PYTHONPATH": path}
