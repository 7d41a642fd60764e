"""Records, shards and streams that are gone, and what looks like it and is not."""

from __future__ import annotations

import pytest
from memory_log import S0, MemoryLog, put_many, put_to
from query import (
    Query,
    check_exactly_once,
    latest,
    through_json,
)

from sluice.errors import DataLossError
from sluice.source.offsets import Offsets
from sluice.source.stream_log import Record


def stopped_query(*, fail: bool) -> tuple[MemoryLog, Query, list[Record]]:
    """A query that has read ten records, was stopped, and missed ten more."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], fail=fail)
    put_many(log, 10)
    query.run_batch()
    log.pass_time(30 * 3600)
    query.restart()
    return log, query, put_many(log, 10)


@pytest.mark.parametrize("unknown", [None, {"missing": True}, {"invalid_argument": True}])
def test_trimmed_records_fail_the_query(unknown: dict[str, bool] | None) -> None:
    """What expired between two batches is named, and the query fails; services say it in their own ways."""
    log, query, _ = stopped_query(fail=True)
    log.unknown_number = unknown
    log.trim(S0, 15)
    with pytest.raises(DataLossError, match=r"s/shardId-000000000000: record \d+.* is gone.*failOnDataLoss"):
        query.run_batch()


def test_trimmed_records_are_logged_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """With failOnDataLoss false the query goes on with the oldest record there is."""
    log, query, missed = stopped_query(fail=False)
    log.trim(S0, 15)
    query.run_to_end()
    assert query.batches[-1] == {S0: missed[5:]}
    assert "data loss" in caplog.text


def test_trimmed_with_nothing_left_fails_the_query() -> None:
    """An empty shard whose last known record is gone may have lost what came after it."""
    log, query, _ = stopped_query(fail=True)
    log.trim(S0, 1000)
    with pytest.raises(DataLossError, match="holds no record now"):
        query.run_batch()


def test_record_gone_before_its_time_is_a_loss() -> None:
    """No proof by time holds where a record is missing that retention should still keep."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    put_many(log, 10)
    query.run_to_end()
    log.pass_time(3600)
    query.restart()
    put_many(log, 1)
    log.trim(S0, 10)
    with pytest.raises(DataLossError, match="is gone"):
        query.run_batch()


def test_records_trimmed_between_planning_and_reading() -> None:
    """A logged batch that can no longer be read whole fails; it never comes out shorter."""
    log, query, _ = stopped_query(fail=True)
    query.offsets.append(query.enumerator.advance(Offsets.from_json(query.offsets[-1])).to_json())
    log.trim(S0, 15)
    with pytest.raises(DataLossError):
        query.read(-1)
    log.trim(S0, 5)
    with pytest.raises(DataLossError):
        query.read(-1)


def test_expired_start_that_was_pinned() -> None:
    """A first batch that was planned and could not run until its start expired fails."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], initial=latest)
    query.offsets.append(query.enumerator.initial().to_json())
    put_many(log, 10)
    log.pass_time(2)
    query.offsets.append(query.enumerator.advance(Offsets.from_json(query.offsets[-1])).to_json())
    log.pass_time(48 * 3600)
    with pytest.raises(DataLossError, match="older than the stream's retention"):
        query.read(-1)


def test_latest_that_was_not_looked_at_is_not_proven() -> None:
    """A split whose start expired while the query was stopped may have had records."""
    log = MemoryLog()
    idle, _ = log.create("s", 2)
    query = Query(log, ["s"], initial=latest)
    query.offsets.append(through_json(query.enumerator.initial()))
    log.pass_time(25 * 3600)
    query.restart()
    put_to(log, idle, 5)
    with pytest.raises(DataLossError, match="older than the stream's retention"):
        query.run_to_end()


# --- no loss -------------------------------------------------------------------------------------------


def test_idle_for_hours_then_one_record() -> None:
    """The kept iterator expires, its record too, and yet a record that comes then is no data loss."""
    log = MemoryLog()
    log.create("s", 2)
    query = Query(log, ["s"])
    records = put_many(log, 20)
    query.run_to_end()
    for _ in range(60):
        log.pass_time(1800)
        query.run_batch()
    log.retention = 24 * 3600.0
    for shard in list(log.shards):
        log.trim(shard, 1000)
    log.pass_time(10)
    records += put_many(log, 4)
    query.run_to_end()
    check_exactly_once(query, records)


def test_idle_split_of_a_run_that_ends() -> None:
    """A run of what is available also writes down which splits were idle, for when their records expire."""
    log = MemoryLog()
    idle, busy = log.create("s", 2)
    records = put_to(log, idle, 5) + put_to(log, busy, 5)
    query = Query(log, ["s"])
    query.run_to_end()
    log.pass_time(20 * 3600)
    query.restart()
    records += put_to(log, busy, 5)
    query.enumerator.stop_at_available()
    query.run_to_end(idle_triggers=1)
    log.pass_time(5 * 3600)
    log.trim(idle, 5)
    query.restart()
    records += put_to(log, idle, 5)
    query.enumerator.stop_at_available()
    query.run_to_end(idle_triggers=1)
    check_exactly_once(query, records)


def test_latest_outlives_the_retention() -> None:
    """A split that has had no record since the start, for longer than records are kept, has lost none."""
    log = MemoryLog()
    idle, busy = log.create("s", 2)
    query = Query(log, ["s"], initial=latest)
    query.run_batch()
    records: list[Record] = []
    for _ in range(3):
        log.pass_time(13 * 3600)
        query.run_to_end(idle_triggers=3)
        records += put_to(log, busy, 5)
        query.run_to_end(idle_triggers=3)
    query.restart()
    records += put_to(log, idle, 5)
    query.run_to_end()
    check_exactly_once(query, records)


def test_drained_parent_may_expire() -> None:
    """A finished shard stays in the offset until it is no longer listed; that is no loss."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"])
    records = put_many(log, 10)
    log.split(S0)
    query.run_to_end()
    assert query.offsets[-1]["streams"]["s"][S0.shard] == {"closed": True}
    log.expire(S0)
    log.pass_time(60)
    records += put_many(log, 10)
    query.run_to_end()
    assert S0.shard not in query.offsets[-1]["streams"]["s"]
    check_exactly_once(query, records)


# --- streams and shards that are gone ------------------------------------------------------------------


def test_recreated_stream_fails_or_is_read_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    """A stream deleted and created again is another stream, whatever its name and shards."""
    for fail in (True, False):
        log, query, _ = stopped_query(fail=fail)
        log.delete("s")
        log.pass_time(60)
        log.create("s")
        records = put_many(log, 5)
        if fail:
            with pytest.raises(DataLossError, match="deleted and created again"):
                query.run_batch()
        else:
            query.run_to_end()
            assert [r for batch in query.batches[1:] for rows in batch.values() for r in rows] == records
            assert "deleted and created again" in caplog.text


def test_recreated_stream_that_was_read_before_it_was_noticed() -> None:
    """Between two listings records of the new stream are taken for the old one's; they are not read again."""
    log, query, _ = stopped_query(fail=False)
    query.run_to_end()
    query.enumerator.discover()
    log.delete("s")
    log.pass_time(1)
    log.create("s")
    records = put_many(log, 30)
    done = len(query.batches)
    assert query.run_batch() == {S0: records}
    log.pass_time(30)
    records += put_many(log, 5)
    query.run_to_end()
    assert [r for batch in query.batches[done:] for rows in batch.values() for r in rows] == records


def test_stream_that_is_away_for_long_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """With failOnDataLoss false a deleted stream is no end: its successor is read when it comes."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], fail=False)
    put_many(log, 10)
    query.run_batch()
    log.delete("s")
    for _ in range(300):
        assert query.run_batch() is None
        log.pass_time(2)
    log.create("s")
    records = put_many(log, 5)
    query.run_to_end()
    assert [r for batch in query.batches[1:] for rows in batch.values() for r in rows] == records
    assert "could not be listed" in caplog.text


def test_vanished_shard() -> None:
    """A shard that is no longer listed before it was drained is a loss."""
    for fail in (True, False):
        log, query, _ = stopped_query(fail=fail)
        log.split(S0)
        records = put_many(log, 20)
        log.expire(S0)
        if fail:
            with pytest.raises(DataLossError, match="vanished"):
                query.run_batch()
        else:
            query.run_to_end()
            assert query.numbers()[10:] == [int(r.sequence_number) for r in records]
