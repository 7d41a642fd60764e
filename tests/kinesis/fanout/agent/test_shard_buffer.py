"""The buffer between a subscription and tasks: ranges in order, within bounds, or RangeUnavailable."""

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
    """Appends events with the records `first` to `last`, ten bytes each."""
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


def test_a_range_is_served_as_whole_events() -> None:
    """Records before and behind the range come with them; the task leaves them out."""
    shard = buffer()
    fill(shard, (1, 5), (6, 9), (10, 12))

    assert read(shard, None, 7, start=HORIZON_START) == ["0001-0005.", "0006-0009."]
    assert read(shard, 5, 9) == ["0006-0009."]
    assert read(shard, 7, 12) == ["0006-0009.", "0010-0012."]


def test_the_same_range_may_be_read_again() -> None:
    """Spark may run a task again."""
    shard = buffer()
    fill(shard, (1, 5), (6, 9))

    assert read(shard, 5, 9) == read(shard, 5, 9) == ["0006-0009."]


def test_an_acknowledged_range_is_unavailable() -> None:
    """Records that are not acknowledged are still there."""
    shard = buffer()
    fill(shard, (1, 5), (6, 9), (10, 12))
    shard.acknowledge(7)

    assert shard.size == 20
    assert read(shard, 7, 12) == ["0006-0009.", "0010-0012."]
    with pytest.raises(RangeUnavailable, match="where the range starts"):
        read(shard, 4, 12)
    with pytest.raises(RangeUnavailable, match="where the range starts"):
        read(shard, None, 12, start=HORIZON_START)


def test_an_acknowledgement_before_the_first_event_makes_a_position_covered() -> None:
    """Probes found those records before the subscription, which began before them, gave any."""
    shard = buffer(start=IteratorStart("AT_TIMESTAMP", timestamp=7))
    with pytest.raises(RangeUnavailable):
        read(shard, 30, 40)
    shard.acknowledge(30)
    thread, done = in_thread(
        lambda: [bytes(e) for e in shard.read(IteratorStart("AT_SEQUENCE_NUMBER", "30"), 30, 40, PATIENT)]
    )

    fill(shard, (25, 30), (31, 40))
    thread.join(PATIENT)

    assert done == [[b"0031-0040."]]


def test_a_subscription_that_begins_behind_a_range_does_not_serve_it() -> None:
    """Records between may have expired before they were pushed: polling tells."""
    shard = buffer(start=HORIZON_START)
    shard.acknowledge(30)
    start = IteratorStart("AT_SEQUENCE_NUMBER", "30")

    def read_on() -> bool:
        with pytest.raises(RangeUnavailable, match="begins behind"):
            list(shard.read(start, 30, 40, PATIENT))
        return True

    thread, done = in_thread(read_on)

    fill(shard, (35, 40))
    thread.join(PATIENT)

    assert done == [True]
    assert not shard.covers(start, 30)
    assert shard.covers(IteratorStart("AT_SEQUENCE_NUMBER", "36"), 36)


def test_a_range_before_the_subscription_is_unavailable() -> None:
    """The subscription starts at a record, and earlier ones never came."""
    shard = buffer(start=IteratorStart("AT_SEQUENCE_NUMBER", "50"))
    fill(shard, (50, 52))

    assert read(shard, 49, 52) == ["0050-0052."]
    with pytest.raises(RangeUnavailable):
        read(shard, 40, 52)


def test_a_range_that_has_not_come_yet_is_waited_for() -> None:
    """The planner may be ahead of the subscription."""
    shard = buffer()
    fill(shard, (1, 5))
    thread, done = in_thread(lambda: [bytes(e) for e in shard.read(HORIZON_START, None, 9, PATIENT)])

    fill(shard, (6, 9))
    thread.join(PATIENT)

    assert done == [[b"0001-0005.", b"0006-0009."]]


def test_a_range_that_does_not_come_is_unavailable() -> None:
    """A task does not wait for ever for a record that the service does not push."""
    shard = buffer()
    fill(shard, (1, 5))

    with pytest.raises(RangeUnavailable, match="no event came"):
        read(shard, None, 9, start=HORIZON_START)


def test_the_end_of_the_shard_is_the_end_of_every_range() -> None:
    """Also for a task that is waiting when the shard ends."""
    shard = buffer()
    fill(shard, (1, 5))
    thread, done = in_thread(lambda: [bytes(e) for e in shard.read(HORIZON_START, None, None, PATIENT)])

    shard.end()
    thread.join(PATIENT)

    assert done == [[b"0001-0005."]]
    assert read(shard, 5, None) == []


def test_a_full_buffer_makes_the_subscription_wait() -> None:
    """It goes on when the planner has acknowledged records. That is the back-pressure."""
    shard = buffer(limit=20)
    fill(shard, (1, 5), (6, 9))
    thread, done = in_thread(lambda: shard.append(b"0010-0012.", "10", "12"))

    thread.join(0.05)
    assert thread.is_alive()
    assert shard.size == 20
    shard.acknowledge(5)
    thread.join(PATIENT)

    assert done == [True]
    assert shard.size == 20


def test_an_empty_buffer_takes_an_event_of_any_size() -> None:
    """An event that is larger than the limit would never get in otherwise."""
    shard = buffer(limit=5)

    fill(shard, (1, 5))

    assert read(shard, None, 5, start=HORIZON_START) == ["0001-0005."]


def test_what_a_waiting_task_was_sent_makes_room() -> None:
    """A range may be larger than the buffer, and no acknowledgement comes while its batch runs."""
    shard = buffer(limit=20)
    fill(shard, (1, 5), (6, 9))
    reader, done = in_thread(lambda: [bytes(e) for e in shard.read(HORIZON_START, None, 20, PATIENT)])

    fill(shard, (10, 12), (13, 20))
    reader.join(PATIENT)

    assert done == [[b"0001-0005.", b"0006-0009.", b"0010-0012.", b"0013-0020."]]
    assert shard.size <= 20


def test_what_one_task_still_needs_makes_no_room_for_another() -> None:
    """Two tasks may read the same shard, with speculative execution for example."""
    shard = buffer(limit=20)
    fill(shard, (1, 5), (6, 9))
    slow = shard.read(HORIZON_START, None, 9, PATIENT)
    assert bytes(next(slow)) == b"0001-0005."
    fast = shard.read(HORIZON_START, None, 12, PATIENT)
    assert [bytes(next(fast)), bytes(next(fast))] == [b"0001-0005.", b"0006-0009."]
    waiting, rest = in_thread(lambda: [bytes(event) for event in fast])
    writer, written = in_thread(lambda: shard.append(b"0010-0012.", "10", "12"))

    writer.join(0.05)
    assert writer.is_alive()  # the fast one waits for it, and what the slow one reads is in its way
    assert [bytes(event) for event in slow] == [b"0006-0009."]
    writer.join(PATIENT)
    waiting.join(PATIENT)

    assert written == [True]
    assert rest == [[b"0010-0012."]]


def test_closing_ends_every_wait() -> None:
    """The subscription that waits for room, and tasks that wait for records."""
    shard = buffer(limit=10)
    fill(shard, (1, 5))
    waiting, written = in_thread(lambda: shard.append(b"0006-0009.", "6", "9"))

    shard.close("the agent ends")
    waiting.join(PATIENT)

    assert written == [False]
    assert not shard.covers(HORIZON_START, None)
    with pytest.raises(RangeUnavailable, match="the agent ends"):
        read(shard, None, 5, start=HORIZON_START)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    acknowledged=st.lists(st.integers(0, 40), max_size=4),
    bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_a_range_is_served_whole_or_not_at_all(
    sizes: list[int], acknowledged: list[int], bounds: tuple[int, int]
) -> None:
    """Whatever was acknowledged: every record of the range in order, or RangeUnavailable."""
    shard = buffer(limit=10_000)
    number = 1
    for size in sizes:
        fill(shard, (number, number + size - 1))
        number += size
    for number in acknowledged:
        shard.acknowledge(number)
    after, end = min(bounds), min(max(bounds), number - 1)
    if end <= after:
        return
    try:
        events = read(shard, after, end)
    except RangeUnavailable:
        assert after < max(acknowledged, default=0)
        return
    records = [n for event in events for n in range(int(event[:4]), int(event[5:9]) + 1)]
    assert [n for n in records if after < n <= end] == list(range(after + 1, end + 1))
