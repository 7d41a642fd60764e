"""A Kinesis that holds one recorded stream: sequence numbers, times and clock are those of the recording.

An emulator assigns sequence numbers and times itself, and a checkpoint names those of the stream that it was
written from. So this server serves the recording at any time: the clock in its answers starts at the moment
of the recording. It takes no records.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import struct
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

_EVENT_RECORDS = 25  # at most, in one event of a subscription
_HEARTBEAT = 1.0  # seconds between two events of a subscription that has nothing to push


class RecordedRecord(NamedTuple):
    shard: str
    sequence_number: str
    arrival: float  # seconds since the epoch
    partition_key: str
    data: bytes

    def to_json(self) -> str:
        return json.dumps([*self[:4], base64.b64encode(self.data).decode()])

    @classmethod
    def from_json(cls, text: str) -> RecordedRecord:
        shard, number, arrival, key, data = json.loads(text)
        return cls(shard, number, arrival, key, base64.b64decode(data))

    def to_wire(self) -> dict[str, Any]:
        return {
            "SequenceNumber": self.sequence_number,
            "ApproximateArrivalTimestamp": self.arrival,
            "PartitionKey": self.partition_key,
            "Data": base64.b64encode(self.data).decode(),
        }


@dataclass(frozen=True)
class RecordedStream:
    """A stream as the service describes it; times are seconds since the epoch."""

    now: float  # the server's time when the recording ended
    summary: Mapping[str, Any]  # a ``StreamDescriptionSummary``
    shards: Sequence[Mapping[str, Any]]  # as ``ListShards`` gives them
    consumers: Sequence[Mapping[str, Any]]  # as ``ListStreamConsumers`` gives them
    records: Sequence[RecordedRecord]  # of each shard in sequence order

    @property
    def name(self) -> str:
        return str(self.summary["StreamName"])

    def save(self, directory: Path) -> None:
        """Writes ``stream.json`` and ``records.jsonl``."""
        head = {
            "now": self.now,
            "summary": self.summary,
            "shards": self.shards,
            "consumers": self.consumers,
        }
        (directory / "stream.json").write_text(json.dumps(head, indent=1) + "\n")
        (directory / "records.jsonl").write_text("".join(each.to_json() + "\n" for each in self.records))

    @classmethod
    def load(cls, directory: Path) -> RecordedStream:
        """Reads what `save` has written."""
        head = json.loads((directory / "stream.json").read_text())
        lines = (directory / "records.jsonl").read_text().splitlines()
        return cls(**head, records=[RecordedRecord.from_json(line) for line in lines])


class _Refusal(Exception):  # noqa: N818 - an answer of the service, not a failure of this server
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is not an error: subscribers do."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class RecordedKinesis:
    """Serves a recorded stream over HTTP."""

    def __init__(self, stream: RecordedStream) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []  # operation and request of every call so far
        self._stream = stream
        self._started = time.monotonic()
        self._stopping = threading.Event()
        self._consumers = {each["ConsumerARN"]: dict(each) for each in stream.consumers}
        self._records: dict[str, list[RecordedRecord]] = {each["ShardId"]: [] for each in stream.shards}
        for record in stream.records:
            self._records[record.shard].append(record)
        self._operations = {
            "DescribeStreamSummary": self._describe,
            "ListShards": self._list_shards,
            "GetShardIterator": self._get_iterator,
            "GetRecords": self._get_records,
            "DescribeStreamConsumer": self._describe_consumer,
            "ListStreamConsumers": self._list_consumers,
            "RegisterStreamConsumer": self._register,
            "DeregisterStreamConsumer": self._deregister,
        }
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._handle(self)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(outer.now if timestamp is None else timestamp, usegmt=True)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def now(self) -> float:
        """The server's time (seconds since the epoch)."""
        return self._stream.now + time.monotonic() - self._started

    @property
    def consumers(self) -> list[str]:
        """The ARNs of the consumers that are registered."""
        return sorted(self._consumers)

    @contextlib.contextmanager
    def running(self) -> Iterator[RecordedKinesis]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    # --- HTTP -----------------------------------------------------------------------------------------

    def _handle(self, http_request: http.server.BaseHTTPRequestHandler) -> None:
        body = http_request.rfile.read(int(http_request.headers.get("Content-Length") or 0))
        operation = http_request.headers["X-Amz-Target"].partition(".")[2]
        request = json.loads(body)
        self.calls.append((operation, request))
        try:
            if operation == "SubscribeToShard":
                events = self._subscribe(request)
                with contextlib.suppress(OSError):  # the subscriber has left
                    _send_stream(http_request, events)
                return
            _send(http_request, 200, self._operations[operation](request))
        except _Refusal as refusal:
            _send(http_request, 400, {"__type": refusal.code, "message": str(refusal)})

    # --- the stream and its records -------------------------------------------------------------------

    def _describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._check(request)
        return {"StreamDescriptionSummary": self._stream.summary}

    def _list_shards(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._check(request)
        return {"Shards": self._stream.shards}

    def _get_iterator(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._check(request)
        shard = request["ShardId"]
        index = self._index(
            shard,
            request["ShardIteratorType"],
            request.get("StartingSequenceNumber"),
            request.get("Timestamp"),
        )
        return {"ShardIterator": f"{shard}/{index}"}

    def _get_records(self, request: Mapping[str, Any]) -> dict[str, Any]:
        shard, _, place = request["ShardIterator"].partition("/")
        first = int(place)
        last = min(first + request.get("Limit", 10_000), len(self._records[shard]))
        answer = {
            "Records": [each.to_wire() for each in self._records[shard][first:last]],
            "MillisBehindLatest": self._millis_behind(shard, last),
        }
        if self._has_ended(shard, last):
            return {**answer, "ChildShards": self._children(shard)}
        return {**answer, "NextShardIterator": f"{shard}/{last}"}

    def _check(self, request: Mapping[str, Any]) -> None:
        arn = self._stream.summary["StreamARN"]
        if request.get("StreamName", self._stream.name) != self._stream.name:
            raise _Refusal("ResourceNotFoundException", f"no stream {request['StreamName']}")
        if request.get("StreamARN", arn) != arn:
            raise _Refusal("ResourceNotFoundException", f"no stream {request['StreamARN']}")

    def _index(self, shard: str, kind: str, number: str | None, instant: float | None) -> int:
        """How many records of the shard lie before a starting position."""
        if shard not in self._records:
            raise _Refusal("ResourceNotFoundException", f"no shard {shard}")
        records = self._records[shard]
        if kind == "TRIM_HORIZON":
            return 0
        if kind == "LATEST":
            return len(records)
        if kind == "AT_TIMESTAMP" and instant is not None:
            return bisect_left([each.arrival for each in records], instant)
        if kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER") and number is not None:
            wanted = int(number) + (kind == "AFTER_SEQUENCE_NUMBER")
            return bisect_left([int(each.sequence_number) for each in records], wanted)
        raise _Refusal("InvalidArgumentException", f"{kind} needs a sequence number or a timestamp")

    def _millis_behind(self, shard: str, index: int) -> int:
        records = self._records[shard]
        if index == len(records):
            return 0
        return max(1, round((self.now - records[index].arrival) * 1000))

    def _has_ended(self, shard: str, index: int) -> bool:
        (listed,) = (each for each in self._stream.shards if each["ShardId"] == shard)
        is_closed = "EndingSequenceNumber" in listed["SequenceNumberRange"]
        return is_closed and index == len(self._records[shard])

    def _children(self, shard: str) -> list[dict[str, Any]]:
        found = []
        for each in self._stream.shards:
            parents = [each.get("ParentShardId"), each.get("AdjacentParentShardId")]
            if shard in parents:
                found.append(
                    {
                        "ShardId": each["ShardId"],
                        "ParentShards": [parent for parent in parents if parent],
                        "HashKeyRange": each["HashKeyRange"],
                    }
                )
        return found

    # --- consumers ------------------------------------------------------------------------------------

    def _describe_consumer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        consumer = self._consumer(request)
        return {"ConsumerDescription": {**consumer, "StreamARN": self._stream.summary["StreamARN"]}}

    def _list_consumers(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._check(request)
        return {"Consumers": list(self._consumers.values())}

    def _register(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._check(request)
        now = int(self.now)
        consumer = {
            "ConsumerName": request["ConsumerName"],
            "ConsumerARN": f"{request['StreamARN']}/consumer/{request['ConsumerName']}:{now}",
            "ConsumerStatus": "ACTIVE",
            "ConsumerCreationTimestamp": now,
        }
        self._consumers[consumer["ConsumerARN"]] = consumer
        return {"Consumer": consumer}

    def _deregister(self, request: Mapping[str, Any]) -> dict[str, Any]:
        del self._consumers[self._consumer(request)["ConsumerARN"]]
        return {}

    def _consumer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for arn, consumer in self._consumers.items():
            if arn == request.get("ConsumerARN") or consumer["ConsumerName"] == request.get("ConsumerName"):
                return consumer
        raise _Refusal("ResourceNotFoundException", f"no such consumer: {request}")

    # --- subscriptions --------------------------------------------------------------------------------

    def _subscribe(self, request: Mapping[str, Any]) -> Iterator[bytes]:
        self._consumer(request)
        shard, start = request["ShardId"], request["StartingPosition"]
        index = self._index(shard, start["Type"], start.get("SequenceNumber"), start.get("Timestamp"))
        return self._push(shard, index)

    def _push(self, shard: str, index: int) -> Iterator[bytes]:
        yield _frame("initial-response", {})
        records = self._records[shard]
        (listed,) = (each for each in self._stream.shards if each["ShardId"] == shard)
        while not self._stopping.is_set():
            pushed = records[index : index + _EVENT_RECORDS]
            index += len(pushed)
            event = {
                "Records": [each.to_wire() for each in pushed],
                "MillisBehindLatest": self._millis_behind(shard, index),
            }
            if self._has_ended(shard, index):
                yield _frame("SubscribeToShardEvent", {**event, "ChildShards": self._children(shard)})
                return
            before = records[index - 1].sequence_number if index else None
            event["ContinuationSequenceNumber"] = (
                before or listed["SequenceNumberRange"]["StartingSequenceNumber"]
            )
            yield _frame("SubscribeToShardEvent", event)
            if index == len(records):
                self._stopping.wait(_HEARTBEAT)


def _send(http_request: http.server.BaseHTTPRequestHandler, status: int, answer: Mapping[str, Any]) -> None:
    body = json.dumps(answer).encode()
    http_request.send_response(status)
    http_request.send_header("Content-Type", "application/x-amz-json-1.1")
    http_request.send_header("Content-Length", str(len(body)))
    http_request.end_headers()
    http_request.wfile.write(body)


def _send_stream(http_request: http.server.BaseHTTPRequestHandler, frames: Iterable[bytes]) -> None:
    http_request.send_response(200)
    http_request.send_header("Content-Type", "application/vnd.amazon.eventstream")
    http_request.send_header("Transfer-Encoding", "chunked")
    http_request.end_headers()
    for frame in frames:
        http_request.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))
    http_request.wfile.write(b"0\r\n\r\n")


def _frame(kind: str, content: Mapping[str, Any]) -> bytes:
    headers = b"".join(
        struct.pack("!B", len(name)) + name + struct.pack("!BH", 7, len(value)) + value
        for name, value in (
            (b":message-type", b"event"),
            (b":event-type", kind.encode()),
            (b":content-type", b"application/json"),
        )
    )
    payload = json.dumps(content).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers + payload
    return message + struct.pack("!I", crc32(message))
