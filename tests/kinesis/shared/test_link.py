"""A link never makes its owner wait, and notices that the other end is silent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from sluice.channels.channel import Channel
from sluice.kinesis.shared.link import Link

PATIENT = 120.0
ASK, ANSWER = b"?", b"!"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """A link whose clock the test moves, and the other end of its channel."""

    def __init__(self, *, largest_backlog: int = 2**20, ask_every: float = 60.0) -> None:
        ours, theirs = socket.socketpair()
        self.clock = Clock()
        self.link = Link(Channel(ours), self.clock, largest_backlog=largest_backlog, ask_every=ask_every)
        self.peer = Channel(theirs)
        self.peer.set_timeout(PATIENT)

    def close(self) -> None:
        self.link.close()
        self.peer.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**arguments: Any) -> Pair:
        made.append(Pair(**arguments))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for what the link's own thread does."""
    end = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def receive_all(link: Link) -> None:
    """Until the link has closed."""
    try:
        while True:
            link.receive()
    except (EOFError, OSError):
        pass


def test_a_message_is_sent_before_send_returns(make: Callable[..., Pair]) -> None:
    """Without the link's thread: a process that ends right behind it has sent the message."""
    pair = make()
    pair.link.send(b"last words")
    pair.link.close()

    assert bytes(pair.peer.receive()) == b"last words"
    with pytest.raises(EOFError):
        pair.peer.receive()


@pytest.mark.parametrize("has_thread", [False, True])
def test_send_returns_when_the_peer_takes_nothing(make: Callable[..., Pair], *, has_thread: bool) -> None:
    """A stopped peer reads nothing. The messages arrive, whole and in order, when the peer resumes."""
    pair = make(largest_backlog=8 * 2**20)
    if has_thread:
        pair.link.start()
    messages = [b"%6d" % number + b"x" * 1_000 for number in range(4_000)]  # more than a socket holds
    for message in messages:
        pair.link.send(message)
    if not has_thread:
        pair.link.start()

    received: list[bytes] = []
    while len(received) < len(messages):
        if (frame := bytes(pair.peer.receive())) != ASK:
            received.append(frame)
    assert received == messages


def test_a_peer_that_takes_nothing_counts_as_dead_in_the_end(
    make: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    """What waits for it is bounded. The thread that receives learns that the link has closed; more messages
    do nothing.
    """
    pair = make(largest_backlog=100_000)
    thread = threading.Thread(target=receive_all, args=(pair.link,))
    thread.start()
    for _ in range(1_000):
        pair.link.send(b"x" * 10_000)

    thread.join(PATIENT)
    assert not thread.is_alive()
    (line,) = [line for line in caplog.messages if "closing a link" in line]
    assert "100000 bytes wait" in line


def test_no_number_of_senders_mixes_up_messages(make: Callable[..., Pair]) -> None:
    """Subscriptions report from a thread each."""
    pair = make(largest_backlog=16 * 2**20)
    pair.link.start()

    def send(name: int) -> None:
        for number in range(500):
            pair.link.send(b"%d %d " % (name, number) + b"x" * 2_000)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    received: dict[int, list[int]] = {name: [] for name in range(4)}
    while sum(map(len, received.values())) < 2_000:
        if (frame := bytes(pair.peer.receive())) != ASK:
            name, number, rest = frame.split(b" ")
            assert len(rest) == 2_000
            received[int(name)].append(int(number))
    for thread in threads:
        thread.join()

    assert all(numbers == list(range(500)) for numbers in received.values())


def test_both_ends_learn_that_the_other_one_speaks() -> None:
    """The loop that handles messages answers questions, and hands none out."""
    ours, theirs = map(Channel, socket.socketpair())
    clocks = Clock(), Clock()
    with closing(Link(ours, clocks[0])) as left, closing(Link(theirs, clocks[1])) as right:
        for clock in clocks:
            clock.now += 7.0
        assert (left.silence, right.silence) == (7.0, 7.0)
        left.ask()
        assert left.unanswered == 1
        threading.Thread(target=receive_all, args=(right,), daemon=True).start()
        right.send(b"hello")

        assert bytes(left.receive()) == b"hello"
        right.send(b"behind the answer")
        assert bytes(left.receive()) == b"behind the answer"
        assert (left.silence, left.unanswered) == (0.0, 0)
        wait_until(lambda: right.silence == 0.0)


def test_the_loop_that_handles_messages_answers(make: Callable[..., Pair]) -> None:
    """A process whose loop hangs does not answer, although its other threads live on."""
    pair = make()
    pair.peer.send(ASK)
    pair.peer.send(b"message")

    assert bytes(pair.link.receive()) == b"message"
    assert bytes(pair.peer.receive()) == ANSWER


def test_the_link_asks_by_itself(make: Callable[..., Pair]) -> None:
    """And tells its owner each time. A peer that takes nothing does not keep it from that."""
    pair = make(ask_every=0.01)
    ticks = threading.Semaphore(0)
    for _ in range(100):
        pair.link.send(b"x" * 10_000)
    pair.link.start(ticks.release)

    assert ticks.acquire(timeout=PATIENT)
    assert ticks.acquire(timeout=PATIENT)
    assert pair.link.unanswered >= 2
    frames = [bytes(pair.peer.receive()) for _ in range(102)]
    assert set(map(len, frames[:100])) == {10_000}
    assert frames[100:] == [ASK, ASK]


def test_a_link_that_closes_ends_its_thread(make: Callable[..., Pair]) -> None:
    """Whichever end closes it, and whether or not something waits to be sent."""
    pair = make()
    before = set(threading.enumerate())
    pair.link.start()
    (own,) = (t for t in set(threading.enumerate()) - before if t.name == "sluice-link")
    for _ in range(50):
        pair.link.send(b"x" * 10_000)
    pair.peer.close()
    pair.link.close()

    wait_until(lambda: not own.is_alive())
    pair.link.send(b"too late")
    pair.link.close()
