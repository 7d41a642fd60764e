"""A common budget for the buffers of all shards, and the order in which shards get space when it is scarce.

An event gets its space before it is read from its connection; until then it stays with the service. With
these rules no shard starves, and no task waits for a record that waits for space:

- Seven eighths are for all shards. A shard that holds events may hold no more than it leaves free for others
  (the dynamic thresholds of Choudhury and Hahne, 1998): one busy shard may fill half, two may fill a third
  each.
- A shard that holds nothing gets space before those that come after it, even if these need less.
- If a task waits for the event, space is lent at once: from the last eighth, and up to one event more than is
  free, even if another event alone exceeds the budget. The buffer gives it back as soon as the event has been
  sent to the task.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

__all__ = ["BufferBudget", "Share"]

_KEPT_FOR_TASKS: Final = 8
"""One in this many bytes is reserved for events for which tasks wait."""


@dataclass(eq=False, slots=True)
class Share:
    """One shard's share of a budget. Only the budget changes it.

    Attributes:
        held: bytes that it holds.
        wanted: bytes for which it waits; 0 if it does not wait.
        given: bytes of `held` that it got by its last request; 0 once `wait` has returned them.
        is_lent: these bytes are lent.
        is_closed: it gets no more.
        answered: set when it no longer has to wait.
    """

    held: int = 0
    wanted: int = 0
    given: int = 0
    is_lent: bool = False
    is_closed: bool = False
    answered: threading.Event = field(default_factory=threading.Event)


class BufferBudget:
    """Bytes that shards share. Thread-safe.

    Args:
        limit: bytes that all of them may hold. One event for which a task waits may come in addition, even to
            a single event that exceeds the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._limit_of_all = limit - limit // _KEPT_FOR_TASKS
        self._held = 0
        self._lent = 0
        self._lock = threading.Lock()
        self._queue: dict[Share, None] = {}  # shares that wait, in the order in which they came
        self._awaited: dict[Share, None] = {}  # the same for those that tasks wait for

    @property
    def held(self) -> int:
        """Bytes that all shards hold."""
        return self._held

    def request(self, share: Share, size: int) -> None:
        """Requests space for a share, which has one request at a time."""
        with self._lock:
            share.answered.clear()
            if share.is_closed:
                share.answered.set()
                return
            share.wanted = size
            self._queue[share] = None
            self._let_in()

    def lend(self, share: Share) -> None:
        """Lends the share what it has requested, if it waits for that: a task waits for the event."""
        with self._lock:
            if share in self._queue:
                del self._queue[share]
                self._awaited[share] = None
                self._let_in()

    def wait(self, share: Share) -> int:
        """Blocks until the share has the space that it has requested, or is closed. Returns what it has."""
        share.answered.wait()
        with self._lock:
            given, share.given = share.given, 0
            return given

    def release(self, share: Share, size: int, *, is_lent: bool = False) -> None:
        """The share gives back space that it holds.

        Args:
            is_lent: it was lent; see `Share.is_lent`.
        """
        if size:
            with self._lock:
                share.held -= size
                self._held -= size
                self._lent -= size if is_lent else 0
                self._let_in()

    def close(self, share: Share) -> None:
        """Withdraws the share's request. The share keeps the space that it holds until it is released."""
        with self._lock:
            share.is_closed = True
            self._remove(share)
            share.answered.set()
            self._let_in()

    def _let_in(self) -> None:
        """Gives space to the shares that may have it now."""
        # If nothing is lent, and yet too much is held, one event is larger than the budget. It may be one
        # that no task waits for, so it must not keep from tasks what they wait for.
        while self._awaited and (self._held <= self._limit or not self._lent):
            self._give(next(iter(self._awaited)), is_lent=True)
        for share in list(self._queue):
            space = self._limit_of_all - self._held
            if self._held == 0 or share.held + share.wanted <= space:
                self._give(share)
            elif not share.held:
                return  # the next space is for this one

    def _give(self, share: Share, *, is_lent: bool = False) -> None:
        self._held += share.wanted
        self._lent += share.wanted if is_lent else 0
        share.held += share.wanted
        share.given, share.is_lent = share.wanted, is_lent
        self._remove(share)
        share.answered.set()

    def _remove(self, share: Share) -> None:
        share.wanted = 0
        self._queue.pop(share, None)
        self._awaited.pop(share, None)
