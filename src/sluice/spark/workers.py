"""Keeps garbage collections short in the Python workers that Spark reuses from task to task."""

from __future__ import annotations

import functools
import gc

from pyspark import TaskContext

__all__ = ["freeze_loaded_objects", "ids_of_query"]


def ids_of_query() -> tuple[str, str]:
    """The ids of the streaming query that this task belongs to, and of its run; empty where there is none."""
    context = TaskContext.get()
    if context is None or not (query := context.getLocalProperty("sql.streaming.queryId")):
        return "", ""
    return query, context.getLocalProperty("spark.jobGroup.id") or ""


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
