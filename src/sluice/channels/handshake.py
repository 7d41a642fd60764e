"""The handshake by which a task and a server prove to each other that they know the query's secret.

This module has no IO. The connecting end speaks first, so that a request can follow after one round trip::

    client: its nonce, proof "hello"
    server: its nonce, proof "server"
    client: proof "client"

A proof is an HMAC of its name, of both nonces ("hello" has one) and of what the handshake is bound to: the
start of a server, which is random, and its port. So it is good for one connection to one server. If a server
has died, a program that listens at its port can't pass it on to another server.

"hello" may be a repetition, so it opens nothing. It tells a server early which connections to keep when there
are many. All messages have fixed lengths: a stranger can't claim a length.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

__all__ = ["ANSWER_BYTES", "ClientHandshake", "HandshakeError", "ServerHandshake"]

_DIGEST: Final = "sha256"
_PROOF_BYTES: Final = 32
_NONCE_BYTES: Final = 32
_HELLO_BYTES: Final = _NONCE_BYTES + _PROOF_BYTES
ANSWER_BYTES: Final = _NONCE_BYTES + _PROOF_BYTES
"""Length of the server's only message."""


class HandshakeError(Exception):
    """The other end does not know the secret, or means another server."""


class ClientHandshake:
    """The connecting end.

    Args:
        secret: of the query.
        bound_to: the server that is meant; the server has to have the same bytes.
    """

    def __init__(self, secret: bytes, bound_to: bytes) -> None:
        self._secret = secret
        self._bound_to = bound_to
        self._nonce = os.urandom(_NONCE_BYTES)

    def hello(self) -> bytes:
        """The first message."""
        return self._nonce + _proof(self._secret, b"hello", self._nonce, self._bound_to)

    def prove(self, answer: bytes) -> bytes:
        """The last message, after which the server serves requests.

        Args:
            answer: the server's message, of `ANSWER_BYTES`.

        Raises:
            HandshakeError: the server has not proved the secret.
        """
        nonces = self._nonce + answer[:_NONCE_BYTES]
        _check(answer[_NONCE_BYTES:], self._secret, b"server", nonces, self._bound_to)
        return _proof(self._secret, b"client", nonces, self._bound_to)


class ServerHandshake:
    """The accepting end. Takes bytes as they come, in any pieces.

    Args:
        secret, bound_to: as of `ClientHandshake`.

    Attributes:
        was_greeted: "hello" has come. A client that knows the secret made it, but it may be a repetition.
        is_done: the client has proved the secret.
    """

    def __init__(self, secret: bytes, bound_to: bytes) -> None:
        self.was_greeted = False
        self.is_done = False
        self._secret = secret
        self._bound_to = bound_to
        self._received = b""
        self._nonces = b""

    @property
    def missing(self) -> int:
        """How many bytes of the client's message are missing. What follows the last one is a request."""
        expected = _PROOF_BYTES if self.was_greeted else _HELLO_BYTES
        return 0 if self.is_done else expected - len(self._received)

    def receive(self, data: bytes) -> bytes:
        """Takes bytes of the client, at most as many as are `missing`. Returns what to send.

        Raises:
            HandshakeError: the client does not know the secret, or means another server.
        """
        self._received += data
        if self.missing:
            return b""
        message, self._received = self._received, b""
        if self.was_greeted:
            _check(message, self._secret, b"client", self._nonces, self._bound_to)
            self.is_done = True
            return b""
        client_nonce = message[:_NONCE_BYTES]
        _check(message[_NONCE_BYTES:], self._secret, b"hello", client_nonce, self._bound_to)
        self.was_greeted = True
        nonce = os.urandom(_NONCE_BYTES)
        self._nonces = client_nonce + nonce
        return nonce + _proof(self._secret, b"server", self._nonces, self._bound_to)


def _proof(secret: bytes, name: bytes, nonces: bytes, bound_to: bytes) -> bytes:
    # No name is a prefix of another, and nonces have fixed lengths, so the concatenation is unambiguous.
    return hmac.digest(secret, name + nonces + bound_to, _DIGEST)


def _check(proof: bytes, secret: bytes, name: bytes, nonces: bytes, bound_to: bytes) -> None:
    if not hmac.compare_digest(proof, _proof(secret, name, nonces, bound_to)):
        raise HandshakeError(f"the proof '{name.decode()}' is wrong")
