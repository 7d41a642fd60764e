"""What a subscription brings is served in order, within bounds, or said to be lacking."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.kinesis.fanout.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.source.stream_log import IteratorStart

HORIZON_START = IteratorStart("TRIM_HORIZON")
PATIENT = 120.0


def buffer(limit: int = 1_000, start: IteratorStart = HORIZON_START) -> ShardBuffer:
    return ShardBuffer(start, lambda: limit)


def fill(target: ShardBuffer, *events: tuple[int, int]) -> None:
    """Events of records numbered `first` to `last`; each weighs ten bytes."""
    for first, last in events:
        assert target.append(f"{first:04}-{last:04}.".encode(), str(first), str(last))


def read(
    target: ShardBuffer, after: int | None, end: int | None, *, start: IteratorStart | None = None
) -> list[str]:
    events = target.read(start or IteratorStart("AT_SEQUENCE_NUMBER", str(after)), after, end, 0.0)
    return [bytes(event).decode() for event in events]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    return thread, done


def test_a_range_is_served_by_the_events_that_hold_it() -> None:
    """Whole events: what lies outside the range is cut away by who knows it."""
    held = buffer()
    fill(held, (1, 5), (6, 9), (10, 12))

    assert read(held, None, 7, start=HORIZON_START) == ["0001-0005.", "0006-0009."]
    assert read(held, 5, 9) == ["0006-0009."]
    assert read(held, 7, 12) == ["0006-0009.", "0010-0012."]


def test_the_same_range_may_be_read_again() -> None:
    """A task may be tried again."""
    held = buffer()
    fill(held, (1, 5), (6, 9))

    assert read(held, 5, 9) == read(held, 5, 9) == ["0006-0009."]


def test_what_was_trimmed_is_lacking() -> None:
    """And what was not is still there."""
    held = buffer()
    fill(held, (1, 5), (6, 9), (10, 12))
    held.acknowledge(7)

    assert held.size == 20
    assert read(held, 7, 12) == ["0006-0009.", "0010-0012."]
    with pytest.raises(RangeUnavailable, match="where the range starts"):
        read(held, 4, 12)
    with pytest.raises(RangeUnavailable, match="where the range starts"):
        read(held, None, 12, start=HORIZON_START)


def test_what_batches_have_passed_by_tells_where_the_buffer_begins() -> None:
    """They came there by looks: the subscription, which began before, has not given any record yet."""
    held = buffer(start=IteratorStart("AT_TIMESTAMP", timestamp=7))
    with pytest.raises(RangeUnavailable):
        read(held, 30, 40)
    held.acknowledge(30)
    thread, done = in_thread(
        lambda: [bytes(e) for e in held.read(IteratorStart("AT_SEQUENCE_NUMBER", "30"), 30, 40, PATIENT)]
    )

    fill(held, (25, 30), (31, 40))
    thread.join(PATIENT)

    assert done == [[b"0031-0040."]]


def test_a_subscription_that_begins_behind_where_batches_are_does_not_serve_them() -> None:
    """What lay between may have expired before it was pushed: whoever polls will see."""
    held = buffer(start=HORIZON_START)
    held.acknowledge(30)
    start = IteratorStart("AT_SEQUENCE_NUMBER", "30")

    def read_on() -> bool:
        with pytest.raises(RangeUnavailable, match="begins behind"):
            list(held.read(start, 30, 40, PATIENT))
        return True

    thread, done = in_thread(read_on)

    fill(held, (35, 40))
    thread.join(PATIENT)

    assert done == [True]
    assert not held.covers(start, 30)
    assert held.covers(IteratorStart("AT_SEQUENCE_NUMBER", "36"), 36)


def test_what_lies_before_the_subscription_is_lacking() -> None:
    """It started at a record: earlier ones never came."""
    held = buffer(start=IteratorStart("AT_SEQUENCE_NUMBER", "50"))
    fill(held, (50, 52))

    assert read(held, 49, 52) == ["0050-0052."]
    with pytest.raises(RangeUnavailable):
        read(held, 40, 52)


def test_a_range_that_has_not_come_yet_is_waited_for() -> None:
    """The planner may be ahead of the subscription."""
    held = buffer()
    fill(held, (1, 5))
    thread, done = in_thread(lambda: [bytes(e) for e in held.read(HORIZON_START, None, 9, PATIENT)])

    fill(held, (6, 9))
    thread.join(PATIENT)

    assert done == [[b"0001-0005.", b"0006-0009."]]


def test_a_range_that_does_not_come_is_lacking() -> None:
    """A task must not wait for ever for a record that the service does not push."""
    held = buffer()
    fill(held, (1, 5))

    with pytest.raises(RangeUnavailable, match="no event came"):
        read(held, None, 9, start=HORIZON_START)


def test_the_end_of_the_shard_is_the_end_of_every_range() -> None:
    """Those that are waiting included."""
    held = buffer()
    fill(held, (1, 5))
    thread, done = in_thread(lambda: [bytes(e) for e in held.read(HORIZON_START, None, None, PATIENT)])

    held.end()
    thread.join(PATIENT)

    assert done == [[b"0001-0005."]]
    assert read(held, 5, None) == []


def test_a_full_buffer_makes_the_subscription_wait() -> None:
    """Until the planner is done with what is there: that is the back-pressure."""
    held = buffer(limit=20)
    fill(held, (1, 5), (6, 9))
    thread, done = in_thread(lambda: held.append(b"0010-0012.", "10", "12"))

    thread.join(0.05)
    assert thread.is_alive()
    assert held.size == 20
    held.acknowledge(5)
    thread.join(PATIENT)

    assert done == [True]
    assert held.size == 20


def test_an_event_larger_than_the_buffer_is_taken_when_it_is_alone() -> None:
    """Or it would never be."""
    held = buffer(limit=5)

    fill(held, (1, 5))

    assert read(held, None, 5, start=HORIZON_START) == ["0001-0005."]


def test_a_task_that_waits_makes_room_by_what_it_was_sent() -> None:
    """A range may be larger than the buffer; nobody else can make room while its batch runs."""
    held = buffer(limit=20)
    fill(held, (1, 5), (6, 9))
    reader, done = in_thread(lambda: [bytes(e) for e in held.read(HORIZON_START, None, 20, PATIENT)])

    fill(held, (10, 12), (13, 20))
    reader.join(PATIENT)

    assert done == [[b"0001-0005.", b"0006-0009.", b"0010-0012.", b"0013-0020."]]
    assert held.size <= 20


def test_what_one_task_still_needs_is_not_given_up_for_another() -> None:
    """Two may read the same shard: a speculative one, say."""
    held = buffer(limit=20)
    fill(held, (1, 5), (6, 9))
    slow = held.read(HORIZON_START, None, 9, PATIENT)
    assert bytes(next(slow)) == b"0001-0005."
    fast = held.read(HORIZON_START, None, 12, PATIENT)
    assert [bytes(next(fast)), bytes(next(fast))] == [b"0001-0005.", b"0006-0009."]
    waiting, rest = in_thread(lambda: [bytes(event) for event in fast])
    writer, written = in_thread(lambda: held.append(b"0010-0012.", "10", "12"))

    writer.join(0.05)
    assert writer.is_alive()  # the fast one waits for it, and what the slow one reads is in its way
    assert [bytes(event) for event in slow] == [b"0006-0009."]
    writer.join(PATIENT)
    waiting.join(PATIENT)

    assert written == [True]
    assert rest == [[b"0010-0012."]]


def test_a_closed_buffer_lets_everybody_go() -> None:
    """The subscription that waits for room and the task that waits for records."""
    held = buffer(limit=10)
    fill(held, (1, 5))
    waiting, written = in_thread(lambda: held.append(b"0006-0009.", "6", "9"))

    held.close("the agent ends")
    waiting.join(PATIENT)

    assert written == [False]
    assert not held.covers(HORIZON_START, None)
    with pytest.raises(RangeUnavailable, match="the agent ends"):
        read(held, None, 5, start=HORIZON_START)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    trims=st.lists(st.integers(0, 40), max_size=4),
    bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_a_range_is_served_whole_or_not_at_all(
    sizes: list[int], trims: list[int], bounds: tuple[int, int]
) -> None:
    """Whatever was trimmed: every record of the range in order, or none and a word."""
    held = buffer(limit=10_000)
    number = 1
    for size in sizes:
        fill(held, (number, number + size - 1))
        number += size
    for trim in trims:
        held.acknowledge(trim)
    after, end = min(bounds), min(max(bounds), number - 1)
    if end <= after:
        return
    try:
        events = read(held, after, end)
    except RangeUnavailable:
        assert after < max(trims, default=0)
        return
    records = [n for event in events for n in range(int(event[:4]), int(event[5:9]) + 1)]
    assert [n for n in records if after < n <= end] == list(range(after + 1, end + 1))
