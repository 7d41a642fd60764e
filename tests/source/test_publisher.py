"""Reading pages that are pushed: the rows of polling, whatever the publisher does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from memory_log import S0, MemoryLog, put_many
from memory_subscriptions import NO_FAULTS, Faults, MemoryPublisher

from sluice.errors import DataLossError, ServiceError
from sluice.source.cursor import Cursor
from sluice.source.data_loss import DataLossPolicy
from sluice.source.fetcher import fetch_side_by_side
from sluice.source.offsets import HORIZON, After, AtTime, Closed, Position, SplitRange, before
from sluice.source.publisher import PublisherCursor, RecordPublisher
from sluice.source.reader import RangeReader, ReadSettings
from sluice.source.stream_log import AnyRecord, Page, Record

BROKEN = ServiceError("the subscription broke off", operation="SubscribeToShard", retryable=True)


class Script:
    """A `RecordPublisher` of pages, or errors, that a test wrote down; then it repeats the last."""

    def __init__(self, *events: Page | ServiceError, is_gapless: bool = False) -> None:
        self.is_gapless = is_gapless
        self.events = list(events)
        self.given = 0
        self.closed = 0

    def next_page(self) -> Page:
        event = self.events[min(self.given, len(self.events) - 1)]
        self.given += 1
        if isinstance(event, ServiceError):
            raise event
        return event

    def close(self) -> None:
        self.closed += 1


IDLE = Page((), "on", 0)


def page(records: Sequence[Record], *, behind: int = 0, end: bool = False) -> Page:
    return Page(records, None if end else "on", behind)


class Task:
    """Reads one range through publishers that are given."""

    def __init__(
        self, log: MemoryLog, *publishers: RecordPublisher | ServiceError, may_poll: bool = True
    ) -> None:
        self.log = log
        self.publishers = list(publishers)
        self.may_poll = may_poll
        self.fail = True
        self.opened: list[Position] = []
        self.paused: list[float] = []

    def open_publisher(self, split_range: SplitRange, position: Position) -> RecordPublisher:
        del split_range
        self.opened.append(position)
        publisher = self.publishers.pop(0)
        if isinstance(publisher, ServiceError):
            raise publisher
        return publisher

    def pages(self, start: Position, end: After | Closed) -> Iterator[Sequence[AnyRecord]]:
        data_loss = DataLossPolicy(self.log, self.fail, self.log.server_time)

        def open_cursor(split_range: SplitRange, position: Position) -> Cursor:
            return PublisherCursor(
                self.log, data_loss, split_range, position, self.open_publisher, may_poll=self.may_poll
            )

        settings = ReadSettings(100, 0.2, self.paused.append)
        return RangeReader(self.log, data_loss, settings, open_cursor).read(SplitRange(S0, start, end))

    def read(self, start: Position, end: After | Closed) -> list[AnyRecord]:
        return [record for records in self.pages(start, end) for record in records]


def stream(count: int) -> tuple[MemoryLog, list[Record]]:
    log = MemoryLog()
    log.create("s")
    return log, put_many(log, count)


def after(record: Record) -> After:
    return After(record.sequence_number, arrival=record.arrival)


def test_a_feed_gives_the_range_and_nothing_is_polled() -> None:
    """What the position has behind it and what lies behind the end is cut away; nobody pauses."""
    log, records = stream(30)
    publisher = Script(page(records[4:9]), page(records[7:15]), page(records[15:30]))
    task = Task(log, publisher)
    assert task.read(after(records[4]), after(records[20])) == records[5:21]
    assert log.calls["GetRecords"] == 0
    assert set(task.paused) == {0.0}
    assert publisher.closed == 1


@pytest.mark.parametrize("position", [HORIZON, AtTime(0), before("49")])
def test_starts_of_all_kinds(position: Position) -> None:
    """The publisher is opened where the range starts."""
    log, records = stream(10)
    start = before(records[0].sequence_number) if isinstance(position, After) else position
    task = Task(log, MemoryPublisher(log, S0, start, event_size=3))
    assert task.read(start, after(records[8])) == records[:9]
    assert task.opened == [start]
    assert log.calls["GetRecords"] == 0


def test_start_inside_an_aggregate_brings_the_aggregate() -> None:
    """The sub-records that are left come with their record."""
    log, records = stream(10)
    start = After(records[3].sequence_number, sub=1)
    task = Task(log, MemoryPublisher(log, S0, start))
    assert task.read(start, after(records[5])) == records[3:6]


def test_closed_split_is_read_to_its_end() -> None:
    """An end that is the split's own is met by the last event, with or without records."""
    log, records = stream(10)
    log.split(S0)
    for events in ([page(records, end=True)], [page(records), page((), end=True)]):
        publisher = Script(*events)
        assert Task(log, publisher).read(HORIZON, Closed()) == records
        assert publisher.given == len(events)
    assert log.calls["GetRecords"] == 0


@pytest.mark.parametrize("delivered", [0, 1, 5, 6, 13])
def test_publisher_that_breaks_off(delivered: int, caplog: pytest.LogCaptureFixture) -> None:
    """Polling goes on right behind the last record; one warning names the split and the cause."""
    log, records = stream(20)
    pages = [page(records[i : i + 1]) for i in range(delivered + 1)]
    publisher = Script(*pages, BROKEN)
    task = Task(log, publisher)
    assert task.read(after(records[0]), after(records[14])) == records[1:15]
    assert log.calls["GetIterator"] == 0
    assert log.calls["GetShardIterator"] == 1
    assert publisher.closed == 1
    (warning,) = [r.message for r in caplog.records]
    assert str(S0) in warning
    assert str(BROKEN) in warning


def test_publisher_that_can_not_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    """No agent, no subscription: the range is polled."""
    log, records = stream(20)
    task = Task(log, BROKEN)
    assert task.read(HORIZON, after(records[14])) == records[:15]
    assert len(task.opened) == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("publisher", [BROKEN, Script(BROKEN)])
def test_without_polling_a_feed_that_fails_is_an_error(publisher: RecordPublisher | ServiceError) -> None:
    """The user forbids polling: then Spark is told, and tries the task again."""
    log, records = stream(20)
    with pytest.raises(ServiceError, match="broke off"):
        Task(log, publisher, may_poll=False).read(HORIZON, after(records[14]))
    assert log.calls["GetRecords"] == 0
    assert not isinstance(publisher, Script) or publisher.closed == 1


# --- what looks like a loss ---------------------------------------------------------------------------


def suspicious(records: Sequence[Record]) -> dict[str, Script]:
    """Feeds of the range from record 4 (excluded) to record 14 that can't be right."""
    return {
        "late start": Script(page(records[5:30])),
        "late start behind idle pages": Script(IDLE, IDLE, page(records[8:30])),
        "no end": Script(page(records[4:14]), page(records[15:30])),
        "an early end": Script(page(records[4:12]), page((), end=True)),
        "an end at once": Script(page((), end=True)),
        "only idle pages": Script(IDLE),
        "only idle pages in the end": Script(page(records[4:12]), IDLE),
    }


@pytest.mark.parametrize("kind", suspicious([]))
def test_what_looks_like_a_loss_is_polled(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """All records are there, so nothing was lost: polling gives them, and the log tells why."""
    log, records = stream(30)
    publisher = suspicious(records)[kind]
    assert Task(log, publisher).read(after(records[4]), after(records[14])) == records[5:15]
    assert publisher.closed == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", suspicious([]))
def test_what_is_a_loss_is_reported_by_polling(kind: str) -> None:
    """The records are gone indeed: the same error as without any publisher."""
    log, records = stream(30)
    publisher = suspicious(records)[kind]
    log.trim(S0, 20)
    with pytest.raises(DataLossError, match="is gone"):
        Task(log, publisher).read(after(records[4]), after(records[14]))


@pytest.mark.parametrize("kind", suspicious([]))
def test_without_polling_a_loss_is_judged_at_once(kind: str) -> None:
    """Nobody else may be asked; a batch never comes out short for that."""
    log, records = stream(30)
    publisher = suspicious(records)[kind]
    log.trim(S0, 20)
    with pytest.raises(DataLossError, match="is gone"):
        Task(log, publisher, may_poll=False).read(after(records[4]), after(records[14]))


def test_without_polling_a_feed_that_goes_astray_is_opened_again() -> None:
    """The end is there, and yet the publisher stands at the tip: another one may do better."""
    log, records = stream(30)
    astray, good = Script(page(records[4:10]), IDLE), Script(page(records[9:30]))
    task = Task(log, astray, good, may_poll=False)
    assert task.read(after(records[4]), after(records[14])) == records[5:15]
    assert task.opened == [after(records[4]), after(records[9])]
    assert astray.closed == good.closed == 1


def test_idle_pages_are_not_judged_at_once() -> None:
    """Records may be on their way when a service says that there are none."""
    log, records = stream(30)
    publisher = Script(IDLE, IDLE, page(records[4:8]), IDLE, IDLE, page(records[8:10]), page(records[10:30]))
    task = Task(log, publisher)
    assert task.read(after(records[4]), after(records[14])) == records[5:15]
    assert log.calls["GetRecords"] == 0


def test_pages_that_come_again_are_no_tip() -> None:
    """A page of nothing but what was read before says nothing about what is to come."""
    log, records = stream(30)
    publisher = Script(*[page(records[4:8])] * 6, page(records[6:30]))
    assert Task(log, publisher).read(after(records[4]), after(records[14])) == records[5:15]
    assert log.calls["GetRecords"] == 0


def test_a_buffered_page_does_not_say_how_long_nothing_came() -> None:
    """It may be minutes old when it is read: no position takes a proof of idleness from it."""
    log, records = stream(10)
    data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
    task = Task(log, Script(page(records)))
    split_range = SplitRange(S0, HORIZON, after(records[-1]))
    cursor = PublisherCursor(log, data_loss, split_range, HORIZON, task.open_publisher, may_poll=True)
    cursor.next_page(100)
    assert isinstance(cursor.position, After)
    assert cursor.position.caught_up_at is None


@pytest.mark.parametrize("trimmed", [0, 5])
def test_a_feed_that_vouches_may_start_behind_the_position(trimmed: int) -> None:
    """What an agent has buffered lacks the record that is done, and may outlive it in the stream."""
    log, records = stream(30)
    publisher = Script(page(records[5:12]), page(records[12:30]), is_gapless=True)
    log.trim(S0, trimmed)
    assert Task(log, publisher).read(after(records[4]), after(records[14])) == records[5:15]
    assert log.calls["GetRecords"] == 0


def test_a_feed_that_vouched_and_broke_off_is_verified_by_polling() -> None:
    """Its word ends with it: whoever reads on looks for the record where it stands."""
    log, records = stream(30)
    publisher = Script(page(records[5:8]), BROKEN, is_gapless=True)
    log.trim(S0, 9)
    with pytest.raises(DataLossError, match="is gone"):
        Task(log, publisher).read(after(records[4]), after(records[14]))


# --- letting go ---------------------------------------------------------------------------------------


def test_a_reader_that_is_dropped_closes_its_feed() -> None:
    """A task that is stopped leaves no subscription behind."""
    log, records = stream(30)
    publisher = Script(page(records[:5]), page(records[5:10]))
    pages = RangeReader.read(_reader(log, publisher), SplitRange(S0, HORIZON, after(records[20])))
    assert next(pages) == records[:5]
    pages.close()  # type: ignore[attr-defined]  # it is a generator
    assert publisher.closed == 1


def test_a_fetcher_nobody_listens_to_closes_its_feed() -> None:
    """One that waits for pages as well as one that waits for its consumer."""
    log, records = stream(30)
    publisher = Script(page(records[:5]), Page((), "on", 1000))
    done = threading.Event()

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[AnyRecord]]:
        try:
            yield from _reader(log, publisher, pause).read(split_range)
        finally:
            done.set()

    pages = fetch_side_by_side([SplitRange(S0, HORIZON, after(records[20]))], read)
    next(pages)
    pages.close()  # type: ignore[attr-defined]
    assert done.wait(60)
    assert publisher.closed == 1


def _reader(
    log: MemoryLog, publisher: RecordPublisher, pause: Callable[[float], None] | None = None
) -> RangeReader:
    data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
    task = Task(log, publisher)

    def open_cursor(split_range: SplitRange, position: Position) -> Cursor:
        return PublisherCursor(log, data_loss, split_range, position, task.open_publisher, may_poll=True)

    return RangeReader(log, data_loss, ReadSettings(100, 0.2, pause or log.sleep), open_cursor)


@pytest.mark.parametrize("seed", range(40))
def test_a_feed_with_all_faults_gives_the_same_rows(seed: int) -> None:
    """Ranges of every kind, publishers that idle, overlap, start late and break off."""

    rng = random.Random(seed)
    log, records = stream(200)
    faults = Faults(break_off=0.02, skip=0.3, overlap=0.3, caught_up=0.3) if seed else NO_FAULTS
    first, last = sorted(rng.sample(range(200), 2))
    start = rng.choice([after(records[first]), before(records[first + 1].sequence_number)])
    publisher = MemoryPublisher(log, S0, start, event_size=9, faults=faults, rng=rng)
    assert Task(log, publisher).read(start, after(records[last])) == records[first + 1 : last + 1]
    assert publisher.is_closed
