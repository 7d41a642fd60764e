"""The async sink's writer (FLIP-171): threads and time around `SinkScheduler`.

Request threads post their answers to the mailbox. The thread that owns the writer's state (see
`sluice.sink.writing.mailbox`) collects them there. Threads share nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from sluice.errors import InvalidRecordError, SluiceError
from sluice.sink.config import AsyncSinkConfig
from sluice.sink.contracts import (
    Destination,
    ElementConverter,
    Origin,
    RateLimitingStrategy,
    StructType,
)
from sluice.sink.letters.dead_letters import (
    DeadLetter,
    DeadLetterQueue,
    dead_letter_of_entry,
    dead_letter_of_row,
)
from sluice.sink.letters.valid_rows import ValidRows
from sluice.sink.reporting.figures import SinkFigures, own_figures
from sluice.sink.rows.schema import schema_of_rows
from sluice.sink.rows.taking import EntryTaker, TakenEntries, measured
from sluice.sink.user_code.loading import adopted, destination_name, open_converter
from sluice.sink.user_code.mistakes import checked_entries, checked_sizes
from sluice.sink.writing.mailbox import Mailbox
from sluice.sink.writing.requests import RequestLoop, RequestThreads, close_destination
from sluice.sink.writing.scheduler import Request, SinkScheduler
from sluice.sink.writing.submitting import Answer, Submitter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncSinkWriter"]

EntryT = TypeVar("EntryT")

_log = logging.getLogger(__name__)

# How long `close` waits for requests in flight (seconds); `readTimeout` of the AWS destinations is as long.
_LONGEST_CLOSE: Final = 60.0
_FIRST_ROWS: Final = 100
"""If this many rows are rejected before one is accepted, the cause is probably not the rows."""

_Requests: TypeAlias = (
    RequestThreads[Request[EntryT], Answer[EntryT]] | RequestLoop[Request[EntryT], Answer[EntryT]]
)


class AsyncSinkWriter(Generic[EntryT]):
    """Batches entries, and sends several requests at a time until every entry has been acknowledged.

    Call `write` for every batch of rows, `flush` at the end of an epoch, and `close` in any case; one thread
    at a time. The next `write` or `flush` raises errors of the background. Every later call raises the same
    error again, because not all earlier rows are written.

    Bounds of memory:

    - Entries that wait to be sent: at most ``max_buffered_requests``, and at most ``max_batch_size_in_bytes *
      max_in_flight_requests`` bytes and one entry more. The writer asks the converter for the next entry only
      if the buffer has room. Entries that a converter makes at once come in addition: some convert a whole
      batch; with a dead letter queue, about one request. Refused entries return to the buffer even if it is
      full.
    - Requests in flight: at most ``max_in_flight_requests``. Together with timed-out requests that still run,
      at most twice as many. A timed-out request holds back the next entry of an ordering key, and `flush`
      waits for it. After ``2 * request_timeout`` it is fatal.

    If the destination's `submit` is a coroutine function, requests run on one event loop instead of threads,
    within the same bounds. A request that times out is cancelled, and `close` cancels running ones.

    Attributes:
        name: the destination's, for messages.

    Args:
        destination: where to write to. The writer closes it.
        config: bounds and durations.
        rate_limiting: the strategy; it may come from an earlier writer, and may outlive this one. It gets the
            clock: see `RateLimitingStrategy.use_clock`.
        clock: monotonic seconds.
        dead_letters: the queue for undeliverable records: rows that the converter refuses, entries that the
            destination rejects, and with ``oversized_records="deadLetter"`` oversized entries. Without it,
            each of these is fatal. The writer closes it.
        converter: converts rows instead of the destination's own converter; None: the latter.

    Raises:
        ValueError: ``oversized_records`` is ``deadLetter``, and there is no dead letter queue.
    """

    def __init__(  # noqa: PLR0913 - three are required, three have defaults
        self,
        destination: Destination[EntryT],
        config: AsyncSinkConfig,
        rate_limiting: RateLimitingStrategy,
        *,
        clock: Callable[[], float] = time.monotonic,
        dead_letters: DeadLetterQueue | None = None,
        converter: ElementConverter[EntryT] | None = None,
    ) -> None:
        if dead_letters is None and config.oversized_records != "fail":
            raise ValueError("oversized_records of deadLetter needs a dead letter queue")
        self.name = destination_name(destination)
        self._destination: Destination[EntryT] = adopted(destination, Destination)
        self._config = config
        self._clock = clock
        self._converter = destination.create_converter() if converter is None else converter
        # Another converter may make the data of any columns.
        self._data_is_sent = converter is None and getattr(self._converter, "data_column", None) == "data"
        self._dead_letters = dead_letters
        strategy: RateLimitingStrategy = adopted(rate_limiting, RateLimitingStrategy)
        strategy.use_clock(clock)
        self._scheduler: SinkScheduler[EntryT] = SinkScheduler(
            config,
            strategy,
            name=self.name,
            ordering_key=self._destination.ordering_key,
            records_in=self._destination.records_in,
            is_throttling=self._destination.is_throttling,
            keeps_rejected=dead_letters is not None,
        )
        self._first_reason = ""  # of the dead letters
        self._opened = False
        size_of = self._destination.size_in_bytes
        self._sizes_of = functools.partial(checked_sizes, size_of, name=self.name)
        self._taker = EntryTaker(self._sizes_of, config.max_record_size_in_bytes)
        self._valid_rows = ValidRows(
            self._converted, self._sizes_of, config.max_batch_size_in_bytes, self._add_dead_letter_of_row
        )
        self._mailbox: Mailbox[Answer[EntryT]] = Mailbox(clock)
        submitter = Submitter(self._destination, self.name, clock, lambda: self._closed)
        self._requests: _Requests[EntryT]
        if submitter.is_asynchronous:
            self._requests = RequestLoop(submitter.submit_asynchronously, self._mailbox.post, name=self.name)
        else:
            self._requests = RequestThreads(submitter.submit, self._mailbox.post)
        self._background_flusher: threading.Thread | None = None
        self._closed = False

    @property
    def figures(self) -> SinkFigures:
        """The writer's figures so far, including the destination's own; exact after `flush`."""
        figures = self._scheduler.figures.copy()
        figures.destination = own_figures(self._destination, self.name)
        return figures

    def open(self, schema: StructType, origin: Origin | None = None) -> None:
        """Opens the converter; called before the first `write`, or not at all.

        Without it, the first `write` opens the converter, with the schema of its rows.

        Args:
            schema: of the rows.
            origin: the task, for the converter; None: the converter only learns the destination's name.

        Raises:
            OptionError: the destination cannot take such rows.
        """
        open_converter(self._converter, schema, origin or Origin(self.name))
        self._opened = True

    def write(self, batch: pa.RecordBatch) -> None:
        """Queues the rows of a batch, and sends what is due. Waits only while the buffer is full.

        Raises:
            OptionError: the destination cannot take such rows, and `open` was not called.
            InvalidRecordError: a row can never be delivered, and there is no dead letter queue; or the first
                100 rows became dead letters.
            Exception: a fatal error of the destination, or a `SluiceError` because a record was refused for
                longer than ``max_retry_duration``.
        """
        with self._ownership():
            if not self._opened:
                self.open(schema_of_rows(batch.schema))
            convert = self._convert_lazily if self._dead_letters is None else self._valid_rows.convert
            for converted in convert(batch):
                taken = self._without_oversized(converted)
                added = 0
                while added < len(taken.entries):
                    self._await_room()
                    end = added + self._fitting(taken, added)
                    self._scheduler.add(taken.entries[added:end], taken.sizes[added:end], self._clock())
                    self._step(draining=False)
                    added = end
                self._fail_if_all_are_refused()

    def flush(self) -> None:
        """Sends everything; returns when all entries are acknowledged and all dead letters durable. By then
        no request is running, not even a timed-out one.

        Raises:
            Exception: as `write` does.
        """
        with self._ownership():
            self._drain()
            self._fail_if_all_are_refused()
            if self._dead_letters is not None:
                self._dead_letters.flush()

    def close(self) -> None:
        """Closes the writer: drops what was not flushed, and sends nothing more.

        Requests in flight are waited for, up to ``request_timeout`` and at most a minute. Otherwise they
        might be executed after those of the task's next attempt, and write old rows over new ones.

        May be called several times, and after any failure. Closes everything, even if a step fails.

        Raises:
            Exception: the first failure.
        """
        if self._closed:
            return
        self._closed = True
        first: BaseException | None = None
        steps = (self._end_background_flusher, self._end_requests, self._scheduler.abandon)
        for step in (*steps, self._close_dead_letters, self._close_destination):
            try:
                step()
            except BaseException as error:  # noqa: BLE001, PERF203 - raised after the other steps
                if first is None:
                    first = error
                else:
                    _log.warning("%s: closing failed here as well", self.name, exc_info=error)
        if first is not None:
            raise first

    def _end_background_flusher(self) -> None:
        self._mailbox.close()
        if self._background_flusher is not None:
            self._background_flusher.join()

    def _end_requests(self) -> None:
        unanswered = self._scheduler.running
        patience = min(self._config.request_timeout, _LONGEST_CLOSE) if unanswered else 0.0
        running = self._requests.close(patience)
        if unanswered and running:
            _log.warning(
                "%s: %d requests of a failed task have no answer after %.0f s; they may still be executed, "
                "after requests of the next attempt",
                self.name,
                running,
                patience,
            )

    def _close_dead_letters(self) -> None:
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _close_destination(self) -> None:
        if isinstance(self._requests, RequestLoop):
            self._requests.end(self._destination.close)
        else:
            close_destination(self._destination)

    # --- by the owner of the state --------------------------------------------------------------------

    @contextlib.contextmanager
    def _ownership(self) -> Iterator[None]:
        """Makes the task's thread the owner; at the end, the background flusher takes over."""
        if self._closed:
            raise SluiceError(f"{self.name}: the writer is closed")
        self._mailbox.acquire()
        try:
            yield
        except BaseException as error:
            # Rows or answers may be lost, so no later call may succeed.
            self._scheduler.stop(error)
            raise
        finally:
            scheduler = self._scheduler
            if self._background_flusher is None and not scheduler.idle and scheduler.failure is None:
                self._start_background_flusher()
            self._mailbox.release(scheduler.wake_at)

    def _start_background_flusher(self) -> None:
        flusher = threading.Thread(
            target=self._flush_in_background, name="sluice-sink-background-flusher", daemon=True
        )
        try:
            flusher.start()
        except RuntimeError as error:  # the system has no threads left; raised by the next write or flush
            self._scheduler.stop(error)
        else:
            self._background_flusher = flusher

    def _flush_in_background(self) -> None:
        while self._mailbox.acquire_when_due():
            try:
                self._advance(draining=False)
            except BaseException as error:  # noqa: BLE001, PERF203 - raised by the next write or flush
                self._scheduler.stop(error)
            finally:
                self._mailbox.release(self._scheduler.wake_at)

    def _converted(self, rows: pa.RecordBatch) -> Iterator[EntryT]:
        return checked_entries(self._converter.convert(rows), self._converter, self.name)

    def _await_room(self) -> None:
        self._raise_failure()
        while not self._scheduler.room:
            self._mailbox.wait(self._scheduler.wake_at)
            self._step(draining=False)

    @property
    def _most_at_once(self) -> int:
        """How many entries may be added before the next step: no more than fill a batch."""
        return min(self._scheduler.room, self._config.max_batch_size)

    def _fitting(self, taken: TakenEntries[EntryT], start: int) -> int:
        """For how many entries from `start` on there is room; the last one may need more than is left."""
        most = min(self._most_at_once, len(taken.entries) - start)
        room = self._scheduler.room_in_bytes
        if taken.total <= room:
            return most
        sums = list(accumulate(islice(taken.sizes, start, start + most)))
        return min(1 + bisect_left(sums, room), most)

    def _step(self, *, draining: bool) -> None:
        self._advance(draining=draining)
        self._raise_failure()

    def _advance(self, *, draining: bool) -> None:
        now = self._clock()
        for answer in self._mailbox.collect():
            if answer.error is None:
                self._scheduler.complete(answer.request, answer.result, now, answered_at=answer.at)
            else:
                self._fail(answer, answer.error, now)
        for rejection in self._scheduler.rejected:
            self._add_dead_letters_of_entry(rejection.entry, rejection.reason)
        self._scheduler.rejected.clear()
        for request in self._scheduler.advance(now, draining=draining):
            self._requests.run(request)
        for request in self._scheduler.to_cancel:
            self._requests.cancel(request)
        self._scheduler.to_cancel.clear()

    def _drain(self) -> None:
        self._step(draining=True)
        while not self._scheduler.idle:
            self._mailbox.wait(self._scheduler.wake_at)
            self._step(draining=True)

    def _fail_if_all_are_refused(self) -> None:
        """Ends a task of which the first rows became dead letters; earlier rows may still be accepted."""
        figures = self._scheduler.figures
        if figures.dead_letters < _FIRST_ROWS or figures.records:
            return
        self._drain()
        if not figures.records:
            raise InvalidRecordError(
                f"{self.name}: the first {_FIRST_ROWS} rows of this task were all refused. The first reason: "
                f"{self._first_reason}. The next rows would probably be refused, too: check the columns, the "
                "options of the destination and elementConverter, or filter such rows before the sink"
            )

    def _fail(self, answer: Answer[EntryT], error: BaseException, now: float) -> None:
        try:
            fatal = self._is_fatal(error)
            self._scheduler.fail(answer.request, error, fatal=fatal, now=now, answered_at=answer.at)
        except Exception as other:
            # The destination cannot judge the error, or the error has no text: both are shown.
            raise other from error

    def _raise_failure(self) -> None:
        if self._scheduler.failure is not None:
            raise self._scheduler.failure

    def _is_fatal(self, error: BaseException) -> bool:
        return (
            not isinstance(error, Exception)
            or isinstance(error, TypeError)  # a mistake in a program: a retry would raise it again
            or self._destination.is_fatal(error)
        )

    # --- from rows to entries -------------------------------------------------------------------------

    def _convert_lazily(self, batch: pa.RecordBatch) -> Iterator[TakenEntries[EntryT]]:
        """The entries of a batch with their sizes, as many at a time as there is room for."""
        entries = self._converted(batch)
        while True:
            self._await_room()
            taken = self._taker.take(entries, self._most_at_once, self._scheduler.room_in_bytes)
            if not taken.entries:
                return
            yield taken

    def _without_oversized(self, taken: TakenEntries[EntryT]) -> TakenEntries[EntryT]:
        """The entries that are not too large."""
        limit = self._config.max_record_size_in_bytes
        if taken.largest <= limit:
            return taken
        kept: list[EntryT] = []
        for entry, size in zip(taken.entries, taken.sizes, strict=True):
            if size <= limit:
                kept.append(entry)
                continue
            reason = (
                f"{self.name}: a record of {size} bytes is larger than the limit of {limit} bytes "
                "(maxRecordSizeInBytes)"
            )
            if self._config.oversized_records == "fail":
                raise InvalidRecordError(reason)
            self._add_dead_letters_of_entry(entry, reason)
        return measured(kept, [size for size in taken.sizes if size <= limit])

    def _add_dead_letter_of_row(self, row: pa.RecordBatch, reason: str) -> None:
        self._add_dead_letter(dead_letter_of_row(row, reason, data_is_sent=self._data_is_sent))
        self._fail_if_all_are_refused()

    def _add_dead_letters_of_entry(self, entry: EntryT, reason: str) -> None:
        for record in list(self._destination.unpacked(entry)) or [entry]:
            self._add_dead_letter(dead_letter_of_entry(record, reason))

    def _add_dead_letter(self, dead_letter: DeadLetter) -> None:
        if self._dead_letters is None:
            raise InvalidRecordError(dead_letter.reason)
        self._first_reason = self._first_reason or dead_letter.reason
        self._dead_letters.add(dead_letter)
        self._scheduler.record_dead_letter()
