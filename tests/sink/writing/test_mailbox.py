"""The mailbox: a message wakes the thread that can act on it, and no wake-up is lost."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import pytest

from sluice.sink.writing.mailbox import Mailbox

PATIENCE = 120.0


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(PATIENCE)
    return not thread.is_alive()


@pytest.fixture
def mailbox() -> Mailbox[str]:
    return Mailbox(time.monotonic)


def test_a_message_wakes_the_owner(mailbox: Mailbox[str]) -> None:
    """Whether it is posted before the wait or during it."""
    mailbox.acquire()
    request_thread = started(lambda: mailbox.post("answer"))
    mailbox.wait(math.inf)

    assert ended(request_thread)
    assert mailbox.collect() == ["answer"]
    mailbox.post("another")
    mailbox.wait(math.inf)


def test_a_message_wakes_the_background_flusher_when_nobody_is_the_owner(mailbox: Mailbox[str]) -> None:
    """The flusher becomes the owner; the task's thread does when the flusher has released the state."""
    flusher = started(mailbox.acquire_when_due)
    mailbox.post("answer")
    assert ended(flusher)

    task_thread = started(mailbox.acquire)
    assert mailbox.collect() == ["answer"]
    mailbox.release(math.inf)
    assert ended(task_thread)
