"""Entries with an ordering key: none overtakes another one of its key, whatever goes wrong."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_fakes import FakeDestination, Outcome, RefusedError, config, rows

from sluice.sink import AsyncSinkWriter, NoRateLimitingStrategy, SubmitResult
from sluice.sink.keyed_buffer import KeyedBuffer
from sluice.sink.scheduler import SinkScheduler


def fast() -> float:
    """A clock a thousand times as fast, so that pauses after refusals take no time."""
    return time.monotonic() * 1000


def letter(entry: str) -> Hashable | None:
    """Entries are like a12: the letter is the lane; those that begin with a dot have none."""
    return None if entry.startswith(".") else entry[0]


def filled(*entries: str) -> KeyedBuffer[str]:
    buffer = KeyedBuffer(letter)
    buffer.add(entries, [1] * len(entries), 0.0)
    return buffer


def sent(buffer: KeyedBuffer[str]) -> list[str]:
    return list(buffer.take(buffer.measure(100, 100)))


def test_only_the_first_of_a_key_may_be_sent() -> None:
    """The others wait, whatever room there is; entries without a key do not."""
    buffer = filled("a1", "a2", ".1", "b1", "a3", ".2")

    assert sent(buffer) == ["a1", ".1", "b1", ".2"]
    assert buffer.head() is None
    assert (len(buffer), buffer.size_in_bytes) == (2, 2)


def test_the_next_of_a_key_goes_when_the_one_before_is_accepted() -> None:
    """And not before; it keeps its age and its place among the others."""
    buffer = filled("a1", "a2", "b1")
    taken = buffer.take(2)
    buffer.add(["c1"], [1], 7.0)
    buffer.put_back(taken.items[:1])
    buffer.mark_accepted(taken, taken.items[:1])
    again = buffer.take(2)
    assert list(again) == ["a1", "c1"]

    buffer.mark_accepted(again, [])
    head = buffer.head()
    assert head is not None
    assert (head.entry, head.arrived) == ("a2", 0.0)


def test_what_waited_longest_goes_first() -> None:
    """An entry that is let go is older than those that came meanwhile: it goes before them."""
    buffer = filled("a1", "a2")
    taken = buffer.take(1)
    buffer.add(["b1", "c1"], [1, 1], 5.0)
    buffer.mark_accepted(taken, [])

    assert sent(buffer) == ["a2", "b1", "c1"]


def test_a_key_is_forgotten_when_nothing_of_it_is_left() -> None:
    """Memory follows what is buffered, not every key there ever was."""
    buffer = filled("a1", "b1")
    buffer.mark_accepted(buffer.take(2), [])

    assert buffer._held_back == {}
    assert len(buffer) == 0


def test_a_timeout_keeps_the_place_of_its_key() -> None:
    """An entry whose request was given up is sent again before the next one of its key is."""
    scheduler: SinkScheduler[str] = SinkScheduler(
        config(request_timeout=10.0, max_in_flight_requests=2),
        NoRateLimitingStrategy(),
        name="w",
        jitter=lambda: 0.0,
        ordering_key=letter,
    )
    scheduler.add(["a1", "a2"], [1, 1], 0.0)
    (first,) = scheduler.advance(0.0, draining=True)
    assert scheduler.advance(9.0, draining=True) == []
    (again,) = scheduler.advance(10.0, draining=True)
    scheduler.complete(first.number, SubmitResult(), 11.0)

    assert (first.entries, again.entries) == (["a1"], ["a1"])
    assert scheduler.advance(11.0, draining=True) == []
    scheduler.complete(again.number, SubmitResult(), 12.0)
    assert [request.entries for request in scheduler.advance(12.0, draining=True)] == [["a2"]]


def test_a_key_that_waits_does_not_hold_up_others() -> None:
    """While one group's request is on its way, other groups go on."""
    release = threading.Event()

    class Keyed(FakeDestination):
        def ordering_key(self, entry: str) -> Hashable | None:
            return letter(entry)

    def hold_a1(_: int, entries: Sequence[str]) -> Outcome:
        if "a1" in entries:
            release.wait(120)
        elif "b9" in entries:
            release.set()
        return SubmitResult()

    destination = Keyed(hold_a1)
    writer = AsyncSinkWriter(
        destination,
        config(max_in_flight_requests=2, max_batch_size=1, request_timeout=1e9),
        NoRateLimitingStrategy(),
        clock=fast,
    )
    writer.write(rows(["a1", "a2", *(f"b{n}" for n in range(10))]))
    writer.flush()
    writer.close()

    assert destination.stored.index("a1") > destination.stored.index("b8")
    assert [entry for entry in destination.stored if entry[0] == "a"] == ["a1", "a2"]


@pytest.mark.parametrize("in_flight", [1, 4])
@settings(max_examples=60)
@given(
    st.lists(st.sampled_from("aaabbcd."), max_size=60),
    st.lists(st.one_of(st.integers(0, 1023), st.none()), max_size=40),
    st.integers(1, 10),
)
def test_order_by_key_holds_under_any_refusals(
    in_flight: int, lanes: list[str], fates: list[int | None], batch: int
) -> None:
    """Each entry is accepted once, in its key's order, and no request has two of one key.

    Any entries of any request are refused (by the bits of a drawn number) or the request fails (None),
    with one and with several requests under way.
    """
    entries = [f"{lane}{n}" for n, lane in enumerate(lanes)]

    class Keyed(FakeDestination):
        def ordering_key(self, entry: str) -> Hashable | None:
            return letter(entry)

    def drawn(number: int, given: Sequence[str]) -> Outcome:
        fate = fates[number] if number < len(fates) else 0
        if fate is None:
            return RefusedError()
        return SubmitResult([entry for n, entry in enumerate(given) if fate >> n & 1])

    destination = Keyed(drawn)
    writer = AsyncSinkWriter(
        destination,
        config(max_batch_size=batch, max_in_flight_requests=in_flight, max_retry_duration=1e9),
        NoRateLimitingStrategy(),
        clock=fast,
    )
    writer.write(rows(entries))
    writer.flush()
    writer.close()

    assert sorted(destination.stored) == sorted(entries)
    by_lane: dict[Hashable, list[int]] = defaultdict(list)
    for entry in destination.stored:
        by_lane[letter(entry)].append(int(entry[1:]))
    assert all(numbers == sorted(numbers) for lane, numbers in by_lane.items() if lane is not None)
    for request in destination.requests:
        keys = [letter(entry) for entry in request if letter(entry) is not None]
        assert len(keys) == len(set(keys))
