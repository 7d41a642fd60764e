"""The desk: a message always wakes the one who can do something about it, and no wake-up is lost."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import pytest

from sluice.sink.mailbox import Mailbox

PATIENCE = 30.0


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(PATIENCE)
    return not thread.is_alive()


@pytest.fixture
def desk() -> Mailbox[str]:
    return Mailbox(time.monotonic)


def test_a_message_wakes_the_one_in_the_seat(desk: Mailbox[str]) -> None:
    """Whether it comes before the wait or during it."""
    desk.enter()
    poster = beside(lambda: desk.post("answer"))
    desk.wait(math.inf)

    assert ended(poster)
    assert desk.collect() == ["answer"]
    desk.post("another")
    desk.wait(math.inf)


def test_a_message_wakes_the_watcher_when_nobody_is_there(desk: Mailbox[str]) -> None:
    """It takes the seat; the next visitor gets in when it has left."""
    watcher = beside(desk.watch)
    desk.post("answer")
    assert ended(watcher)

    visitor = beside(desk.enter)
    assert desk.collect() == ["answer"]
    desk.leave(math.inf)
    assert ended(visitor)


def test_what_came_while_the_seat_was_taken_is_left_to_the_watcher(desk: Mailbox[str]) -> None:
    """A message that the visitor did not collect, and an instant that is due once the visitor has gone."""
    desk.enter()
    watcher = beside(desk.watch)
    desk.post("answer")
    desk.leave(math.inf)
    assert ended(watcher)

    desk.collect()
    watcher = beside(desk.watch)
    desk.leave(time.monotonic())
    assert ended(watcher)


def test_a_closed_desk_is_not_watched(desk: Mailbox[str]) -> None:
    """The watcher goes home without the seat, whatever there may be to do."""
    seen: list[bool] = []
    watcher = beside(lambda: seen.append(desk.watch()))
    desk.close()

    assert ended(watcher)
    assert seen == [False]
