"""Thrift in the Python workers that Spark keeps from one task to the next."""

from __future__ import annotations

import functools
import gc

from pyspark import TaskContext

__all__ = ["freeze_loaded_objects"]


def freeze_loaded_objects() -> None:
    """To be called at the end of a task, when all that tasks need has been loaded.

    Spark collects garbage after each task. With the SDK loaded that takes 30 ms or more, most of a small
    batch; without what is there for good (https://docs.python.org/3/library/gc.html#gc.freeze) next to
    nothing. Does nothing outside a task.
    """
    if TaskContext.get() is not None:
        _freeze()


@functools.cache
def _freeze() -> None:
    """Once a process: else what is garbage between two tasks would be kept, too."""
    gc.collect()
    gc.freeze()
