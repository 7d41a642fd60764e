"""`ModelLog` as tests of the source use it: what they do to a stream, and what they ask of it."""

from __future__ import annotations

from integration.model import KinesisModel, Laws, ModelLog

from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId


def keys_of(log: ModelLog, split: SplitId) -> list[str]:
    page = log.get_records(split, log.get_iterator(split, IteratorStart("TRIM_HORIZON")) or "", 100)
    return [record.partition_key for record in page.records]


def test_streams_are_made_filled_and_resharded() -> None:
    log = ModelLog(KinesisModel(Laws.kind()))
    (split,) = log.create("s")
    numbers = [log.put("s", str(index)).sequence_number for index in range(3)]
    assert numbers == sorted(numbers)
    left, right = log.split(split)
    child = log.merge(left, right)
    shards = log.shards
    assert list(shards) == [split, left, right, child]
    assert [shard.is_closed for shard in shards.values()] == [True, True, True, False]
    assert shards[child].parents == (left.shard, right.shard)
    assert shards[child].hash_range == shards[split].hash_range
    log.trim(split, 2)
    assert keys_of(log, split) == ["2"]
    log.expire(split)
    assert split not in log.shards
    assert len(log.list_splits("s")) == 3
    log.delete("s")
    assert log.shards == {}


def test_time_passes_for_reader_and_service_alike() -> None:
    log = ModelLog(KinesisModel())
    now, monotonic = log.now, log.monotonic()
    log.sleep(1.0)
    log.pass_time(2.0)
    assert (log.now - now, log.monotonic() - monotonic) == (3_000_000, 3.0)
    log.set_clock(-10.0)
    assert (log.now - now, log.monotonic() - monotonic) == (-7_000_000, 3.0)
    assert log.server_time() == log.now
    assert not log.calls
