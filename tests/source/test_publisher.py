"""Reading through a record publisher: the same rows as by polling, for any behaviour of the publisher."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from memory_log import S0, MemoryLog, new_log, put_many
from memory_subscriptions import NO_FAULTS, Faults, MemoryPublisher
from query import new_policy, new_reader, read_range

from sluice.errors import DataLossError, ServiceError
from sluice.source.logs.stream_log import AnyRecord, Page, Record
from sluice.source.model.offsets import HORIZON, After, AtTime, Closed, Position, SplitRange, before
from sluice.source.reading.fetcher import fetch_side_by_side
from sluice.source.reading.publisher import PublisherCursor, RecordPublisher

BROKEN = ServiceError("the subscription broke off", operation="SubscribeToShard", retryable=True)


class ScriptedPublisher:
    """A `RecordPublisher` that gives these pages, or raises these errors, and repeats the last one.

    Attributes:
        given: how often a page was asked for.
        closed: how often `close` was called.
    """

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


CAUGHT_UP = Page((), "on", 0)


def page(records: Sequence[Record], *, end: bool = False) -> Page:
    return Page(records, None if end else "on", 0)


class Task:
    """Reads ranges through these publishers, opened in this order.

    Attributes:
        opened: the position at which each publisher was opened.
        paused: every pause between two pages (seconds).
    """

    def __init__(
        self,
        log: MemoryLog,
        *publishers: RecordPublisher | ServiceError,
        may_poll: bool = True,
        fail: bool = True,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.publishers = list(publishers)
        self.opened: list[Position] = []
        self.paused: list[float] = []
        self.reader = new_reader(
            log,
            self.open_publisher,
            fail=fail,
            may_poll=may_poll,
            page_limit=100,
            pause=pause or self.paused.append,
        )

    def open_publisher(self, split_range: SplitRange, position: Position) -> RecordPublisher:
        del split_range
        self.opened.append(position)
        publisher = self.publishers.pop(0)
        if isinstance(publisher, ServiceError):
            raise publisher
        return publisher

    def read(self, start: Position, end: After | Closed) -> list[AnyRecord]:
        return list(read_range(self.reader, SplitRange(S0, start, end)))


def filled_log(count: int) -> tuple[MemoryLog, list[Record]]:
    log = new_log()
    return log, put_many(log, count)


def after(record: Record) -> After:
    return After(record.sequence_number, arrival=record.arrival)


def test_a_publisher_gives_the_range_and_nothing_is_polled() -> None:
    """Records outside the range are left out, and no pause is made between pages."""
    log, records = filled_log(30)
    publisher = ScriptedPublisher(page(records[4:9]), page(records[7:15]), page(records[15:30]))
    task = Task(log, publisher)
    assert task.read(after(records[4]), after(records[20])) == records[5:21]
    assert log.calls["GetRecords"] == 0
    assert set(task.paused) == {0.0}
    assert publisher.closed == 1


@pytest.mark.parametrize("position", [HORIZON, AtTime(0), before("49")])
def test_a_publisher_is_opened_where_the_range_starts(position: Position) -> None:
    """At a position of any kind."""
    log, records = filled_log(10)
    start = before(records[0].sequence_number) if isinstance(position, After) else position
    task = Task(log, MemoryPublisher(log, S0, start, event_size=3))
    assert task.read(start, after(records[8])) == records[:9]
    assert task.opened == [start]
    assert log.calls["GetRecords"] == 0


def test_a_start_inside_an_aggregate_gives_the_whole_aggregate() -> None:
    """Its user records that were read are left out later."""
    log, records = filled_log(10)
    start = After(records[3].sequence_number, sub=1)
    task = Task(log, MemoryPublisher(log, S0, start))
    assert task.read(start, after(records[5])) == records[3:6]


def test_a_closed_split_is_read_to_its_end() -> None:
    """The last event says that the split ends, with or without records."""
    log, records = filled_log(10)
    log.split(S0)
    for events in ([page(records, end=True)], [page(records), page((), end=True)]):
        publisher = ScriptedPublisher(*events)
        assert Task(log, publisher).read(HORIZON, Closed()) == records
        assert publisher.given == len(events)
    assert log.calls["GetRecords"] == 0


@pytest.mark.parametrize("delivered", [0, 1, 5, 6, 13])
def test_polling_continues_where_a_publisher_breaks_off(
    delivered: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Right behind its last record. One warning names the split and the cause."""
    log, records = filled_log(20)
    pages = [page(records[i : i + 1]) for i in range(delivered + 1)]
    publisher = ScriptedPublisher(*pages, BROKEN)
    task = Task(log, publisher)
    assert task.read(after(records[0]), after(records[14])) == records[1:15]
    assert log.calls["GetIterator"] == 0
    assert log.calls["GetShardIterator"] == 1
    assert publisher.closed == 1
    (warning,) = [r.message for r in caplog.records]
    assert str(S0) in warning
    assert str(BROKEN) in warning


def test_without_a_publisher_the_range_is_polled(caplog: pytest.LogCaptureFixture) -> None:
    """And it is not opened again."""
    log, records = filled_log(20)
    task = Task(log, BROKEN)
    assert task.read(HORIZON, after(records[14])) == records[:15]
    assert len(task.opened) == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("publisher", [BROKEN, ScriptedPublisher(BROKEN)])
def test_where_polling_is_not_allowed_a_publisher_that_fails_is_an_error(
    publisher: RecordPublisher | ServiceError,
) -> None:
    """Spark then runs the task again."""
    log, records = filled_log(20)
    with pytest.raises(ServiceError, match="broke off"):
        Task(log, publisher, may_poll=False).read(HORIZON, after(records[14]))
    assert log.calls["GetRecords"] == 0
    assert not isinstance(publisher, ScriptedPublisher) or publisher.closed == 1


# --- records that are missing -------------------------------------------------------------------------


def suspicious(records: Sequence[Record]) -> dict[str, ScriptedPublisher]:
    """Publishers of the range from record 4 (excluded) to record 14 that leave records out."""
    return {
        "late start": ScriptedPublisher(page(records[5:30])),
        "late start behind empty pages": ScriptedPublisher(CAUGHT_UP, CAUGHT_UP, page(records[8:30])),
        "no end": ScriptedPublisher(page(records[4:14]), page(records[15:30])),
        "an early end": ScriptedPublisher(page(records[4:12]), page((), end=True)),
        "an end at once": ScriptedPublisher(page((), end=True)),
        "empty pages alone": ScriptedPublisher(CAUGHT_UP),
        "empty pages alone in the end": ScriptedPublisher(page(records[4:12]), CAUGHT_UP),
    }


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_consumer_that_is_missing_is_no_loss(*, is_gone: bool) -> None:
    """Nobody can subscribe without it. Only a split that is missing itself has lost the batch's records."""
    log, records = filled_log(20)
    missing = ServiceError("no such consumer", operation="SubscribeToShard", missing=True)
    task = Task(log, ScriptedPublisher(missing), may_poll=False, fail=False)
    if is_gone:
        log.expire(S0)
        assert task.read(HORIZON, after(records[14])) == []
    else:
        with pytest.raises(ServiceError, match="no such consumer"):
            task.read(HORIZON, after(records[14]))


@pytest.mark.parametrize("kind", suspicious([]))
def test_records_that_a_publisher_leaves_out_are_polled(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """They still exist, so nothing is lost. The log tells why they are polled."""
    log, records = filled_log(30)
    publisher = suspicious(records)[kind]
    assert Task(log, publisher).read(after(records[4]), after(records[14])) == records[5:15]
    assert publisher.closed == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", suspicious([]))
def test_records_that_are_gone_are_reported_by_polling(kind: str) -> None:
    """With the same error as without a publisher."""
    log, records = filled_log(30)
    publisher = suspicious(records)[kind]
    log.trim(S0, 20)
    with pytest.raises(DataLossError, match="is gone"):
        Task(log, publisher).read(after(records[4]), after(records[14]))


@pytest.mark.parametrize("kind", suspicious([]))
def test_where_polling_is_not_allowed_missing_records_are_a_loss(kind: str) -> None:
    """The batch does not come out shorter."""
    log, records = filled_log(30)
    publisher = suspicious(records)[kind]
    log.trim(S0, 20)
    with pytest.raises(DataLossError, match="is gone"):
        Task(log, publisher, may_poll=False).read(after(records[4]), after(records[14]))


def test_where_polling_is_not_allowed_a_publisher_without_the_end_is_opened_again() -> None:
    """It has caught up with the tip without the record of the end, which still exists."""
    log, records = filled_log(30)
    astray, good = ScriptedPublisher(page(records[4:10]), CAUGHT_UP), ScriptedPublisher(page(records[9:30]))
    task = Task(log, astray, good, may_poll=False)
    assert task.read(after(records[4]), after(records[14])) == records[5:15]
    assert task.opened == [after(records[4]), after(records[9])]
    assert astray.closed == good.closed == 1


def test_a_few_empty_pages_at_the_tip_are_waited_through() -> None:
    """A service may say that no record follows while records are in flight."""
    log, records = filled_log(30)
    publisher = ScriptedPublisher(
        CAUGHT_UP,
        CAUGHT_UP,
        page(records[4:8]),
        CAUGHT_UP,
        CAUGHT_UP,
        page(records[8:10]),
        page(records[10:30]),
    )
    task = Task(log, publisher)
    assert task.read(after(records[4]), after(records[14])) == records[5:15]
    assert log.calls["GetRecords"] == 0


def test_pages_that_come_again_do_not_count_as_empty_ones() -> None:
    """A page whose records were all read before does not say that none follows."""
    log, records = filled_log(30)
    publisher = ScriptedPublisher(*[page(records[4:8])] * 6, page(records[6:30]))
    assert Task(log, publisher).read(after(records[4]), after(records[14])) == records[5:15]
    assert log.calls["GetRecords"] == 0


def test_a_pushed_page_does_not_say_when_its_split_was_caught_up() -> None:
    """It may have been buffered for minutes."""
    log, records = filled_log(10)
    task = Task(log, ScriptedPublisher(page(records)))
    split_range = SplitRange(S0, HORIZON, after(records[-1]))
    cursor = PublisherCursor(log, new_policy(log), split_range, HORIZON, task.open_publisher, may_poll=True)
    cursor.next_page(100)
    assert isinstance(cursor.position, After)
    assert cursor.position.caught_up_at is None


@pytest.mark.parametrize("trimmed", [0, 5])
def test_a_gapless_publisher_may_start_behind_the_record_of_the_position(trimmed: int) -> None:
    """An agent does not buffer the record that was read, which may have expired from the stream."""
    log, records = filled_log(30)
    publisher = ScriptedPublisher(page(records[5:12]), page(records[12:30]), is_gapless=True)
    log.trim(S0, trimmed)
    assert Task(log, publisher).read(after(records[4]), after(records[14])) == records[5:15]
    assert log.calls["GetRecords"] == 0


def test_after_a_gapless_publisher_polling_checks_the_position() -> None:
    """The record at which the publisher broke off has to be there."""
    log, records = filled_log(30)
    publisher = ScriptedPublisher(page(records[5:8]), BROKEN, is_gapless=True)
    log.trim(S0, 9)
    with pytest.raises(DataLossError, match="is gone"):
        Task(log, publisher).read(after(records[4]), after(records[14]))


# --- closing ------------------------------------------------------------------------------------------


def test_a_reader_that_is_closed_closes_its_publisher() -> None:
    """A task that is stopped leaves no subscription behind."""
    log, records = filled_log(30)
    publisher = ScriptedPublisher(page(records[:5]), page(records[5:10]))
    pages = Task(log, publisher).reader(SplitRange(S0, HORIZON, after(records[20])))
    assert next(pages) == records[:5]
    pages.close()  # type: ignore[attr-defined]  # it is a generator
    assert publisher.closed == 1


def test_a_fetcher_whose_consumer_leaves_closes_its_publisher() -> None:
    """Though it waits for a page or for its consumer at that moment."""
    log, records = filled_log(30)
    publisher = ScriptedPublisher(page(records[:5]), Page((), "on", 1000))
    done = threading.Event()

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[AnyRecord]]:
        try:
            yield from Task(log, publisher, pause=pause).reader(split_range)
        finally:
            done.set()

    pages = fetch_side_by_side([SplitRange(S0, HORIZON, after(records[20]))], read)
    next(pages)
    pages.close()  # type: ignore[attr-defined]
    assert done.wait(60)
    assert publisher.closed == 1


@pytest.mark.parametrize("seed", range(40))
def test_a_publisher_with_random_faults_gives_the_same_rows(seed: int) -> None:
    """It says that it has caught up, gives pages again, starts too late and breaks off."""
    rng = random.Random(seed)
    log, records = filled_log(200)
    faults = Faults(break_off=0.02, skip=0.3, overlap=0.3, caught_up=0.3) if seed else NO_FAULTS
    first, last = sorted(rng.sample(range(200), 2))
    start = rng.choice([after(records[first]), before(records[first + 1].sequence_number)])
    publisher = MemoryPublisher(log, S0, start, event_size=9, faults=faults, rng=rng)
    assert Task(log, publisher).read(start, after(records[last])) == records[first + 1 : last + 1]
    assert publisher.is_closed
