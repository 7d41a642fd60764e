"""Records, shards and streams that vanished before they were read, and cases in which nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from memory_log import S0, MemoryLog, new_log, put_many, put_to
from query import Query, at_latest, check_exactly_once, new_reader, read_range

from sluice.errors import DataLossError
from sluice.kinesis.options.starting_positions import TRIM_HORIZON, initial_positions
from sluice.source.logs.stream_log import Record
from sluice.source.model.offsets import Offsets
from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.enumerator import InitialPositions
from sluice.source.settings import Limits


def stopped_query(*, fail: bool) -> tuple[MemoryLog, Query, list[Record]]:
    """A query that has read ten records, was stopped for 30 hours, and has ten more to read."""
    log = new_log()
    query = Query(log, fail=fail)
    put_many(log, 10)
    query.run_batch()
    log.pass_time(30 * 3600)
    query.restart()
    return log, query, put_many(log, 10)


@pytest.mark.parametrize("unknown", [None, {"missing": True}, {"invalid_argument": True}])
def test_records_that_expired_unread_fail_the_query(unknown: dict[str, bool] | None) -> None:
    """Whether the service starts at a later record or refuses the number of the expired one."""
    log, query, _ = stopped_query(fail=True)
    log.unknown_number = unknown
    log.trim(S0, 15)
    with pytest.raises(DataLossError, match=r"s/shardId-000000000000: record \d+.* is gone.*failOnDataLoss"):
        query.run_batch()


def test_records_that_expired_unread_may_be_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Without failOnDataLoss the loss is logged, and the query continues reading from the oldest record."""
    log, query, missed = stopped_query(fail=False)
    log.trim(S0, 15)
    query.run_to_end()
    assert query.batches[-1] == {S0: missed[5:]}
    assert "data loss" in caplog.text


@pytest.mark.parametrize(("hours", "found"), [(30, "holds no record now"), (1, "is gone")])
def test_a_shard_without_its_last_known_record_may_have_lost_others(hours: int, found: str) -> None:
    """Though the shard is empty now. Within the retention, the instant up to which no record followed proves
    nothing then.
    """
    log = new_log()
    query = Query(log)
    put_many(log, 10)
    query.run_to_end()
    log.pass_time(hours * 3600)
    query.restart()
    put_many(log, 1)
    log.trim(S0, 10 if hours == 1 else 1000)
    with pytest.raises(DataLossError, match=found):
        query.run_batch()


def test_records_that_expire_between_planning_and_reading_fail_the_task() -> None:
    """The logged batch never comes out shorter."""
    log, query, _ = stopped_query(fail=True)
    query.log_end(query.plan())
    log.trim(S0, 15)
    with pytest.raises(DataLossError):
        query.read(-1)
    log.trim(S0, 5)
    with pytest.raises(DataLossError):
        query.read(-1)


def test_a_first_batch_whose_start_expires_before_it_is_read_fails() -> None:
    """A pinned start names a time and no record, so the time itself is checked."""
    log = new_log()
    query = Query(log, initial=at_latest)
    query.log_start()
    put_many(log, 10)
    log.pass_time(2)
    query.log_end(query.plan())
    log.pass_time(48 * 3600)
    with pytest.raises(DataLossError, match="older than the stream's retention"):
        query.read(-1)


def test_a_start_that_expires_while_the_query_is_stopped_is_a_loss() -> None:
    """The split may have had records that nobody has read."""
    log = new_log(2)
    idle, _ = log.shards
    query = Query(log, initial=at_latest)
    query.log_start()
    log.pass_time(25 * 3600)
    query.restart()
    put_to(log, idle, 5)
    with pytest.raises(DataLossError, match="older than the stream's retention"):
        query.run_to_end()


def stopped_with_child_at_horizon() -> tuple[MemoryLog, Query, SplitId]:
    """A query that was stopped when a child of a reshard had no record yet."""
    log = new_log()
    query = Query(log)
    put_many(log, 1)
    query.run_to_end()
    child, _ = log.split(S0)
    query.run_to_end()
    query.restart()
    return log, query, child


def stopped_with_unknown_child() -> tuple[MemoryLog, Query, SplitId]:
    """The child opened while the query was stopped, for longer than records are kept."""
    log = new_log()
    query = Query(log)
    put_many(log, 1)
    query.run_to_end()
    query.restart()
    return log, query, log.split(S0)[0]


def stopped_with_empty_shard() -> tuple[MemoryLog, Query, SplitId]:
    """One of two shards has had no record since the start at the horizon."""
    log = new_log(2)
    empty, busy = log.shards
    query = Query(log, initial=initial_positions(TRIM_HORIZON))
    put_to(log, busy, 5)
    query.run_to_end()
    query.restart()
    return log, query, empty


@pytest.mark.parametrize(
    "stopped", [stopped_with_child_at_horizon, stopped_with_unknown_child, stopped_with_empty_shard]
)
def test_a_shard_whose_first_records_expired_unread_is_a_loss(
    stopped: Callable[[], tuple[MemoryLog, Query, SplitId]],
) -> None:
    """It had no position of a record, but it was known to be empty once, or not to exist."""
    log, query, shard = stopped()
    put_to(log, shard, 10)
    log.pass_time(30 * 3600)
    log.trim(shard, 1000)
    put_to(log, shard, 5)
    with pytest.raises(DataLossError, match=r"shardId-00000000000\d: the start TRIM_HORIZON, .* retention"):
        query.run_to_end()


def test_a_child_that_expired_before_it_was_read_is_a_loss() -> None:
    """Only its own children are listed."""
    log, query, child = stopped_with_child_at_horizon()
    put_to(log, child, 10)
    log.pass_time(30 * 3600)
    log.split(child)
    log.expire(child)
    put_many(log, 20)
    with pytest.raises(DataLossError, match=f"vanished .*{child}"):
        query.run_to_end()


def test_retention_that_is_raised_later_brings_no_record_back() -> None:
    """The shard's last record and the instant at which it was idle are judged by the retention of then."""
    log = new_log(2)
    idle, busy = log.shards
    query = Query(log)
    put_to(log, idle, 1)
    query.run_to_end()
    log.pass_time(20 * 3600)
    query.run_to_end()
    query.restart()
    log.pass_time(30 * 3600)
    put_to(log, idle, 5)
    log.pass_time(25 * 3600)
    log.trim(idle, 6)
    log.retention = 168 * 3600.0
    log.pass_time(60 * 3600)
    put_to(log, idle, 1)
    put_to(log, busy, 1)
    with pytest.raises(DataLossError, match="is gone"):
        query.run_to_end()


def test_a_retention_is_logged_when_it_changes_and_not_again() -> None:
    """By a run that starts: a stream is described once a run. A custom log may give any fraction of a second,
    and offsets have milliseconds.
    """
    log = new_log()
    query = Query(log)
    put_many(log, 1)
    query.run_to_end()
    log.retention = 40 * 3600.0 + 1.23e-5
    query.restart()
    logged = []
    for _ in range(3):
        log.pass_time(12)
        logged.append(query.run_batch() is not None)
    assert logged == [True, False, False]


def test_the_oldest_record_is_checked_when_the_first_batch_is_read_again() -> None:
    """A start at the horizon names the record that was the oldest; for an hour it may expire."""
    log = new_log()
    query = Query(log, initial=initial_positions(TRIM_HORIZON))
    put_many(log, 10)
    query.log_start()
    query.log_end(query.plan())
    query.restart()
    log.pass_time(1800)
    log.trim(S0, 1)
    assert len(query.read(-1)[S0]) == 9
    log.pass_time(2000)
    with pytest.raises(DataLossError, match="is gone"):
        query.read(-1)


# --- no loss ------------------------------------------------------------------------------------------


def test_a_run_that_ends_logs_which_splits_were_caught_up() -> None:
    """The next run knows by that that nothing was lost when their last record has expired."""
    log = new_log(2)
    idle, busy = log.shards
    records = put_to(log, idle, 5) + put_to(log, busy, 5)
    query = Query(log)
    query.run_to_end()
    log.pass_time(20 * 3600)
    query.restart()
    records += put_to(log, busy, 5)
    query.enumerator.stop_at_available()
    query.run_to_end(empty_triggers=1)
    log.pass_time(5 * 3600)
    log.trim(idle, 5)
    query.restart()
    records += put_to(log, idle, 5)
    query.enumerator.stop_at_available()
    query.run_to_end(empty_triggers=1)
    check_exactly_once(query, records)


@pytest.mark.parametrize("initial", [at_latest, initial_positions(TRIM_HORIZON)])
def test_an_idle_query_may_be_restarted_at_any_time(initial: InitialPositions) -> None:
    """It logs from time to time that it was caught up, also when nothing comes for days, and the last record
    and the start expire.
    """
    log = new_log(3)
    query = Query(log, initial=initial)
    query.run_batch()
    empty, idle, parent = log.shards
    records = put_to(log, idle, 1) + put_to(log, parent, 1)
    query.run_to_end()
    for _ in range(96):
        log.pass_time(3600)
        query.run_batch()
    log.trim(idle, 1)
    assert 10 < len(query.batches) < 40
    query.restart()
    log.split(parent)
    log.pass_time(60)
    records += put_many(log, 9)
    query.run_to_end()
    check_exactly_once(query, records)
    assert query.by_split()[empty]


def test_a_drained_parent_may_expire() -> None:
    """It stays in the offsets, as closed, until listings have left it out for as long as records are kept."""
    log = new_log()
    query = Query(log)
    records = put_many(log, 10)
    log.split(S0)
    query.run_to_end()
    assert query.position_of(S0) == {"closed": True}
    log.expire(S0)
    log.pass_time(60)
    records += put_many(log, 10)
    query.run_to_end()
    assert query.position_of(S0).keys() == {"closed", "unlisted"}
    log.pass_time(24 * 3600)
    query.restart()
    records += put_many(log, 10)
    query.run_to_end()
    assert S0.shard not in query.offsets[-1]["streams"]["s"]
    check_exactly_once(query, records)


def test_a_hint_of_a_drained_split_is_logged_once() -> None:
    """It proves that nothing was lost before the last records of the split. Later batches need no proof."""
    log = new_log()
    query = Query(log)
    records = put_many(log, 10)
    query.run_to_end()
    log.pass_time(1200)
    query.run_batch()
    log.split(S0)
    log.pass_time(60)
    records += put_many(log, 10)
    query.run_batch()
    assert query.position_of(S0).keys() == {"closed", "quiet"}
    batch = len(query.batches) - 1
    log.pass_time(60)
    records += put_many(log, 10)
    query.run_to_end()
    assert query.position_of(S0) == {"closed": True}
    assert query.read(batch) == query.batches[batch]
    check_exactly_once(query, records)


class HidingLog(MemoryLog):
    """Leaves a shard out of its listings."""

    hidden: SplitId | None = None

    def list_splits(self, stream: str) -> Sequence[Split]:
        return [split for split in super().list_splits(stream) if split.id != self.hidden]


def test_a_listing_without_a_drained_split_does_not_make_it_be_read_again() -> None:
    """Listings are consistent after a while; the split is listed again."""
    log = HidingLog()
    log.create("s")
    query = Query(log)
    records = put_many(log, 10)
    log.split(S0)
    for hidden in (None, S0, None, S0, None):
        log.hidden = hidden
        log.pass_time(11)
        records += put_many(log, 10)
        query.restart()
        query.run_to_end()
    assert query.position_of(S0) == {"closed": True}
    check_exactly_once(query, records)


# --- streams and shards that are gone -----------------------------------------------------------------


def test_a_stream_that_was_created_again_is_another_stream(caplog: pytest.LogCaptureFixture) -> None:
    """The query fails, or reads the new stream from its beginning."""
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
            assert query.rows_since(1) == records
            assert "deleted and created again" in caplog.text


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_split", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_a_logged_batch_of_a_stream_that_was_created_again(
    caplog: pytest.LogCaptureFixture, *, is_first: bool, is_split: bool, fail: bool
) -> None:
    """The records of the new stream are not the batch's, nor is the end of its shard, which may be open. The
    batch fails, or it has no rows, and the next one is the first of the new stream.
    """
    log = new_log()
    query = Query(log, fail=fail)
    put_many(log, 10)
    if not is_first:
        query.run_batch()
        put_many(log, 10)
    if is_split:
        log.split(S0)
    log.pass_time(11)
    if is_first:
        query.log_start()
    query.log_end(query.plan())
    query.restart()
    log.delete("s")
    log.pass_time(60)
    log.create("s")
    records = put_many(log, 5)
    if fail:
        with pytest.raises(DataLossError, match="stream s was deleted and created again"):
            query.read(-1)
        return

    assert query.read(-1) == {}
    assert "stream s was deleted and created again" in caplog.text
    done = len(query.batches)
    query.run_to_end()
    assert query.rows_since(done) == records


@pytest.mark.parametrize("fail", [True, False])
def test_a_stream_that_is_created_again_when_its_batch_is_dealt_out(*, fail: bool) -> None:
    """The task that reads to a shard's end finds an open shard: it asks whether the stream is another one."""
    log = new_log()
    query = Query(log, fail=fail)
    log.split(S0)
    log.pass_time(11)
    query.log_start()
    query.log_end(query.plan())
    (closed,) = query.enumerator.ranges(*map(Offsets.from_json, query.offsets))
    log.delete("s")
    log.pass_time(60)
    log.create("s")
    put_many(log, 5)
    reader = new_reader(log, fail=fail)
    if fail:
        with pytest.raises(DataLossError, match="stream s was deleted and created again"):
            read_range(reader, closed)
    else:
        read_range(reader, closed)
    assert log.calls["GetRecords"] < 100


def test_what_was_planned_of_a_stream_ends_no_batch_of_one_that_was_created_again() -> None:
    """Its first shard, of which nothing was read, was closed; the new one is open."""
    log = new_log()
    query = Query(log, fail=False)
    query.log_start()
    put_many(log, 30)
    log.split(S0)
    log.pass_time(20)
    query.plan(Limits(records=100))
    log.delete("s")
    log.pass_time(20)
    log.create("s")
    records = put_many(log, 5)
    query.run_to_end()
    assert query.rows_since(0) == records


def test_records_of_a_new_stream_that_were_mistaken_for_old_ones_are_read_again() -> None:
    """Only a listing shows that the stream is another one. Then it is read from its oldest record on."""
    log, query, _ = stopped_query(fail=False)
    query.run_to_end()
    log.pass_time(20)
    query.run_batch()  # lists
    log.delete("s")
    log.pass_time(1)
    log.create("s")
    records = put_many(log, 30)
    done = len(query.batches)
    assert query.run_batch() == {S0: records}
    log.pass_time(30)
    records += put_many(log, 5)
    query.run_to_end()
    assert query.rows_since(done + 1) == records


def test_without_failing_a_stream_that_is_gone_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """When a stream of that name is created again, it is read."""
    log = new_log()
    query = Query(log, fail=False)
    put_many(log, 10)
    query.run_batch()
    log.delete("s")
    for _ in range(300):
        assert query.run_batch() is None
        log.pass_time(2)
    log.create("s")
    records = put_many(log, 5)
    query.run_to_end()
    assert query.rows_since(1) == records
    assert "could not be listed" in caplog.text


def test_without_failing_the_children_of_a_shard_that_has_vanished_are_read() -> None:
    log, query, _ = stopped_query(fail=False)
    log.split(S0)
    records = put_many(log, 20)
    log.expire(S0)
    query.run_to_end()
    assert query.numbers()[10:] == [int(r.sequence_number) for r in records]
