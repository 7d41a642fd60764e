"""The laws of the control plane, each of them on and off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from integration.model import FaultPlan, KinesisModel, Laws, ManualClock, ModelError, RealClock

KIND = Laws.kind()
S0, S1, S2 = (f"shardId-{index:012d}" for index in range(3))
HOUR = 3600.0


def model_of(laws: Laws, *, shards: int = 1, seed: int = 0) -> tuple[KinesisModel, ManualClock]:
    clock = ManualClock()
    model = KinesisModel(laws, clock, seed)
    model.create("s", shards)
    return model, clock


def code_of(model: KinesisModel, operation: str, **request: Any) -> str | None:
    try:
        model.call(operation, request)
    except ModelError as error:
        return error.code
    return None


def listed(model: KinesisModel, **request: Any) -> list[str]:
    return [shard["ShardId"] for shard in model.call("ListShards", {"StreamName": "s", **request})["Shards"]]


def status(model: KinesisModel) -> str:
    summary = model.call("DescribeStreamSummary", {"StreamName": "s"})["StreamDescriptionSummary"]
    return str(summary["StreamStatus"])


@pytest.mark.parametrize(
    ("operation", "rate", "request_"),
    [
        ("DescribeStreamSummary", 20, {"StreamName": "s"}),
        ("DescribeStream", 10, {"StreamName": "s"}),
        ("ListShards", 1000, {"StreamName": "s"}),
        ("ListStreams", 5, {}),
        ("SplitShard", 5, {"StreamName": "s", "ShardToSplit": S0, "NewStartingHashKey": "0"}),
    ],
)
def test_calls_a_second(operation: str, rate: int, request_: dict[str, Any]) -> None:
    for laws, last in ((replace(KIND, call_rates=Laws().call_rates), "LimitExceededException"), (KIND, None)):
        model, clock = model_of(laws)
        codes = {code_of(model, operation, **request_) for _ in range(rate)}
        assert "LimitExceededException" not in codes
        assert (code_of(model, operation, **request_) == "LimitExceededException") == (last is not None)
        clock.sleep(1.0)
        assert code_of(model, operation, **request_) != "LimitExceededException"


def test_listings_come_in_pages() -> None:
    model, clock = model_of(replace(KIND, listing_page=2, token_life=300.0, token_alone=True), shards=5)
    first = model.call("ListShards", {"StreamName": "s"})
    token = first["NextToken"]
    assert len(first["Shards"]) == 2
    assert code_of(model, "ListShards", StreamName="s", NextToken=token) == "InvalidArgumentException"
    second = model.call("ListShards", {"NextToken": token, "MaxResults": 1})
    assert [shard["ShardId"] for shard in second["Shards"]] == [S2]
    assert code_of(model, "ListShards", NextToken="what") == "InvalidArgumentException"
    clock.sleep(300.1)
    assert code_of(model, "ListShards", NextToken=token) == "ExpiredNextTokenException"
    model.laws = KIND
    assert code_of(model, "ListShards", StreamName="s", NextToken=token) is None


def test_a_listing_may_miss_a_new_shard_for_a_moment() -> None:
    for delay, missed in ((2.0, True), (0.0, False)):
        model, clock = model_of(replace(KIND, listing_delay=delay))
        model.split("s", S0)
        assert (len(listed(model)) < 3) == missed
        clock.sleep(2.0)
        assert listed(model) == [S0, S1, S2]


def test_a_listing_may_miss_a_drained_shard_for_a_moment() -> None:
    for gaps in (0.2, 0.0):
        model, clock = model_of(replace(KIND, listing_gaps=gaps))
        model.put("s", "k")
        model.split("s", S0)
        seen = []
        for _ in range(100):
            seen.append(S0 in listed(model))
            clock.sleep(2.0)
        assert all(seen), "a record is unread"
        request = {"StreamName": "s", "ShardId": S0, "ShardIteratorType": "TRIM_HORIZON"}
        model.call("GetRecords", {"ShardIterator": model.call("GetShardIterator", request)["ShardIterator"]})
        seen = []
        for _ in range(100):
            seen.append(S0 in listed(model))
            clock.sleep(2.0)
        assert (50 < sum(seen) < 100) == (gaps > 0.0)


def test_a_listing_has_each_closed_shard_that_never_had_a_record() -> None:
    """A reader that misses it would not know that its children come after its parents."""
    model, clock = model_of(replace(KIND, listing_gaps=1.0))
    model.put("s", "k")
    model.split("s", S0)
    model.merge("s", S1, S2)
    for _ in range(10):
        assert {S0, S1, S2} <= set(listed(model))
        clock.sleep(2.0)


def test_filters_of_listings() -> None:
    model, clock = model_of(KIND)
    clock.sleep(10.0)
    model.split("s", S0)
    assert listed(model, ShardFilter={"Type": "AT_LATEST"}) == [S1, S2]
    assert listed(model, ShardFilter={"Type": "AFTER_SHARD_ID", "ShardId": S1}) == [S2]
    assert listed(model, ShardFilter={"Type": "AT_TRIM_HORIZON"}) == [S0]
    at = clock.now() / 1_000_000 - 5
    assert listed(model, ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": at}) == [S0]
    assert listed(model, ShardFilter={"Type": "FROM_TIMESTAMP", "Timestamp": at}) == [S0, S1, S2]


def test_the_first_shards_are_at_the_horizon_of_a_young_stream() -> None:
    """Although they are made a moment after it. The KCL starts a stream there."""
    model = KinesisModel(KIND, RealClock(), 0)
    model.create("s", 2)
    model.split("s", S0)

    assert listed(model, ShardFilter={"Type": "AT_TRIM_HORIZON"}) == [S0, S1]


def test_a_reshard_takes_time() -> None:
    """The shards change when the stream is ACTIVE again; meanwhile no other reshard may start."""
    model, clock = model_of(replace(KIND, status_delay=(1.0, 1.0), resharding_rules=True))
    split = {"StreamName": "s", "ShardToSplit": S0, "NewStartingHashKey": str(2**127)}
    model.call("SplitShard", split)
    assert status(model) == "UPDATING"
    assert listed(model) == [S0]
    assert code_of(model, "SplitShard", **split) == "ResourceInUseException"
    clock.sleep(1.0)
    assert status(model) == "ACTIVE"
    assert listed(model) == [S0, S1, S2]
    model.laws = KIND
    model.call("MergeShards", {"StreamName": "s", "ShardToMerge": S1, "AdjacentShardToMerge": S2})
    assert status(model) == "ACTIVE"


def test_what_cannot_be_resharded_is_refused() -> None:
    model, _ = model_of(replace(KIND, resharding_rules=True), shards=3)
    merge = {"StreamName": "s", "ShardToMerge": S0}
    assert code_of(model, "MergeShards", **merge, AdjacentShardToMerge=S2) == "InvalidArgumentException"
    split = {"StreamName": "s", "ShardToSplit": S1}
    low, high = model.call("ListShards", {"StreamName": "s"})["Shards"][1]["HashKeyRange"].values()
    for key in (low, high, "0"):
        assert code_of(model, "SplitShard", **split, NewStartingHashKey=key) == "InvalidArgumentException"
    assert code_of(model, "MergeShards", **merge, AdjacentShardToMerge=S1) is None
    assert code_of(model, "MergeShards", **merge, AdjacentShardToMerge=S1) == "InvalidArgumentException"


@pytest.mark.parametrize(("shards", "target"), [(4, 8), (4, 2), (4, 6), (3, 5), (5, 3), (3, 3)])
def test_scaling_gives_shards_of_the_same_size(shards: int, target: int) -> None:
    """By splits and merges of two at most, so that lineage holds."""
    model, _ = model_of(KIND, shards=shards)
    model.scale("s", target)
    open_ones = model.call("ListShards", {"StreamName": "s", "ShardFilter": {"Type": "AT_LATEST"}})["Shards"]
    ranges = sorted(
        (int(r["StartingHashKey"]), int(r["EndingHashKey"])) for s in open_ones for r in [s["HashKeyRange"]]
    )
    assert len(ranges) == target
    assert [low for low, _ in ranges] == [index * (2**128 // target) for index in range(target)]
    assert ranges[-1][1] == 2**128 - 1
    assert all(len(parents) <= 2 for parents in model.oracle.lineage("s").values())


def test_a_stream_is_doubled_at_most_and_ten_times_a_day() -> None:
    for rules, code in ((True, "LimitExceededException"), (False, None)):
        model, clock = model_of(replace(KIND, resharding_rules=rules), shards=4)
        scale = {"StreamName": "s", "ScalingType": "UNIFORM_SCALING"}
        for target in (9, 1):
            assert code_of(model, "UpdateShardCount", **scale, TargetShardCount=target) == code
            model.scale("s", 4)
        for _ in range(10 if rules else 8):
            assert code_of(model, "UpdateShardCount", **scale, TargetShardCount=4) is None
        assert code_of(model, "UpdateShardCount", **scale, TargetShardCount=4) == code
        clock.sleep(24 * HOUR + 1)
        assert code_of(model, "UpdateShardCount", **scale, TargetShardCount=4) is None


def test_an_account_has_so_many_shards() -> None:
    model, _ = model_of(replace(KIND, shard_limit=2), shards=2)
    split = {"StreamName": "s", "ShardToSplit": S0, "NewStartingHashKey": "9"}
    assert code_of(model, "SplitShard", **split) == "LimitExceededException"
    model.laws = KIND
    assert code_of(model, "SplitShard", **split) is None


def test_closed_shards_are_listed_until_their_last_record_has_expired() -> None:
    for law in (True, False):
        model, clock = model_of(replace(KIND, retention=True, shards_expire=law))
        model.put("s", "k")
        clock.sleep(HOUR)
        model.split("s", S0)
        clock.sleep(23.9 * HOUR)
        assert listed(model) == [S0, S1, S2]
        clock.sleep(0.2 * HOUR)
        assert (S0 not in listed(model)) == law
        request = {"StreamName": "s", "ShardId": S0, "ShardIteratorType": "TRIM_HORIZON"}
        assert code_of(model, "GetShardIterator", **request) == ("ResourceNotFoundException" if law else None)


def test_what_has_expired_stays_away_when_the_retention_is_raised() -> None:
    model, clock = model_of(replace(KIND, retention=True))
    model.put("s", "old")
    clock.sleep(23 * HOUR)
    model.put("s", "new")
    clock.sleep(2 * HOUR)
    model.call("IncreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 48})
    assert [record.partition_key for record in model.oracle.readable("s")] == ["new"]
    clock.sleep(40 * HOUR)
    assert [record.partition_key for record in model.oracle.readable("s")] == ["new"]
    model.call("DecreaseStreamRetentionPeriod", {"StreamName": "s", "RetentionPeriodHours": 24})
    assert model.oracle.readable("s") == []
    assert (
        code_of(model, "IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=9999) is not None
    )


def test_a_stream_of_the_same_name_is_another_one() -> None:
    model, clock = model_of(KIND)
    request = {"StreamName": "s", "ShardId": S0, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = model.call("GetShardIterator", request)["ShardIterator"]
    model.call("DeleteStream", {"StreamName": "s"})
    assert code_of(model, "DescribeStreamSummary", StreamName="s") == "ResourceNotFoundException"
    clock.sleep(5.0)
    model.call("CreateStream", {"StreamName": "s", "ShardCount": 1})
    assert code_of(model, "GetRecords", ShardIterator=iterator) == "ResourceNotFoundException"


def test_a_new_stream_is_creating_for_a_while() -> None:
    model, clock = model_of(replace(KIND, status_delay=(1.0, 1.0)))
    model.call("CreateStream", {"StreamName": "t", "ShardCount": 1})
    assert code_of(model, "ListShards", StreamName="t") == "ResourceInUseException"
    record = {"StreamName": "t", "PartitionKey": "k", "Data": b""}
    assert code_of(model, "PutRecord", **record) == "ResourceNotFoundException"
    clock.sleep(1.0)
    assert code_of(model, "ListShards", StreamName="t") is None
    assert code_of(model, "PutRecord", **record) is None


def test_credentials_expire() -> None:
    model, _ = model_of(KIND)
    model.expire_credentials("OLD")
    with pytest.raises(ModelError, match="ExpiredToken"):
        model.call("ListStreams", access_key="OLD")
    model.call("ListStreams", access_key="NEW")
    model.renew_credentials()
    model.call("ListStreams", access_key="OLD")


def test_the_same_seed_gives_the_same_faults() -> None:
    plans = [FaultPlan({"*": {"InternalFailure": 0.3}}, seed=seed) for seed in (1, 1, 2)]
    drawn = [[plan.draw("ListShards", {}) is None for _ in range(50)] for plan in plans]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_running_clock_is_off_and_steps() -> None:
    true, off = RealClock(), RealClock(offset=100.0, drift=0.0, steps={0.0: 20.0})
    assert off.now() - true.now() == pytest.approx(120e6, abs=1e6)
    before = off.elapsed()
    off.step(-3600)
    assert off.now() < true.now()
    assert off.elapsed() >= before
    off.advance(300.0)
    assert off.elapsed() >= before + 300.0
