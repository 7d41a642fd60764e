"""What a task does with its rows: delivers them in batches, or prepares them for a commit on the driver."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import operator
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from sluice.errors import OptionError, SluiceError
from sluice.retry import Retrier, patient
from sluice.sink.committing.epoch_end import TaskResult
from sluice.sink.contracts import (
    CommittingDestination,
    Destination,
    ElementConverter,
    Origin,
    RateLimitingStrategy,
    SinkWriter,
    StructType,
)
from sluice.sink.reporting.figures import SinkFigures, own_figures
from sluice.sink.reporting.progress import as_line
from sluice.sink.rows.schema import unknown_columns_problem
from sluice.sink.setup import AsyncSinkSetup, CommittingSinkSetup, SinkSetup
from sluice.sink.user_code.loading import adopted, destination_name, open_converter, run
from sluice.sink.user_code.mistakes import checked_items
from sluice.sink.writing.requests import close_destination
from sluice.sink.writing.writer import AsyncSinkWriter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_columns", "write_rows"]

_log = logging.getLogger(__name__)


def check_columns(setup: SinkSetup, schema: StructType, origin: Origin) -> None:
    """Checks, when the query starts, that the destination can take such rows. Calls no service.

    Raises:
        OptionError: it cannot; or it would not write a column, and no option allows it to ignore that; or the
            rate limiting strategy cannot be made.
        SluiceError: a method of the destination, or of what works for it, would not run. Committers are
            made only when an epoch is committed, and checked there.
    """
    if isinstance(setup, CommittingSinkSetup):
        destination = adopted(setup.destination, CommittingDestination)
        writer = adopted(destination.create_writer(schema, origin), SinkWriter)
        with contextlib.closing(writer):
            _refuse_unknown_columns(setup, schema, writer)
        return
    with contextlib.ExitStack() as stack:
        stack.callback(close_destination, setup.destination)
        adopted(setup.destination, Destination)
        adopted(setup.create_strategy(), RateLimitingStrategy)
        converter = adopted(setup.new_converter(), ElementConverter)
        try:
            open_converter(converter, schema, origin)
        except OptionError as error:
            # A required column is often missing because its name is misspelt: one error says both.
            _refuse_unknown_columns(setup, schema, converter, error)
            raise
        _refuse_unknown_columns(setup, schema, converter)


def _refuse_unknown_columns(
    setup: SinkSetup,
    schema: StructType,
    taker: ElementConverter[Any] | SinkWriter[Any],
    other: OptionError | None = None,
) -> None:
    """Raises OptionError for columns that `taker` would not write; with what `other` says, if it is given."""
    known = taker.known_columns
    if setup.ignores_unknown_columns or known is None:
        return
    if isinstance(known, str):  # ("data") is a name in brackets, not a tuple
        known = (known,)
    problem = unknown_columns_problem(schema, known, taker.ignored_columns)
    if problem is not None:
        start = destination_name(setup.destination) if other is None else f"{other}; also"
        raise OptionError(f"{start}: {problem}") from None


def write_rows(  # noqa: PLR0913 - five say what is written, one is replaced
    setup: SinkSetup,
    schema: StructType,
    origin: Origin,
    batches: Iterable[pa.RecordBatch],
    *,
    write_id: str | None,
    retrier: Retrier | None = None,
) -> TaskResult:
    """Writes the rows of one task. Returns when all of them are acknowledged, or durable and to be committed.

    Args:
        setup: made for this task.
        schema: of the rows.
        origin: the task.
        batches: the rows.
        write_id: the id of a batch write; None in a streaming query.
        retrier: how pauses between calls of a two-phase destination are waited out; replaced in tests.
    """
    started = time.monotonic()
    if isinstance(setup, AsyncSinkSetup):
        result = _deliver(setup, schema, origin, batches)
    else:
        if write_id is not None and setup.transaction is not None:
            application, version = setup.transaction
            origin = replace(origin, query=application, run=write_id, batch=version)
        elif write_id is not None:
            # In `foreachBatch`, Spark tells the task the query and the micro-batch around the write. That
            # micro-batch may have several writes, and each of them is committed by itself.
            origin = replace(origin, query=None, run=write_id, batch=None)
        result = _prepare(setup, schema, origin, batches, retrier or Retrier())
    return replace(result, duration=round(time.monotonic() - started, 3))


def _deliver(
    setup: AsyncSinkSetup, schema: StructType, origin: Origin, batches: Iterable[pa.RecordBatch]
) -> TaskResult:
    with _closed_unless_taken(setup.destination, origin) as destination, setup.strategy(origin) as strategy:
        writer = AsyncSinkWriter(
            setup.destination,
            setup.config,
            strategy,
            dead_letters=setup.dead_letters(origin) if setup.dead_letters else None,
            converter=setup.create_converter() if setup.create_converter else None,
        )
        destination.pop_all()  # from here on the writer closes it
        with _closing(writer, origin):
            writer.open(schema, origin)
            for batch in batches:
                writer.write(batch)
            writer.flush()
            figures = writer.figures
        most = setup.config.max_batch_size * setup.config.max_in_flight_requests
        limit, rate = _number(strategy.limit), _number(strategy.rate)
        return TaskResult(
            origin=origin,
            figures=figures,
            limit=None if limit is None else int(min(limit, most)),
            rate=None if rate is None or math.isinf(rate) else round(rate, 1),
        )


def _closed_unless_taken(destination: Any, origin: Origin) -> contextlib.ExitStack:
    """Closes the destination of a task that gets no writer, which would close it."""

    def close() -> None:
        with _logged(origin, "the destination of this failed task could not be closed"):
            close_destination(destination)

    stack = contextlib.ExitStack()
    stack.callback(close)
    return stack


def _number(figure: object) -> float | None:
    """A figure of a strategy; None if it is not a number, which fails no task whose rows are delivered."""
    return float(figure) if isinstance(figure, Real) and float(figure) > -math.inf else None


@contextlib.contextmanager
def _closing(writer: AsyncSinkWriter[Any], origin: Origin) -> Iterator[None]:
    """Closes the writer of a task. If the task fails, logs its figures, which do not reach the driver."""
    try:
        yield
    except BaseException as error:
        _close_after_failure(writer, origin)  # first, so that no thread changes the figures meanwhile
        _log.warning(
            "%s: batch %s, partition %d, attempt %d: this task fails with %s; until then %s",
            origin.destination,
            origin.batch,
            origin.partition,
            origin.attempt,
            type(error).__name__,
            as_line(writer.figures.summary()),
        )
        raise
    writer.close()


def _close_after_failure(writer: AsyncSinkWriter[Any] | SinkWriter[Any], origin: Origin) -> None:
    with _logged(origin, "the writer of this failed task could not be closed"):
        run(writer.close)


@contextlib.contextmanager
def _logged(origin: Origin, problem: str) -> Iterator[None]:
    """Logs an exception, because the task fails with the exception raised before."""
    try:
        yield
    except Exception:  # noqa: BLE001 - as above
        _log.warning(
            "%s: batch %s, partition %d: %s",
            origin.destination,
            origin.batch,
            origin.partition,
            problem,
            exc_info=True,
        )


def _prepare(
    setup: CommittingSinkSetup,
    schema: StructType,
    origin: Origin,
    batches: Iterable[pa.RecordBatch],
    retrier: Retrier,
) -> TaskResult:
    call = functools.partial(retrier.call, patient(setup.max_retry_duration))
    records = 0
    writer: SinkWriter[Any] = adopted(
        call(lambda: setup.destination.create_writer(schema, origin)), SinkWriter
    )
    try:
        for batch in batches:
            call(functools.partial(run, writer.write, batch))
            records += batch.num_rows
        committables = checked_items(call(writer.prepare_commit), f"{origin.destination}: prepare_commit")
        figures = SinkFigures(
            records=records,
            bytes=_checked_bytes(writer.bytes, origin),
            destination=own_figures(writer, origin.destination),
        )
    except BaseException:
        _abort(writer, origin)
        _close_after_failure(writer, origin)
        raise
    try:
        run(writer.close)
    except BaseException:
        _abort(writer, origin)  # nobody will commit it
        raise
    return TaskResult(origin=origin, figures=figures, committables=committables)


def _checked_bytes(given: Any, origin: Origin) -> int:
    """What a writer says it has written: the driver adds it up, after the commit."""
    try:
        return operator.index(given)
    except TypeError:
        raise SluiceError(
            f"{origin.destination}: attribute 'bytes' of the writer is {given!r}: it must be a whole number"
        ) from None


def _abort(writer: SinkWriter[Any], origin: Origin) -> None:
    with _logged(origin, "what this failed task has written could not be removed"):
        run(writer.abort)
