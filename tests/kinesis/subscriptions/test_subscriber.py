"""A subscriber whose subscriptions do what a script says, with a clock of the test."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from event_streams import event
from scripted import (
    AFTER,
    AT,
    HORIZON,
    HOUR,
    IN_USE,
    RESET,
    SETTINGS,
    SPLIT,
    Later,
    Passing,
    Step,
    Trickle,
    error,
    numbers,
    script,
    start,
)

from sluice.errors import ServiceError
from sluice.kinesis.subscriptions.subscriber import (
    PayloadSource,
    Subscriber,
    SubscriberSettings,
    Timing,
)
from sluice.kinesis.subscriptions.subscription import CLOSED
from sluice.retry import Backoff
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId


def test_events_are_handed_out_with_their_payload() -> None:
    """The first subscription starts at the requested position."""
    service = script([event([1, 2]), event(continuation=5), event([7])])
    subscriber = service.subscriber(start(AT, 1))

    payload, head = subscriber.next_event()
    assert json.loads(bytes(payload)) == event([1, 2])
    assert (head.numbers, head.skipped) == (["1", "2"], 0)
    assert numbers(subscriber, 2) == [[], ["7"]]
    assert service.starts == [start(AT, 1)]


# --- where it resumes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param([RESET], id="reset"),
        pytest.param([error("ReadTimeoutError", retryable=True)], id="read timeout"),
        pytest.param([error("TruncatedStreamError", retryable=True)], id="end in mid-message"),
        pytest.param([error("DamagedAnswerError", retryable=True)], id="bad checksum"),
        pytest.param([error("InternalFailureException", retryable=True)], id="internal failure"),
        pytest.param([error("KMSThrottlingException", retryable=True)], id="throttled by KMS"),
        pytest.param([b'{"Records": 1}'], id="damaged event"),
        pytest.param([Passing(10), None], id="end"),
        pytest.param([Trickle()], id="silence"),
    ],
)
def test_it_resumes_where_the_last_event_ended(fault: list[Step]) -> None:
    """After any end of the subscription: behind the continuation, which also moves with an empty event."""
    service = script([event([1, 2]), event(continuation=5), *fault], [event([6])])
    subscriber = service.subscriber()

    assert numbers(subscriber, 3) == [["1", "2"], [], ["6"]]
    assert service.starts == [HORIZON, start(AFTER, 5)]
    assert service.opened[0].is_closed


def test_latest_is_never_used_a_second_time() -> None:
    """It is somewhere else by now, and records between would be lost."""
    service = script([event(continuation=5), RESET], error("InvalidArgumentException"))
    subscriber = service.subscriber(IteratorStart("LATEST"))
    subscriber.next_event()

    with pytest.raises(ServiceError, match="InvalidArgument"):
        subscriber.next_event()


@pytest.mark.parametrize(
    ("behind", "away", "expected"),
    [(0, 11 * HOUR, start(AFTER, 5)), (0, 13 * HOUR, start(AT, 2)), (13 * HOUR, 0, start(AT, 2))],
)
def test_a_position_that_may_have_expired_is_verified(
    behind: float, away: float, expected: IteratorStart
) -> None:
    """The service would start at the horizon and not say so. So the last record is asked for once more."""
    service = script(
        [event([1, 2], continuation=5, millis_behind=int(behind * 1000)), RESET], [event([2, 6])]
    )
    subscriber = service.subscriber()
    subscriber.next_event()
    service.time.now += away

    head = subscriber.next_event()[1]

    assert (head.numbers, head.skipped) == (["6"], 1)
    assert service.starts[1] == expected


def test_a_position_is_as_old_as_the_subscription_that_brought_it() -> None:
    """The second event may have waited in the socket while this process did not read."""
    service = script([event([1, 2]), event(continuation=5), RESET], [event([2, 6])])
    subscriber = service.subscriber()
    subscriber.next_event()
    service.time.now += 13 * HOUR
    subscriber._renew_at = service.time.now + HOUR  # as if the service refused to renew it
    subscriber.next_event()

    assert subscriber.next_event()[1].numbers == ["6"]
    assert service.starts[1] == start(AT, 2)


@pytest.mark.parametrize("first", [event([6]), event(continuation=9), event(continuation=9, children=["c"])])
def test_a_position_that_has_expired_ends_it(first: dict[str, Any]) -> None:
    """Whether records are lost is not for a subscription to decide."""
    service = script([event([1, 2]), RESET], [first])
    subscriber = service.subscriber()
    subscriber.next_event()
    service.time.now += 13 * HOUR

    with pytest.raises(ServiceError) as caught:
        subscriber.next_event()
    assert (caught.value.code, caught.value.retryable) == ("PositionGone", False)
    assert service.opened[-1].is_closed


# --- duplicates -----------------------------------------------------------------------------------------


def test_the_end_of_the_shard_is_handed_out_even_with_old_records() -> None:
    """No other event says that the shard has ended."""
    service = script([event([1, 2]), event([2], children=["a", "b"])])
    subscriber = service.subscriber()
    subscriber.next_event()

    head = subscriber.next_event()[1]

    assert (head.has_ended, head.numbers, head.skipped) == (True, [], 1)


# --- renewal --------------------------------------------------------------------------------------------


def test_a_subscription_is_renewed_before_the_service_ends_it() -> None:
    """The new one takes over first, and brings the events that are left in the old one."""
    service = script(
        [event([1]), Later(269), event([2]), Later(1), event([3], continuation=4), event([99])],
        [event([5]), Later(270), event([6])],
        [event([7])],
    )

    assert numbers(service.subscriber(), 6) == [["1"], ["2"], ["3"], ["5"], ["6"], ["7"]]
    assert service.starts == [HORIZON, start(AFTER, 4), start(AFTER, 6)]
    assert [each.is_closed for each in service.opened] == [True, True, False]
    assert service.time.slept == []


@pytest.mark.parametrize(("jitter", "age"), [(0.0, 270.0), (0.5, 255.0), (0.999, 240.03)])
def test_renewals_are_spread(jitter: float, age: float) -> None:
    """Shards that were subscribed to at once do not renew at once."""
    service = script(
        [event([1]), Later(age - 0.01), event([2]), Later(0.02), event([3]), event([99])], [event([4])]
    )
    subscriber = service.subscriber(settings=SubscriberSettings(Backoff(3, 1, 4, 2)), jitter=lambda: jitter)

    assert numbers(subscriber, 4) == [["1"], ["2"], ["3"], ["4"]]


def test_a_failed_renewal_leaves_the_old_subscription_in_place() -> None:
    """It is tried again after a pause, and does not count as a failed attempt."""
    service = script(
        [event([1]), Later(270), event([2]), event([3]), Later(6), event([4])],
        error("LimitExceededException", retryable=True),
        [event([5])],
    )
    subscriber = service.subscriber()
    assert numbers(subscriber, 5) == [["1"], ["2"], ["3"], ["4"], ["5"]]
    assert [at - 1000 for at in service.called_at] == [0, 270, 276]
    assert service.starts == [HORIZON, start(AFTER, 2), start(AFTER, 4)]
    assert service.time.slept == []


def test_a_renewal_that_is_refused_for_good_ends_it() -> None:
    """A consumer that is missing does not come back by itself."""
    service = script([event([1]), Later(270), event([2])], error("AccessDeniedException"))
    subscriber = service.subscriber()
    numbers(subscriber, 2)

    with pytest.raises(ServiceError, match="AccessDenied"):
        subscriber.next_event()


def test_the_end_after_five_minutes_is_followed_at_once() -> None:
    """Without a pause, and it never counts as a failed attempt."""
    calls: list[list[Step]] = [[event([n]), Later(240)] for n in range(10)]

    service = script(*calls)
    assert numbers(service.subscriber(), 10) == [[str(n)] for n in range(10)]
    assert service.time.slept == []


def test_a_reader_that_was_busy_for_long_renews_first() -> None:
    """Events that wait in the old connection are not read: the service has ended it, or will soon."""
    service = script([event([1]), event([2])], [event([2])])
    subscriber = service.subscriber()
    numbers(subscriber, 1)
    service.time.now += 400

    assert numbers(subscriber, 1) == [["2"]]
    assert service.starts[1] == start(AFTER, 1)


# --- the 5 s rule and take-overs ------------------------------------------------------------------------


def test_a_call_that_came_too_soon_is_repeated_5_s_after_the_last_one() -> None:
    """Counted from its own last call, with jitter on top."""
    service = script([event([1]), Passing(2), RESET], IN_USE, [event([2])])

    assert numbers(service.subscriber(), 2) == [["1"], ["2"]]
    assert service.time.slept == [0.5, 2.5 + 0.5]
    assert service.called_at[-1] - service.called_at[0] >= 5


@pytest.mark.parametrize(
    ("calls", "slept"),
    [
        pytest.param(
            [[event([1]), Later(100), RESET], IN_USE], [0.5, 5.5], id="long after its own last call"
        ),
        pytest.param([IN_USE], [5.5], id="of its first call"),
        pytest.param([[IN_USE]], [5.5], id="as the first message, as one implementation has it"),
    ],
)
def test_a_refusal_because_of_another_readers_call_waits_5_s(
    calls: list[ServiceError | list[Step]], slept: list[float]
) -> None:
    """That call may have been made just now."""
    service = script(*calls, [event([9])])
    subscriber = service.subscriber()

    while subscriber.next_event()[1].numbers != ["9"]:
        pass
    assert service.time.slept == slept


def test_a_takeover_ends_it() -> None:
    """Two readers that took over from each other every 5 s would both get nothing done."""
    service = script([event([1]), IN_USE])
    subscriber = service.subscriber()
    numbers(subscriber, 1)

    with pytest.raises(ServiceError) as caught:
        subscriber.next_event()
    assert caught.value is IN_USE
    assert service.opened[0].is_closed


# --- retries --------------------------------------------------------------------------------------------


def test_failed_attempts_wait_longer_and_longer_and_end() -> None:
    """As many as the backoff allows; then the last error is raised as it is."""
    last = error("InternalFailureException", retryable=True)
    service = script(RESET, [RESET], error("LimitExceededException", retryable=True), last)

    with pytest.raises(ServiceError) as caught:
        service.subscriber().next_event()

    assert caught.value is last
    assert service.time.slept == [0.5, 1.0, 2.0]


def test_an_end_at_once_is_a_failed_attempt() -> None:
    """A server that accepts a call and ends it is not called in a loop."""
    service = script([], [], [event([1])], [event([2])], [event([3])])

    assert numbers(service.subscriber(), 3) == [["1"], ["2"], ["3"]]
    assert service.time.slept == [0.5, 1.0, 0.5, 0.5]


def test_an_event_that_moves_on_starts_the_count_anew() -> None:
    """So does an event that comes later than the first one and does not move on."""
    moving: list[list[Step]] = [[event(continuation=n), RESET] for n in range(10)]
    service = script(*moving, [event([99])])
    assert numbers(service.subscriber(), 11)[-1] == ["99"]
    assert set(service.time.slept) == {0.5}

    alive: list[list[Step]] = [[event(continuation=5), event(continuation=5), RESET] for n in range(10)]
    service = script(*alive, [event([99])])
    assert numbers(service.subscriber(), 21)[-1] == ["99"]


def test_the_first_event_alone_is_no_success() -> None:
    """Where every attempt ends after it, they count as failed."""
    attempts: list[list[Step]] = [[event(continuation=5), RESET] for _ in range(5)]
    service = script(*attempts)
    subscriber = service.subscriber()

    with pytest.raises(ServiceError) as caught:
        numbers(subscriber, 10)
    assert caught.value is RESET
    assert len(service.opened) == 4  # the first one moved on


@pytest.mark.parametrize(
    "code",
    [
        "AccessDeniedException",
        "InvalidArgumentException",
        "KMSAccessDeniedException",
        "KMSDisabledException",
        "KMSInvalidStateException",
        "KMSNotFoundException",
        "KMSOptInRequired",
        "ResourceNotFoundException",
    ],
)
@pytest.mark.parametrize("where", ["call", "stream"])
def test_errors_that_no_retry_mends_are_raised_at_once(code: str, where: str) -> None:
    """On the call and in the stream."""
    fatal = error(code)
    service = script(fatal if where == "call" else [fatal])

    with pytest.raises(ServiceError) as caught:
        service.subscriber().next_event()

    assert caught.value is fatal
    assert service.time.slept == []


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "SomethingNew"])
def test_an_unknown_error_in_the_stream_may_pass(code: str) -> None:
    """The next call shows whether it does. Of unknown codes there, `ServiceError.retryable` decides."""
    fatal = error(code)
    service = script([event([1]), fatal], [event([2])], fatal)
    subscriber = service.subscriber()

    assert numbers(subscriber, 2) == [["1"], ["2"]]
    with pytest.raises(ServiceError) as caught:
        subscriber.next_event()
    assert caught.value is fatal
    assert service.time.slept == [0.5, 0.5]


def test_silence_again_and_again_ends_it() -> None:
    """It counts as a failed attempt."""
    service = script(*([Trickle()] for _ in range(4)))

    with pytest.raises(ServiceError, match="no event for 16 s") as caught:
        service.subscriber().next_event()
    assert (caught.value.code, caught.value.retryable) == ("SubscriptionSilent", True)
    assert caught.value.target == str(SPLIT)


def test_a_busy_reader_is_not_silence() -> None:
    """Only the wait for an event counts: back-pressure is no fault of the service."""
    service = script([event([1]), event([2])])
    subscriber = service.subscriber()
    numbers(subscriber, 1)
    service.time.pass_by(100)

    assert numbers(subscriber, 1) == [["2"]]
    assert len(service.starts) == 1


# --- closing --------------------------------------------------------------------------------------------


def test_closing_ends_a_read() -> None:
    """What the read raises then does not lead to another attempt."""
    service = script([event([1]), event([2])])
    subscriber = service.subscriber()
    numbers(subscriber, 1)
    service.opened[0].on_read = subscriber.close

    with pytest.raises(ServiceError) as caught:
        subscriber.next_event()
    assert caught.value.code == CLOSED
    assert service.opened[0].is_closed
    assert len(service.starts) == 1


def test_closing_ends_a_wait() -> None:
    """A wait in real time, which another thread ends."""
    waiting = threading.Event()

    def subscribe(_split: SplitId, _start: IteratorStart) -> PayloadSource:
        waiting.set()
        raise RESET

    settings = SubscriberSettings(Backoff(3, 1000.0, 1000.0, 2.0))
    subscriber = Subscriber(subscribe, SPLIT, HORIZON, settings, Timing(jitter=lambda: 1.0))

    def close() -> None:
        waiting.wait(60)
        subscriber.close()

    closing = threading.Thread(target=close)
    closing.start()

    with pytest.raises(ServiceError) as caught:
        subscriber.next_event()
    closing.join()
    assert caught.value.code == CLOSED


def test_closing_during_a_call_leaves_nothing_open() -> None:
    """The subscription that the call opens is closed too."""
    service = script([event([1])])
    opening: list[Subscriber] = []

    def subscribe(split: SplitId, start: IteratorStart) -> PayloadSource:
        opening[0].close()
        return service.subscribe(split, start)

    opening.append(Subscriber(subscribe, SPLIT, HORIZON, SETTINGS, Timing(watchdog=service.time.watchdog)))

    with pytest.raises(ServiceError) as caught:
        opening[0].next_event()
    assert caught.value.code == CLOSED
    assert service.opened[0].is_closed


# --- when events were made ------------------------------------------------------------------------------


def test_events_are_not_older_than_their_subscription() -> None:
    """By the time of the call, not of its answer, nor of the reading. A renewal brings a new subscription."""
    service = script([event([1]), Later(60), event([2])], [event([3])])
    service.takes = 2.0
    subscriber = service.subscriber()
    asked_at = []
    for _ in range(2):
        subscriber.next_event()
        asked_at.append(subscriber.asked_at // 1_000_000)
    service.time.now += 300.0
    subscriber.next_event()

    assert [*asked_at, subscriber.asked_at // 1_000_000] == [1_000, 1_000, 1_362]


@pytest.mark.parametrize("ahead", [600.0, -600.0, -1_000_000.0])
def test_a_clock_that_is_off_is_corrected_by_the_answer(ahead: float) -> None:
    """Before the first answer of the service its time is not known."""
    service = script([event([1])])
    service.takes = 2.0
    service.ahead = ahead
    subscriber = service.subscriber()
    subscriber.next_event()

    assert subscriber.asked_at == 1_000 * 1_000_000


def test_an_idle_event_is_dated_by_when_the_wait_for_it_began() -> None:
    """It was not in the socket by then. A process that stands still may find several: they tell nothing new.

    Neither does an event with records, which has their arrival times, and may have waited for space.
    """
    idle = event([])
    steps: list[Step] = [
        idle,
        Passing(5),
        idle,
        Passing(5),
        idle,
        idle,
        Passing(5),
        event([1]),
        Passing(5),
        idle,
    ]
    service = script(steps)
    subscriber = service.subscriber()
    dates = []
    for _ in range(6):
        subscriber.next_event()
        dates.append(subscriber.asked_at // 1_000_000)
        service.ahead += 3600.0  # the wall clock is set

    assert dates == [1_000, 1_000, 1_005, 1_005, 1_005, 1_015]
