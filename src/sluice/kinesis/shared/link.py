"""Messages between fan-out's long-lived processes, each of which notices if the other is silent.

There is a link between the planning process and the agent on the driver host, and one between that agent and
each agent on a worker host. A process that dies closes its links. A process that is stopped or hangs, or
whose host has failed, does not. So each end asks the other for a sign of life once a second, and the loop
that handles messages answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from sluice.channels.channel import Channel, frame_of

__all__ = ["GIVEN_UP_AFTER", "SILENT_AFTER", "Link"]

_log = logging.getLogger(__name__)

SILENT_AFTER: Final = 5.0
"""Seconds without a message after which a peer counts as silent: its last messages no longer count."""

GIVEN_UP_AFTER: Final = 30
"""Questions without an answer, one a second, after which a peer is given up. Replacing an agent costs more
than polling its shards for a while, because the next agent subscribes to all of them anew.
"""

_ASK_EVERY: Final = 1.0
"""Seconds between two questions."""
_ASK: Final = b"?"
_ANSWER: Final = b"!"
_LARGEST_BACKLOG: Final = 32 * 2**20
"""The most bytes that wait for a peer. If more would wait, the peer counts as dead."""


class Link:
    """One end of a link. Any thread may send, and one thread receives.

    No call but `receive` blocks. If the peer does not accept a message at once, the message waits here, and a
    thread sends it later.

    Args:
        channel: connected. Only this link uses it from now on.
        clock: monotonic seconds.
        ask_every: seconds between two questions.
        largest_backlog: bytes that may wait for the peer; beyond that the link closes.

    Attributes:
        unanswered: how many questions the peer has not answered since its last message. Time in which this
            process itself was frozen does not count. recoveries: how often the peer answered again after it
            counted as silent.
    """

    def __init__(
        self,
        channel: Channel,
        clock: Callable[[], float] = time.monotonic,
        *,
        ask_every: float = _ASK_EVERY,
        largest_backlog: int = _LARGEST_BACKLOG,
    ) -> None:
        channel.set_timeout(None)
        channel.limit_unacknowledged(GIVEN_UP_AFTER * ask_every)
        self.unanswered = 0
        self.recoveries = 0
        self._channel = channel
        self._clock = clock
        self._ask_every = ask_every
        self._largest_backlog = largest_backlog
        self._heard_at = clock()
        self._backlog = bytearray()
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def silence(self) -> float:
        """Seconds since the peer's last message."""
        return self._clock() - self._heard_at

    def start(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Starts the thread that sends waiting messages, and asks the peer for a sign of life once a second.

        Args:
            on_tick: called in that thread after each question.
        """
        threading.Thread(target=self._run, args=(on_tick,), name="sluice-link", daemon=True).start()

    def send(self, message: bytes) -> None:
        """Sends a message, now or as soon as the peer takes it. Does nothing after the link has closed."""
        with self._changed:
            if self._is_closed:
                return
            had_backlog = bool(self._backlog)
            self._backlog += frame_of(message)
            if not had_backlog:
                self._pass_on()
            if not self._backlog:
                return
            self._changed.notify()
            if len(self._backlog) <= self._largest_backlog:
                return
        _log.warning(
            "closing a link whose other end has taken nothing for %.0f s, while %d bytes wait for it",
            self.silence,
            self._largest_backlog,
        )
        self.close()

    def receive(self) -> memoryview:
        """Blocks until the next message.

        Raises:
            EOFError: the link has closed.
            OSError: the connection broke.
        """
        while True:
            frame = self._channel.receive()
            self.recoveries += self.silence >= SILENT_AFTER
            self._heard_at = self._clock()
            self.unanswered = 0
            if len(frame) > 1:  # no message is that short
                return frame
            if bytes(frame) == _ASK:
                self.send(_ANSWER)

    def ask(self) -> None:
        """Asks the peer for a word."""
        self.unanswered += 1
        self.send(_ASK)

    def close(self) -> None:
        """Closes the link. May be called from any thread; it wakes the receiving thread."""
        with self._changed:
            self._is_closed = True
            self._backlog.clear()
            self._changed.notify()
        self._channel.close()

    def _run(self, on_tick: Callable[[], None]) -> None:
        """The thread of the link."""
        due = time.monotonic() + self._ask_every
        while True:
            with self._changed:
                while not (self._is_closed or self._backlog) and (rest := due - time.monotonic()) > 0:
                    self._changed.wait(rest)
                if self._is_closed:
                    return
            if (rest := due - time.monotonic()) > 0:
                self._channel.wait_until_writable(rest)
                with self._changed:
                    self._pass_on()
            else:
                due = time.monotonic() + self._ask_every
                self.ask()
                on_tick()

    def _pass_on(self) -> None:
        try:
            del self._backlog[: self._channel.send_some(self._backlog)]
        except OSError:
            self._backlog.clear()  # the connection broke, and the receiving thread notices that
