"""The async sink's writer (FLIP-171): the thin shell of threads and time around `SinkScheduler`.

Every request thread leaves its answer in the mailbox; the thread that has the seat at the desk (see
`sluice.sink.mailbox`) takes it from there. Nothing else crosses a thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sluice.errors import InvalidRecordError, SluiceError
from sluice.sink.config import AsyncSinkConfig
from sluice.sink.contracts import Destination, RateLimitingStrategy, StructType, SubmitResult
from sluice.sink.dead_letters import DeadLetter, DeadLetterQueue, dead_letter_of_entry, dead_letter_of_row
from sluice.sink.mailbox import Mailbox
from sluice.sink.request_threads import RequestThreads
from sluice.sink.scheduler import Request, SinkFigures, SinkScheduler

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncSinkWriter"]

EntryT = TypeVar("EntryT")

# Rows converted at a time when invalid ones are to be told from the others.
_SLICE: Final = 1024


@dataclass(frozen=True, slots=True)
class _Answer(Generic[EntryT]):
    """What a request thread reports: a result, or what `submit` raised."""

    request: int
    result: SubmitResult[EntryT] | None = None
    error: BaseException | None = None


class AsyncSinkWriter(Generic[EntryT]):
    """Batches entries and sends them side by side until every one has been acknowledged.

    `write` as often as there are rows, `flush` at the end of an epoch, `close` in any case. One thread
    at a time may call it. What goes wrong in the background is raised by the next `write` or `flush`,
    as it was raised by the destination; every later call raises it again.

    Memory holds at most ``max_buffered_requests`` entries (and no more than
    ``max_batch_size_in_bytes * max_in_flight_requests`` bytes of them) that wait, and
    ``max_in_flight_requests`` requests that are on their way. Entries that come back may exceed the
    first by as much as they left the second. Requests that timed out but still run come on top: with those
    in flight, at most ``2 * max_in_flight_requests``.

    Attributes:
        name: the destination's, as messages have it.

    Args:
        destination: where to write to. The writer closes it.
        config: bounds and durations.
        rate_limiting: the strategy to obey; it may have a past, and may outlive the writer.
        clock: monotonic seconds.
        dead_letters: takes what can never be delivered: rows that the converter refuses, entries that
            the destination refuses for good, and with ``oversized_records`` of ``deadLetter`` those
            that are too large. Without it, each of them is fatal. The writer closes it.
    """

    def __init__(
        self,
        destination: Destination[EntryT],
        config: AsyncSinkConfig,
        rate_limiting: RateLimitingStrategy,
        *,
        clock: Callable[[], float] = time.monotonic,
        dead_letters: DeadLetterQueue | None = None,
    ) -> None:
        self._destination = destination
        self._config = config
        self._strategy = rate_limiting
        self._clock = clock
        self.name = str(getattr(destination, "name", "") or type(destination).__name__)
        self._unpacked: Callable[[EntryT], Iterable[object]] = getattr(
            destination, "unpacked", lambda entry: (entry,)
        )
        self._converter = destination.create_converter()
        self._dead_letters = dead_letters
        if dead_letters is None and config.oversized_records != "fail":
            raise ValueError("oversized_records of deadLetter needs a dead letter queue")
        self._machine: SinkScheduler[EntryT] = SinkScheduler(
            config,
            rate_limiting,
            name=self.name,
            ordering_key=getattr(destination, "ordering_key", None),
            records_in=getattr(destination, "records_in", None),
            keeps_rejected=dead_letters is not None,
        )
        self._mailbox: Mailbox[_Answer[EntryT]] = Mailbox(clock)
        self._threads = RequestThreads(self._submit, self._mailbox.post)
        self._background_flusher: threading.Thread | None = None
        self._closed = False

    @property
    def figures(self) -> SinkFigures:
        """What was done so far; exact after `flush`."""
        return self._machine.snapshot()

    def open(self, schema: StructType) -> None:
        """Tells the converter the schema of the rows to come, before the first of them.

        Raises:
            OptionError: the destination cannot take such rows.
        """
        self._converter.open(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Queues the rows of a batch and sends what is due. Blocks only for back-pressure.

        Raises:
            InvalidRecordError: a row that can never be delivered, and is no dead letter; those before
                it are queued.
            Exception: what the destination calls fatal, or a `SluiceError` when patience ran out.
        """
        with self._seated():
            if self._dead_letters is None:
                entries = iter(self._converter.convert(batch))
            else:
                entries = self._convert_or_bury(batch)
            while True:
                self._await_room()
                chunk = list(islice(entries, min(self._machine.room, self._config.max_batch_size)))
                if not chunk:
                    return
                chunk, sizes = self._measured(chunk)
                self._machine.add(chunk, sizes, self._clock())
                self._step(draining=False)

    def flush(self) -> None:
        """Sends everything and returns when nothing is buffered or in flight, and dead letters are durable.

        Raises:
            Exception: as `write` does.
        """
        with self._seated():
            self._step(draining=True)
            while not self._machine.idle:
                self._mailbox.wait(self._machine.wake_at)
                self._step(draining=True)
            if self._dead_letters is not None:
                self._dead_letters.flush()

    def close(self) -> None:
        """Ends the writer, at once: what was not flushed is dropped, what is in flight is not waited for.

        May be called again, and after any failure.
        """
        if self._closed:
            return
        self._closed = True
        self._mailbox.close()
        if self._background_flusher is not None:
            self._background_flusher.join()
        self._threads.close()
        if self._machine.in_flight:
            forget = getattr(self._strategy, "forget_in_flight", None)
            if forget is not None:
                forget()
        if self._dead_letters is not None:
            self._dead_letters.close()
        self._destination.close()

    # --- at the desk ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _seated(self) -> Iterator[None]:
        if self._closed:
            raise SluiceError(f"{self.name}: the writer is closed")
        self._mailbox.enter()
        try:
            yield
        finally:
            if self._background_flusher is None and not self._machine.idle and self._machine.failure is None:
                self._background_flusher = threading.Thread(
                    target=self._flush_in_background, name="sluice-sink-background flusher", daemon=True
                )
                self._background_flusher.start()
            self._mailbox.leave(self._machine.wake_at)

    def _flush_in_background(self) -> None:
        while self._mailbox.watch():
            try:
                self._advance(draining=False)
            except BaseException as error:  # noqa: BLE001, PERF203 - raised by the next write or flush
                self._machine.stop(error)
            finally:
                self._mailbox.leave(self._machine.wake_at)

    def _await_room(self) -> None:
        self._check()
        while not self._machine.room:
            self._mailbox.wait(self._machine.wake_at)
            self._step(draining=False)

    def _step(self, *, draining: bool) -> None:
        self._advance(draining=draining)
        self._check()

    def _advance(self, *, draining: bool) -> None:
        now = self._clock()
        for answer in self._mailbox.collect():
            if answer.result is not None:
                self._machine.complete(answer.request, answer.result, now)
            else:
                error = answer.error or TypeError(f"{self.name}: submit returned no SubmitResult")
                self._machine.fail(answer.request, error, fatal=self._is_fatal(error), now=now)
        for rejection in self._machine.rejected:
            for record in self._unpacked(rejection.entry):
                self._add_dead_letter(dead_letter_of_entry(record, rejection.reason))
        self._machine.rejected.clear()
        try:
            for request in self._machine.advance(now, draining=draining):
                self._threads.run(request)
        except RuntimeError as error:  # no more threads: what is in flight would never be answered
            self._machine.stop(error)

    def _check(self) -> None:
        if self._machine.failure is not None:
            raise self._machine.failure

    def _is_fatal(self, error: BaseException) -> bool:
        return (
            not isinstance(error, Exception)
            or isinstance(error, TypeError)  # a mistake in a program, and it will be there next time
            or self._destination.is_fatal(error)
        )

    # --- rows that can never be delivered -------------------------------------------------------------

    def _convert_or_bury(self, batch: pa.RecordBatch) -> Iterator[EntryT]:
        slices = [batch.slice(start, _SLICE) for start in range(0, batch.num_rows, _SLICE)]
        slices.reverse()  # the next one is the last of the list
        while slices:
            rows = slices.pop()
            try:
                # All or nothing: entries of a slice that is tried again must not have gone out before.
                entries = list(self._converter.convert(rows))
            except InvalidRecordError as error:
                half = rows.num_rows // 2
                if half:
                    slices += [rows.slice(half), rows.slice(0, half)]
                else:
                    self._add_dead_letter(dead_letter_of_row(rows, str(error)))
            else:
                yield from entries

    def _measured(self, entries: list[EntryT]) -> tuple[list[EntryT], list[int]]:
        """Those of `entries` that are not too large, and their sizes."""
        sizes = list(map(self._destination.size_in_bytes, entries))
        limit = self._config.max_record_size_in_bytes
        if max(sizes) <= limit:
            return entries, sizes
        kept: list[EntryT] = []
        for entry, size in zip(entries, sizes, strict=True):
            if size <= limit:
                kept.append(entry)
                continue
            reason = (
                f"{self.name}: a record of {size} bytes is larger than the limit of {limit} bytes "
                "(maxRecordSizeInBytes)"
            )
            if self._config.oversized_records == "fail":
                raise InvalidRecordError(reason)
            self._add_dead_letter(dead_letter_of_entry(entry, reason))
        return kept, [size for size in sizes if size <= limit]

    def _add_dead_letter(self, letter: DeadLetter) -> None:
        assert self._dead_letters is not None  # noqa: S101 - else it was fatal; this tells the types
        self._dead_letters.add(letter)
        self._machine.figures.dead_letters += 1

    # --- on a request thread --------------------------------------------------------------------------

    def _submit(self, request: Request[EntryT]) -> _Answer[EntryT]:
        try:
            return _Answer(request.number, result=self._destination.submit(request.entries))
        except BaseException as error:  # noqa: BLE001 - travels to the owner, who judges it
            return _Answer(request.number, error=error)
