"""Where a query starts, and what its offsets carry from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from memory_log import S0, MemoryLog, new_log, put_many
from query import Query, at_latest, check_exactly_once, new_enumerator, through_json

from sluice.errors import OptionError, ServiceError
from sluice.source.logs.stream_log import Record
from sluice.source.model.offsets import Closed, Offsets, before
from sluice.source.model.splits import Split


def test_records_that_arrive_while_shards_are_listed_are_read() -> None:
    """LATEST is the time before the listing, not after it."""
    log = new_log()
    log.pass_time(5)
    put_during: list[Record] = []
    list_splits = log.list_splits

    def list_slowly(stream: str) -> Sequence[Split]:
        if not put_during:
            put_during.append(log.put("s", "key"))
            log.pass_time(3)
        return list_splits(stream)

    log.list_splits = list_slowly  # type: ignore[method-assign]
    query = Query(log, initial=at_latest)
    query.run_to_end()
    check_exactly_once(query, put_during)


def test_latest_is_pinned_when_the_query_first_starts() -> None:
    """LATEST is the time of that start, however late the first batch is read."""
    log = new_log()
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, initial=at_latest)
    assert query.enumerator.initial() == query.enumerator.initial()
    query.log_start()
    log.pass_time(30)
    records = put_many(log, 10)
    log.pass_time(30)
    query.restart()
    query.run_to_end()
    check_exactly_once(query, records)


def test_the_first_batch_is_read_again_from_its_own_start() -> None:
    """Spark logs where the first batch ends and asks again where it starts; LATEST is later by then."""
    log = new_log()
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, initial=at_latest)
    query.log_start()
    records = put_many(log, 10)
    rows = query.run_batch()
    log.pass_time(30)
    query.restart()
    query.offsets[0] = through_json(query.enumerator.initial())
    assert query.read(-1) == rows
    assert query.run_batch() is None
    check_exactly_once(query, records)
    records += put_many(log, 10)
    query.run_to_end()
    assert "start" not in query.offsets[-1]
    check_exactly_once(query, records)


def test_shards_that_open_later_start_at_the_horizon() -> None:
    """LATEST skips records that were there at the start, not the records of later shards."""
    log = new_log()
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, initial=at_latest)
    query.run_batch()
    records = put_many(log, 3)
    log.split(S0)
    records += put_many(log, 40)
    query.run_to_end()
    check_exactly_once(query, records)


def test_a_start_at_a_sequence_number_includes_its_record() -> None:
    """The position `before` a record has that record right behind it."""
    log = new_log()
    records = put_many(log, 10)
    start = records[4].sequence_number
    query = Query(log, initial=lambda splits, _: {split.id: before(start) for split in splits})
    query.run_to_end()
    check_exactly_once(query, records[4:])


def test_a_checkpoint_of_other_streams_is_refused() -> None:
    """The error names the streams of both."""
    log = new_log()
    log.create("other")
    offsets = Query(log, ["other"]).enumerator.initial()
    with pytest.raises(OptionError, match=r"holds offsets of other, and the query reads s;"):
        Query(log).enumerator.advance(offsets)


def test_a_stream_that_does_not_exist_fails_the_start() -> None:
    """Before anything is logged."""
    with pytest.raises(ServiceError, match="no stream ghost"):
        Query(MemoryLog(), ["ghost"]).enumerator.initial()


def test_two_equal_offsets_have_no_ranges() -> None:
    """Spark 4.0 and 4.1 ask for such a batch after a restart."""
    enumerator = new_enumerator(new_log(), ["s"])
    offsets = Offsets({S0: Closed()}, {}, frozenset({"s"}))
    assert enumerator.ranges(offsets, offsets) == []


def test_the_consumers_that_a_query_registered_are_logged() -> None:
    """An end holds the consumers of its start and those registered since. They alone make no new offset."""
    log = new_log()
    query = Query(log)
    put_many(log, 3)
    query.enumerator.own_consumers = lambda: {"s": "arn:one"}
    assert query.enumerator.initial().consumers == {"s": "arn:one"}
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:one"}
    query.restart()
    put_many(log, 3)
    log.pass_time(5)
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:one"}
    query.enumerator.own_consumers = lambda: {"s": "arn:two"}
    log.pass_time(5)
    assert query.run_batch() is None
    put_many(log, 3)
    log.pass_time(5)
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:two"}
