"""Faults on the wire: an answer that is cut, damaged, held up or let out drop by drop."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

_LINGER: Final = struct.pack("ii", 1, 0)  # closing sends a reset


class CutError(ConnectionError):
    """A fault closes the connection here."""


@dataclass(frozen=True, kw_only=True)
class WireFault:
    """What happens to the body of an answer."""

    operation: str = "*"  # whose answers; ``"*"`` for each
    # ``cut``: the connection closes before byte `at`. ``reset``: the same with a TCP reset. ``flip``: the
    # bits of byte `at` are flipped. ``stall``: before byte `at` nothing comes for `seconds`. ``trickle``:
    # from byte `at` on, `step` bytes come every `seconds`
    kind: Literal["cut", "reset", "flip", "stall", "trickle"] = "cut"
    at: int = 0  # bytes of the body before the fault. Bytes of an event stream count as frames, not as chunks
    seconds: float = 1.0
    step: int = 1
    times: int = 1  # how many answers it happens to


class WireFaults:
    """The faults that are set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[WireFault, int]] = []
        self.fired = 0

    def set(self, *faults: WireFault) -> None:
        """Replaces the faults with `faults`."""
        with self._lock:
            self._left = [(fault, fault.times) for fault in faults]

    def take(self, operation: str) -> WireFault | None:
        """The fault of one answer."""
        with self._lock:
            for index, (fault, left) in enumerate(self._left):
                if left > 0 and fault.operation in ("*", operation):
                    self._left[index] = (fault, left - 1)
                    self.fired += 1
                    return fault
        return None


class Sender:
    """Sends the body of one answer, with at most one fault; `stopping`: ends waits."""

    def __init__(self, connection: socket.socket, fault: WireFault | None, stopping: threading.Event) -> None:
        self._connection = connection
        self._fault = fault
        self._stopping = stopping
        self._sent = 0  # bytes of the body

    @property
    def is_plain(self) -> bool:
        """Whether nothing happens to the answer."""
        return self._fault is None

    def send_head(self, data: bytes) -> None:
        """Sends what does not count as body."""
        self._connection.sendall(data)

    def send(self, data: bytes) -> None:
        for part in self._parts(data):
            self._connection.sendall(part)
            self._sent += len(part)

    def send_chunk(self, data: bytes) -> None:
        """Sends bytes of the body as one chunk of a chunked transfer."""
        self.send_head(b"%x\r\n" % len(data))
        self.send(data)
        self.send_head(b"\r\n")

    def _parts(self, data: bytes) -> Iterator[bytes]:
        fault = self._fault
        offset = 0 if fault is None else fault.at - self._sent
        if fault is None or offset >= len(data) or (offset < 0 and fault.kind != "trickle"):
            yield data
            return
        offset = max(0, offset)
        yield data[:offset]
        if fault.kind in ("cut", "reset"):
            if fault.kind == "reset":
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            raise CutError(f"cut at byte {fault.at}")
        if fault.kind == "flip":
            yield bytes([data[offset] ^ 0xFF]) + data[offset + 1 :]
        elif fault.kind == "stall":
            self._stopping.wait(fault.seconds)
            yield data[offset:]
        else:
            for start in range(offset, len(data), fault.step):
                yield data[start : start + fault.step]
                self._stopping.wait(fault.seconds)
