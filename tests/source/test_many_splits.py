"""A query whose splits become more than version 1 of the offsets is for, and fewer again."""

from __future__ import annotations

from memory_log import MemoryLog, new_log, put_many
from query import Query, check_exactly_once

from sluice.source.model.offsets import COMPACT_FROM, Offsets
from sluice.source.model.splits import SplitId

HOUR = 3600.0


def open_splits(log: MemoryLog) -> list[SplitId]:
    return [each.id for each in log.shards.values() if each.ending_sequence is None]


def versions(query: Query) -> list[int]:
    return [offsets["version"] for offsets in query.offsets]


def run(query: Query) -> None:
    query.run_to_end(empty_triggers=2, step=12.0)


def test_reshards_take_a_query_over_the_limit_and_back() -> None:
    """A batch begins in one version and ends in the other; crashed or not, it is read the same again."""
    log = new_log(COMPACT_FROM - 1)
    query = Query(log)
    records = put_many(log, 300)
    run(query)
    assert {*versions(query)} == {1}

    log.split(open_splits(log)[0])  # two more splits
    log.pass_time(60)
    records += put_many(log, 300)
    query.run_batch(crash=True)
    assert versions(query)[-2:] == [1, 2]
    run(query)

    for _ in range(2):  # four splits become two, and all six stay in the offsets for a day
        one, other, *_ = sorted(open_splits(log), key=lambda split: log.shards[split].hash_range)
        log.merge(one, other)
    log.pass_time(60)
    records += put_many(log, 300)
    run(query)
    assert versions(query)[-1] == 2
    for shard in list(log.shards.values()):
        if shard.ending_sequence is not None:
            log.expire(shard.id)
    log.pass_time(60)
    records += put_many(log, 300)
    run(query)
    while versions(query)[-1] == 2:
        log.pass_time(3 * HOUR)
        records += put_many(log, 50)
        query.run_batch(crash=True)
    assert versions(query)[-2:] == [2, 1]
    assert len(Offsets.from_json(query.offsets[-1]).positions) < COMPACT_FROM
    records += put_many(log, 300)
    run(query)

    check_exactly_once(query, records)
    for number, rows in enumerate(query.batches[-4:], start=len(query.batches) - 4):
        assert query.read(number) == rows


def test_a_query_of_an_earlier_release_resumes() -> None:
    """Its log has version 1 for many splits. Nothing is read for that alone, and the next batch is exact."""
    log = new_log(COMPACT_FROM)
    query = Query(log, versions=(1,))
    records = put_many(log, 300)
    run(query)
    batches = len(query.batches)

    query.versions = (None,)
    query.restart()
    run(query)
    assert len(query.batches) == batches
    records += put_many(log, 300)
    query.run_batch(crash=True)
    assert versions(query)[-2:] == [1, 2]
    run(query)
    check_exactly_once(query, records)
