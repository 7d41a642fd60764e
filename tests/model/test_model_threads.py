"""The model under several threads, and the bytes that its server sends."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from integration.model import KinesisModel, Laws, ModelLog
from integration.model.errors import ModelError
from integration.model.sending import CutError, Sender, WireFault, WireFaults
from integration.model.wire import JsonCodec

from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId


def test_producers_readers_and_reshards_go_side_by_side() -> None:
    model = KinesisModel(Laws.kind())
    model.create("s", 1)

    def produce(name: int) -> None:
        for index in range(500):
            model.put("s", f"{name}-{index}")

    def reshard() -> None:
        for _ in range(20):
            model.split("s", next(split.id for split in model.shards() if split.is_open))

    with ThreadPoolExecutor(6) as pool:
        for future in [*(pool.submit(produce, name) for name in range(5)), pool.submit(reshard)]:
            future.result()
    log = ModelLog(model)
    keys = []
    for split in model.shards():
        iterator = log.get_iterator(SplitId("s", split.id), IteratorStart("TRIM_HORIZON"))
        page = log.get_records(SplitId("s", split.id), iterator or "", 10_000)
        numbers = [int(record.sequence_number) for record in page.records]
        assert numbers == sorted(numbers)
        keys += [record.partition_key for record in page.records]
    assert sorted(keys) == sorted(f"{name}-{index}" for name in range(5) for index in range(500))


def received(fault: WireFault | None, *parts: bytes) -> bytes:
    """What arrives of a body that is sent in parts, up to the cut if there is one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = Sender(ours, fault, threading.Event())
        try:
            for part in parts:
                sender.send(part)
        except CutError:
            pass
        ours.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: theirs.recv(100), b""))


@pytest.mark.parametrize("at", range(7))
def test_a_body_is_cut_or_damaged_at_any_byte(at: int) -> None:
    body = b"abcdef"
    for parts in ([body], [body[:3], body[3:]]):
        assert received(WireFault(kind="cut", at=at), *parts) == body[:at]
        flipped = bytes(byte ^ 0xFF if index == at else byte for index, byte in enumerate(body))
        assert received(WireFault(kind="flip", at=at), *parts) == flipped
        for kind in ("stall", "trickle"):
            slow: Any = {"kind": kind, "seconds": 0.001, "step": 2}
            assert received(WireFault(at=at, **slow), *parts) == body
    assert received(None, body) == body


def test_a_fault_on_the_wire_happens_as_often_as_it_says() -> None:
    faults = WireFaults()
    faults.set(WireFault(operation="GetRecords", times=2), WireFault())
    drawn = [
        faults.take(operation) is None for operation in ("ListShards", "ListShards", *["GetRecords"] * 3)
    ]
    assert drawn == [False, True, False, False, True]
    assert faults.fired == 3


def test_requests_that_are_no_json_are_refused() -> None:
    codec = JsonCodec()
    assert codec.decode(b'{"Data": "eA=="}') == {"Data": b"x"}
    assert codec.decode(b"") == {}
    for body in (b"{", b"[]", b'{"Data": "?"}', b'{"Data": 1}', b'{"Records": [1]}'):
        with pytest.raises(ModelError, match="SerializationException"):
            codec.decode(body)
