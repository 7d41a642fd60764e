"""Makes the decisions of the async sink: what to send, when to wait, what to send again, and when to give up.

No threads, no clock, no I/O: every method gets the time. The writer adds threads and time, and calls
the scheduler from one thread at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sluice.errors import InvalidRecordError, ServiceError
from sluice.sink.config import AsyncSinkConfig
from sluice.sink.contracts import (
    DEFAULT_DELAY,
    RateLimitingStrategy,
    Rejection,
    RequestInfo,
    ResultInfo,
    SubmitResult,
)
from sluice.sink.reporting.figures import SinkFigures
from sluice.sink.user_code.loading import run
from sluice.sink.user_code.mistakes import MistakeError, checked_number
from sluice.sink.writing.buffer import Batch, Buffered, RequestBuffer
from sluice.sink.writing.keyed_buffer import KeyedBuffer
from sluice.sink.writing.outage import PAUSES, Outage, Standstill
from sluice.sink.writing.refusals import (
    IsThrottling,
    RefusalCause,
    throttled_by_codes,
    throttled_by_error,
)

__all__ = ["Request", "SinkScheduler"]

EntryT = TypeVar("EntryT")

# The shortest wait for a strategy (seconds): after a shorter one, rounding might make it block once more.
_SHORTEST_WAIT: Final = 0.001
_NANOSECONDS: Final = 1_000_000_000  # of a second
_REJECTED: Final = "rejected"  # the code of rejected entries, which have a reason instead


@dataclass(frozen=True, slots=True)
class Request(Generic[EntryT]):
    """One request in flight.

    Attributes:
        records: the number of the user's records when it was sent. From a rejected entry, the destination may
            since have removed the accepted ones.
    """

    number: int
    batch: Batch[EntryT]
    sent_at: float
    records: int = 0

    @property
    def entries(self) -> list[EntryT]:
        """The entries, as a new list each time: the destination may change it."""
        return list(self.batch)


class SinkScheduler(Generic[EntryT]):
    """The state of one writer. Instants and durations are seconds of one monotonic clock.

    The caller adds entries while there is `room`, passes answers to `complete` or `fail`, then calls
    `advance`, sends the requests it returns, and waits for an answer or until `wake_at`. Once `failure` is
    set, nothing more is sent.

    Args:
        config: bounds and durations.
        strategy: the rate limiting strategy.
        name: the destination, for messages.
        is_throttling: see `Destination`.
        jitter: returns a random number in [0, 1).
        ordering_key: see `Destination`; None if the order of entries does not matter.
        records_in: see `Destination`; None if every entry is one record.
        keeps_rejected: True: rejected entries are added to `rejected`. False: the first one is fatal.
    """

    def __init__(  # noqa: PLR0913 - the settings of the writer, and three hooks of its destination
        self,
        config: AsyncSinkConfig,
        strategy: RateLimitingStrategy,
        *,
        name: str,
        is_throttling: IsThrottling,
        jitter: Callable[[], float] = random.random,
        ordering_key: Callable[[EntryT], Hashable | None] | None = None,
        records_in: Callable[[EntryT], int] | None = None,
        keeps_rejected: bool = False,
    ) -> None:
        self._config = config
        self._strategy = strategy
        self._name = name
        self._jitter = jitter
        self._records_in = records_in
        self._is_throttling = is_throttling
        self._keeps_rejected = keeps_rejected and not config.fail_on_error
        self._buffer: RequestBuffer[EntryT] = (
            KeyedBuffer(ordering_key, name) if ordering_key else RequestBuffer()
        )
        self._in_flight: dict[int, Request[EntryT]] = {}  # in the order they were sent
        self._timed_out: dict[int, Request[EntryT]] = {}  # still running; in the order they were sent
        self._retry_after_until = -math.inf  # the destination asks for no request until then
        self._outage = Outage()
        self._next_try = math.inf
        # No refused entry is overdue before this time, or the last pass over all of them would have found it.
        self._overdue_at = math.inf
        self._last_cause = RefusalCause("", "")
        self._standstill = Standstill(name)
        self.failure: BaseException | None = None
        self.rejected: list[Rejection[EntryT]] = []  # the caller removes those that it has handled
        self.to_cancel: list[
            Request[EntryT]
        ] = []  # timed out; the caller removes those that it has cancelled
        self.figures = SinkFigures()
        self._observed_at: float | None = None  # until when `in_flight` and `buffered` are in the figures

    # --- queries --------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many entries may be added now; 0 if a write must wait."""
        if self._buffer.size_in_bytes >= self._config.max_buffered_bytes:
            return 0
        return max(0, self._config.max_buffered_requests - len(self._buffer))

    @property
    def room_in_bytes(self) -> int:
        """How many more bytes may wait to be sent; the last added entry may exceed this."""
        return max(0, self._config.max_buffered_bytes - self._buffer.size_in_bytes)

    @property
    def idle(self) -> bool:
        """Whether all added entries have been acknowledged or rejected, and no request is running."""
        return not self._buffer and not self.running

    @property
    def in_flight(self) -> int:
        """Requests that have not been answered and have not timed out."""
        return len(self._in_flight)

    @property
    def running(self) -> int:
        """Requests that have not been answered, whether they have timed out or not."""
        return len(self._in_flight) + len(self._timed_out)

    @property
    def buffered(self) -> int:
        """Entries that wait to be sent, or to be sent again."""
        return len(self._buffer)

    @property
    def wake_at(self) -> float:
        """When `advance` is due again if no answer comes before; infinity if only an answer matters."""
        if self.failure is not None:
            return math.inf
        # Entries that wait to be sent again are not sent before a pause for all ends.
        times = [self._next_try, max(self._buffer.next_due, self._pause_until)]
        if self._in_flight:
            oldest = next(iter(self._in_flight.values()))
            times.append(oldest.sent_at + self._config.request_timeout)
        if self._timed_out:
            times.append(self._give_up_running_at)
        if self._buffer.has_returned:
            times.append(self._overdue_at)
        return min(times)

    # --- events ---------------------------------------------------------------------------------------

    def add(self, entries: Sequence[EntryT], sizes: Sequence[int], now: float) -> None:
        """Queues entries, with their `sizes` in bytes; no more than `room` allows."""
        self._observe(now)
        self._buffer.add(entries, sizes, now)

    def complete(
        self, number: int, result: SubmitResult[EntryT], now: float, *, answered_at: float | None = None
    ) -> None:
        """Handles an answer: all entries were accepted, or some of them refused or rejected.

        Args:
            number: of the request.
            result: the answer.
            now: the time.
            answered_at: when the answer came, if that was before `now`.

        Raises:
            MistakeError: the answer names an entry that was not sent.
        """
        ended_at = now if answered_at is None else answered_at
        request = self._end_request(number, now, ended_at)
        if request is None:
            return
        failed = request.batch.find(result.failed)
        rejected = request.batch.find([each.entry for each in result.rejected], besides=failed)
        if (len(failed), len(rejected)) != (len(result.failed), len(result.rejected)):
            raise MistakeError(
                f"{self._name}: submit returned a SubmitResult whose 'failed' or 'rejected' names other "
                "entries than were submitted: allowed are the submitted objects themselves, each of them once"
            )
        self._buffer.mark_accepted(request.batch, failed)
        missing = [*failed, *rejected]
        self.figures.records += request.records - self._records(_entries(missing))
        self.figures.bytes += request.batch.size - sum(item.size for item in missing)
        # Rejected entries are no sign of load: the strategy learns only of entries that are sent again.
        throttled = throttled_by_codes(result.codes, len(failed), self._is_throttling)
        self._report_to_strategy(request, len(failed), throttled, ended_at)
        if rejected:
            self._reject(result.rejected, self._records(_entries(rejected)))
        if failed:
            cause = RefusalCause.of_codes(result.codes)
            self._requeue(request, failed, cause, now, skip_pause=throttled == len(failed))
            self._wait_for(result.retry_after, now)
        if len(failed) < len(request.batch):
            self._outage.record_acceptance()

    def fail(
        self,
        number: int,
        error: BaseException,
        *,
        fatal: bool,
        now: float,
        answered_at: float | None = None,
    ) -> None:
        """Handles a request that failed as a whole: none of its entries is known to have been accepted. The
        arguments are those of `complete`; `fatal`: the destination will accept nothing any more.
        """
        ended_at = now if answered_at is None else answered_at
        request = self._end_request(number, now, ended_at)
        if request is None:
            return
        size = len(request.batch)
        throttled = throttled_by_error(error, size, self._is_throttling)
        self._report_to_strategy(request, size, throttled, ended_at)
        if fatal or self._config.fail_on_error:
            self.stop(error)
        self._requeue(request, request.batch.items, RefusalCause.of_error(error), now)
        if isinstance(error, ServiceError):
            self._wait_for(error.retry_after, now)

    def record_dead_letter(self) -> None:
        """Counts a record that can never be delivered and became a dead letter."""
        self.figures.dead_letters += 1

    def stop(self, failure: BaseException) -> None:
        """Stops sending. Only the first failure is kept, because later ones follow from it."""
        if self.failure is None:
            self.failure = failure

    def abandon(self) -> None:
        """The writer is closed: the strategy will not learn the outcome of requests in flight."""
        given_up = self._in_flight or self.failure is not None
        if given_up and self._strategy.forget_in_flight is not None:
            self._strategy.forget_in_flight()

    def advance(self, now: float, *, draining: bool = False) -> list[Request[EntryT]]:
        """Returns the requests to send now. They count as in flight from here on.

        Args:
            now: the time.
            draining: True at the end of an epoch: batches are sent without waiting for more entries.
        """
        requests: list[Request[EntryT]] = []
        self._observe(now)
        self._time_out_requests(now)
        self._give_up_running(now)
        self._buffer.release(now)
        while self.failure is None and (count := self._sendable(now, draining=draining)):
            requests.append(self._send(count, now))
        if self.failure is None and now >= self._overdue_at:
            self._overdue_at = self._stop_if_overdue(self._buffer.returned(), now)
        return requests

    def _observe(self, now: float) -> None:
        """Adds to the figures how much was in flight and buffered since the last event."""
        since = now if self._observed_at is None else self._observed_at
        elapsed = round(now * _NANOSECONDS) - round(since * _NANOSECONDS)
        self._observed_at = now
        self.figures.in_flight.observe(len(self._in_flight), elapsed)
        self.figures.buffered.observe(len(self._buffer), elapsed)

    # --- sending --------------------------------------------------------------------------------------

    def _sendable(self, now: float, *, draining: bool) -> int:
        """How many entries the next request has; 0 if none may be sent now, with `_next_try` set."""
        self._next_try = math.inf
        head = self._buffer.head()
        if head is None:
            return 0
        most = self._most_entries
        if not draining and not self._is_batch_due(head, most, now):
            self._next_try = head.arrived + self._config.max_time_in_buffer
            return 0
        # In an outage, one request at a time checks whether it is over. Timed-out requests that still run are
        # not counted. None may run for 2 * request_timeout, so there are no more of them than may be in
        # flight.
        if len(self._in_flight) >= (1 if self._outage.is_on else self._config.max_in_flight_requests):
            return 0  # until an answer comes
        if now < self._pause_until:
            self._next_try = self._pause_until
            return 0
        request = RequestInfo(*self._buffer.measure(most, self._most_bytes))
        if run(self._strategy.should_block, request):  # a coroutine would be true, for good
            self._next_try = now + self._blocked_for(request)
            if self._in_flight:
                self._standstill.end()
            else:
                self._standstill.record_block(now, len(self._buffer))
            return 0
        self._standstill.end()
        return request.batch_size

    def _blocked_for(self, request: RequestInfo) -> float:
        """Seconds until the strategy is asked again, unless an answer comes before."""
        delay: float = checked_number(self._strategy.delay(request), "delay", self._name)
        if not delay < math.inf:  # nor is NaN
            # Without a request in flight no answer will come, and the writer must not hang.
            delay = math.inf if self._in_flight else DEFAULT_DELAY
        return max(delay, _SHORTEST_WAIT)

    @property
    def _pause_until(self) -> float:
        """The time before which nothing is sent, because of an outage or a requested pause."""
        return max(self._outage.pause_until, self._retry_after_until)

    @property
    def _most_entries(self) -> int:
        """The most entries of the next request. A custom strategy may compute a fraction."""
        if self._outage.tries_one_entry:
            return 1
        allowed = checked_number(self._strategy.max_batch_size, "max_batch_size", self._name)
        return max(1, int(min(self._config.max_batch_size, allowed)))

    @property
    def _most_bytes(self) -> int:
        """The most bytes of the next request, unless its first entry alone has more."""
        allowed = checked_number(
            self._strategy.max_batch_size_in_bytes, "max_batch_size_in_bytes", self._name
        )
        return int(min(self._config.max_batch_size_in_bytes, allowed))

    def _is_batch_due(self, head: Buffered, most: int, now: float) -> bool:
        return (
            len(self._buffer) >= most
            or self._buffer.size_in_bytes >= self._most_bytes
            or now >= head.arrived + self._config.max_time_in_buffer
            or head.refusals > 0  # it waited once already; now only the pause delays it
        )

    def _send(self, count: int, now: float) -> Request[EntryT]:
        batch = self._buffer.take(count)
        request = Request(self.figures.requests, batch, now, self._records(batch))
        self._in_flight[request.number] = request
        run(self._strategy.register_in_flight_request, RequestInfo(count, batch.size, now))
        self.figures.requests += 1
        self.figures.retries += self._records(_entries(batch.returned))
        self.figures.records_out += request.records
        self.figures.bytes_out += batch.size
        return request

    # --- answers --------------------------------------------------------------------------------------

    def _end_request(self, number: int, now: float, answered_at: float) -> Request[EntryT] | None:
        """Removes a request from those in flight; None if it had timed out."""
        self._observe(now)
        request = self._in_flight.pop(number, None)
        if request is None:
            # It counted as failed when it timed out, and its entries were queued again.
            late = self._timed_out.pop(number, None)
            if late is not None:
                self._buffer.mark_ended(late.batch)
        else:
            self.figures.send_time.record(answered_at - request.sent_at)
        return request

    def _time_out_requests(self, now: float) -> None:
        timeout = self._config.request_timeout
        while self._in_flight:
            request = next(iter(self._in_flight.values()))
            if now < request.sent_at + timeout:
                return
            del self._in_flight[request.number]
            self._timed_out[request.number] = request
            self.to_cancel.append(request)
            self._buffer.mark_timed_out(request.batch)
            self.figures.timeouts += 1
            self.figures.send_time.record(now - request.sent_at)
            self._report_to_strategy(request, len(request.batch), 0, now)
            cause = RefusalCause("RequestTimeout", f"no answer within {timeout:g} s")
            if self._config.fail_on_timeout:
                records = self._records(request.batch)
                text = f"a request of {records} records got {cause.text} (failOnTimeout is true)"
                self.stop(ServiceError(f"{self._name}: {text}", target=self._name, code=cause.code))
            self._requeue(request, request.batch.items, cause, now)

    @property
    def _give_up_running_at(self) -> float:
        """When the oldest request that timed out must have ended."""
        oldest = next(iter(self._timed_out.values()))
        return oldest.sent_at + 2 * self._config.request_timeout

    def _give_up_running(self, now: float) -> None:
        """Fails the task, because a request that runs after its epoch may overwrite rows of a later one."""
        if self._timed_out and now >= self._give_up_running_at:
            timeout = self._config.request_timeout
            self.stop(
                ServiceError(
                    f"{self._name}: a request is still running {timeout:g} s after requestTimeout, which is "
                    f"{timeout:g} s: its epoch cannot be committed, because the request may still write. If "
                    "requests take so long, increase requestTimeout",
                    target=self._name,
                    code="RequestTimeout",
                )
            )

    def _records(self, entries: Sequence[EntryT] | Batch[EntryT]) -> int:
        """How many of the user's records these entries hold."""
        return len(entries) if self._records_in is None else sum(map(self._records_in, entries))

    def _reject(self, rejected: Sequence[Rejection[EntryT]], records: int) -> None:
        if self._keeps_rejected:
            self.rejected += rejected
            return
        self.figures.refuse(records, {_REJECTED: len(rejected)}, len(rejected))
        many = "1 record was" if records == 1 else f"{records} records were"
        hint = "failOnError is true" if self._config.fail_on_error else "no deadLetterPath is given"
        self.stop(InvalidRecordError(f"{self._name}: {many} refused for good ({hint}): {rejected[0].reason}"))

    def _requeue(
        self,
        request: Request[EntryT],
        failed: Sequence[Buffered],
        cause: RefusalCause,
        now: float,
        *,
        skip_pause: bool = False,
    ) -> None:
        """Queues entries again, in their order: to be sent next, or after their pause.

        With `skip_pause` the first refusal of an entry has no pause, because the strategy's pace already
        limits the load. `complete` sets it if all refused entries of an answer were refused for load. Entries
        of a request that failed as a whole always pause.
        """
        refused = self._records(_entries(failed))
        self.figures.refuse(refused, cause.codes or {cause.code: len(failed)}, len(failed))
        self._last_cause = cause
        if self._config.fail_on_error:
            text = (
                f"{refused} of {self._records(request.batch)} records were not accepted (failOnError is true)"
            )
            self.stop(ServiceError(f"{self._name}: {text}: {cause.text}", target=self._name, code=cause.code))
        # One random pause for all: entries that were refused together are sent again together.
        jitter = self._jitter()
        failed = [
            item._replace(
                refused_since=min(item.refused_since, now),
                refusals=item.refusals + 1,
                due=-math.inf
                if skip_pause and not item.refusals
                else now + jitter * PAUSES.ceiling(item.refusals),
            )
            for item in failed
        ]
        self._buffer.put_back(failed)
        self._overdue_at = min(self._overdue_at, self._stop_if_overdue(failed, now))
        if len(failed) == len(request.batch):
            self._outage.record_failure(request.sent_at, now, jitter)

    def _wait_for(self, seconds: float | None, now: float) -> None:
        """Sends nothing for as long as the destination asks; None if it does not ask."""
        if seconds is not None:
            self._retry_after_until = max(self._retry_after_until, now + seconds)

    def _report_to_strategy(
        self, request: Request[EntryT], failed: int, throttled: int, ended_at: float
    ) -> None:
        """Tells the strategy how a request has ended."""
        run(
            self._strategy.register_completed_request,
            ResultInfo(
                failed,
                len(request.batch),
                throttled_messages=throttled,
                seconds=ended_at - request.sent_at,
                started_at=request.sent_at,
            ),
        )

    def _stop_if_overdue(self, items: Sequence[Buffered], now: float) -> float:
        """Stops if an entry has been refused for too long; returns when the first one will be."""
        patience = self._config.max_retry_duration
        overdue = [item for item in items if now >= item.refused_since + patience]
        if overdue:
            longest = max(now - item.refused_since for item in overdue)
            records = self._records(_entries(overdue))
            many = "1 record is" if records == 1 else f"{records} records are"
            self.stop(
                ServiceError(
                    f"{self._name}: {many} still not accepted after {longest:.1f} s (maxRetryDuration is "
                    f"{patience:g} s): {self._last_cause.text}",
                    target=self._name,
                    code=self._last_cause.code,
                )
            )
        return min((item.refused_since for item in items), default=math.inf) + patience


def _entries(items: Sequence[Buffered]) -> list[Any]:
    return [item.entry for item in items]
