"""What a task's Python worker is asked for and told: garbage collections, and where Spark's driver is."""

from __future__ import annotations

import functools
import gc

from pyspark import TaskContext

__all__ = ["driver_host", "freeze_loaded_objects"]


def driver_host() -> str:
    """The host at which executors find the driver; in a task, where Spark passes the session's settings on.

    Outside of tasks, and where a task is not told, it is this host.
    """
    context = TaskContext.get()
    return (None if context is None else context.getLocalProperty("spark.driver.host")) or "127.0.0.1"


def freeze_loaded_objects() -> None:
    """Exempts what is loaded now from garbage collection. Called at the end of a task; works once a process.

    Spark collects garbage after each task. With the SDK loaded that takes 30 ms or more, most of the time of
    a small batch; without the objects that stay for good it takes almost none. See
    https://docs.python.org/3/library/gc.html#gc.freeze. Outside a task nothing is frozen.
    """
    if TaskContext.get() is not None:
        _freeze()


@functools.cache
def _freeze() -> None:
    """Freezes once in a process: another freeze would keep the garbage of the tasks in between."""
    gc.collect()
    gc.freeze()
