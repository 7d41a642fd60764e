"""Spark's writer interfaces in front of `sluice.sink`. Translation only.

A writer is made where the query starts, which checks options and columns, and is pickled into the
tasks: it holds plain data, and the destination is made where it is used.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sluice.destinations.setup import FORMAT, SinkSetup, read_sink
from sluice.errors import OptionError
from sluice.sink.dead_letters import Origin
from sluice.sink.memory import remembered
from sluice.sink.progress import SinkProgress
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
        rate: records a second that it has learnt, or is set to; None where it knows none.
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
    rate: float | None = None


class _Settings:
    """What a task needs to know; plain data."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Checks everything that can be checked without calling a service.

        Raises:
            OptionError: with all that is wrong with the options, or with the columns.
        """
        self._options = dict(options)
        self._schema = schema
        self._write = uuid.uuid4().hex  # of a batch query, which has no other name
        setup = read_sink(self._options)
        if overwrite:
            raise OptionError(
                f"{FORMAT}: what was written cannot be overwritten: use save mode 'append', or output mode "
                "'append' or 'update'"
            )
        self._has_listener = setup.progress_listener is not None
        setup.create_strategy()
        setup.destination.create_converter().open(schema)
        setup.destination.close()

    def write_task(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        """Writes the rows of one task; returns when all of them have been acknowledged."""
        setup = read_sink(self._options)
        origin = _origin(setup, self._write)
        letters = setup.dead_letters(origin) if setup.dead_letters else None
        started = time.monotonic()
        with remembered.lend(setup.key, setup.create_strategy) as strategy:
            writer = AsyncSinkWriter(setup.destination, setup.config, strategy, dead_letters=letters)
            with contextlib.closing(writer):
                writer.open(self._schema)
                for batch in batches:
                    writer.write(batch)
                writer.flush()
            figures = writer.figures
            most = setup.config.max_batch_size * setup.config.max_in_flight_requests
            limit = min(getattr(strategy, "limit", strategy.max_batch_size), most)
            rate: float | None = getattr(strategy, "rate", None)
        return CommitMessage(
            destination=writer.name,
            query=origin.query,
            partition=origin.partition,
            records=figures.records,
            bytes=figures.bytes,
            requests=figures.requests,
            retries=figures.retries,
            refused=figures.refused,
            timeouts=figures.timeouts,
            dead_letters=figures.dead_letters,
            duration=round(time.monotonic() - started, 3),
            limit=limit,
            rate=None if rate is None else round(rate, 1),
        )

    def tell(self, progress: SinkProgress) -> None:
        """Logs one line on the driver and calls the listener; its mistakes are no reason to fail a commit."""
        log = configure_driver_log("sluice.sink")
        # Delivery is at least once: what an aborted epoch had written stays, and comes again.
        log.log(logging.INFO if progress.outcome == "committed" else logging.WARNING, "%s", progress.line)
        listener = read_sink(self._options).progress_listener if self._has_listener else None
        if listener is not None:
            try:
                listener(progress)
            except Exception:
                log.exception("what option 'progressListener' names has failed")


def _origin(setup: SinkSetup, write: str) -> Origin:
    """Which task this is, of which epoch."""
    destination = str(getattr(setup.destination, "name", "") or type(setup.destination).__name__)
    context = TaskContext.get()
    if context is None:
        return Origin(destination, run=write)
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    run = context.getLocalProperty("spark.jobGroup.id") if query else None
    return Origin(
        destination,
        query=query,
        run=run or write,
        batch=int(batch) if batch and batch.isdigit() else None,
        partition=context.partitionId(),
        attempt=context.taskAttemptId(),
    )


class BatchSinkWriter(_Settings, DataSourceArrowWriter):
    """Writes a batch query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_task(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.tell(_progress("committed", None, messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.tell(_progress("aborted", None, messages))


class StreamSinkWriter(_Settings, _ARROW, datasource.DataSourceStreamWriter):  # type: ignore[misc]
    """Writes the epochs of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_task(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.tell(_progress("committed", batchId, messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.tell(_progress("aborted", batchId, messages))


def _progress(
    outcome: str, batch_id: int | None, messages: Sequence[WriterCommitMessage | None]
) -> SinkProgress:
    """The figures of all tasks summed; Spark passes None for a task that failed."""
    done = [message for message in messages if isinstance(message, CommitMessage)]
    summed = ("records", "bytes", "requests", "retries", "refused", "timeouts", "dead_letters")
    rates = [message.rate for message in done if message.rate is not None]
    return SinkProgress(
        outcome=outcome,
        destination=done[0].destination if done else None,
        query_id=done[0].query if done else None,
        batch_id=batch_id,
        tasks=len(done),
        failed_tasks=len(messages) - len(done),
        **{name: sum(getattr(message, name) for message in done) for name in summed},
        duration=max((message.duration for message in done), default=0.0),
        limit=min((message.limit for message in done), default=None),
        rate=round(sum(rates), 1) if rates else None,
    )
