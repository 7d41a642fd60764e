"""The laws of writing, each of them on and off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from integration.model import LOST_ANSWER, MIB, FaultPlan, KinesisModel, Laws, ManualClock, ModelError

KIND = Laws.kind()
THROTTLED = "ProvisionedThroughputExceededException"
INVALID = "ValidationException"


def model_of(laws: Laws, *, shards: int = 1) -> tuple[KinesisModel, ManualClock]:
    clock = ManualClock()
    model = KinesisModel(laws, clock)
    model.create("s", shards)
    return model, clock


def put(model: KinesisModel, *records: tuple[str, bytes], **more: Any) -> list[str | None]:
    """The code of each record; None: it was taken."""
    entries = [{"PartitionKey": key, "Data": data, **more} for key, data in records]
    answer = model.call("PutRecords", {"StreamName": "s", "Records": entries})
    codes = [result.get("ErrorCode") for result in answer["Records"]]
    assert answer["FailedRecordCount"] == sum(code is not None for code in codes)
    return codes


def refusal(model: KinesisModel, *records: tuple[str, bytes], **more: Any) -> str | None:
    """The code that the request as a whole is refused with; None: it is not."""
    try:
        put(model, *records, **more)
    except ModelError as error:
        return error.code
    return None


def test_a_thousand_records_a_second() -> None:
    for rate, refused in ((1_000, 500), (None, 0)):
        model, clock = model_of(replace(KIND, write_records=rate))
        codes = [code for _ in range(3) for code in put(model, *[("k", b"x")] * 500)]
        assert codes == [None] * (1_500 - refused) + [THROTTLED] * refused
        clock.sleep(0.5)
        assert put(model, *[("k", b"x")] * 500) == [None] * 500


def test_a_mebibyte_a_second() -> None:
    for rate, refused in ((MIB, 5), (None, 0)):
        model, clock = model_of(replace(KIND, write_bytes=rate))
        codes = put(model, *[("k", b"x" * (MIB // 5 - 1))] * 10)
        assert codes == [None] * (10 - refused) + [THROTTLED] * refused
        clock.sleep(1.0)
        assert put(model, ("k", b"x" * (MIB - 1))) == [None]


def test_a_large_record_overdraws_the_available_bytes() -> None:
    """It is taken when the shard has been quiet, and paid for afterwards."""
    model, clock = model_of(replace(KIND, write_bytes=MIB))
    assert put(model, ("k", b"x" * (8 * MIB - 1))) == [None]
    clock.sleep(6.9)
    assert put(model, ("k", b"x")) == [THROTTLED]
    clock.sleep(0.2)
    assert put(model, ("k", b"x")) == [None]


def test_each_shard_has_its_own_limit() -> None:
    model, _ = model_of(replace(KIND, write_records=1_000), shards=2)
    for _ in range(2):
        put(model, *[("k", b"x")] * 500, ExplicitHashKey="0")
    assert put(model, ("k", b"x"), ExplicitHashKey="0") == [THROTTLED]
    assert put(model, ("k", b"x"), ExplicitHashKey=str(2**127)) == [None]


def test_a_request_holds_500_records() -> None:
    for most, code in ((500, INVALID), (None, None)):
        model, _ = model_of(replace(KIND, request_records=most))
        assert refusal(model, *[("k", b"x")] * 500) is None
        assert refusal(model, *[("k", b"x")] * 501) == code


def test_a_request_holds_10_mib() -> None:
    for most, code in ((10 * MIB, "InvalidArgumentException"), (None, None)):
        model, _ = model_of(replace(KIND, request_bytes=most))
        half = b"x" * (5 * MIB - 1)
        assert refusal(model, ("k", half), ("k", half)) is None
        assert refusal(model, ("k", half), ("kk", half)) == code


def test_a_record_is_as_large_as_its_stream_allows() -> None:
    for law, code in ((True, INVALID), (False, None)):
        model, _ = model_of(replace(KIND, record_bytes=law))
        assert refusal(model, ("k", b"x" * (MIB - 1))) is None
        assert refusal(model, ("k", b"x" * MIB)) == code
        model.call("UpdateMaxRecordSize", {"StreamName": "s", "MaxRecordSizeInKiB": 10240})
        assert refusal(model, ("k", b"x" * (10 * MIB - 1))) is None


@pytest.mark.parametrize(
    ("units", "short", "long"),
    [
        ("code points", "\U0001f600" * 256, "\U0001f600" * 257),
        ("utf-16", "\U0001f600" * 128, "\U0001f600" * 129),
    ],
)
def test_a_partition_key_has_256_characters_whatever_they_are(units: Any, short: str, long: str) -> None:
    model, _ = model_of(replace(KIND, partition_key_units=units))
    assert refusal(model, (short, b"")) is None
    for key in (long, ""):
        assert refusal(model, (key, b"")) == INVALID
        assert refusal(model_of(KIND)[0], (key, b"")) is None


def test_an_explicit_hash_key_chooses_the_shard() -> None:
    model, _ = model_of(KIND, shards=4)
    for index in range(4):
        put(model, ("k", b""), ExplicitHashKey=str(index * 2**126))
    assert [record.shard[-1] for record in model.oracle.records("s")] == list("0123")
    for key in (str(2**128), "-1", "x"):
        assert refusal(model, ("k", b""), ExplicitHashKey=key) == "InvalidArgumentException"


def test_records_fail_one_by_one_by_code() -> None:
    model, _ = model_of(KIND)
    model.faults = FaultPlan({"PutRecords.record": {"InternalFailure": 0.2, THROTTLED: 0.2}}, seed=1)
    codes = put(model, *[("k", b"x")] * 500)
    assert 50 < codes.count("InternalFailure") < 150
    assert 50 < codes.count(THROTTLED) < 150
    assert len(model.oracle.records("s")) == codes.count(None)
    model.faults = FaultPlan()
    assert put(model, ("k", b"x")) == [None]


def test_a_record_that_failed_may_be_there() -> None:
    model, _ = model_of(KIND)
    model.faults.force("PutRecords.record", LOST_ANSWER)
    assert put(model, ("k", b"x"), ("k", b"y")) == ["InternalFailure", None]
    assert [record.data for record in model.oracle.records("s")] == [b"x", b"y"]


def test_an_answer_may_be_lost_behind_what_it_answers() -> None:
    model, _ = model_of(KIND)
    model.faults.force("PutRecords", LOST_ANSWER)
    assert refusal(model, ("k", b"x")) == LOST_ANSWER
    assert len(model.oracle.records("s")) == 1
    model.faults.force("PutRecords", "InternalFailure")
    assert refusal(model, ("k", b"y")) == "InternalFailure"
    assert len(model.oracle.records("s")) == 1


def test_a_callback_decides_on_each_call() -> None:
    model, _ = model_of(KIND)
    model.faults = FaultPlan(
        callback=lambda operation, _: "KMSDisabledException" if operation == "PutRecords" else None
    )
    assert refusal(model, ("k", b"x")) == "KMSDisabledException"
    model.call("ListShards", {"StreamName": "s"})
    assert model.faults.fired == {("PutRecords", "KMSDisabledException"): 1}


def test_the_oracle_knows_which_records_were_not_acknowledged() -> None:
    """Those whose answer was lost, all of it or that of one record: they may be put again, and no others."""
    model = KinesisModel(KIND, ManualClock())
    model.create("s")
    entries = [{"PartitionKey": "k", "Data": b"x"}] * 2

    def put() -> list[str]:
        results = model.call("PutRecords", {"StreamName": "s", "Records": entries})["Records"]
        return [each["SequenceNumber"] for each in results if "SequenceNumber" in each]

    acknowledged = put()
    model.faults.force("PutRecords", LOST_ANSWER)
    with pytest.raises(ModelError):
        put()
    model.faults.force("PutRecords.record", LOST_ANSWER)
    acknowledged += put()
    assert len(acknowledged) == 3
    everything = {record.sequence_number for record in model.oracle.records("s")}
    assert model.oracle.unacknowledged() == everything - set(acknowledged)
