"""The buffer between a subscription and tasks: ranges in order, within bounds, or RangeUnavailable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.kinesis.agent.buffer_budget import BufferBudget
from sluice.kinesis.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.source.logs.stream_log import IteratorStart

HORIZON_START = IteratorStart("TRIM_HORIZON")
PATIENT = 120.0


EACH = 1024 + 10
"""What an event of `fill` takes of the budget."""


def budget(events: int) -> BufferBudget:
    """A budget of which a shard that is alone may fill so much."""
    return BufferBudget(-(-events * 2 * EACH * 8 // 7))


def buffer(
    events: int = 100, start: IteratorStart = HORIZON_START, shared: BufferBudget | None = None
) -> ShardBuffer:
    return ShardBuffer(start, shared or budget(events))


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.0005)


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


def test_an_acknowledged_range_is_unavailable() -> None:
    """Records that are not acknowledged are still there."""
    shard = buffer()
    fill(shard, (1, 5), (6, 9), (10, 12))
    shard.acknowledge(7)

    assert shard.size == 2 * EACH
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
    """It resumes when the planner has acknowledged records. That is the back-pressure."""
    shard = buffer(2)
    fill(shard, (1, 5), (6, 9))
    thread, done = in_thread(lambda: shard.append(b"0010-0012.", "10", "12"))
    wait_until(lambda: shard._share.wanted)

    assert shard.size == 2 * EACH
    shard.acknowledge(5)
    thread.join(PATIENT)

    assert done == [True]
    assert shard.size == 2 * EACH


def test_a_small_event_is_received_before_there_is_space() -> None:
    """Most of these have no record, and say that the shard is at its tip, which the planner has to hear."""
    shared = budget(1)
    full, other = buffer(shared=shared), buffer(shared=shared)
    fill(full, (1, 5))
    fill(other, (1, 5))

    other.make_space(300)

    assert shared.held == 2 * EACH


def test_space_for_what_has_not_come_is_given_back() -> None:
    """The connection broke, or the event has records that came before."""
    shared = budget(20)
    shard = buffer(shared=shared)
    shard.make_space(5000)
    shard.give_back_space()
    assert shared.held == 0

    shard.make_space(5000)
    shard.make_space(6000)
    assert shared.held == 6000 + 1024
    shard.close("the agent ends")
    assert not shard.append(bytes(6000), "1", "2")
    assert shared.held == 0


def test_what_batches_have_passed_takes_no_space() -> None:
    """The shard was polled while its events waited for space."""
    shard = buffer(1)
    shard.acknowledge(12)

    fill(shard, (1, 5), (6, 9), (10, 12), (13, 15))

    assert shard.size == EACH
    assert read(shard, 12, 15) == ["0013-0015."]


def test_what_is_being_sent_is_held() -> None:
    """It takes memory for as long as a slow task has not received it, also if batches have passed it."""
    shared = budget(5)
    shard = buffer(shared=shared)
    fill(shard, (1, 5), (6, 9))
    slow = shard.read(HORIZON_START, None, 9, PATIENT)
    next(slow)

    shard.acknowledge(9)
    assert shared.held == EACH
    with pytest.raises(RangeUnavailable, match="batches have passed it"):
        next(slow)
    assert shared.held == 0


def test_a_task_that_stops_reading_lets_go_of_what_it_was_sent() -> None:
    """Its connection is closed in the middle of an event."""
    shared = budget(5)
    shard = buffer(shared=shared)
    fill(shard, (1, 5))
    stopped = shard.read(HORIZON_START, None, 9, PATIENT)
    next(stopped)
    shard.close("the agent ends")
    assert shared.held == EACH

    assert isinstance(stopped, Generator)
    stopped.close()

    assert shared.held == 0


def test_what_one_task_still_needs_makes_no_room_for_another() -> None:
    """Two tasks may read the same shard, with speculative execution for example."""
    shared = budget(2)
    shard, other = buffer(shared=shared), buffer(shared=shared)
    fill(shard, (1, 5), (6, 9))
    slow = shard.read(HORIZON_START, None, 9, PATIENT)
    assert bytes(next(slow)) == b"0001-0005."
    fast = shard.read(HORIZON_START, None, 12, PATIENT)
    assert [bytes(next(fast)), bytes(next(fast))] == [b"0001-0005.", b"0006-0009."]
    fill(other, (1, 1))
    waiting, rest = in_thread(lambda: [bytes(event) for event in fast])
    fill(shard, (10, 12))  # although there is no room: it is waited for
    waiting.join(PATIENT)

    assert rest == [[b"0010-0012."]]
    assert shard.size == 3 * EACH
    assert [bytes(event) for event in slow] == [b"0006-0009."]
    assert shard.size == 0  # the space for the last one was lent, and nobody needs it any more


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    acknowledged=st.lists(st.integers(0, 40), max_size=4),
    bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_a_range_is_served_whole_or_not_at_all(
    sizes: list[int], acknowledged: list[int], bounds: tuple[int, int]
) -> None:
    """For any acknowledgement: every record of the range in order, or RangeUnavailable."""
    shard = buffer()
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


@dataclass
class Shard:
    """A shard whose events a separate thread pushes, as fast as there is space."""

    shared: BufferBudget
    events: Sequence[int]
    last: int = 0
    buffer: ShardBuffer = field(init=False)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        start = HORIZON_START if not self.last else IteratorStart("AT_SEQUENCE_NUMBER", str(self.last))
        self.buffer = ShardBuffer(start, self.shared)
        self.thread, _ = in_thread(lambda: self._push(self.last))

    def _push(self, last: int) -> None:
        for number, size in enumerate(self.events, start=1):
            if number >= last:
                self.buffer.make_space(size)
                if not self.buffer.append(bytes(size), str(number), str(number)):
                    return
        self.buffer.end()

    def read_to(self, end: int) -> None:
        """A task reads a range, which the planner has found by a probe, say."""
        after = self.last or None
        start = HORIZON_START if after is None else IteratorStart("AT_SEQUENCE_NUMBER", str(after))
        got = [len(event) for event in self.buffer.read(start, after, end, PATIENT)]
        assert got == list(self.events[self.last : end])


@given(st.data())
def test_every_range_is_read_whatever_fills_the_buffer(data: st.DataObject) -> None:
    """Batches of any ranges, acknowledged late or not at all, and subscriptions that are ended and made anew:
    nothing waits for ever, though the budget holds less than one event of each shard, or not even one.
    """
    limit = data.draw(st.sampled_from([20_000, 5_000]))
    shared = BufferBudget(limit)
    sizes = st.lists(st.integers(1, 9_000), min_size=1, max_size=4)
    shards = [Shard(shared, data.draw(sizes)) for _ in range(data.draw(st.integers(1, 4)))]
    while any(shard.last < len(shard.events) for shard in shards):
        batch = [
            (shard, data.draw(st.integers(shard.last + 1, len(shard.events))))
            for shard in data.draw(st.permutations(shards))
            if shard.last < len(shard.events)
        ]
        batch = batch[: data.draw(st.integers(1, len(batch)))]
        tasks = [in_thread(partial(shard.read_to, end)) for shard, end in batch]
        for (shard, end), (thread, done) in zip(batch, tasks, strict=True):
            thread.join(PATIENT)
            assert done == [None]
            shard.last = end
            assert shared.held <= max(limit, 9_000 + 1024) + 9_000 + 1024
        for shard in data.draw(st.permutations(shards)):
            if data.draw(st.booleans()):
                shard.buffer.acknowledge(shard.last)
            elif data.draw(st.booleans()):
                shard.buffer.close("the planner has subscribed to the shard anew")
                shard.thread.join(PATIENT)
                shard.__post_init__()
    for shard in shards:
        shard.buffer.close("the end")
        shard.thread.join(PATIENT)
        assert not shard.thread.is_alive()
    assert shared.held == 0


def test_space_that_an_event_does_not_need_is_given_back() -> None:
    """Where its size was not known before it was received."""
    shared = budget(200)
    shard = buffer(shared=shared)
    shard.make_space(64 * 1024)

    shard.fit_space(500)
    assert shared.held == 1024 + 500
    assert shard.append(bytes(500), "1", "5")
    assert shared.held == shard.size == 1024 + 500


def test_an_event_that_is_larger_than_its_space_takes_more() -> None:
    shared = budget(200)
    shard = buffer(shared=shared)
    shard.make_space(5000)
    shard.fit_space(20_000)

    assert shard.append(bytes(20_000), "1", "5")
    assert shared.held == 1024 + 20_000
    shard.acknowledge(5)
    assert shared.held == 0


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_wait_until_batches_have_passed_all_events(*, is_closed: bool) -> None:
    shard = buffer()
    shard.wait_until_drained()
    fill(shard, (1, 5), (6, 9))
    thread, done = in_thread(shard.wait_until_drained)
    shard.acknowledge(5)
    time.sleep(0.01)
    assert not done

    if is_closed:
        shard.close("the test ends")
    else:
        shard.acknowledge(9)
    thread.join(PATIENT)
    assert done == [None]
