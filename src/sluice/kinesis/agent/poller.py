"""Polls one shard near its tip, for an agent that buffers its pages.

A `Poller` has the interface of a `Subscriber`: the manager of an agent asks it for one event after the other,
and gets unchanged pages of ``GetRecords``. Like planner and tasks, it uses a `Cursor` to open iterators and
to check that no record is missing.

Kinesis allows 5 reads and 2 MiB a second of each shard, for all polling readers together. An agent takes four
of the five reads, and leaves one to the planner, to a task that polls, or to another application. It only
reads near the tip. If a shard is far behind, tasks read faster than one agent could for all shards, so the
poller ends, and may be started again later.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sluice.errors import DataLossError, ServiceError
from sluice.kinesis.agent.shard_buffer import ShardBuffer
from sluice.kinesis.log.client import KinesisLog, answer_size
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.shared.protocol import FAR_BEHIND, INTEGRITY_PROBLEM
from sluice.kinesis.subscriptions.events import EventHead, decode_head
from sluice.kinesis.subscriptions.subscriber import Timing
from sluice.retry import Backoff
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import IteratorStart, Page, StreamLog
from sluice.source.model.offsets import HORIZON, AtTime, Position, before
from sluice.source.model.read_figures import ReadFigures
from sluice.source.model.splits import SplitId

__all__ = [
    "EncodedPage",
    "Poller",
    "PollerSettings",
    "PollingPace",
    "Timing",
    "page_log",
    "read_encoded_page",
]

_log = logging.getLogger(__name__)

_OPERATION: Final = "GetRecords"
_CLOSED: Final = "PollerClosed"
_FIRST_PAGE: Final = 1
"""Records of the first page, which shows how far the tip is, and costs the shard almost nothing."""
_PAGE_RECORDS: Final = 1_900
"""Records of a page, nearly as many as a shard gets in two seconds. Pages this small are requested in JSON
unless the user wants CBOR, because heads are found faster in JSON.
"""
_SMALLEST_SPACE: Final = 64 * 1024
"""Bytes of space for a page before its size is known. If the last page was large, twice its size."""


_SHORTEST_PAUSE: Final = 0.25
"""Seconds from the answer to a read to the next read."""
_LONGEST_PAUSE: Final = 2.0
"""The same for a shard that refuses most reads."""
_SPREAD: Final = 0.1
"""The largest random addition to a pause, as a share of it, so that shards are not read in step."""
_READS: Final = 200.0
"""The most reads a second by one agent, of all its shards together. Each takes 1 ms of CPU."""


class _RecordHead(NamedTuple):
    """An agent's view of a record, with those fields of an `AnyRecord` that a cursor uses."""

    sequence_number: str
    arrival: int
    partition_key: str = ""
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class EncodedPage(Page):
    """A page whose records are only heads, and the body that has all of them.

    Attributes:
        body: the answer to ``GetRecords``.
        count: records of the body.
    """

    body: bytes = b""
    count: int = 0


def read_encoded_page(body: bytes, *, target: str = "") -> EncodedPage:
    """Reads the heads of a page. Its `size` is not known here.

    Raises:
        ServiceError: retryable; the page is damaged.
    """
    head = decode_head(body, target=target)
    records = list(map(_RecordHead, head.numbers, head.arrivals))
    following = None if head.has_ended else head.continuation
    return EncodedPage(records, following, head.millis_behind, body=body, count=len(records))


def page_log(config: SourceConfig) -> KinesisLog:
    """The log whose pages are `EncodedPage`. It retries no read: a `Poller` does, at its own pace."""

    def read_page(answer: Mapping[str, Any]) -> Page:
        page = read_encoded_page(answer["Body"])
        return replace(page, size=answer_size(answer, page.count))

    once = {
        name: replace(config.backoffs[name], max_retries=0) for name in ("GetRecords", "GetShardIterator")
    }
    config = replace(
        config,
        connection=replace(config.connection, keeps_pages=True),
        backoffs={**config.backoffs, **once},
    )
    return KinesisLog.of(config, is_endpoint_known=True, read_page=read_page)


@dataclass(frozen=True)
class PollerSettings:
    """When a poller reads, and when it ends. Times are seconds.

    Attributes:
        page_limit: records of a page.
        interval: the shortest pause between two reads.
        backoff: pauses after failed reads (not those refused because of load), and how many in a row may
            fail.
        most_behind: if the shard is further from the tip than this, tasks read it.
        settling: pause after the first read. Until its answer has reached the planner, the planner and tasks
            read the shard.
        report_every: how often a page without news is returned, so that the planner knows that the shard is
            read.
    """

    page_limit: int
    interval: float
    backoff: Backoff
    most_behind: float = 10.0
    settling: float = 1.0
    report_every: float = 2.0

    @classmethod
    def of(cls, config: SourceConfig) -> PollerSettings:
        """The settings from a source's options."""
        polling = config.polling
        return cls(min(polling.records_limit, _PAGE_RECORDS), polling.interval, config.backoffs[_OPERATION])


_REAL_TIME: Final = Timing()


class PollingPace:
    """Says when a shard may be read next. Used by one thread.

    Args:
        interval: the shortest pause that the user wants (seconds).
        shards: how many shards the agent reads now.
        jitter: returns a number in [0, 1).
    """

    def __init__(self, interval: float, shards: Callable[[], int], jitter: Callable[[], float]) -> None:
        self._shortest = self._pause = max(interval, _SHORTEST_PAUSE)
        self._shards = shards
        self._jitter = jitter
        self._next_read_at = -math.inf

    def wait(self, now: float) -> float:
        """Seconds until the next read, at `now` (monotonic seconds)."""
        return max(0.0, self._next_read_at - now)

    def record_page(self, now: float, cost: float) -> None:
        """A read was answered; the shard may be read again after `cost` seconds, see `Page.cost`."""
        self._pause = self._shortest
        self._next_read_at = now + max(self._spread_pause(), cost)

    def record_refusal(self, now: float) -> None:
        """The service has refused a read because of load: the pause doubles."""
        self._pause = max(self._shortest, min(2 * self._pause, _LONGEST_PAUSE))
        self._next_read_at = now + self._spread_pause()

    def delay(self, now: float, seconds: float) -> None:
        """The next read is at least `seconds` away."""
        self._next_read_at = max(self._next_read_at, now + seconds)

    def _spread_pause(self) -> float:
        return max(self._pause, self._shards() / _READS) * (1 + self._jitter() * _SPREAD)


class Poller:
    """The pages of one shard from a position on, each record once and in order. An `EventSource`.

    It is read by one thread; `close` may be called from any.

    Args:
        log: gives `EncodedPage`.
        start: the position of the first record. space: the space for pages.
        shards: how many shards are polled, this one included.
        figures: count reads that were refused or repeated.

    Attributes:
        consumer: none: any number of readers may poll a shard.
        asked_at: when the last page was asked for, by the service's time (microseconds).
    """

    consumer = ""

    def __init__(  # noqa: PLR0913 - a shard, where its pages go, and when
        self,
        log: StreamLog,
        split: SplitId,
        start: IteratorStart,
        space: ShardBuffer,
        settings: PollerSettings,
        *,
        shards: Callable[[], int] = lambda: 1,
        figures: ReadFigures | None = None,
        timing: Timing = _REAL_TIME,
    ) -> None:
        self.asked_at = 0
        self._figures = ReadFigures() if figures is None else figures
        self._log = log
        self._split = split
        self._space = space
        self._settings = settings
        self._closing = threading.Event()
        self._clock = timing.clock
        self._sleep = timing.sleep or self._closing.wait
        self._jitter = timing.jitter
        self._pace = PollingPace(settings.interval, shards, timing.jitter)
        self._cursor = Cursor(log, DataLossPolicy(log, True, log.server_time), split, _position_of(start))
        self._last_size = 0
        self._failures = 0
        self._has_read = False
        self._is_far_behind = False
        self._was_at_tip = False
        self._reported_at = 0.0

    def next_event(self) -> tuple[bytes, EventHead]:
        """Blocks until the next page with news. Do not call it after a page that `has_ended`.

        Returns:
            The unchanged page, and its new records; see `EventHead.skipped`.

        Raises:
            ServiceError: the shard is far behind its tip (code `FAR_BEHIND`), records may have expired
                (`INTEGRITY_PROBLEM`), too many reads in a row have failed, or `close` was called.
        """
        while True:
            self._check_wanted()
            self._wait(self._pace.wait(self._clock()))
            page = self._read()
            if page is None:
                continue
            head = self._head_of(page)
            if self._is_new(head):
                return page.body, head

    def close(self) -> None:
        """Ends the poller. A call of `next_event` that waits ends then."""
        self._closing.set()

    # --- one page -------------------------------------------------------------------------------------

    def _read(self) -> EncodedPage | None:
        """Reads a page; None if that failed, and may be tried again."""
        self._space.make_space(max(_SMALLEST_SPACE, 2 * self._last_size))
        self._check_not_closed()
        asked_at = self._log.server_time()
        limit = self._limit
        try:
            page = self._cursor.next_page(limit)
        except DataLossError as error:
            raise self._error(str(error), INTEGRITY_PROBLEM) from None
        except ServiceError as error:
            self._space.give_back_space()
            self._handle_error(error)
            return None
        if not isinstance(page, EncodedPage):  # the cursor's own: a closed shard ends before the position
            page = EncodedPage((), None, 0)
        self.asked_at = asked_at
        self._failures = 0
        self._last_size = len(page.body)
        now = self._clock()
        self._pace.record_page(now, page.cost)
        if not self._has_read:
            self._pace.delay(now, self._settings.settling)
        if page.count >= limit and page.millis_behind == 0:
            page = replace(page, millis_behind=1)  # as it is full, another record may follow
        self._check_distance(page)
        self._has_read = True
        if page.records:
            self._space.fit_space(len(page.body))
        else:
            self._space.give_back_space()
        return page

    @property
    def _limit(self) -> int:
        return self._settings.page_limit if self._has_read else _FIRST_PAGE

    def _head_of(self, page: EncodedPage) -> EventHead:
        return EventHead(
            [record.sequence_number for record in page.records],
            [record.arrival for record in page.records],
            page.next_iterator,
            page.millis_behind,
            page.next_iterator is None,
            skipped=page.count - len(page.records),
        )

    def _is_new(self, head: EventHead) -> bool:
        now, is_at_tip = self._clock(), head.millis_behind == 0
        is_known = not head.numbers and not head.has_ended and is_at_tip == self._was_at_tip
        if is_known and now - self._reported_at < self._settings.report_every:
            return False
        self._was_at_tip, self._reported_at = is_at_tip, now
        return True

    # --- when to end ----------------------------------------------------------------------------------

    def _check_distance(self, page: EncodedPage) -> None:
        self._is_far_behind = page.millis_behind > self._settings.most_behind * 1000
        if self._is_far_behind and not self._has_read:
            raise self._far_behind()

    def _check_wanted(self) -> None:
        """Raises the error that ends the poller, if it is closed or tasks would reach the tip sooner."""
        self._check_not_closed()
        if self._is_far_behind:
            self._space.wait_until_drained()
            self._check_not_closed()
            raise self._far_behind()

    def _far_behind(self) -> ServiceError:
        return self._error(
            f"it is more than {self._settings.most_behind:g} s behind its tip, so tasks read it", FAR_BEHIND
        )

    # --- when a read fails ----------------------------------------------------------------------------

    def _handle_error(self, error: ServiceError) -> None:
        """Makes the next read wait, or raises the error."""
        now = self._clock()
        if error.throttling:
            self._figures.count_call(self._split, refused=1, retries=1)
            self._pace.record_refusal(now)
            return
        backoff = self._settings.backoff
        if not error.retryable or self._failures >= backoff.max_retries:
            raise error
        pause = self._jitter() * backoff.ceiling(self._failures)
        self._failures += 1
        self._figures.count_call(self._split, refused=0, retries=1)
        self._pace.delay(now, pause)
        _log.info(
            "%s: reading again in %.3f s (retry %d of %d): %s",
            self._split,
            pause,
            self._failures,
            backoff.max_retries,
            error,
        )

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._sleep(seconds)
        self._check_not_closed()

    def _check_not_closed(self) -> None:
        if self._closing.is_set():
            raise self._error("closed", _CLOSED)

    def _error(self, cause: str, code: str) -> ServiceError:
        return ServiceError(
            f"{_OPERATION} of {self._split}: {cause}",
            operation=_OPERATION,
            target=str(self._split),
            code=code,
        )


def _position_of(start: IteratorStart) -> Position:
    """A position that includes the record at which an iterator starts: that record shows that none is
    missing.
    """
    if start.sequence_number is not None:
        return before(start.sequence_number)
    return HORIZON if start.timestamp is None else AtTime(start.timestamp)
