"""A program on the same machine that connects to an agent without the secret, and does not behave.

    python -m integration.support.hostile PORT flood 10000
    python -m integration.support.hostile PORT trickle 40

``flood`` makes so many connections as fast as it can. Some are silent, others make noise or claim that
gigabytes follow. It keeps the last hundreds open, and prints how many were accepted.

``trickle`` keeps so many connections open for as long as it lives, sends a byte on each of them several times
a second, and connects anew where it is turned away.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from subprocess import DEVNULL, PIPE, Popen

__all__ = ["hostile"]

_HOST = "127.0.0.1"
_OPEN = 400
_SAID = (b"", b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"n")
_TIMEOUT = 30.0


@contextlib.contextmanager
def hostile(port: int, kind: str, count: int) -> Iterator[Popen[str]]:
    """Runs the program until the block ends."""
    command = (sys.executable, "-m", "integration.support.hostile", str(port), kind, str(count))
    with Popen(command, stdin=DEVNULL, stdout=PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def flood(port: int, count: int) -> None:
    kept: deque[socket.socket] = deque()
    accepted = 0
    for said in itertools.islice(itertools.cycle(_SAID), count):
        with contextlib.suppress(OSError):
            kept.append(socket.create_connection((_HOST, port), _TIMEOUT))
            accepted += 1
            if said:
                kept[-1].send(said)
        if len(kept) > _OPEN:
            kept.popleft().close()
    print(accepted, flush=True)


def trickle(port: int, count: int) -> None:
    kept: list[socket.socket | None] = [None] * count
    while True:
        for index, each in enumerate(kept):
            try:
                connection = each or socket.create_connection((_HOST, port), _TIMEOUT)
                kept[index] = connection
                connection.send(b"n")
            except OSError:  # noqa: PERF203 - one of many
                if (broken := kept[index]) is not None:
                    broken.close()
                kept[index] = None
        time.sleep(0.2)


if __name__ == "__main__":
    {"flood": flood, "trickle": trickle}[sys.argv[2]](int(sys.argv[1]), int(sys.argv[3]))
