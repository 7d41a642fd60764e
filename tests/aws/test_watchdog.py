"""The thread that ends waits which last too long."""

from __future__ import annotations

import os
import threading

import pytest

from sluice.aws.wire import watchdog as module
from sluice.aws.wire.watchdog import Watchdog, shared_watchdog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_waits_that_are_late_are_given_up() -> None:
    """Each once. A wait that was disarmed, or armed anew, is not late."""
    clock = Clock()
    dog = Watchdog(clock)
    dog._thread = threading.current_thread()  # no extra thread
    waiters = [object() for _ in range(4)]
    given_up: list[int] = []
    for at, waiter in enumerate(waiters):
        dog.arm(waiter, 10.0 + at, lambda at=at: given_up.append(at))  # type: ignore[misc]
    dog.disarm(waiters[0])
    dog.disarm(waiters[0])
    dog.arm(waiters[1], 100.0, lambda: given_up.append(-1))

    clock.now = 12.0
    dog.check()
    assert given_up == []
    clock.now = 12.5
    dog.check()
    dog.check()
    assert given_up == [2]
    clock.now = 200.0
    dog.check()
    assert sorted(given_up) == [-1, 2, 3]


def test_its_thread_runs_while_there_are_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts again after it has ended."""
    monkeypatch.setattr(module, "_INTERVAL", 0.001)
    dog = Watchdog()
    for _ in range(2):
        late = threading.Event()
        dog.arm(late, 0.0, late.set)
        assert late.wait(60)
        thread = dog._thread
        if thread is not None:
            thread.join(60)
        assert dog._thread is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # from Python 3.12 on
def test_a_process_has_one_and_a_forked_child_its_own() -> None:
    """Threads do not survive a fork."""
    assert shared_watchdog() is shared_watchdog()

    read, write = os.pipe()
    parent = shared_watchdog()
    child = os.fork()
    if child == 0:
        os.write(write, b"y" if shared_watchdog() is not parent else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"y"
    os.close(read)
    os.close(write)
