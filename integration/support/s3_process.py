"""What driver and tasks of a streaming query do to files, without Spark: quick to start and kill."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from sluice.destinations import read_sink
from sluice.retry import patient
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

ROWS = 30  # of a task
TASKS = 2

_SCHEMA = StructType([StructField("id", LongType()), StructField("part", LongType())])


_CHANGES = ("open", "os.link", "os.mkdir", "os.remove", "os.rename")  # of a directory, as Python audits calls


def run(options: Mapping[str, str], log: str, name: str, batches: int, last_call: int = 0) -> None:
    """Writes and commits batch after batch, from the first that is not in the log on.

    `log`: a directory that takes a file for each batch that is committed, in the place of Spark's log;
    `batches`: how many there are; `last_call`: before this call of the file system, below the path, the
    process kills itself; 0 for none.
    """
    if last_call:
        _die_before(last_call, options["path"])
    attempt = 0
    for batch in range(len(list(Path(log).iterdir())), batches):
        uploads: list[Any] = []
        for task in range(TASKS):
            attempt += 1
            destination: Any = read_sink(options).destination
            writer = destination.create_writer(_SCHEMA, Origin("s3", "query", name, batch, task, attempt))
            start = (batch * TASKS + task) * ROWS
            ids = range(start, start + ROWS)
            writer.write(pa.RecordBatch.from_pydict({"id": ids, "part": [each % 2 for each in ids]}))
            uploads += writer.prepare_commit()
            writer.close()
        destination = read_sink(options).destination
        EpochCommit(destination, Epoch("query", name, batch), backoff=patient(60.0)).commit(uploads)
        Path(log, str(batch)).touch()


def _die_before(call: int, path: str) -> None:
    left = call

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _CHANGES and any(str(each).startswith(path) for each in arguments):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
