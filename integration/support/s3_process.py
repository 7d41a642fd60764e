"""What driver and tasks of a streaming query do to files, and compaction, without Spark: quick to kill."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from sluice.cli.app import main
from sluice.destinations import read_sink
from sluice.destinations.files.maintenance import FOLD_AFTER
from sluice.retry import patient
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

ROWS = 30  # of a task
TASKS = 2

_SCHEMA = StructType([StructField("id", LongType()), StructField("part", LongType())])


_CHANGES = ("open", "os.link", "os.mkdir", "os.remove", "os.rename")  # of a directory, as Python audits calls


def run(  # noqa: PLR0917 - through `Process`
    options: Mapping[str, str],
    log: str,
    name: str,
    batches: int,
    last_call: int = 0,
    fold_after: int = FOLD_AFTER,
) -> None:
    """Writes and commits batch after batch, from the first that is not in the log on.

    `log`: a directory that takes a file for each batch that is committed, in the place of Spark's log;
    `batches`: how many there are; `last_call`: before this call of the file system that changes
    something below the path, the process kills itself; 0 for none; `fold_after`: in the place of
    `FOLD_AFTER`.
    """
    if last_call:
        _die_before(last_call, options["path"])
    with patch("sluice.destinations.files.destination.FOLD_AFTER", fold_after):
        for batch in range(len(list(Path(log).iterdir())), batches):
            write(options, name, batch)
            Path(log, str(batch)).touch()


def write(options: Mapping[str, str], name: str, batch: int) -> None:
    """Writes and commits a batch; `name`: of the run."""
    uploads: list[Any] = []
    for task in range(TASKS):
        destination: Any = read_sink(options).destination
        attempt = batch * TASKS + task
        writer = destination.create_writer(_SCHEMA, Origin("s3", "query", name, batch, task, attempt))
        ids = range(attempt * ROWS, (attempt + 1) * ROWS)
        writer.write(pa.RecordBatch.from_pydict({"id": ids, "part": [each % 2 for each in ids]}))
        uploads += writer.prepare_commit()
        writer.close()
    destination = read_sink(options).destination
    EpochCommit(destination, Epoch("query", name, batch), backoff=patient(60.0)).commit(uploads)


def compact(path: str, options: Mapping[str, str], last_call: int = 0, for_ever: bool = False) -> None:
    """Runs ``sluice files compact`` and ends with its exit code, or runs it until it fails.

    `last_call`: as of `run`.
    """
    if last_call:
        _die_before(last_call, path)
    arguments = [each for option in options.items() for each in ("--option", "=".join(option))]
    while True:
        code = main(["files", "compact", path, *arguments], out=io.StringIO())
        if code or not for_ever:
            sys.exit(code)


def _die_before(call: int, path: str) -> None:
    left = call

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        is_read = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in _CHANGES and not is_read and any(str(each).startswith(path) for each in arguments):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
