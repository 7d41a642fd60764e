"""Spark's writer interfaces in front of `sluice.sink`.

A writer is made and checked where the query starts, and pickled into the tasks and the process that
commits. So it holds plain data only.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sluice.channels.channel import Address
from sluice.destinations.registry import FORMAT, read_sink
from sluice.errors import OptionError, SluiceError
from sluice.hosts import is_loopback
from sluice.query_server.launch import find_or_start
from sluice.sink import CommittingDestination, Origin
from sluice.sink.committing.epoch_end import Outcome, TaskResult, end_epoch, needs_setup
from sluice.sink.rows.json_rows import inner_types
from sluice.sink.setup import (
    AsyncSinkSetup,
    CommittingSinkSetup,
    SinkSetup,
    query_server_address,
    with_query_server,
)
from sluice.sink.task import check_columns, write_rows
from sluice.sink.user_code.loading import adopted, destination_name, run
from sluice.spark.border import shorten_traceback
from sluice.spark.logs import configure_driver_log
from sluice.spark.time_zones import in_known_time_zones
from sluice.spark.workers import freeze_loaded_objects
from sluice.spark_settings import find_spark_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchSinkWriter", "CommitMessage", "StreamSinkWriter"]

_log = logging.getLogger(__name__)

_MONTHS: Final = ("interval year", "interval month")
"""Types without a Python class in Arrow: PySpark fails with a KeyError before a task receives a row."""

_checked_dead_letters: Final[set[Hashable]] = set()
"""Sinks with dead letters that this process could write, by their options."""

# PySpark 4.1 has a stream writer for Arrow. In 4.0, only the batch writer accepts Arrow, but Spark
# checks the class and not the kind of query: so the stream writer inherits from it, too.
_ARROW_WRITER: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter)


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """A task's message to the driver; plain data.

    Attributes:
        may_write_twice: its rows are delivered before the commit, and Spark may run the task twice at
            the same time.
    """

    result: TaskResult
    may_write_twice: bool = False


class _SinkWriter:
    """The common part of both writers; plain data.

    Args:
        options: of the sink, as Spark passes them.
        schema: of the rows.
        overwrite: whether the save mode or the output mode replaces existing data.

    Raises:
        OptionError: all problems with the options, or with the columns.
    """

    is_streaming = False

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = dict(options)
        self._schema = schema
        self._write_id = uuid.uuid4().hex  # Spark gives a batch write no id
        configure_driver_log()
        setup = read_sink(self._options)
        if overwrite:
            raise OptionError(
                f"{FORMAT}: what was written cannot be overwritten: use .mode('append') in a batch write, or "
                ".outputMode('append') in a streaming query; Spark takes no other mode for Python sinks"
            )
        if self.is_streaming and isinstance(setup, CommittingSinkSetup) and setup.transaction is not None:
            raise OptionError(
                f"{FORMAT}: options 'txnAppId' and 'txnVersion' are for batch writes, as in foreachBatch: a "
                "streaming query commits each of its batches once without them"
            )
        if setup.load_listener is not None:
            setup.load_listener()
        check_columns(setup, schema, _origin(setup, self._write_id))
        _refuse_unreadable_columns(schema)
        _check_destination(setup)
        _check_dead_letters(setup, self._write_id)
        self._needs_setup = needs_setup(setup)
        self._server_address = query_server_address(setup)
        _check_server_address(self._server_address)
        self._query_server: Address | None = None
        self._is_for_tasks = False

    def __getstate__(self) -> dict[str, Any]:
        """Starts the query server when the writer is sent to tasks, which may need it.

        In other processes Spark makes writers only to commit; tasks would not find a server started
        there.

        Raises:
            ServiceError: the server cannot be started.
        """
        if not self._is_for_tasks and self._server_address is not None:
            self._query_server = find_or_start(self._server_address)
        self._is_for_tasks = True
        return self.__dict__

    @shorten_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of a task."""
        setup = with_query_server(read_sink(self._options), self._query_server)
        origin = _origin(setup, self._write_id)
        write_id = None if self.is_streaming else self._write_id
        result = write_rows(
            setup,
            self._schema,
            origin,
            in_known_time_zones(iterator),
            write_id=write_id,
        )
        freeze_loaded_objects(collect=True)
        return CommitMessage(result, not isinstance(setup, CommittingSinkSetup) and _is_speculative())

    @shorten_traceback
    def _end(
        self, outcome: Outcome, batch_id: int | None, messages: Sequence[WriterCommitMessage | None]
    ) -> None:
        """Ends an epoch, on the driver. Spark passes None for tasks that failed."""
        configure_driver_log()
        setup = read_sink(self._options) if self._needs_setup else None
        for message in messages:
            if isinstance(message, CommitMessage) and message.may_write_twice:
                _warn_of_speculation(message.result.origin.destination)
        results = [message.result if isinstance(message, CommitMessage) else None for message in messages]
        end_epoch(setup, outcome, results, write_id=self._write_id, batch_id=batch_id)


class BatchSinkWriter(_SinkWriter, DataSourceArrowWriter):
    """Writes a batch query."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end("committed", None, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end("aborted", None, messages)


class StreamSinkWriter(_SinkWriter, _ARROW_WRITER, datasource.DataSourceStreamWriter):  # type: ignore[misc]
    """Writes the epochs of a streaming query."""

    is_streaming = True

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._end("committed", batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._end("aborted", batchId, messages)


def _refuse_unreadable_columns(schema: StructType) -> None:
    """Rejects columns that no task could read, even if the destination ignores them.

    Raises:
        OptionError: there are such columns.
    """
    found = [
        f"column '{field.name}' is {field.dataType.simpleString()}"
        for field in schema.fields
        if any(kind.simpleString().startswith(_MONTHS) for kind in _types_in(field.dataType))
    ]
    if found:
        raise OptionError(
            f"{FORMAT}: {'; '.join(found)}: Spark cannot give intervals of months to Python: leave such "
            "columns out, or cast them, to string for instance"
        )


def _types_in(kind: Any) -> Iterator[Any]:
    """Yields the type itself, and all inside it."""
    yield kind
    for each in inner_types(kind):
        yield from _types_in(each)


def _check_destination(setup: SinkSetup) -> None:
    """Checks that a two-phase destination can commit. The commit checks it again.

    Raises:
        SluiceError: it cannot.
    """
    if isinstance(setup, CommittingSinkSetup):
        try:
            run(adopted(setup.destination, CommittingDestination).check)
        except SluiceError as error:
            if not error.retryable:
                raise
            _log.warning("%s: %s", destination_name(setup.destination), error)


def _check_dead_letters(setup: SinkSetup, write_id: str) -> None:
    """Checks once that dead letters can be written, because Spark makes a writer for each micro-batch.

    Raises:
        OptionError: they cannot.
    """
    if not isinstance(setup, AsyncSinkSetup) or setup.dead_letters is None:
        return
    if setup.strategy_cache_key not in _checked_dead_letters:
        queue = setup.dead_letters(_origin(setup, write_id))
        queue.check_writable(lambda: find_spark_settings().is_local)
        _checked_dead_letters.add(setup.strategy_cache_key)


def _check_server_address(address: str | None) -> None:
    """Rejects an address of the query server that tasks on other hosts cannot connect to.

    Raises:
        OptionError: it is such an address, and there are other hosts.
    """
    if address is not None and is_loopback(address) and (spark := find_spark_settings()).is_spread:
        raise OptionError(
            f"{FORMAT}: option 'tokenBucketAddress' is {address!r}: tasks of other hosts cannot connect to "
            f"it, and the master is {spark.master}: allowed is an address of the driver host that workers "
            "can connect to"
        )


def _is_speculative() -> bool:
    """Whether Spark runs slow tasks twice. Only tasks can read the settings of the session."""
    context = TaskContext.get()
    return context is not None and context.getLocalProperty("spark.speculation") == "true"


@functools.cache
def _warn_of_speculation(destination: str) -> None:
    """Warns once per process: the same process commits all epochs."""
    _log.warning(
        "%s: speculation is on (spark.speculation), so Spark may run a slow task twice at a time. Both runs "
        "write their rows, and the slow one writes late: an old row of a key may follow, "
        "or replace, a newer one. Turn speculation off for queries that write there",
        destination,
    )


def _origin(setup: SinkSetup, write_id: str) -> Origin:
    """Describes the task, from Spark's properties; on the driver, only the batch write."""
    destination = destination_name(setup.destination)
    context = TaskContext.get()
    if context is None:
        return Origin(destination, run=write_id)
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    run = context.getLocalProperty("spark.jobGroup.id") if query else None
    return Origin(
        destination,
        query=query,
        run=run or write_id,
        batch=int(batch) if batch and batch.isdigit() else None,
        partition=context.partitionId(),
        attempt=context.taskAttemptId(),
    )
