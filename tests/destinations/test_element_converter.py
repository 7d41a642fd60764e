"""Option elementConverter, for every destination and through whole writers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from fake_service import OPTIONS, FakeService, answer, read_async_sink
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from sluice.destinations import read_sink
from sluice.errors import InvalidRecordError, OptionError
from sluice.options import Option, OptionValues, integer
from sluice.sink.contracts import ElementConverter, Origin
from sluice.sink.converters import DataConverter, JsonConverter
from sluice.sink.task import check_columns, write_rows

JSON = "sluice.sink.converters:JsonConverter"
FIREHOSE = {**OPTIONS, "destination": "firehose", "deliveryStream": "orders"}
DESTINATIONS = {
    "kinesis": {**OPTIONS, "destination": "kinesis", "streamName": "orders"},
    "kinesis, aggregated": {**OPTIONS, "destination": "kinesis", "streamName": "orders", "aggregate": "true"},
    "firehose": FIREHOSE,
    "sqs": {**OPTIONS, "destination": "sqs", "queueUrl": "https://host/1/x"},
    "http": {"destination": "http", "url": "https://host"},
}
SCHEMA = StructType([StructField("n", LongType()), StructField("name", StringType())])


def rows(count: int = 3) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(range(count)), pa.array([f"é{n}" for n in range(count)])], names=["n", "name"]
    )


class Lines:
    """Makes lines of rows; it needs no destination."""

    def open(self, schema: Any, _: Any = None) -> None:
        if len(schema.fields) > 2:
            raise OptionError("two columns are enough")

    def convert(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for row in batch.to_pylist():
            if row["n"] == 1:
                raise InvalidRecordError("it is the first")
            yield f"{row['n']} {row['name']}\n".encode()


class Scaled(Lines):
    """Has an option, and is made from it."""

    FACTOR = Option("factor", integer(1), 2, "What numbers are multiplied by.")
    OPTIONS: ClassVar[Any] = (FACTOR,)

    def __init__(self, factor: int, name: str) -> None:
        self.factor = factor
        self.name = name

    @classmethod
    def from_options(cls, values: OptionValues, destination: Any) -> Scaled:
        return cls(values.require(cls.FACTOR), destination.name)


class Packed(DataConverter):
    """Makes data that is not text."""

    format_name = "MessagePack"

    def check(self, schema: Any) -> None: ...

    def serialize(self, batch: pa.RecordBatch) -> Any: ...


class Unmakeable:
    def __init__(self) -> None:
        raise KeyError("no settings")


class NoConverter:
    """Has nothing that a converter has."""


def lines_of(destination: Any) -> Lines:
    """A function will do."""
    assert destination.name.startswith("firehose")
    return Lines()


@pytest.mark.parametrize("name", DESTINATIONS)
def test_json_for_every_destination_that_takes_data(name: str) -> None:
    """Rows need no column of data then."""
    setup = read_async_sink(DESTINATIONS[name] | {"elementConverter": JSON})
    check_columns(setup, SCHEMA, Origin("test"))
    own = setup.destination.create_converter()

    assert isinstance(setup.new_converter(), JsonConverter)
    with pytest.raises(OptionError, match="is required"):
        own.open(SCHEMA, Origin("test"))


@pytest.mark.parametrize("name", ["kinesis", "firehose", "sqs", "http"])
def test_an_entry_has_the_row_as_its_data(name: str) -> None:
    """In the destination's own kind of entry, with its size."""
    setup = read_async_sink(DESTINATIONS[name] | {"elementConverter": JSON})
    converter = setup.new_converter()
    converter.open(SCHEMA, Origin("test"))
    entries = list(converter.convert(rows(2)))
    data = [getattr(entry, "data", getattr(entry, "body", entry)) for entry in entries]

    assert [json.loads(each) for each in data] == [{"n": n, "name": f"é{n}"} for n in range(2)]
    assert setup.destination.size_in_bytes(entries[0]) >= len('{"n":0,"name":"é0"}'.encode())


@pytest.mark.parametrize(
    ("destination", "converter", "message"),
    [
        ("sqs", f"{__name__}:Packed", "sqs queue 'x' takes text, and MessagePack is not"),
        ("http", f"{__name__}:Packed", "http endpoint 'https://host' takes json, and MessagePack is not"),
        ("firehose", f"{__name__}:NoConverter", "what it makes has no open, convert"),
        ("firehose", f"{__name__}:Unmakeable", "it cannot be made: KeyError: 'no settings'"),
        ("firehose", f"{__name__}:Nowhere", "it cannot be loaded"),
        ("firehose", "no.such.module:Name", "it cannot be loaded: No module named 'no'"),
        ("firehose", "json", "allowed is package.module:Name"),
        ("firehose", "json:", "allowed is package.module:Name"),
        ("firehose", f"{__name__}:SCHEMA", "it cannot be loaded"),
    ],
)
def test_what_cannot_work_is_refused(destination: str, converter: str, message: str) -> None:
    """Before anything runs; with the option and what was given."""
    with pytest.raises(OptionError, match=r"option 'elementConverter' is '.*': ") as caught:
        read_sink(DESTINATIONS[destination] | {"elementConverter": converter})

    assert message in str(caught.value)


def test_a_converter_may_have_options() -> None:
    """They are checked with all others."""
    options = FIREHOSE | {"elementConverter": f"{__name__}:Scaled", "FACTOR": "5"}
    made: Any = read_async_sink(options).new_converter()

    assert (made.factor, made.name) == (5, "firehose delivery stream 'orders'")
    with pytest.raises(
        OptionError, match=r"option 'factor' is '0': allowed is a whole number .*'maxBatchSize'"
    ):
        read_sink(options | {"FACTOR": "0", "maxBatchSize": "0"})
    with pytest.raises(OptionError, match="option 'factor' is not known"):
        read_sink(FIREHOSE | {"factor": "5"})


@pytest.mark.parametrize("name", ["Lines", "lines_of"])
def test_a_converter_of_ones_own(tmp_path: Path, name: str) -> None:
    """A class or a function, with the destination or without. Rows that it refuses become dead letters."""
    letters = str(tmp_path)
    setup = read_async_sink(FIREHOSE | {"elementConverter": f"{__name__}:{name}", "deadLetterPath": letters})
    service = FakeService(
        "firehose",
        lambda _, params: answer(
            {"FailedPutCount": 0, "RequestResponses": [{"RecordId": "1"}] * len(params["Records"])}
        ),
    )
    result = write_rows(setup, SCHEMA, Origin("test"), [rows()], write_id=None)
    records = [base64.b64decode(each["Data"]) for _, params in service.calls for each in params["Records"]]
    (letter,) = [
        json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()
    ]

    assert records == ["0 é0\n".encode(), "2 é2\n".encode()]
    assert (result.figures.records, result.figures.dead_letters) == (2, 1)
    assert letter["reason"] == "it is the first"


class Without(Lines, ElementConverter[bytes]):
    """Has no __init__."""


class With(Lines, ElementConverter[bytes]):
    def __init__(self, destination: Any) -> None:
        self.destination = destination


@pytest.mark.parametrize(("name", "takes_it"), [("Without", False), ("With", True)])
def test_a_converter_gets_the_destination_if_it_takes_an_argument(name: str, takes_it: bool) -> None:
    """Whether its class inherits from the contract or not."""
    setup = read_async_sink(FIREHOSE | {"elementConverter": f"{__name__}:{name}"})
    made = setup.new_converter()

    assert getattr(made, "destination", None) is (setup.destination if takes_it else None)


@pytest.mark.parametrize("name", ["kinesis", "firehose"])
def test_the_letter_of_a_row_that_could_not_be_converted_holds_the_row(tmp_path: Path, name: str) -> None:
    """Also where a column is called ``data``: the data would have been the JSON of all columns."""
    options = DESTINATIONS[name] | {"elementConverter": JSON, "deadLetterPath": str(tmp_path)}
    schema = StructType([StructField("data", StringType()), StructField("at", TimestampType())])
    far = pa.array([2**62]).cast(pa.timestamp("us", "UTC"))
    batch = pa.record_batch([pa.array(["raw"]), far], names=["data", "at"])
    write_rows(read_async_sink(options), schema, Origin("test"), [batch], write_id=None)
    (letter,) = [json.loads(file.read_text()) for file in tmp_path.rglob("*.jsonl")]

    assert letter["form"] == "row"
    assert json.loads(base64.b64decode(letter["data"]))["data"] == "raw"
    assert letter["attributes"] == {}
