"""The laws of reading, each of them on and off."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from integration.model import MIB, KinesisModel, Laws, ManualClock, ModelError

KIND = Laws.kind()
S0 = "shardId-000000000000"
THROTTLED = "ProvisionedThroughputExceededException"


def model_of(laws: Laws, *, shards: int = 1, seed: int = 0) -> tuple[KinesisModel, ManualClock]:
    clock = ManualClock()
    model = KinesisModel(laws, clock, seed)
    model.create("s", shards)
    return model, clock


def iterator(model: KinesisModel, kind: str = "TRIM_HORIZON", *, shard: str = S0, **start: Any) -> str:
    request = {"StreamName": "s", "ShardId": shard, "ShardIteratorType": kind, **start}
    found: str = model.call("GetShardIterator", request)["ShardIterator"]
    return found


def get(model: KinesisModel, it: str, limit: int = 10_000) -> dict[str, Any]:
    return model.call("GetRecords", {"ShardIterator": it, "Limit": limit})


def code_of(model: KinesisModel, operation: str, **request: Any) -> str | None:
    """The code that a call is refused with; None: it is not."""
    try:
        model.call(operation, request)
    except ModelError as error:
        return error.code
    return None


def read_all(
    model: KinesisModel, clock: ManualClock, it: str, *, limit: int = 10_000
) -> list[dict[str, Any]]:
    """All pages up to the tip or the end, at a pace that the service allows."""
    pages = []
    while True:
        pages.append(get(model, it, limit))
        clock.sleep(6.0)
        if "NextShardIterator" not in pages[-1]:
            return pages
        it = pages[-1]["NextShardIterator"]
        if pages[-1]["MillisBehindLatest"] == 0:
            return pages


@pytest.mark.parametrize(("calls", "codes"), [(5, [None] * 5 + [THROTTLED]), (None, [None] * 6)])
def test_five_reads_a_second(calls: float | None, codes: list[str | None]) -> None:
    """The sixth call within a second is refused. A second later five are allowed again."""
    model, clock = model_of(replace(KIND, read_calls=calls))
    it = iterator(model)
    assert [code_of(model, "GetRecords", ShardIterator=it) for _ in codes] == codes
    clock.sleep(1.0)
    assert code_of(model, "GetRecords", ShardIterator=it) is None


def test_five_reads_a_second_are_those_of_all_readers() -> None:
    model, clock = model_of(replace(KIND, read_calls=5))
    model.add_stranger("s", calls=4)
    clock.sleep(1.1)  # four of its pauses, each of them a tenth longer or shorter
    assert code_of(model, "GetRecords", ShardIterator=iterator(model)) is None
    assert code_of(model, "GetRecords", ShardIterator=iterator(model)) == THROTTLED


def test_a_reader_with_the_documented_pause_is_never_refused() -> None:
    model, clock = model_of(replace(KIND, read_calls=5))
    it = iterator(model)
    for _ in range(1000):
        get(model, it)
        clock.sleep(0.2)


@pytest.mark.parametrize(("size", "seconds"), [(10, 5.0), (6, 3.0), (2, 0.0)])
def test_a_large_page_is_paid_for_afterwards(size: int, seconds: float) -> None:
    """10 MiB end reads for 5 s; no more than a second's worth ends nothing for long."""
    model, clock = model_of(replace(KIND, read_bytes=2 * MIB, longest_refusal=5.0, page_bytes=10 * MIB))
    for _ in range(20):
        model.put("s", "k", b"x" * (MIB - 1))
    it = iterator(model)
    it = get(model, it, size)["NextShardIterator"]
    clock.sleep(max(0.0, seconds - 0.1))
    assert code_of(model, "GetRecords", ShardIterator=it) == THROTTLED or seconds == 0.0
    clock.sleep(0.11)
    assert code_of(model, "GetRecords", ShardIterator=it) is None


def test_two_mebibytes_a_second_over_time() -> None:
    model, clock = model_of(replace(KIND, read_bytes=2 * MIB, page_bytes=10 * MIB))
    for _ in range(40):
        model.put("s", "k", b"x" * (MIB - 1))
    it, size = iterator(model), 0
    for _ in range(100):
        try:
            page = get(model, it, 1)
        except ModelError:
            page = {"Records": [], "NextShardIterator": it}
        size += sum(len(record["Data"]) + 1 for record in page["Records"])
        it = page["NextShardIterator"]
        clock.sleep(0.1)
    assert 10 * 2 * MIB <= size <= 11 * 2 * MIB


def test_a_page_holds_10_mib() -> None:
    for page_bytes, records in ((10 * MIB, 10), (None, 14)):
        model, _ = model_of(replace(KIND, page_bytes=page_bytes))
        for _ in range(14):
            model.put("s", "k", b"x" * (MIB - 1))
        assert len(get(model, iterator(model))["Records"]) == records


def test_a_page_holds_10_000_records() -> None:
    model, _ = model_of(KIND)
    for _ in range(10_001):
        model.put("s", "k")
    page = get(model, iterator(model))
    assert len(page["Records"]) == 10_000
    assert page["MillisBehindLatest"] > 0
    assert (
        code_of(model, "GetRecords", ShardIterator=iterator(model), Limit=10_001)
        == "InvalidArgumentException"
    )


def test_iterators_expire_after_five_minutes() -> None:
    for life, code in ((300.0, "ExpiredIteratorException"), (None, None)):
        model, clock = model_of(replace(KIND, iterator_life=life))
        it = iterator(model)
        clock.sleep(300.0)
        assert code_of(model, "GetRecords", ShardIterator=it) is None
        clock.sleep(0.1)
        assert code_of(model, "GetRecords", ShardIterator=it) == code
        it = iterator(model)
        model.expire_iterators()
        assert code_of(model, "GetRecords", ShardIterator=it) == "ExpiredIteratorException"


def test_a_step_of_the_time_of_day_expires_no_iterator() -> None:
    model, clock = model_of(Laws())
    it = iterator(model)
    clock.step(-1800)
    assert code_of(model, "GetRecords", ShardIterator=it) is None


def test_what_is_no_iterator_is_refused() -> None:
    model, _ = model_of(KIND)
    other, _ = model_of(KIND, seed=1)
    for foreign in ("AAAA", "?", iterator(other), iterator(model)[:-8] + "AAAAAAA="):
        assert code_of(model, "GetRecords", ShardIterator=foreign) == "InvalidArgumentException"


@pytest.mark.parametrize("seed", range(5))
def test_runs_of_empty_pages_come_before_records(seed: int) -> None:
    """Any number of pages may be empty before them, all of them behind the tip, and no record is left out."""
    for empty_pages in (60, 0):
        model, clock = model_of(replace(KIND, empty_pages=empty_pages, portion_records=20), seed=seed)
        numbers = [model.put("s", "k")[1].sequence_number for _ in range(500)]
        pages = read_all(model, clock, iterator(model))
        assert [record["SequenceNumber"] for page in pages for record in page["Records"]] == numbers
        runs = [len(list(g)) for empty, g in itertools.groupby(pages, lambda p: not p["Records"]) if empty]
        assert all(page["MillisBehindLatest"] > 0 for page in pages[:-1])
        assert max(runs, default=0) <= empty_pages
        assert (max(runs, default=0) > 20) == (empty_pages > 0)


def test_runs_of_empty_pages_repeat_themselves() -> None:
    """A range that is read again has the same empty pages, as the same portions of the shard are walked."""
    model, clock = model_of(replace(KIND, empty_pages=60, portion_records=20))
    for _ in range(200):
        model.put("s", "k")
    shapes = [[len(p["Records"]) for p in read_all(model, clock, iterator(model))] for _ in range(2)]
    assert shapes[0] == shapes[1]


def test_the_way_to_the_tip_of_a_quiet_shard_may_be_long() -> None:
    longest = 0
    for seed in range(10):
        model, clock = model_of(replace(KIND, empty_pages=60), seed=seed)
        number = model.put("s", "k")[1].sequence_number
        clock.sleep(3600)
        it = iterator(model, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)
        longest = max(longest, len(read_all(model, clock, it)))
    assert longest > 10


def test_only_the_tip_is_not_behind() -> None:
    """A page that has the last record may still say that it is behind; the next one says that it is not."""
    seen = set()
    for seed in range(20):
        model, clock = model_of(replace(KIND, late_tip=0.5), seed=seed)
        model.put("s", "k")
        clock.sleep(1.0)
        pages = read_all(model, clock, iterator(model))
        assert pages[-1]["MillisBehindLatest"] == 0
        seen.add(tuple(len(page["Records"]) for page in pages))
    assert seen == {(1,), (1, 0)}
    model, clock = model_of(KIND)
    model.put("s", "k")
    assert get(model, iterator(model))["MillisBehindLatest"] == 0


def test_a_first_page_may_claim_the_tip_if_that_is_so() -> None:
    for rate, first in ((1.0, []), (0.0, ["later"])):
        model, _ = model_of(replace(KIND, tip_before_records=rate))
        number = model.put("s", "k")[1].sequence_number
        model.put("s", "later")
        page = get(model, iterator(model, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number))
        assert [record["PartitionKey"] for record in page["Records"]] == first
        assert page["MillisBehindLatest"] == 0
        if not first:
            assert len(get(model, page["NextShardIterator"])["Records"]) == 1


def test_a_time_in_the_future_is_refused() -> None:
    for allowed, code in ((False, "InvalidArgumentException"), (True, None)):
        model, clock = model_of(replace(KIND, future_timestamps=allowed))
        request = {"StreamName": "s", "ShardId": S0, "ShardIteratorType": "AT_TIMESTAMP"}
        now = clock.now() / 1_000_000
        assert code_of(model, "GetShardIterator", **request, Timestamp=now) is None
        assert code_of(model, "GetShardIterator", **request, Timestamp=now + 0.5) == code


def test_five_iterators_a_second() -> None:
    for calls, code in ((5, THROTTLED), (None, None)):
        model, clock = model_of(replace(KIND, iterator_calls=calls), shards=2)
        for _ in range(5):
            iterator(model)
        request = {"StreamName": "s", "ShardId": S0, "ShardIteratorType": "LATEST"}
        assert code_of(model, "GetShardIterator", **request) == code
        iterator(model, shard="shardId-000000000001")
        clock.sleep(1.0)
        iterator(model)


def test_iterators_start_at_the_requested_position() -> None:
    model, clock = model_of(KIND)
    stored = []
    for key in "abc":
        stored.append(model.put("s", key)[1])
        clock.sleep(1.0)
    number, time = {"StartingSequenceNumber": stored[1].sequence_number}, stored[1].arrival / 1_000_000
    starts: list[tuple[str, dict[str, Any], str]] = [
        ("TRIM_HORIZON", {}, "abc"),
        ("LATEST", {}, ""),
        ("AT_SEQUENCE_NUMBER", number, "bc"),
        ("AFTER_SEQUENCE_NUMBER", number, "c"),
        ("AT_TIMESTAMP", {"Timestamp": time}, "bc"),
        ("AT_TIMESTAMP", {"Timestamp": time + 0.5}, "c"),
    ]
    for kind, start, keys in starts:
        page = get(model, iterator(model, kind, **start))
        assert "".join(record["PartitionKey"] for record in page["Records"]) == keys
    latest = iterator(model, "LATEST")
    model.put("s", "d")
    assert len(get(model, latest)["Records"]) == 1


def test_numbers_of_another_shard_are_refused() -> None:
    for allowed, code in ((False, "InvalidArgumentException"), (True, None)):
        model, _ = model_of(replace(KIND, foreign_numbers=allowed), shards=2)
        shard, record = model.put("s", "k")
        other = next(each for each in model.oracle.lineage("s") if each != shard)
        for number in (record.sequence_number, "17"):
            request = {"StreamName": "s", "ShardId": other, "StartingSequenceNumber": number}
            assert (
                code_of(model, "GetShardIterator", ShardIteratorType="AT_SEQUENCE_NUMBER", **request) == code
            )


def test_a_number_older_than_the_retention_starts_at_the_horizon() -> None:
    """Silently: only a reader that compares numbers notices what it has lost."""
    for keeps, keys in ((True, ["b"]), (False, ["a", "b"])):
        model, clock = model_of(replace(KIND, retention=keeps))
        number = model.put("s", "a")[1].sequence_number
        clock.sleep(23 * 3600)
        model.put("s", "b")
        clock.sleep(2 * 3600)
        page = get(model, iterator(model, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number))
        assert [record["PartitionKey"] for record in page["Records"]] == keys
        assert [record.is_lost for record in model.oracle.records("s")] == [keeps, False]


def test_arrival_need_not_rise_with_the_number() -> None:
    for disorder in (0.3, 0.0):
        model, clock = model_of(replace(KIND, arrival_disorder=disorder))
        stored = []
        for _ in range(100):
            stored.append(model.put("s", "k")[1])
            clock.sleep(0.001)
        numbers = [int(record.sequence_number) for record in stored]
        arrivals = [record.arrival for record in stored]
        assert numbers == sorted(numbers)
        assert (arrivals == sorted(arrivals)) == (disorder == 0.0)


def test_numbers_are_like_the_services_and_rise_over_reshards_and_steps() -> None:
    model, clock = model_of(Laws())
    last = 0
    for _ in range(5):
        shard, record = model.put("s", "k")
        assert len(record.sequence_number) == 56
        assert int(record.sequence_number) > last
        last = int(record.sequence_number)
        clock.step(-3600)
        model.split("s", shard)


def test_a_closed_shard_ends_with_its_children() -> None:
    model, clock = model_of(KIND)
    model.put("s", "k")
    it = iterator(model)
    children = model.split("s", S0)
    (page,) = read_all(model, clock, it)
    assert [child["ShardId"] for child in page["ChildShards"]] == children
    assert "NextShardIterator" not in page
    ending = model.call("ListShards", {"StreamName": "s"})["Shards"][0]["SequenceNumberRange"]
    it = iterator(model, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=ending["EndingSequenceNumber"])
    assert "NextShardIterator" not in get(model, it)
