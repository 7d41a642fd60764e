"""What a Python worker knows of its task and query, and which objects it never collects."""

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
    """The ids of the streaming query that this task belongs to, and of its run; empty if there is none."""
    context = TaskContext.get()
    if context is None or not (query := context.getLocalProperty("sql.streaming.queryId")):
        return "", ""
    return query, context.getLocalProperty("spark.jobGroup.id") or ""


def driver_host() -> str:
    """The host at which executors find the driver, as Spark tells tasks; elsewhere 127.0.0.1."""
    context = TaskContext.get()
    return (None if context is None else context.getLocalProperty("spark.driver.host")) or "127.0.0.1"


def is_repeated() -> bool:
    """Whether Spark has started this task before: it failed, or runs still, and Spark speculates."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def freeze_loaded_objects(*, collect: bool) -> None:
    """Exempts all objects loaded so far from garbage collection. Works once a process.

    Spark collects garbage after each task. With the SDK loaded that takes 30 ms or more, most of the time of
    a small batch; without the objects that stay for good it takes almost none. See
    https://docs.python.org/3/library/gc.html#gc.freeze. Outside a task nothing is frozen.

    Args:
        collect: collects garbage first. What is there now would stay for good otherwise, and before a task's
            first rows that is next to nothing.
    """
    # Another freeze would keep the garbage of the tasks in between.
    if TaskContext.get() is None or gc.get_freeze_count():
        return
    if collect:
        gc.collect()
    gc.freeze()
