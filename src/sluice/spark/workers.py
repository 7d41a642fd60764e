"""The task and query of a Python worker, and its objects without garbage collection."""

from __future__ import annotations

import gc

from pyspark import TaskContext

__all__ = [
    "driver_host",
    "freeze_loaded_objects",
    "ids_of_query",
    "is_repeated",
]


def ids_of_query() -> tuple[str, str]:
    """Returns the ids of the task's streaming query and of its run; empty if there is none."""
    context = TaskContext.get()
    if context is None or not (query := context.getLocalProperty("sql.streaming.queryId")):
        return "", ""
    return query, context.getLocalProperty("spark.jobGroup.id") or ""


def driver_host() -> str:
    """Returns the host at which executors find the driver; outside a task 127.0.0.1."""
    context = TaskContext.get()
    return (None if context is None else context.getLocalProperty("spark.driver.host")) or "127.0.0.1"


def is_repeated() -> bool:
    """Whether Spark has started this task before: it failed, or still runs and Spark speculates."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def freeze_loaded_objects(*, collect: bool) -> None:
    """Exempts all objects loaded so far from garbage collection. Works once a process, and only in a task.

    Spark collects garbage after each task. With the SDK loaded that takes 30 ms or more, most of the
    time of a small batch; without the permanent objects it takes almost no time. See
    https://docs.python.org/3/library/gc.html#gc.freeze.

    Args:
        collect: collects garbage first, which would otherwise stay permanently. Before a task's first
            rows there is hardly any.
    """
    # Another freeze would keep the garbage of the tasks in between.
    if TaskContext.get() is None or gc.get_freeze_count():
        return
    if collect:
        gc.collect()
    gc.freeze()
