"""The model as the log behind the source: its errors, its retries, and a query that reads through its
laws.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from integration.model import (
    LOST_ANSWER,
    MIB,
    NO_RETRIES,
    FaultPlan,
    KinesisModel,
    Laws,
    ManualClock,
    ModelError,
    ModelLog,
)

from sluice.errors import ServiceError
from sluice.source.logs.stream_log import IteratorStart, StreamLog
from sluice.source.model.splits import SplitId

S0 = SplitId("s", "shardId-000000000000")
HORIZON = IteratorStart("TRIM_HORIZON")


def log_of(laws: Laws, *, shards: int = 1) -> tuple[ModelLog, KinesisModel, ManualClock]:
    clock = ManualClock()
    model = KinesisModel(laws, clock)
    model.create("s", shards)
    return ModelLog(model), model, clock


def failure(log: ModelLog, iterator: str) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        log.get_records(S0, iterator, 100)
    return caught.value


@pytest.mark.parametrize(
    ("code", "attributes"),
    [
        ("ProvisionedThroughputExceededException", {"throttling", "retryable"}),
        ("KMSThrottlingException", {"throttling", "retryable"}),
        ("ExpiredIteratorException", {"expired_iterator"}),
        ("ResourceNotFoundException", {"missing"}),
        ("InvalidArgumentException", {"invalid_argument"}),
        ("InternalFailure", {"retryable"}),
        ("ServiceUnavailable", {"retryable"}),
        ("ExpiredTokenException", set[str]()),
        (LOST_ANSWER, {"retryable"}),
    ],
)
def test_errors_are_what_the_real_client_raises(code: str, attributes: set[str]) -> None:
    log, model, _ = log_of(Laws.kind())
    model.faults.force("GetRecords", code, times=99)
    error = failure(log, log.get_iterator(S0, HORIZON) or "")
    flags = ("throttling", "retryable", "expired_iterator", "missing", "invalid_argument")
    assert {flag for flag in flags if getattr(error, flag)} == attributes
    assert error.operation == "GetRecords"


def test_retries_wait_by_the_models_clock() -> None:
    log, model, clock = log_of(Laws.kind())
    model.faults.force("GetRecords", "InternalFailure", times=3)
    log.get_records(S0, log.get_iterator(S0, HORIZON) or "", 100)
    assert log.failures == Counter({("GetRecords", "InternalFailure"): 3})
    assert clock.slept == pytest.approx(0.5 * (0.3 + 0.45 + 0.675))


def test_each_refusal_shows_without_retries() -> None:
    _, model, clock = log_of(Laws.kind())
    log = ModelLog(model, backoffs=NO_RETRIES)
    model.faults.force("GetRecords", ModelError("InternalFailure"))
    assert failure(log, log.get_iterator(S0, HORIZON) or "").retryable
    assert clock.slept == 0.0


def test_the_retries_of_the_default_options_do_not_outlast_a_large_page() -> None:
    """Which is why a reader must know of the refusal (F2)."""
    log, model, _ = log_of(Laws(empty_pages=0))
    for _ in range(20):
        model.put("s", "k", b"x" * (MIB - 1))
    page = log.get_records(S0, log.get_iterator(S0, HORIZON) or "", 10_000)
    assert len(page.records) == 10
    assert failure(log, page.next_iterator or "").throttling


def test_streams_and_splits_are_those_of_the_model() -> None:
    log, model, clock = log_of(replace(Laws(), listing_delay=0.0, listing_page=2), shards=3)
    stream_log: StreamLog = log
    assert stream_log.describe("s").retention == 24 * 3600.0
    model.split("s", S0.shard)
    clock.sleep(60)
    splits = {split.id.shard[-1]: split for split in stream_log.list_splits("s")}
    assert sorted(splits) == ["0", "1", "2", "3", "4"]
    assert splits["0"].is_closed
    assert splits["3"].parents == (S0.shard,)
    assert splits["3"].hash_range[1] + 1 == splits["4"].hash_range[0]
    assert stream_log.server_time() == clock.now()
    assert ModelLog(model, skew=2.0).server_time() == clock.now() + 2_000_000


def test_a_seeded_plan_fails_any_operation_at_any_moment() -> None:
    log, model, clock = log_of(Laws.kind())
    model.faults = FaultPlan({"*": {"InternalFailure": 0.2, "LimitExceededException": 0.1}}, seed=3)
    for _ in range(50):
        log.list_splits("s")
    assert 5 < log.failures["ListShards", "InternalFailure"] < 25
    assert log.failures["ListShards", "LimitExceededException"] > 0
    assert clock.slept > 0.0
