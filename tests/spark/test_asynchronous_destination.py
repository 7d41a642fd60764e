"""A custom destination whose `submit` is a coroutine function, from Spark's writer to a socket."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from sluice.options import TEXT, Option, integer
from sluice.sink import SinkLimits, SubmitResult
from sluice.spark.sink import AsyncSinkDataSource


class LineConverter:
    def open(self, schema: Any) -> None:
        assert [field.dataType.simpleString() for field in schema.fields] == ["string"]

    def convert(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for text in batch.column(0).to_pylist():
            yield text.encode() + b"\n"


class LineDestination:
    """Sends lines. The service answers a request with the numbers of the lines that it refused."""

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (
        Option("lineHost", TEXT, None, "Host of the service.", required=True),
        Option("linePort", integer(1, 65535), None, "Its port.", required=True),
    )
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=100, max_batch_size_in_bytes=1_000_000, max_record_size_in_bytes=10_000
    )

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    @classmethod
    def from_options(cls, values: Any, _connection: Any) -> LineDestination:
        return cls(*map(values.require, cls.OPTIONS))

    def create_converter(self) -> LineConverter:
        return LineConverter()

    def size_in_bytes(self, entry: bytes) -> int:
        return len(entry)

    async def submit(self, entries: Sequence[bytes]) -> SubmitResult[bytes]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(b"".join(entries) + b"\n")
            answer = await reader.readline()
        finally:
            writer.close()
        if not answer.endswith(b"\n"):
            raise ConnectionError("the connection was closed before the answer")
        refused = [entries[int(number)] for number in answer.split()]
        return SubmitResult(failed=refused, codes={"Refused": len(refused)} if refused else {})

    def is_fatal(self, error: Exception) -> bool:
        return not isinstance(error, OSError)


class LineHandler(socketserver.StreamRequestHandler):
    """Refuses every third line the first time; cuts the first request."""

    lines: ClassVar[list[bytes]] = []
    seen: ClassVar[set[bytes]] = set()
    requests: ClassVar[list[int]] = []

    def handle(self) -> None:
        request: list[bytes] = []
        for line in self.rfile:
            if line != b"\n":
                request.append(line)
                continue
            self.requests.append(len(request))
            if len(self.requests) == 1:
                return
            refused = [n for n, each in enumerate(request) if int(each) % 3 == 0 and each not in self.seen]
            self.seen.update(request)
            self.lines.extend(each for n, each in enumerate(request) if n not in refused)
            self.wfile.write(" ".join(map(str, refused)).encode() + b"\n")
            request.clear()


def test_every_line_arrives_once() -> None:
    """Refused and lost ones are sent again, and the thread of the event loop ends with the task."""
    options = {
        "destination": f"{__name__}:{LineDestination.__name__}",
        "lineHost": "127.0.0.1",
        "rateLimiting": "none",
    }
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), LineHandler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        options["linePort"] = str(server.server_address[1])
        schema = StructType([StructField("line", StringType())])
        writer: Any = AsyncSinkDataSource(options).writer(schema, overwrite=False)
        rows = pa.record_batch([pa.array([str(n) for n in range(1000)])], names=["line"])
        figures = writer.write(iter([rows])).result.figures
        server.shutdown()
        serving.join()

    assert figures.records == 1000
    assert sorted(map(int, LineHandler.lines)) == list(range(1000))
    assert not [each for each in threading.enumerate() if each.name == "sluice-sink-request-loop"]
