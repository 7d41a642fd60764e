"""Reading one range: an iterator that expires, and a range that cannot be read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from memory_log import S0, new_log, put_many
from query import Query, check_exactly_once, new_policy, new_reader, read_range

from sluice.errors import ServiceError, SluiceError
from sluice.source.contracts import ReadTask
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.stream_log import Page
from sluice.source.model.offsets import HORIZON, After, AtTime, SplitRange
from sluice.source.model.read_figures import ReadFigures, SplitFigures
from sluice.source.model.splits import SplitId
from sluice.source.reading.reader import RangeReader, ReadSettings
from sluice.testing import MemoryLog, MemorySource


def test_an_iterator_that_expires_between_two_pages_is_replaced() -> None:
    """The task reads on right behind the last record that it has given to Spark."""
    log = new_log()
    query = Query(log, page_limit=10)
    records = put_many(log, 95)
    reads = iter(range(1000))

    def expire(operation: str, _: SplitId) -> Exception | None:
        if operation == "GetRecords" and next(reads) % 3 == 2:
            log.expire_iterators()
        return None

    log.fault = expire
    query.run_to_end()
    check_exactly_once(query, records)


@pytest.mark.parametrize("expiring", [2, 7, 100])
def test_new_iterators_that_expire_at_once_are_replaced(expiring: int) -> None:
    """The service forgets iterators when it is in trouble, and a task that fails may fail the query."""
    log = new_log()
    records = put_many(log, 35)
    reads = iter(range(1000))

    def expire(operation: str, _: SplitId) -> Exception | None:
        if operation == "GetRecords" and expiring > next(reads) - 2 >= 0:
            log.expire_iterators()
        return None

    log.fault = expire
    split_range = SplitRange(S0, HORIZON, After(records[-1].sequence_number))
    assert read_range(new_reader(log, page_limit=10), split_range) == records

    log.fault = lambda operation, _: log.expire_iterators() if operation == "GetRecords" else None
    begun = log.monotonic()
    with pytest.raises(ServiceError, match="a new iterator has expired at once"):
        read_range(new_reader(log), split_range)
    assert 900 <= log.monotonic() - begun < 910


OUTAGE = ServiceError(
    "GetRecords failed: ConnectionClosedError", code="ConnectionClosedError", retryable=True
)


@pytest.mark.parametrize("seconds", [7, 60, 14 * 60])
@pytest.mark.parametrize("operations", [("GetRecords",), ("GetShardIterator", "GetRecords")])
@pytest.mark.parametrize("error", [OUTAGE, SluiceError("the database is away", retryable=True)])
def test_an_outage_of_minutes_ends_no_task(
    seconds: float, operations: tuple[str, ...], error: SluiceError, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark gives a task no second try in local[n]. The log says when it began, and when it was over."""
    log = new_log()
    records = put_many(log, 35)
    over = log.monotonic() + seconds
    log.fault = lambda operation, _: error if operation in operations and log.monotonic() < over else None
    with caplog.at_level(logging.INFO):
        split_range = SplitRange(S0, HORIZON, After(records[-1].sequence_number))
        assert read_range(new_reader(log, page_limit=10), split_range) == records

    said = [each.getMessage() for each in caplog.records if each.name == "sluice.source.reading.reader"]
    assert ["reading fails" in text for text in said] == [True, False]
    assert "read again after" in said[1]


class LateSource(MemorySource):
    """Can be connected to only at the second attempt, as a broker that starts."""

    attempts = 0

    def create_log(self, pause: Callable[[float], None]) -> MemoryLog:
        type(self).attempts += 1
        if self.attempts == 1:
            raise OUTAGE
        return super().create_log(pause)


def test_a_log_that_cannot_be_connected_to_yet_ends_no_task() -> None:
    log = new_log()
    records = put_many(log, 3)
    LateSource.of(log)
    task = ReadTask((SplitRange(S0, HORIZON, After(records[-1].sequence_number)),))

    assert sum(batch.num_rows for batch in LateSource("s").read_task(task)) == 3


@pytest.mark.parametrize(
    ("error", "longest"),
    [(OUTAGE, 910), (ServiceError("AccessDenied", code="AccessDenied"), 1), (SluiceError("broken"), 1)],
)
def test_what_does_not_pass_ends_the_task(error: SluiceError, longest: float) -> None:
    """An outage after 15 minutes; a permanent error at once."""
    log = new_log()
    records = put_many(log, 35)
    log.fault = lambda operation, _: error if operation == "GetRecords" else None
    begun = log.monotonic()
    with pytest.raises(SluiceError, match=re.escape(str(error))):
        read_range(new_reader(log), SplitRange(S0, HORIZON, After(records[-1].sequence_number)))

    assert log.monotonic() - begun < longest


def test_an_iterator_that_is_refused_is_replaced_once() -> None:
    """It may be one of a stream that was created again. If the new one is refused, too, it is an error."""
    log = new_log()
    records = put_many(log, 95)
    reads = iter(range(1000))
    refused = ServiceError("Invalid ShardIterator.", operation="GetRecords", invalid_argument=True)

    def refuse(operation: str, _: SplitId) -> Exception | None:
        return refused if operation == "GetRecords" and next(reads) == 3 else None

    log.fault = refuse
    split_range = SplitRange(S0, HORIZON, After(records[-1].sequence_number))
    assert read_range(new_reader(log, page_limit=10), split_range) == records
    assert log.calls["GetShardIterator"] == 2

    log.fault = lambda operation, _: refused if operation == "GetRecords" else None
    with pytest.raises(ServiceError, match="Invalid ShardIterator"):
        read_range(new_reader(log), split_range)


def test_a_range_that_ends_before_it_starts_is_an_error() -> None:
    """No planner logs such offsets. They must not keep a task reading for ever."""
    log = new_log()
    records = put_many(log, 10)
    log.pass_time(5)
    backwards = SplitRange(S0, AtTime(log.now), After(records[-1].sequence_number))
    with pytest.raises(ServiceError, match="without it"):
        list(new_reader(log, page_limit=100)(backwards))


def test_what_was_read_of_the_range_is_counted() -> None:
    """Not what a page holds behind the range's end."""
    log, figures = new_log(), ReadFigures()
    records = put_many(log, 10)
    reader = new_reader(log, page_limit=4, figures=figures)
    list(reader(SplitRange(S0, HORIZON, After(records[5].sequence_number))))

    assert figures.splits()[S0].polled == 6
    assert figures.splits()[S0].pushed == 0


def test_records_that_are_pushed_are_counted_apart() -> None:
    """As the cursor says when the page has come: it may have gone over to polling. Of a page that the range's
    end divides, its share of bytes counts.
    """

    class Pushed(Cursor):
        def next_page(self, limit: int) -> Page:
            return replace(super().next_page(limit), size=1000)

        @property
        def is_pushed(self) -> bool:
            return True

    log, figures = new_log(), ReadFigures()
    records = put_many(log, 10)
    policy = new_policy(log)
    settings = ReadSettings(100, 0.2, log.sleep, clock=log.monotonic)
    reader = RangeReader(
        log,
        policy,
        settings,
        SplitRange(S0, HORIZON, After(records[5].sequence_number)),
        open_cursor=lambda each, position: Pushed(log, policy, each.split, position),
        figures=figures,
    )
    list(reader.read())

    assert figures.splits()[S0] == SplitFigures(pushed=6, bytes=600)
