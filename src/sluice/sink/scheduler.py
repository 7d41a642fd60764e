"""The decisions of the async sink: what to send, when to wait, what to send again, when to give up.

No thread, no clock, no I/O: every method is told what time it is. `sluice.sink.writer` is the shell
around it. One thread at a time may call it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sluice.errors import InvalidRecordError, ServiceError, SluiceError
from sluice.retry import Backoff
from sluice.sink.buffer import Batch, Buffered, RequestBuffer
from sluice.sink.config import AsyncSinkConfig
from sluice.sink.contracts import RateLimitingStrategy, Rejection, RequestInfo, ResultInfo, SubmitResult
from sluice.sink.keyed_buffer import KeyedBuffer

__all__ = ["Request", "SinkFigures", "SinkScheduler"]

EntryT = TypeVar("EntryT")

# The pause after a refusal; the number of attempts is bounded by maxRetryDuration, not here.
_PAUSES: Final = Backoff(max_retries=0, base=0.1, max=5.0, exponent=2.0)
# A strategy that says no and cannot say for how long is asked again this often (seconds).
_ASK_AGAIN: Final = 0.05
# Clocks differ by rounding: a wait that is over but for less than this is not waited for again at once.
_SHORTEST_WAIT: Final = 0.001


@dataclass(slots=True)
class SinkFigures:
    """What a writer has done so far; plain numbers, fit for a log line or a message.

    Attributes:
        records, bytes: acknowledged.
        requests: sent, whatever became of them.
        retries: records that were sent again.
        refused: how often a record was not accepted, by a refusal, a failed request or a timeout.
        timeouts: requests that were not answered in time.
        dead_letters: records that can never be delivered and were put aside.
    """

    records: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    refused: int = 0
    timeouts: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Request(Generic[EntryT]):
    """One request on its way."""

    number: int
    batch: Batch[EntryT]
    sent_at: float

    @property
    def entries(self) -> list[EntryT]:
        """A list of its own for whoever asks: a destination may change what it is given."""
        return list(self.batch)


class _Cause(NamedTuple):
    """Why something was not accepted: the service's code, and for people."""

    code: str
    text: str


class SinkScheduler(Generic[EntryT]):
    """The state of one writer. Instants and durations are seconds by one monotonic clock.

    Drive it so: `add` while there is `room`; pass answers to `complete` or `fail`; then `advance`, which
    hands out the requests to send now; then wait for an answer or until `wake_at`. Once `failure` is
    set nothing more is sent.

    Args:
        config: bounds and durations.
        strategy: the rate limiter; its answers are obeyed, its state is not looked at.
        name: the destination, for messages.
        jitter: a random number in [0, 1).
        ordering_key: see `Destination`; None where order does not matter.
        records_in: see `Destination`; None where every entry is one record.
        keeps_rejected: entries that are refused for good go to `rejected`; otherwise the first is fatal.
    """

    def __init__(  # noqa: PLR0913 - what tests and the writer set, all by name
        self,
        config: AsyncSinkConfig,
        strategy: RateLimitingStrategy,
        *,
        name: str,
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
        self._keeps_rejected = keeps_rejected and not config.fail_on_error
        self._delay: Callable[[RequestInfo], float] | None = getattr(strategy, "delay", None)
        self._buffer: RequestBuffer[EntryT] = KeyedBuffer(ordering_key) if ordering_key else RequestBuffer()
        self._in_flight: dict[int, Request[EntryT]] = {}  # in the order they were sent
        self._given_up: set[int] = set()  # timed out, but their threads are still at it
        self._pause_until = -math.inf
        self._paused_at = -math.inf
        self._fruitless = 0  # rounds in a row in which nothing was accepted
        self._next_try = math.inf
        self._last_cause = _Cause("", "")
        self.failure: BaseException | None = None
        self.rejected: list[Rejection[EntryT]] = []  # for the shell to take away
        self.figures = SinkFigures()

    # --- what the shell asks --------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many entries may be added now; 0 means that a write must wait."""
        if self._buffer.size_in_bytes >= self._config.max_buffered_bytes:
            return 0
        return max(0, self._config.max_buffered_requests - len(self._buffer))

    @property
    def idle(self) -> bool:
        """Nothing is buffered, nothing is in flight: all that was added has been acknowledged."""
        return not self._buffer and not self._in_flight

    @property
    def in_flight(self) -> int:
        """Requests that are waited for."""
        return len(self._in_flight)

    @property
    def buffered(self) -> int:
        """Entries that wait to be sent, those to be sent again included."""
        return len(self._buffer)

    @property
    def wake_at(self) -> float:
        """When `advance` is due again if no answer comes before; infinity for never."""
        if self.failure is not None:
            return math.inf
        times = [self._next_try]
        if self._in_flight:
            oldest = next(iter(self._in_flight.values()))
            times.append(oldest.sent_at + self._config.request_timeout)
        head = self._buffer.head()
        if head is not None and head.refused_since is not None:
            times.append(head.refused_since + self._config.max_retry_duration)
        return min(times)

    # --- what the shell tells -------------------------------------------------------------------------

    def add(self, entries: Sequence[EntryT], sizes: Sequence[int], now: float) -> None:
        """Queues entries, no more than there is `room` for."""
        self._buffer.add(entries, sizes, now)

    def complete(self, number: int, result: SubmitResult[EntryT], now: float) -> None:
        """A request was answered, its entries accepted or some of them refused."""
        request = self._settle(number)
        if request is None:
            return
        try:
            failed = request.batch.find(result.failed)
            rejected = request.batch.find([each.entry for each in result.rejected])
        except SluiceError as error:
            self.stop(error)
            return
        self._buffer.accepted(request.batch, failed)
        missing = [*failed, *rejected]
        self.figures.records += self._records(request.batch) - self._records(_entries(missing))
        self.figures.bytes += request.batch.size - sum(item.size for item in missing)
        # What is rejected says nothing about the load: the strategy hears of what may come again.
        self._strategy.register_completed_request(ResultInfo(len(failed), len(request.batch)))
        if rejected:
            self._reject(result.rejected, self._records(_entries(rejected)))
        if failed:
            cause = ", ".join(f"{code} ({count})" for code, count in sorted(result.codes.items()))
            self._take_back(request, failed, _Cause(next(iter(result.codes), ""), cause or "refused"), now)
        else:
            self._fruitless = 0

    def fail(self, number: int, error: BaseException, *, fatal: bool, now: float) -> None:
        """A request failed as a whole: nothing of it is known to have been accepted."""
        request = self._settle(number)
        if request is None:
            return
        size = len(request.batch)
        self._strategy.register_completed_request(ResultInfo(size, size))
        if fatal or self._config.fail_on_error:
            self.figures.refused += self._records(request.batch)
            self.stop(error)
        else:
            code = str(getattr(error, "code", "") or type(error).__name__)
            self._take_back(request, request.batch.items, _Cause(code, str(error) or code), now)

    def stop(self, failure: BaseException) -> None:
        """Nothing more is sent. The first failure is the one that counts."""
        if self.failure is None:
            self.failure = failure

    def advance(self, now: float, *, draining: bool = False) -> list[Request[EntryT]]:
        """The requests to send now. They are in flight from here on.

        Args:
            now: the time.
            draining: batches need not fill.
        """
        requests: list[Request[EntryT]] = []
        self._give_up_overdue(now)
        while self.failure is None and (count := self._sendable(now, draining=draining)):
            requests.append(self._send(count, now))
        head = self._buffer.head()
        if self.failure is None and head is not None and self._out_of_patience(head, now):
            worn_out = [item for item in self._buffer.returned() if self._out_of_patience(item, now)]
            self.stop(self._exhausted(worn_out, now))
        return requests

    # --- sending --------------------------------------------------------------------------------------

    def _sendable(self, now: float, *, draining: bool) -> int:
        """How many entries the next request takes; 0 for none now, with `_next_try` set to when."""
        self._next_try = math.inf
        head = self._buffer.head()
        if head is None:
            return 0
        config = self._config
        most = max(1, min(config.max_batch_size, self._strategy.max_batch_size))
        if not draining and not self._due(head, most, now):
            self._next_try = head.arrived + config.max_time_in_buffer
            return 0
        # A request that timed out but still runs holds its thread and its entries. Such requests come on
        # top of those in flight, but not without bound, or a destination that hangs would take all memory.
        running = len(self._in_flight) + len(self._given_up)
        most_running = 2 * config.max_in_flight_requests
        if len(self._in_flight) >= config.max_in_flight_requests or running >= most_running:
            return 0  # an answer will wake us
        if now < self._pause_until:
            self._next_try = self._pause_until
            return 0
        count = self._buffer.measure(most, config.max_batch_size_in_bytes)
        request = RequestInfo(count)
        if self._strategy.should_block(request):
            delay = self._delay(request) if self._delay else _ASK_AGAIN
            if delay == math.inf and not self._in_flight:
                delay = _ASK_AGAIN  # no answer will come: whatever it waits for, nothing may hang
            self._next_try = now + max(delay, _SHORTEST_WAIT)
            return 0
        return count

    def _due(self, head: Buffered, most: int, now: float) -> bool:
        return (
            len(self._buffer) >= most
            or self._buffer.size_in_bytes >= self._config.max_batch_size_in_bytes
            or now >= head.arrived + self._config.max_time_in_buffer
            or head.refused_since is not None  # it has waited before; now the pause alone holds it back
        )

    def _send(self, count: int, now: float) -> Request[EntryT]:
        batch = self._buffer.take(count)
        request = Request(self.figures.requests, batch, now)
        self._in_flight[request.number] = request
        self._strategy.register_in_flight_request(RequestInfo(count))
        self.figures.requests += 1
        self.figures.retries += self._records(_entries(batch.returned))
        return request

    # --- what comes back ------------------------------------------------------------------------------

    def _settle(self, number: int) -> Request[EntryT] | None:
        request = self._in_flight.pop(number, None)
        if request is None:
            # Late: it counted as failed when it timed out, and its entries are on their way again.
            self._given_up.discard(number)
        return request

    def _give_up_overdue(self, now: float) -> None:
        timeout = self._config.request_timeout
        while self._in_flight:
            request = next(iter(self._in_flight.values()))
            if now < request.sent_at + timeout:
                return
            del self._in_flight[request.number]
            self._given_up.add(request.number)
            self.figures.timeouts += 1
            size = len(request.batch)
            self._strategy.register_completed_request(ResultInfo(size, size))
            cause = _Cause("RequestTimeout", f"no answer within {timeout:g} s")
            if self._config.fail_on_timeout:
                self.figures.refused += (records := self._records(request.batch))
                text = f"a request of {records} records got {cause.text} (failOnTimeout is true)"
                self.stop(ServiceError(f"{self._name}: {text}", target=self._name, code=cause.code))
            else:
                self._take_back(request, request.batch.items, cause, now)

    def _records(self, entries: Sequence[EntryT] | Batch[EntryT]) -> int:
        """How many of the user's records these entries are."""
        return len(entries) if self._records_in is None else sum(map(self._records_in, entries))

    def _reject(self, rejected: Sequence[Rejection[EntryT]], records: int) -> None:
        if self._keeps_rejected:
            self.rejected += rejected
            return
        self.figures.refused += records
        many = "1 record was" if records == 1 else f"{records} records were"
        hint = "failOnError is true" if self._config.fail_on_error else "no deadLetterPath is given"
        self.stop(InvalidRecordError(f"{self._name}: {many} refused for good ({hint}): {rejected[0].reason}"))

    def _take_back(
        self, request: Request[EntryT], failed: Sequence[Buffered], cause: _Cause, now: float
    ) -> None:
        self.figures.refused += (refused := self._records(_entries(failed)))
        self._last_cause = cause
        if self._config.fail_on_error:
            text = (
                f"{refused} of {self._records(request.batch)} records were not accepted (failOnError is true)"
            )
            self.stop(ServiceError(f"{self._name}: {text}: {cause.text}", target=self._name, code=cause.code))
        failed = [
            item if item.refused_since is not None else item._replace(refused_since=now) for item in failed
        ]
        self._buffer.give_back(failed)
        worn_out = [item for item in failed if self._out_of_patience(item, now)]
        if worn_out:
            self.stop(self._exhausted(worn_out, now))
        self._pause(request, anything_accepted=len(failed) < len(request.batch), now=now)

    def _pause(self, request: Request[EntryT], *, anything_accepted: bool, now: float) -> None:
        """Holds back all sending for a moment, so that refusals do not spin and order is kept.

        Many answers of one wave make one pause: a request that was sent before the last pause was
        decided says nothing new. The pause grows only while nothing at all is accepted.
        """
        if anything_accepted:
            self._fruitless = 0
        if request.sent_at <= self._paused_at:
            return
        self._paused_at = now
        self._pause_until = now + self._jitter() * _PAUSES.ceiling(self._fruitless)
        if not anything_accepted:
            self._fruitless += 1

    # --- giving up ------------------------------------------------------------------------------------

    def _out_of_patience(self, item: Buffered, now: float) -> bool:
        since = item.refused_since
        return since is not None and now >= since + self._config.max_retry_duration

    def _exhausted(self, items: Sequence[Buffered], now: float) -> ServiceError:
        longest = max(now - item.refused_since for item in items if item.refused_since is not None)
        records = self._records(_entries(items))
        many = "1 record is" if records == 1 else f"{records} records are"
        return ServiceError(
            f"{self._name}: {many} still not accepted after {longest:.1f} s (maxRetryDuration is "
            f"{self._config.max_retry_duration:g} s): {self._last_cause.text}",
            target=self._name,
            code=self._last_cause.code,
        )

    def snapshot(self) -> SinkFigures:
        """The figures as they are now."""
        return replace(self.figures)


def _entries(items: Sequence[Buffered]) -> list[Any]:
    return [item.entry for item in items]
