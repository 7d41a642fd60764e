"""Serves ranges to tasks over TCP, and takes in agents on worker hosts that join."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from sluice.channels.acceptor import Acceptor, RareWarning, listen
from sluice.channels.channel import Address, Channel
from sluice.channels.tls import Certificate
from sluice.errors import ServiceError
from sluice.kinesis.agent.shard_buffer import RangeUnavailable
from sluice.kinesis.shared.launch import AgentPlace
from sluice.kinesis.shared.protocol import DONE, EVENT, UNAVAILABLE, JoinHub, ReadRange, decode_first_frame

__all__ = ["RangeServer"]

_log = logging.getLogger(__name__)

_LONGEST_REQUEST: Final = 64 * 1024
"""Bytes."""
_REQUEST_TIMEOUT: Final = 5.0
"""Seconds without a byte in the middle of a request."""
_MOST_ANSWERS: Final = 256
"""How many ranges are served in parallel. Other tasks wait for their turn; most ranges take only a moment."""
_LINGER: Final = 0.02
"""Seconds for which a thread stays with a connection: a task reads several ranges one after the other."""
_START_BYTES: Final = 16


class RangeServer:
    """Listens at a free port, and answers one request after the other on each connection.

    Connections that wait for a request are the acceptor's; a request gets a thread for as long as its answer
    takes.

    Args:
        place: where tasks find it, and where it listens. secret: a connection is closed unless it proves that
            it knows the secret.
        read: returns the events of a range; raises RangeUnavailable.
        join: takes the connection of an agent on a worker host, and returns when that agent is gone. None: no
            agent may join.
        ports: the first and the last port of the range from which it takes a free one; None: any.
        certificate: for TLS; None: connections are not encrypted.

    Raises:
        OSError: it can't listen there.

    Attributes:
        address: where tasks connect.
    """

    def __init__(  # noqa: PLR0913 - who is served, and where
        self,
        place: AgentPlace,
        secret: bytes,
        read: Callable[[ReadRange], Iterator[bytes | memoryview]],
        join: Callable[[Channel, JoinHub], None] | None = None,
        *,
        ports: tuple[int, int] | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        self._read = read
        self._join = join
        listener = listen(place.bind, ports)
        fingerprint, tls = b"", None
        if certificate is not None:
            fingerprint, tls = certificate.fingerprint, certificate.context
        port, start = listener.getsockname()[1], os.urandom(_START_BYTES)
        self.address = Address(place.host, port, secret, start, fingerprint)
        self._threads = ThreadPoolExecutor(_MOST_ANSWERS, "sluice-answer")
        self._no_thread = RareWarning()
        self._acceptor = Acceptor(listener, self.address, self._submit, tls=tls)
        self._acceptor.start()

    def close(self) -> None:
        """Accepts no more connections or requests. Accepted requests are answered."""
        self._acceptor.close()
        self._threads.shutdown(wait=False)

    def _submit(self, channel: Channel) -> None:
        try:
            self._threads.submit(self._handle_request, channel)
        except RuntimeError:  # the system allows no more threads, or the server is closed
            channel.close()
            self._no_thread.log(
                "port %d: no thread to serve a range; its task polls, and the next one may be served",
                self.address.port,
            )

    def _handle_request(self, channel: Channel) -> None:
        try:
            while isinstance(request := _receive_request(channel), ReadRange):
                self._answer(channel, request)
                if channel.is_idle(_LINGER):
                    self._acceptor.watch(channel)
                    return
            if self._join is not None:
                threading.Thread(
                    target=self._serve_agent,
                    args=(self._join, channel, request),
                    name="sluice-hub",
                    daemon=True,
                ).start()
                return
        except (EOFError, OSError):
            pass  # the task has all it asked for, or is gone
        except (ServiceError, msgspec.MsgspecError, RuntimeError) as error:
            _log.warning(
                "port %d: closed a connection, as a request can't be served: %s", self.address.port, error
            )
        except Exception:  # noqa: BLE001 - the thread continues with the next request
            _log.exception("port %d: closed a connection, as a request can't be served", self.address.port)
        channel.close()

    def _serve_agent(
        self, join: Callable[[Channel, JoinHub], None], channel: Channel, request: JoinHub
    ) -> None:
        try:
            join(channel, request)
        finally:
            channel.close()

    def _answer(self, channel: Channel, request: ReadRange) -> None:
        events: Iterator[bytes | memoryview] = iter(())
        try:
            events = self._read(request)
            for payload in events:
                channel.send(EVENT, payload)
        except RangeUnavailable as reason:
            channel.send(UNAVAILABLE, str(reason).encode())
        else:
            channel.send(DONE)
        finally:
            if isinstance(events, Generator):  # lets go of the event that was being sent
                events.close()


def _receive_request(channel: Channel) -> ReadRange | JoinHub:
    channel.set_timeout(_REQUEST_TIMEOUT)
    request = decode_first_frame(channel.receive(at_most=_LONGEST_REQUEST))
    channel.set_timeout(None)
    return request
