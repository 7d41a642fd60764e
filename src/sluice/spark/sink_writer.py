"""Spark's writer interfaces in front of `sluice.sink`. Translation only.

A writer is made where the query starts, which checks options and columns, and is pickled into the
tasks: it holds plain data, and the destination is made where it is used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sluice.destinations.setup import FORMAT, read_sink
from sluice.errors import OptionError
from sluice.sink.memory import remembered
from sluice.sink.writer import AsyncSinkWriter
from sluice.spark.logs import configure_driver_log

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchSinkWriter", "CommitMessage", "StreamSinkWriter"]

# The stream writer that is given Arrow came with PySpark 4.1. In 4.0 only batch writers are, but Spark
# goes by their class and does not ask which kind of query it is: a stream writer that is one as well
# gets Arrow there too, and no row has to be taken apart and put together again.
_ARROW: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter)


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """What one task wrote; plain numbers.

    Attributes:
        destination: by name.
        query: Spark's id of the streaming query; None in a batch query.
        partition: the task's.
        records, bytes: acknowledged by the destination.
        requests, retries, refused, timeouts: see `sluice.sink.SinkFigures`.
        dead_letters: records put aside.
        duration: seconds from the task's first row to the last acknowledgement.
        limit: records that the rate limiter lets be in flight now.
    """

    destination: str
    query: str | None
    partition: int
    records: int
    bytes: int
    requests: int
    retries: int
    refused: int
    timeouts: int
    dead_letters: int
    duration: float
    limit: int


class _Settings:
    """What a task needs to know; plain data."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Checks everything that can be checked without calling a service.

        Raises:
            OptionError: with all that is wrong with the options, or with the columns.
        """
        self._options = dict(options)
        self._schema = schema
        setup = read_sink(self._options)
        if overwrite:
            raise OptionError(
                f"{FORMAT}: what was written cannot be overwritten: use save mode 'append', or output mode "
                "'append' or 'update'"
            )
        setup.destination.create_converter().open(schema)
        setup.destination.close()

    def write_task(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        """Writes the rows of one task; returns when all of them have been acknowledged."""
        setup = read_sink(self._options)
        started = time.monotonic()
        with remembered.lend(setup.key, setup.create_strategy) as strategy:
            writer = AsyncSinkWriter(setup.destination, setup.config, strategy)
            with contextlib.closing(writer):
                writer.open(self._schema)
                for batch in batches:
                    writer.write(batch)
                writer.flush()
            figures = writer.figures
            most = setup.config.max_batch_size * setup.config.max_in_flight_requests
            limit = min(strategy.max_batch_size, most)
        context = TaskContext.get()
        return CommitMessage(
            destination=writer.name,
            query=context.getLocalProperty("sql.streaming.queryId") if context else None,
            partition=context.partitionId() if context else 0,
            records=figures.records,
            bytes=figures.bytes,
            requests=figures.requests,
            retries=figures.retries,
            refused=figures.refused,
            timeouts=figures.timeouts,
            dead_letters=0,
            duration=round(time.monotonic() - started, 3),
            limit=limit,
        )


class BatchSinkWriter(_Settings, DataSourceArrowWriter):
    """Writes a batch query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_task(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log("committed", None, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log("aborted", None, messages)


class StreamSinkWriter(_Settings, _ARROW, datasource.DataSourceStreamWriter):  # type: ignore[misc]
    """Writes the epochs of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_task(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log("committed", batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log("aborted", batchId, messages)


def _log(outcome: str, batch_id: int | None, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Logs one line of ``name=value`` on the driver, with the figures of all tasks summed."""
    done = [message for message in messages if isinstance(message, CommitMessage)]
    summed = ("records", "bytes", "requests", "retries", "refused", "timeouts", "dead_letters")
    values: dict[str, Any] = {
        "destination": repr(done[0].destination) if done else None,
        "query_id": done[0].query if done else None,
        "batch_id": batch_id,
        "tasks": len(done),
        "failed_tasks": len(messages) - len(done),
        **{name: sum(getattr(message, name) for message in done) for name in summed},
        "duration": max((message.duration for message in done), default=0.0),
        "limit": min((message.limit for message in done), default=None),
    }
    line = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
    log = configure_driver_log("sluice.sink")
    if outcome == "committed":
        log.info("%s %s", outcome, line)
    else:
        # Delivery is at least once: what was acknowledged stays, and comes again with the next attempt.
        log.warning("%s %s", outcome, line)
