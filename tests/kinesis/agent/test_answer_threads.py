"""Requests are answered side by side, by no more threads than allowed, or than the system has."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from sluice.kinesis.agent.answer_threads import AnswerThreads

PATIENT = 60.0


class Answers:
    """Answers that take until the test lets them end."""

    def __init__(self, limit: int) -> None:
        self.begun: queue.SimpleQueue[tuple[int, threading.Thread]] = queue.SimpleQueue()
        self.may_end = threading.Semaphore(0)
        self.threads = AnswerThreads(self._answer, limit, idle_timeout=0.0)
        self.used: set[threading.Thread] = set()

    def _answer(self, request: int) -> None:
        self.begun.put((request, threading.current_thread()))
        self.may_end.acquire(timeout=PATIENT)

    def next(self) -> int:
        """The request that is answered next."""
        request, thread = self.begun.get(timeout=PATIENT)
        self.used.add(thread)
        return request


@pytest.fixture
def two() -> Iterator[Answers]:
    answers = Answers(2)
    yield answers
    answers.may_end.release(100)


def test_requests_are_answered_side_by_side_up_to_the_limit(two: Answers) -> None:
    """Those beyond it wait for their turn."""
    assert all(two.threads.submit(request) for request in range(5))

    assert {two.next(), two.next()} == {0, 1}
    assert two.begun.empty()
    for expected in (2, 3, 4):
        two.may_end.release()
        assert two.next() == expected
    assert len(two.used) == 2


def test_threads_end_that_have_nothing_to_do(two: Answers) -> None:
    """Later requests get others, as many as before."""
    for _ in range(3):
        two.used.clear()
        assert two.threads.submit(1)
        assert two.threads.submit(2)
        assert {two.next(), two.next()} == {1, 2}
        two.may_end.release(2)
        for thread in two.used:
            thread.join(PATIENT)
            assert not thread.is_alive()


def test_a_thread_takes_what_comes_while_it_is_there() -> None:
    """One after the other needs one thread."""
    answered: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    threads: AnswerThreads[int] = AnswerThreads(
        lambda _request: answered.put(threading.current_thread()), 5, idle_timeout=PATIENT
    )
    used = set()
    for request in range(20):
        threads.submit(request)
        used.add(answered.get(timeout=PATIENT))
        while not threads._free:
            pass

    assert len(used) == 1


def test_without_another_thread_requests_wait_for_one_that_is_there(
    two: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where there is none at all, the caller learns that nobody will answer."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", start)
        assert not two.threads.submit(1)
    two.threads.submit(2)
    assert two.next() == 2
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", start)
        assert two.threads.submit(3)
    two.may_end.release()

    assert two.next() == 3
