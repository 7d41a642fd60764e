"""docs/custom-destinations.md: the printed code does what the page says."""

from __future__ import annotations

import base64
import http.server
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from sluice.destinations import read_sink
from sluice.errors import OptionError, ServiceError
from sluice.sink import AsyncSinkConfig, AsyncSinkWriter, Origin, RequestInfo, ResultInfo
from sluice.spark.sink import AsyncSinkDataSource

PAGE = Path(__file__).resolve().parent.parent / "docs" / "custom-destinations.md"
NAME = "http_destination:HttpDestination"


def printed(title: str) -> str:
    """The code block whose docstring is `title`."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if block.startswith(f'"""{title}"""')]
    return str(code)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Saves the modules as the page says."""
    files = {
        "http_destination": "Sends documents to an HTTP endpoint, in batches.",
        "patient": "Waits a second after each refusal.",
        "csv_rows": "Writes rows as lines of CSV.",
        "event_ids": "Adds an id that stays the same when a batch is repeated.",
    }
    directory = tmp_path / "modules"
    directory.mkdir()
    for name, title in files.items():
        (directory / f"{name}.py").write_text(printed(title))
    monkeypatch.syspath_prepend(directory)
    yield
    for name in files:
        sys.modules.pop(name, None)


class Endpoint:
    """The endpoint of the page, with faults."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.requests = 0
        self.faults: list[int] = []  # statuses of the next requests, which fail as a whole
        self.busy_once = {3, 4}  # documents that get a 429 the first time
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                documents = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, results = outer.take(documents)
                body = json.dumps({"results": results}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/documents"

    def take(self, documents: list[Any]) -> tuple[int, list[Any]]:
        with self._lock:
            self.requests += 1
            if self.faults:
                return self.faults.pop(0), []
            results = []
            for document in documents:
                number = document["id"]
                status = 400 if number < 0 else 429 if number in self.busy_once else 201
                self.busy_once.discard(number)
                if status == 201:
                    self.stored.append(number)
                results.append({"status": status})
            return 200, results

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def write(options: dict[str, str], documents: list[str | None]) -> Any:
    schema = StructType([StructField("document", StringType())])
    writer: Any = AsyncSinkDataSource(options).writer(schema, overwrite=False)
    rows = pa.record_batch([pa.array(documents, pa.string())], names=["document"])
    return writer.write(iter([rows])).result.figures


def test_documents_arrive_and_bad_ones_are_dead_letters(endpoint: Endpoint, tmp_path: Path) -> None:
    """Documents refused with 429 and requests refused with 503 are sent again. Malformed, null or oversized
    documents become dead letters.
    """
    endpoint.faults = [503]
    letters = tmp_path / "letters"
    numbers = [*range(10), -1]
    documents: list[str | None] = [json.dumps({"id": number}) for number in numbers]
    large = json.dumps({"id": 99, "text": "x" * 100})
    written = write(
        {
            "destination": NAME,
            "httpEndpoint": endpoint.url,
            "deadLetterPath": str(letters),
            "oversizedRecords": "deadLetter",
            "maxRecordSizeInBytes": "100",
        },
        [*documents, None, large],
    )
    (file,) = letters.rglob("*.jsonl")
    kept = [json.loads(line) for line in file.read_text().splitlines()]

    assert sorted(endpoint.stored) == list(range(10))
    assert (written.records, written.dead_letters) == (10, 3)
    assert written.refused >= 2
    assert sorted((letter["reason"].split(": ")[-1], letter["data"] is None) for letter in kept) == [
        ("a record of 123 bytes is larger than the limit of 100 bytes (maxRecordSizeInBytes)", False),
        ("column 'document' is null", False),
        ("the endpoint calls it malformed", False),
    ]
    malformed = next(letter for letter in kept if "malformed" in letter["reason"])
    assert json.loads(base64.b64decode(malformed["data"])) == {"id": -1}


def test_a_fatal_answer_ends_the_task(endpoint: Endpoint) -> None:
    """A request refused with any other 4xx fails the task at once."""
    endpoint.faults = [403]
    with pytest.raises(ServiceError, match=r"http endpoint 'http://127.0.0.1:\d+/documents' answered 403"):
        write({"destination": NAME, "httpEndpoint": endpoint.url}, ['{"id": 1}'])

    assert endpoint.requests == 1


def test_a_lost_connection_is_not_fatal(endpoint: Endpoint) -> None:
    """An error in the destination's code is."""
    destination: Any = read_sink({"destination": NAME, "httpEndpoint": endpoint.url}).destination

    assert not destination.is_fatal(ConnectionResetError())
    assert destination.is_fatal(KeyError("results"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'httpEndpoint' is required"),
        ({"httpEndpoint": "ftp://x"}, "option 'httpEndpoint' is 'ftp://x': allowed is http://host"),
        ({"httpEndpont": "http://x"}, "did you mean 'httpEndpoint'"),
    ],
)
def test_its_options_are_checked_with_the_others(options: dict[str, str], message: str) -> None:
    """Like those of a built-in destination."""
    with pytest.raises(OptionError) as caught:
        read_sink({"destination": NAME, **options})

    assert message in str(caught.value)


def test_its_columns_are_checked() -> None:
    """Before the query starts."""
    schema = StructType([StructField("document", IntegerType())])
    with pytest.raises(OptionError, match="column 'document'"):
        AsyncSinkDataSource({"destination": NAME, "httpEndpoint": "http://x"}).writer(schema, overwrite=False)


def test_it_is_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the page's lines for pyproject.toml."""
    text = PAGE.read_text()
    ((registered, name, value),) = re.findall(r'entry-points\."(.+?)"\]\n(\w+) = "(.+?)"', text)
    point = SimpleNamespace(name=name, value=value)
    monkeypatch.setattr(metadata, "entry_points", lambda group: {registered: [point]}[group])

    made = read_sink({"destination": "documents", "httpEndpoint": "http://x"}).destination
    assert type(made).__name__ == "HttpDestination"


def test_a_converter_alone() -> None:
    """It serializes rows for a destination's own converter; its option is checked with the others."""
    sqs = {"destination": "sqs", "queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/x", "region": "eu-west-1"}
    options = sqs | {"elementConverter": "csv_rows:CsvConverter", "csvSeparator": ";"}
    setup: Any = read_sink(options)
    converter = setup.new_converter()
    converter.open(StructType([StructField("a", StringType()), StructField("messageGroupId", StringType())]))
    rows = pa.record_batch([pa.array(["x;y", None]), pa.array(["g", "h"])], names=["a", "messageGroupId"])

    assert [(m.body, m.message_group_id) for m in converter.convert(rows)] == [
        *(('"x;y"\r\n', "g"), ('""\r\n', "h")),
    ]
    with pytest.raises(OptionError, match="option 'csvSeparator' is ';;': allowed is one character"):
        read_sink(options | {"csvSeparator": ";;"})
    with pytest.raises(OptionError, match="CSV has no form for arrays: a"):
        converter.open(StructType([StructField("a", ArrayType(StringType()))]))


def test_an_id_is_the_same_for_every_attempt() -> None:
    """Also after a restart, and where a slice of a batch is converted again."""
    module: ModuleType = __import__("event_ids")
    batch = pa.record_batch([pa.array(["a", "b"])], names=["customer"])
    found = []
    for origin in (Origin("x", "q", "r1", 7, 0, 1), Origin("x", "q", "r2", 7, 3, 9)):
        converter = module.EventConverter()
        converter.open(None, origin)
        found += [[*converter.convert(batch)], [*converter.convert(batch.slice(0, 1))]]

    assert found[0] == [b'{"customer": "a", "id": "q-7-a"}', b'{"customer": "b", "id": "q-7-b"}']
    assert found == [found[0], found[0][:1]] * 2


def strategy(config: AsyncSinkConfig, clock: Any) -> Any:
    module: ModuleType = __import__("patient")
    return module.PatientStrategy(config, clock)


def test_the_strategy_waits_for_a_second(endpoint: Endpoint) -> None:
    """The sink makes it with the configuration."""
    setup: Any = read_sink(
        {"destination": NAME, "httpEndpoint": endpoint.url, "rateLimiting": "patient:PatientStrategy"}
    )
    built: Any = setup.create_strategy()
    assert built.max_batch_size == 100
    now = [0.0]
    made = strategy(setup.config, lambda: now[0])
    assert not made.should_block(RequestInfo(1))
    made.register_completed_request(ResultInfo(1, 5))
    now[0] = 0.4

    assert made.should_block(RequestInfo(1))
    assert made.delay(RequestInfo(1)) == pytest.approx(0.6)
    now[0] = 1.0
    assert not made.should_block(RequestInfo(1))


def test_a_writer_obeys_it(endpoint: Endpoint) -> None:
    """Through the sink's own threads, with a clock that runs a hundred times as fast."""

    def fast() -> float:
        return time.monotonic() * 100

    patient = dict.fromkeys(("maxTimeInBuffer", "requestTimeout", "maxRetryDuration"), "24h")
    setup: Any = read_sink({"destination": NAME, "httpEndpoint": endpoint.url, **patient})
    writer = AsyncSinkWriter(setup.destination, setup.config, strategy(setup.config, fast), clock=fast)
    documents = [json.dumps({"id": number}) for number in range(6)]
    writer.open(StructType([StructField("document", StringType())]))
    writer.write(pa.record_batch([pa.array(documents)], names=["document"]))
    writer.flush()
    writer.close()

    assert sorted(endpoint.stored) == list(range(6))
    assert endpoint.requests == 2
