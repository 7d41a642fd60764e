"""Tasks report their reads to the planning process, which adds them to Spark's progress reports.

Spark offers no channel for this, so a task sends datagrams when it ends. If one is lost, only figures
are missing. The planning process counts tasks, so it knows how many reports are missing.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import msgspec

from sluice.hosts import is_loopback
from sluice.source.model.read_figures import ReadFigures, SplitFigures
from sluice.source.model.splits import SplitId

__all__ = ["ReportAddress", "TaskReports", "send_report"]

_log = logging.getLogger(__name__)

_DIGEST: Final = "sha256"
_DIGEST_BYTES: Final = 32
_SECRET_BYTES: Final = 32
_SPLITS_EACH: Final = 8
"""Splits in one datagram, which then fits into 1,500 bytes even with the longest names."""
_LARGEST: Final = 65_536
"""Maximum bytes of a datagram."""
_LOOK_UP_WAIT: Final = 0.2
"""Seconds for which a task waits for the address of the driver's host. Without it, the task sends no
report."""
_BACKLOG: Final = 4 * 2**20
"""Bytes that may wait for the planning process, which receives them when it plans and reports."""


@dataclass(frozen=True)
class ReportAddress:
    """Where a task sends its report: plain data that Spark sends with each partition.

    Attributes:
        host: empty for the host of Spark's driver; see `found_at`.
        secret: of the planning process. It accepts only reports that are signed with it.
        batch: number of the batch, counted by the planning process.
        partition: number of the task in the batch.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    batch: int = 0
    partition: int = 0

    def found_at(self, driver: str) -> ReportAddress:
        """Fills in the host at which the task reaches Spark's driver."""
        return self if self.host else replace(self, host=driver)

    def of_partition(self, partition: int) -> ReportAddress:
        """Returns the address for one task."""
        return replace(self, partition=partition)


class _Report(msgspec.Struct, frozen=True, array_like=True):
    """A datagram.

    Attributes:
        attempt: random; identifies a repeated datagram, with `part`.
        part, parts: number of this datagram, and how many the attempt sends.
        is_complete: the task has read its ranges to their end.
        query, run: Spark's ids, which only tasks know.
        splits: stream, shard, and the fields of `SplitFigures` in their order.
        contested: as `ReadFigures.contested`, in the first part.
    """

    batch: int
    partition: int
    attempt: bytes
    part: int
    parts: int
    is_complete: bool
    query: str
    run: str
    splits: list[tuple[str, str, int, int, int, int, int]]
    contested: list[str] = []


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Report)


class _LookUp(threading.Thread):
    """Resolves a host name once per process. If the answer is late, the next task uses it."""

    _known: ClassVar[dict[str, _LookUp]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, host: str) -> None:
        super().__init__(name="sluice-look-up", daemon=True)
        self.found: tuple[socket.AddressFamily, str] | None = None
        self._host = host

    def run(self) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            family, *_, place = socket.getaddrinfo(self._host, None, type=socket.SOCK_DGRAM)[0]
            self.found = family, str(place[0])

    @classmethod
    def wait(cls, host: str) -> tuple[socket.AddressFamily, str] | None:
        """Returns the family and the address of a host; None if it is not found, or not yet."""
        with cls._lock:
            look_up = cls._known.get(host)
            if look_up is None or (look_up.found is None and not look_up.is_alive()):  # it failed
                look_up = cls(host)
                try:
                    look_up.start()
                except RuntimeError:  # this process may start no more threads
                    return None
                cls._known[host] = look_up
        look_up.join(_LOOK_UP_WAIT)
        return look_up.found


def send_report(
    address: ReportAddress, figures: ReadFigures, *, is_complete: bool, query: str = "", run: str = ""
) -> None:
    """Reports a task's reads to the planning process. Blocks for up to 0.2 s, and never raises.

    Args:
        is_complete: the task has read its ranges to their end; another attempt will not read them again.
        query, run: the ids of the query and of its run; empty if they are not known.
    """
    found = _LookUp.wait(address.host)
    if found is None:
        return
    rows = [
        (split.stream, split.shard, each.polled, each.pushed, each.bytes, each.refused, each.retries)
        for split, each in sorted(figures.splits().items())
    ]
    chunks = [rows[start : start + _SPLITS_EACH] for start in range(0, len(rows), _SPLITS_EACH)] or [[]]
    attempt = os.urandom(8)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        sender = stack.enter_context(socket.socket(found[0], socket.SOCK_DGRAM))
        sender.setblocking(False)
        for part, chunk in enumerate(chunks):
            place = address.batch, address.partition, attempt, part, len(chunks)
            contested = [] if part else sorted(figures.contested)
            body = _encoder.encode(_Report(*place, is_complete, query, run, chunk, contested))
            proof = hmac.digest(address.secret, body, _DIGEST)
            sender.sendto(proof + body, (found[1], address.port))


@dataclass
class _Batch:
    """The reports of one batch.

    Attributes:
        completed: by task, the parts of an attempt that has read everything.
        seen: attempts and parts that have arrived.
    """

    number: int
    completed: dict[int, dict[int, list[tuple[SplitId, SplitFigures]]]] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    seen: set[tuple[bytes, int]] = field(default_factory=set)

    @property
    def reported(self) -> int:
        """Number of tasks with a complete report."""
        return sum(len(self.completed[task]) == self.parts[task] for task in self.completed)


class TaskReports:
    """The reports of a query's tasks, in the planning process. Owned by one thread.

    Args:
        host: the address to listen on; empty: all addresses. If it is not a loopback address, tasks may
            run on other hosts, and send their reports to the host of Spark's driver.
        figures: the tasks' figures are added to these.

    Attributes:
        tasks: number of tasks of all batches so far.
        query, run: Spark's ids, once a task has reported them; empty before.
    """

    def __init__(self, figures: ReadFigures, host: str = "127.0.0.1") -> None:
        self._figures = figures
        self._secret = os.urandom(_SECRET_BYTES)
        self._batch = _Batch(0)
        self._reported_before = 0
        self.tasks = 0
        self.query = self.run = ""
        self._host = host
        self._socket: socket.socket | None = None
        self._is_closed = False

    @property
    def reported(self) -> int:
        """Number of tasks that have reported, of `tasks`."""
        return self._reported_before + self._batch.reported

    def begin_batch(self, tasks: int) -> ReportAddress | None:
        """Prepares a batch before its tasks start. Returns where they send their reports, or None."""
        self.receive()
        self._reported_before += self._batch.reported
        self._batch = _Batch(self._batch.number + 1)
        self.tasks += tasks
        self._open()
        if self._socket is None:
            return None
        host, port = self._socket.getsockname()[:2]
        return ReportAddress(host if is_loopback(host) else "", port, self._secret, self._batch.number)

    def receive(self) -> None:
        """Receives the reports that have arrived."""
        while self._socket is not None:
            try:
                datagram = self._socket.recv(_LARGEST)
            except OSError:  # none is left
                return
            self._take(datagram)

    def last_batch(self) -> Mapping[SplitId, SplitFigures]:
        """Returns the figures of the last batch's tasks, each range once."""
        found: dict[SplitId, SplitFigures] = {}
        for parts in self._batch.completed.values():
            for splits in parts.values():
                for split, figures in splits:
                    found.setdefault(split, SplitFigures()).add(figures)
        return found

    def close(self) -> None:
        """Releases the port."""
        self._is_closed = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> None:
        """Opens the port for the first batch."""
        if self._socket is not None or self._is_closed:
            return
        opened = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BACKLOG)
            opened.bind((self._host, 0))
        except OSError as error:
            opened.close()
            self._is_closed = True
            _log.warning("what tasks read will not be known: no port at %s: %s", self._host, error)
            return
        opened.setblocking(False)
        self._socket = opened

    def _take(self, datagram: bytes) -> None:
        proof, body = datagram[:_DIGEST_BYTES], datagram[_DIGEST_BYTES:]
        if not hmac.compare_digest(proof, hmac.digest(self._secret, body, _DIGEST)):
            return
        report = _decoder.decode(body)
        self._figures.mark_contested(report.contested)  # of any batch
        batch = self._batch
        if report.batch != batch.number or (report.attempt, report.part) in batch.seen:
            return  # it is of an earlier batch, or a repetition
        batch.seen.add((report.attempt, report.part))
        self.query, self.run = report.query or self.query, report.run or self.run
        splits = [
            (SplitId(stream, shard), SplitFigures(*numbers)) for stream, shard, *numbers in report.splits
        ]
        for split, figures in splits:
            self._figures.merge({split: figures})
        if report.is_complete:
            batch.parts[report.partition] = report.parts
            batch.completed.setdefault(report.partition, {})[report.part] = splits
