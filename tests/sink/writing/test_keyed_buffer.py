"""Entries with an ordering key: none overtakes another one of its key, for any refusals."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_fakes import FakeDestination, Outcome, RefusedError, config, fast_clock, is_load, rows

from sluice.errors import SluiceError
from sluice.sink import AsyncSinkWriter, NoRateLimitingStrategy, SubmitResult
from sluice.sink.writing.buffer import Batch
from sluice.sink.writing.keyed_buffer import KeyedBuffer
from sluice.sink.writing.scheduler import SinkScheduler


def key_of(entry: str) -> Hashable | None:
    """Entries are like a12, with the letter as their key; those that begin with a dot have none."""
    return None if entry.startswith(".") else entry[0]


def filled(*entries: str) -> KeyedBuffer[str]:
    buffer = KeyedBuffer(key_of, "fake")
    buffer.add(entries, [1] * len(entries), 0.0)
    return buffer


def sent(buffer: KeyedBuffer[str]) -> list[str]:
    return list(buffer.take(buffer.measure(100, 100)[0]))


class Keyed(FakeDestination):
    def ordering_key(self, entry: str) -> Hashable | None:
        return key_of(entry)


def write(destination: Keyed, entries: list[str], **changes: Any) -> None:
    """Writes and flushes, with pauses that take no time and without timeouts."""
    settings_ = config(**({"request_timeout": 1e9, "max_retry_duration": 1e9} | changes))
    writer = AsyncSinkWriter(destination, settings_, NoRateLimitingStrategy(), clock=fast_clock(1000))
    writer.write(rows(entries))
    writer.flush()
    writer.close()


@pytest.mark.parametrize("key", [[1], ("a", [1]), {"a": 1}])
def test_a_key_that_cannot_be_hashed_is_refused_by_name(key: Any) -> None:
    """Python's own words would name neither the function, nor its result, nor the allowed types."""
    destination = FakeDestination()
    destination.ordering_key = lambda _: key
    kind = type(key).__name__
    with pytest.raises(
        SluiceError,
        match=f"^FakeDestination: ordering_key returned a value of type {kind}, which cannot be hashed: al",
    ):
        write(destination, ["a"])  # type: ignore[arg-type]


def test_a_key_is_forgotten_when_nothing_of_it_is_left() -> None:
    """Memory grows with the buffered entries, not with the number of keys."""
    buffer = filled("a1", "b1")
    buffer.mark_accepted(buffer.take(2), [])

    assert buffer._held_back == {}
    assert len(buffer) == 0


def test_a_timeout_keeps_the_order_of_its_key() -> None:
    """An entry whose request timed out is sent again before the next one of its key."""
    scheduler: SinkScheduler[str] = SinkScheduler(
        config(request_timeout=10.0, max_in_flight_requests=2),
        NoRateLimitingStrategy(),
        name="w",
        is_throttling=is_load,
        jitter=lambda: 0.0,
        ordering_key=key_of,
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


def test_a_request_that_timed_out_holds_the_next_of_its_keys_back() -> None:
    """The service may carry it out after its entry was accepted in another request, and write over the next.

    Also after two requests with the entry have timed out, and one of them has ended.
    """
    buffer = filled("a1", "a2", "b1")
    first = buffer.take(2)
    again = []
    for _ in range(2):
        buffer.mark_timed_out(first)
        buffer.put_back(first.items)
        again.append(buffer.take(2))
    buffer.mark_accepted(again[1], [])
    assert buffer.head() is None
    buffer.mark_ended(first)
    assert buffer.head() is None
    buffer.mark_ended(again[0])

    assert sent(buffer) == ["a2"]


def test_a_key_that_is_held_back_does_not_delay_others() -> None:
    """While one key's request is in flight, entries with other keys are sent."""
    release = threading.Event()

    def hold_a1(_: int, entries: Sequence[str]) -> Outcome:
        if "a1" in entries:
            release.wait(120)
        elif "b9" in entries:
            release.set()
        return SubmitResult()

    destination = Keyed(hold_a1)
    entries = ["a1", "a2", *(f"b{n}" for n in range(10))]
    write(destination, entries, max_in_flight_requests=2, max_batch_size=1)

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
    in_flight: int, keys: list[str], fates: list[int | None], batch: int
) -> None:
    """Each entry is accepted once, in the order of its key, and no request has two of one key."""
    entries = [f"{key}{n}" for n, key in enumerate(keys)]

    def drawn(number: int, given: Sequence[str]) -> Outcome:
        fate = fates[number] if number < len(fates) else 0
        if fate is None:
            return RefusedError()
        return SubmitResult([entry for n, entry in enumerate(given) if fate >> n & 1])

    destination = Keyed(drawn)
    write(destination, entries, max_batch_size=batch, max_in_flight_requests=in_flight)

    assert sorted(destination.stored) == sorted(entries)
    by_key: dict[Hashable, list[int]] = defaultdict(list)
    for entry in destination.stored:
        by_key[key_of(entry)].append(int(entry[1:]))
    assert all(numbers == sorted(numbers) for key, numbers in by_key.items() if key is not None)
    for request in destination.requests:
        sent_keys = [key_of(entry) for entry in request if key_of(entry) is not None]
        assert len(sent_keys) == len(set(sent_keys))


@pytest.mark.parametrize("again", ["another", float("nan"), None, RuntimeError("no key left")])
def test_a_key_is_asked_for_once(again: Any) -> None:
    """A destination may change its entries while it submits them, or count what it sees."""
    asked: set[str] = set()

    def key(entry: str) -> Hashable | None:
        if entry not in asked:
            asked.add(entry)
            return key_of(entry)
        if isinstance(again, Exception):
            raise again
        return again  # type: ignore[no-any-return]

    buffer = KeyedBuffer(key, "fake")
    buffer.add(["a1", "a2", ".1", "b1"], [1] * 4, 0.0)
    batch = buffer.take(3)
    refused = batch.items[:1]
    buffer.put_back(refused)
    buffer.mark_accepted(batch, refused)
    assert sent(buffer) == ["a1"]
    buffer.mark_accepted(Batch(refused, (), 1, 1), ())
    assert sent(buffer) == ["a2"]
