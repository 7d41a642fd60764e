"""Where reading starts, which splits are found, and which offsets are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from memory_log import S0, MemoryLog, put_many
from query import (
    Query,
    check_exactly_once,
    latest,
    make_enumerator,
    through_json,
)

from sluice.errors import OptionError, ServiceError
from sluice.source.offsets import Closed, Offsets, before
from sluice.source.splits import Split
from sluice.source.stream_log import Record


def test_what_comes_while_shards_are_listed_is_not_missed() -> None:
    """LATEST is the time before the listing, not after it."""
    log = MemoryLog()
    log.create("s")
    log.pass_time(5)
    put_during: list[Record] = []
    list_splits = log.list_splits

    def slowly(stream: str) -> Sequence[Split]:
        if not put_during:
            put_during.append(log.put("s", "key"))
            log.pass_time(3)
        return list_splits(stream)

    log.list_splits = slowly  # type: ignore[method-assign]
    query = Query(log, ["s"], initial=latest)
    query.run_to_end()
    check_exactly_once(query, put_during)


def test_latest_is_pinned_once() -> None:
    """LATEST means the moment the query first started, whenever its first batch comes to be read."""
    log = MemoryLog()
    log.create("s")
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, ["s"], initial=latest)
    assert query.enumerator.initial() == query.enumerator.initial()
    query.offsets.append(query.enumerator.initial().to_json())
    log.pass_time(30)
    records = put_many(log, 10)
    log.pass_time(30)
    query.restart()
    query.run_to_end()
    check_exactly_once(query, records)


def test_the_first_batch_comes_again_with_its_own_start() -> None:
    """Spark logs where the first batch ends, and asks again for its start: LATEST has not moved."""
    log = MemoryLog()
    log.create("s")
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, ["s"], initial=latest)
    query.offsets.append(through_json(query.enumerator.initial()))
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


def test_shards_born_later_start_at_the_horizon() -> None:
    """LATEST skips what was there, not what a reshard brings."""
    log = MemoryLog()
    log.create("s")
    put_many(log, 10)
    log.pass_time(1)
    query = Query(log, ["s"], initial=latest)
    query.run_batch()
    records = put_many(log, 3)
    log.split(S0)
    records += put_many(log, 40)
    query.run_to_end()
    check_exactly_once(query, records)


def test_start_at_a_sequence_number_includes_it() -> None:
    """`before` a record is the position that has it as the first one to come."""
    log = MemoryLog()
    log.create("s")
    records = put_many(log, 10)
    start = records[4].sequence_number
    query = Query(log, ["s"], initial=lambda splits, _: {split.id: before(start) for split in splits})
    query.run_to_end()
    check_exactly_once(query, records[4:])


def test_checkpoint_of_another_stream_is_refused() -> None:
    """Offsets of a stream that is not read are a mistake, named with both streams."""
    log = MemoryLog()
    log.create("s")
    log.create("other")
    offsets = Query(log, ["other"]).enumerator.initial()
    with pytest.raises(OptionError, match=r"other.*streamName.*names s"):
        Query(log, ["s"]).enumerator.advance(offsets)


def test_stream_that_does_not_exist() -> None:
    """A missing stream is reported when the query starts."""
    with pytest.raises(ServiceError, match="no stream ghost"):
        Query(MemoryLog(), ["ghost"]).enumerator.initial()


def test_the_closed_position_is_not_read() -> None:
    """A pair of equal offsets is an empty batch, as Spark 4.0 asks for on a restart."""
    log = MemoryLog()
    log.create("s")
    enumerator = make_enumerator(log, ["s"])
    offsets = Offsets({S0: Closed()}, {}, frozenset({"s"}))
    assert enumerator.ranges(offsets, offsets) == []


def test_registered_consumers_are_carried_along() -> None:
    """An end holds the consumers of its start and those registered since, and nothing else changes."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 3)
    query.enumerator.registered = {"s": "arn:one"}
    assert query.enumerator.initial().consumers == {"s": "arn:one"}
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:one"}
    query.restart()
    put_many(log, 3)
    log.pass_time(5)
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:one"}
    query.enumerator.registered = {"s": "arn:two"}
    log.pass_time(5)
    assert query.run_batch() is None
    put_many(log, 3)
    log.pass_time(5)
    query.run_batch()
    assert query.offsets[-1]["consumers"] == {"s": "arn:two"}
