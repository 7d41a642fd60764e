"""An event is not received before there is space for it. The service waits then, and nothing is silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from event_streams import event
from scripted import RESET, FakeSubscription, Script, error, script

from sluice.errors import ServiceError
from sluice.kinesis.subscriptions.subscriber import Subscriber
from sluice.kinesis.subscriptions.subscription import CLOSED


class FakeSpace:
    """Space for events, which comes when the test says so.

    Attributes:
        held: sizes for which there is space now.
    """

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self.on_wait = on_wait
        self.held: list[int] = []

    def make_space(self, size: int) -> None:
        self.on_wait()
        self.held = [size]

    def give_back_space(self) -> None:
        self.held = []


def bounded(service: Script, space: FakeSpace, size: int = 5000) -> Subscriber:
    """A subscriber whose subscriptions ask for space for each message, as real ones do."""
    subscriber = service.subscriber()
    subscriber.space = space
    opened: Any = service.subscribe

    def subscribe(*arguments: Any) -> FakeSubscription:
        subscription: FakeSubscription = opened(*arguments)
        subscription.on_read = lambda: subscriber.make_space(size)
        return subscription

    subscriber._subscribe = subscribe
    return subscriber


def test_a_wait_for_space_is_not_silence() -> None:
    """However long tasks take. What the service does not send after that is."""
    service = script([event([1]), event([2]), event([3])])
    space = FakeSpace(lambda: service.time.pass_by(60.0))
    subscriber = bounded(service, space)

    assert [subscriber.next_event()[1].numbers for _ in range(2)] == [["1"], ["2"]]
    assert not service.opened[0].is_closed

    service.opened[0].on_read = lambda: (subscriber.make_space(9), service.time.pass_by(17.0))[0]  # type: ignore[func-returns-value]
    service.calls.append(error("AccessDeniedException"))
    with pytest.raises(ServiceError, match="AccessDenied"):
        subscriber.next_event()
    assert service.opened[0].is_closed


def test_the_space_of_an_event_stays_until_the_next_one_is_asked_for() -> None:
    """Meanwhile the event is put where it goes."""
    service = script([event([1]), event([1]), event([2])])
    waits: list[list[int]] = []
    space = FakeSpace()
    space.on_wait = lambda: waits.append(space.held)
    subscriber = bounded(service, space)

    subscriber.next_event()
    assert space.held == [5000]
    subscriber.next_event()  # one with old records alone lies between

    assert waits == [[], [], []]
    assert space.held == [5000]


def test_the_space_of_an_event_that_breaks_off_is_given_back() -> None:
    """Before the pause to the next attempt."""
    service = script([RESET], [event([1])])
    space = FakeSpace()
    subscriber = bounded(service, space)
    held: list[list[int]] = []
    subscriber._sleep = lambda _seconds: held.append(space.held)

    subscriber.next_event()

    assert held == [[]]


def test_closing_while_it_waits_for_space_ends_it() -> None:
    """The buffer is closed first, which ends the wait."""
    service = script([event([1])])
    space = FakeSpace()
    subscriber = bounded(service, space)
    space.on_wait = subscriber.close

    with pytest.raises(ServiceError) as caught:
        subscriber.next_event()

    assert caught.value.code == CLOSED
    assert space.held == []
