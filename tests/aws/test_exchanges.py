"""A request and its answer with one deadline. `integration/test_trickling_peers.py` has real connections."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from sluice.aws.wire.exchanges import Exchange, current_exchange
from sluice.aws.wire.watchdog import Watchdog


class Connection:
    def __init__(self) -> None:
        self.sock, self.peer = socket.socketpair()

    @property
    def is_open(self) -> bool:
        self.peer.setblocking(False)
        try:
            return bool(self.peer.recv(1))
        except BlockingIOError:
            return True

    def close(self) -> None:
        self.sock.close()
        self.peer.close()


def watchdog() -> Watchdog:
    made = Watchdog()
    made._thread = threading.current_thread()  # no extra thread
    return made


@pytest.fixture
def connection() -> Any:
    made = Connection()
    yield made
    made.close()


def test_an_exchange_that_is_late_loses_its_connection(connection: Any) -> None:
    dog = watchdog()
    with Exchange(-1.0, watchdog=dog) as exchange:
        exchange.uses(connection)
        dog.check()

        assert exchange.was_ended
        assert not connection.is_open
        with pytest.raises(TimeoutError):
            exchange.uses(connection)
    assert dog._armed == {}


def test_a_late_connection_is_not_used(connection: Any) -> None:
    """It may take longer to make than the whole request may last."""
    dog = watchdog()
    with Exchange(-1.0, watchdog=dog) as exchange:
        dog.check()
        with pytest.raises(TimeoutError):
            exchange.uses(connection)


def test_what_is_complete_is_not_ended(connection: Any) -> None:
    """Its connection may be another request's by now."""
    with Exchange(100.0, watchdog=watchdog()) as exchange:
        exchange.uses(connection)
        exchange.complete()
        exchange.end()
    exchange.end()

    assert connection.is_open
    assert not exchange.was_ended


def test_an_exchange_is_its_threads_while_it_lasts() -> None:
    """Credentials may be asked for inside of another request."""
    seen: list[Exchange | None] = []
    with Exchange(100.0, watchdog=watchdog()) as outer:
        with Exchange(100.0, watchdog=watchdog()) as inner:
            seen.append(current_exchange())
        seen.append(current_exchange())
        thread = threading.Thread(target=lambda: seen.append(current_exchange()))
        thread.start()
        thread.join()
    seen.append(current_exchange())

    assert seen == [inner, outer, None, None]
