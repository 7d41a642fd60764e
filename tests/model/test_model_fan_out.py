"""The laws of consumers and subscriptions, each of them on and off."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from integration.model import MIB, KinesisModel, Laws, ManualClock, ModelError, Subscription

KIND = Laws.kind()
S0 = "shardId-000000000000"
ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
IN_USE = "ResourceInUseException"


def model_of(laws: Laws, *, seed: int = 0) -> tuple[KinesisModel, ManualClock]:
    clock = ManualClock()
    model = KinesisModel(laws, clock, seed)
    model.create("s", 1)
    return model, clock


def register(model: KinesisModel, name: str = "c") -> str:
    answer = model.call("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": name})
    arn: str = answer["Consumer"]["ConsumerARN"]
    return arn


def code_of(model: KinesisModel, operation: str, **request: Any) -> str | None:
    try:
        model.call(operation, request)
    except ModelError as error:
        return error.code
    return None


def subscribe(model: KinesisModel, consumer: str, kind: str = "TRIM_HORIZON", **start: Any) -> Subscription:
    position = {"Type": kind, **start}
    request = {"ConsumerARN": consumer, "ShardId": S0, "StartingPosition": position}
    subscription = model.call("SubscribeToShard", request)["EventStream"]
    assert isinstance(subscription, Subscription)
    return subscription


def refused(model: KinesisModel, consumer: str) -> str | None:
    try:
        subscribe(model, consumer)
    except ModelError as error:
        return error.code
    return None


def follow(
    subscription: Subscription, clock: ManualClock, seconds: float
) -> list[tuple[float, dict[str, Any]]]:
    """The events that come within `seconds`, each with its time."""
    events = []
    end = clock.elapsed() + seconds
    while clock.elapsed() < end and not subscription.has_ended:
        event = subscription.next_event()
        if event is not None:
            events.append((clock.elapsed(), event))
        clock.sleep(0.01)
    return events


def keys_of(events: list[tuple[float, dict[str, Any]]]) -> list[str]:
    return [record["PartitionKey"] for _, event in events for record in event["Records"]]


def test_a_consumer_takes_time_to_come_and_to_go() -> None:
    model, clock = model_of(replace(KIND, consumer_delay=(2.0, 2.0)))
    consumer = register(model)
    described = {"ConsumerARN": consumer}

    def status() -> str:
        answer = model.call("DescribeStreamConsumer", described)["ConsumerDescription"]
        return str(answer["ConsumerStatus"])

    assert status() == "CREATING"
    assert refused(model, consumer) == IN_USE
    assert code_of(model, "DeregisterStreamConsumer", **described) == IN_USE
    clock.sleep(2.0)
    assert status() == "ACTIVE"
    assert code_of(model, "RegisterStreamConsumer", StreamARN=ARN, ConsumerName="c") == IN_USE
    model.call("DeregisterStreamConsumer", described)
    assert status() == "DELETING"
    clock.sleep(2.0)
    assert code_of(model, "DescribeStreamConsumer", **described) == "ResourceNotFoundException"
    model.laws = KIND
    register(model)
    assert model.call("ListStreamConsumers", {"StreamARN": ARN})["Consumers"][0]["ConsumerStatus"] == "ACTIVE"


def test_twenty_consumers_five_of_them_creating() -> None:
    laws = replace(KIND, consumer_delay=(2.0, 2.0), consumer_limit=20, creating_limit=5)
    model, clock = model_of(laws)
    for number in range(20):
        register(model, f"c{number}")
        if number % 5 == 4:
            if number < 19:
                assert code_of(model, "RegisterStreamConsumer", StreamARN=ARN, ConsumerName="x") == (
                    "LimitExceededException"
                )
            clock.sleep(2.0)
    request = {"StreamARN": ARN, "ConsumerName": "x"}
    assert code_of(model, "RegisterStreamConsumer", **request) == "LimitExceededException"
    model.laws = KIND
    assert code_of(model, "RegisterStreamConsumer", **request) is None


def test_consumers_are_listed_in_pages() -> None:
    model, _ = model_of(KIND)
    for number in range(3):
        register(model, f"c{number}")
    page = model.call("ListStreamConsumers", {"StreamARN": ARN, "MaxResults": 2})
    rest = model.call("ListStreamConsumers", {"StreamARN": ARN, "NextToken": page["NextToken"]})
    names = [consumer["ConsumerName"] for consumer in page["Consumers"] + rest["Consumers"]]
    assert names == ["c0", "c1", "c2"]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_second_subscription_within_five_seconds_is_refused(is_closed: bool) -> None:
    """Whether the first one is open or was closed. After five seconds the new one takes over."""
    for wait, code in ((5.0, IN_USE), (None, None)):
        model, clock = model_of(replace(KIND, resubscribe_after=wait))
        consumer = register(model)
        first = subscribe(model, consumer)
        first.next_event()
        if is_closed:
            first.close()
        clock.sleep(4.9)
        assert refused(model, consumer) == code
        clock.sleep(0.2)
        assert refused(model, consumer) == (code if wait is None else None)
        if not is_closed:
            with pytest.raises(ModelError, match=IN_USE):
                first.next_event()
            assert first.has_ended


def test_one_call_a_second() -> None:
    for rate, code in ((1, "LimitExceededException"), (None, None)):
        model, clock = model_of(replace(KIND, subscribe_calls=rate))
        consumer = register(model)
        assert refused(model, consumer) is None
        clock.sleep(0.9)
        assert refused(model, consumer) == code
        clock.sleep(0.2)
        assert refused(model, consumer) is None


def test_a_subscription_ends_after_five_minutes() -> None:
    for life, has_ended in ((300.0, True), (None, False)):
        model, clock = model_of(replace(KIND, subscription_life=life))
        subscription = subscribe(model, register(model))
        follow(subscription, clock, 299.0)
        assert not subscription.has_ended
        clock.sleep(2.0)
        assert subscription.next_event() is None or not has_ended
        assert subscription.has_ended == has_ended


def test_heartbeats_move_the_continuation_on() -> None:
    model, clock = model_of(replace(KIND, heartbeat=5.0))
    model.put("s", "a")
    events = follow(subscribe(model, register(model)), clock, 31.0)
    numbers = [int(event["ContinuationSequenceNumber"]) for _, event in events]
    assert keys_of(events) == ["a"]
    assert len(events) in (7, 8)
    assert numbers == sorted(set(numbers))
    # Nothing is duplicated, and nothing is left out, from any of them on, by AT and by AFTER.
    model.put("s", "b")
    for number in numbers[1:]:
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            again = subscribe(
                model, register(model, f"c{number}{kind[:2]}"), kind, SequenceNumber=str(number)
            )
            assert keys_of(follow(again, clock, 1.0)) == ["b"]


def test_two_mebibytes_a_second() -> None:
    for rate, low, high in ((2 * MIB, 4.0, 5.5), (None, 0.0, 1.0)):
        model, clock = model_of(replace(KIND, push_bytes=rate))
        for _ in range(10):
            model.put("s", "k", b"x" * (MIB - 1))
        events = follow(subscribe(model, register(model)), clock, 6.0)
        assert len(keys_of(events)) == 10
        times = [at for at, event in events if event["Records"]]
        assert low <= times[-1] - times[0] <= high


def test_events_come_no_faster_than_they_do() -> None:
    for interval in (0.07, 0.0):
        model, clock = model_of(replace(KIND, event_interval=interval))
        subscription = subscribe(model, register(model))
        times = []
        for _ in range(200):
            model.put("s", "k")
            times += [clock.elapsed()] if subscription.next_event() else []
            clock.sleep(0.01)
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert min(pauses) >= interval
        assert (min(pauses) < 0.05) == (interval == 0.0)


def test_a_closed_shard_ends_with_its_children() -> None:
    model, clock = model_of(Laws())
    consumer = register(model)
    clock.sleep(5.0)
    model.put("s", "a")
    subscription = subscribe(model, consumer)
    children = model.split("s", S0)
    events = follow(subscription, clock, 60.0)
    assert keys_of(events) == ["a"]
    assert [child["ShardId"] for child in events[-1][1]["ChildShards"]] == children
    assert all("ContinuationSequenceNumber" in event for _, event in events[:-1])
    assert "ContinuationSequenceNumber" not in events[-1][1]
    assert subscription.has_ended


def test_a_subscription_falls_silent() -> None:
    model, clock = model_of(Laws())
    consumer = register(model)
    clock.sleep(5.0)
    subscription = subscribe(model, consumer)
    follow(subscription, clock, 6.0)
    (found,) = model.subscriptions("s", S0)
    found.fall_silent()
    model.put("s", "a")
    assert follow(subscription, clock, 400.0) == []
    assert not subscription.has_ended


@pytest.mark.parametrize("code", ["KMSThrottlingException", "InternalFailureException"])
def test_a_subscription_ends_with_an_error(code: str) -> None:
    model, _ = model_of(KIND)
    subscription = subscribe(model, register(model))
    model.faults.force("SubscribeToShard.event", code)
    with pytest.raises(ModelError, match=code):
        subscription.next_event()
    assert subscription.has_ended


def test_a_subscription_ends_with_its_consumer() -> None:
    model, _ = model_of(KIND)
    consumer = register(model)
    subscription = subscribe(model, consumer)
    model.call("DeregisterStreamConsumer", {"ConsumerARN": consumer})
    with pytest.raises(ModelError, match="ResourceNotFound"):
        subscription.next_event()


@pytest.mark.parametrize("seed", range(4))
def test_everything_is_pushed_once_through_renewals_under_all_laws(seed: int) -> None:
    model, clock = model_of(replace(Laws(), portion_records=50), seed=seed)
    consumer = register(model)
    clock.sleep(5.0)
    numbers = [model.put("s", "k")[1].sequence_number for _ in range(1_000)]
    seen: list[str] = []
    start: dict[str, Any] = {"kind": "TRIM_HORIZON"}
    while len(seen) < len(numbers):
        subscription = subscribe(model, consumer, **start)
        for _, event in follow(subscription, clock, 5.5):
            seen += [record["SequenceNumber"] for record in event["Records"]]
            number = event["ContinuationSequenceNumber"]
            start = {"kind": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": number}
    assert seen == numbers
