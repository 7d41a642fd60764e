"""The library's subscriber over subscriptions of the model, in the model's time."""

from __future__ import annotations

import random
import threading

import msgspec
import pytest
from integration.model import FaultPlan, KinesisModel, Laws, ManualClock, ModelSubscribing

from sluice.aws.wire.watchdog import Watchdog
from sluice.errors import ServiceError
from sluice.kinesis.subscriptions.subscriber import Subscriber, SubscriberSettings, Timing
from sluice.retry import Backoff
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

S0 = SplitId("s", "shardId-000000000000")
HORIZON = IteratorStart("TRIM_HORIZON")
BACKOFF = Backoff(10, 1.0, 2.0, 1.5)


def opened(seed: int = 0) -> tuple[KinesisModel, ManualClock, ModelSubscribing]:
    clock = ManualClock()
    model = KinesisModel(Laws(), clock, seed)
    model.create("s", 1)
    return model, clock, ModelSubscribing.register(model, "s")


def subscriber(subscribe: ModelSubscribing, clock: ManualClock, seed: int = 0) -> Subscriber:
    watchdog = Watchdog(clock.elapsed)
    watchdog._thread = threading.current_thread()  # so that it starts none
    timing = Timing(clock.elapsed, clock.sleep, random.Random(seed).random, watchdog)
    return Subscriber(subscribe, S0, HORIZON, SubscriberSettings(BACKOFF), timing)


@pytest.mark.parametrize("seed", range(5))
def test_a_subscriber_gets_every_record_once_whatever_the_service_does(seed: int) -> None:
    """Twenty minutes of renewals, errors, ends and silence, to the end of the shard."""
    model, clock, subscribe = opened(seed)
    codes = ("InternalFailureException", "KMSThrottlingException", "SomethingNewException", "end")
    rates = {**dict.fromkeys(codes, 0.01), "silence": 0.003}
    model.faults = FaultPlan(
        {"SubscribeToShard.event": rates, "SubscribeToShard": {"InternalFailure": 0.1}}, seed=seed
    )
    reader = subscriber(subscribe, clock, seed)
    put: list[str] = []
    got: list[str] = []
    while True:
        _, head = reader.next_event()
        got += head.numbers
        if head.has_ended:
            break
        if head.numbers:
            continue
        if clock.elapsed() < 1_200:
            put += [model.put("s", "k")[1].sequence_number for _ in range(20)]
        elif model.oracle.lineage("s").keys() == {S0.shard}:
            model.split(*S0)
    assert got == put
    assert len(subscribe.opened) > 5


def test_two_readers_of_one_consumer_exclude_one_another() -> None:
    model, clock, subscribe = opened()
    first = subscriber(subscribe, clock)
    model.put("s", "k")
    first.next_event()
    with pytest.raises(ServiceError, match="LimitExceeded"):
        subscribe(S0, HORIZON)
    clock.sleep(1.0)
    with pytest.raises(ServiceError, match="ResourceInUse"):
        subscribe(S0, HORIZON)
    clock.sleep(5.0)
    subscribe(S0, HORIZON)
    with pytest.raises(ServiceError, match="ResourceInUse"):
        first.next_event()


def test_payloads_are_events_in_json() -> None:
    model, _, subscribe = opened()
    record = model.put("s", "k", b"data")[1]
    payload = subscribe(S0, IteratorStart("AT_SEQUENCE_NUMBER", record.sequence_number)).next_payload()
    event = msgspec.json.decode(payload or b"")
    assert event["Records"][0]["Data"] == "ZGF0YQ=="
    assert event["ContinuationSequenceNumber"] == record.sequence_number


def test_silence_is_an_error_that_may_be_retried() -> None:
    model, clock, subscribe = opened()
    payloads = subscribe(S0, IteratorStart("LATEST"))
    payloads.next_payload()
    model.subscriptions(*S0)[0].fall_silent()
    before = clock.elapsed()
    with pytest.raises(ServiceError, match="no event for 16 s") as caught:
        payloads.next_payload()
    assert caught.value.retryable
    assert clock.elapsed() - before == pytest.approx(16.0, abs=0.1)
