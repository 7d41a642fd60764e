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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sluice.destinations.registry import FORMAT, SinkSetup, read_sink
from sluice.errors import CommitError, OptionError
from sluice.sink.committing import EpochCommit
from sluice.sink.contracts import CommittingDestination, Epoch
from sluice.sink.dead_letters import Origin
from sluice.sink.progress import SinkProgress
from sluice.sink.strategy_cache import strategy_cache
from sluice.sink.writer import AsyncSinkWriter
from sluice.spark.logs import configure_driver_log
from sluice.spark.workers import freeze_loaded_objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchSinkWriter", "CommitMessage", "StreamSinkWriter"]

# The stream writer that is given Arrow came with PySpark 4.1. In 4.0 only batch writers are, but Spark
# goes by their class and does not ask which kind of query it is: a stream writer that is one as well
# gets Arrow there too, and no row has to be taken apart and put together again.
_ARROW: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter)


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """What one task wrote; plain data.

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
        run: the id of this run of the query, or of the batch write.
        committables: of a two-phase destination; what makes visible what the task wrote.
    """

    destination: str
    query: str | None
    partition: int
    records: int
    bytes: int
    requests: int = 0
    retries: int = 0
    refused: int = 0
    timeouts: int = 0
    dead_letters: int = 0
    duration: float = 0.0
    limit: int | None = None
    rate: float | None = None
    run: str = ""
    committables: tuple[Any, ...] = ()


class _Settings:
    """What a task needs to know; plain data."""

    is_streaming = False

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
        self._is_committing = setup.committing is not None
        if setup.committing is not None:
            setup.committing.create_writer(schema, _origin(setup, self._write)).close()
            return
        setup.create_strategy()
        setup.destination.create_converter().open(schema)
        setup.destination.close()

    def write_task(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        """Writes the rows of one task; returns when all are acknowledged, or ready to be committed."""
        setup = read_sink(self._options)
        origin = _origin(setup, self._write)
        started = time.monotonic()
        if setup.committing is not None:
            if not self.is_streaming:
                # In `foreachBatch` the task's properties name query and batch: those of the query around,
                # which may write any number of times. Each of its writes is committed by itself.
                origin = replace(origin, query=None, run=self._write, batch=None)
            message = self._prepare(setup.committing, origin, batches)
        else:
            message = self._deliver(setup, origin, batches)
        message = replace(message, duration=round(time.monotonic() - started, 3))
        freeze_loaded_objects()
        return message

    def _deliver(self, setup: SinkSetup, origin: Origin, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        letters = setup.dead_letters(origin) if setup.dead_letters else None
        with strategy_cache.lend(setup.key, setup.create_strategy) as strategy:
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
            limit=limit,
            rate=None if rate is None else round(rate, 1),
            run=origin.run,
        )

    def _prepare(
        self, destination: CommittingDestination[Any], origin: Origin, batches: Iterable[pa.RecordBatch]
    ) -> CommitMessage:
        records = 0
        with contextlib.closing(destination.create_writer(self._schema, origin)) as writer:
            try:
                for batch in batches:
                    writer.write(batch)
                    records += batch.num_rows
                committables = tuple(writer.prepare_commit())
            except BaseException:
                try:
                    writer.abort()
                except Exception:  # noqa: BLE001 - what the task failed with has to be heard of
                    _log.warning("what a failed task had written could not be removed", exc_info=True)
                raise
            return CommitMessage(
                destination=origin.destination,
                query=origin.query,
                partition=origin.partition,
                records=records,
                bytes=getattr(writer, "bytes", 0),
                run=origin.run,
                committables=committables,
            )

    def finish(
        self, outcome: str, batch_id: int | None, messages: Sequence[WriterCommitMessage | None]
    ) -> None:
        """Commits or aborts what the tasks have left, and tells of it. Spark passes None for failed tasks.

        Raises:
            CommitError: the epoch is not committed, or not all of it is undone.
        """
        done = [message for message in messages if isinstance(message, CommitMessage)]
        if self._is_committing:
            destination = read_sink(self._options).committing
            assert destination is not None  # noqa: S101 - __init__ has found one; this tells the types
            commit = EpochCommit(destination, self._epoch(batch_id, done))
            committables = [each for message in done for each in message.committables]
            if outcome == "committed":
                commit.commit(committables)
            else:
                commit.abort(committables)
        self.tell(_progress(outcome, batch_id, messages))

    def _epoch(self, batch_id: int | None, done: Sequence[CommitMessage]) -> Epoch | None:
        """Spark tells the driver's side the batch id alone: which query it is, the tasks know."""
        if batch_id is None:
            return Epoch(None, self._write, None)
        if any(message.query is None for message in done):
            raise CommitError(f"batch {batch_id}: Spark has not told its tasks which query it belongs to")
        return next((Epoch(message.query, message.run, batch_id) for message in done), None)

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
        self.finish("committed", None, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.finish("aborted", None, messages)


class StreamSinkWriter(_Settings, _ARROW, datasource.DataSourceStreamWriter):  # type: ignore[misc]
    """Writes the epochs of a streaming query."""

    is_streaming = True

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_task(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.finish("committed", batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.finish("aborted", batchId, messages)


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
        limit=min((message.limit for message in done if message.limit is not None), default=None),
        rate=round(sum(rates), 1) if rates else None,
    )
