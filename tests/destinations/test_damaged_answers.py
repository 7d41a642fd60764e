"""Answers that no service gives, to each of the AWS destinations: nothing counts as accepted by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from fake_service import OPTIONS, FakeService, answer, raw_answer, read_async_sink, write_all

from sluice.errors import ServiceError

Fields = dict[str, Any]
ROWS = ["a", "b", "c"]
QUEUE = "http://service.test/123456789012/orders"


class Service(NamedTuple):
    """A destination, and how its service answers."""

    options: dict[str, str]
    column: str
    accept: Callable[[Fields], Fields]

    @property
    def name(self) -> str:
        return self.options["destination"]

    @property
    def rows(self) -> pa.RecordBatch:
        kind = pa.binary() if self.column == "data" else pa.string()
        return pa.record_batch([pa.array(ROWS).cast(kind)], names=[self.column])


def accept_messages(request: Fields) -> Fields:
    return {"Successful": [{"Id": entry["Id"], "MessageId": "m"} for entry in request["Entries"]]}


KINESIS = Service(
    {"destination": "kinesis", "streamName": "orders"},
    "data",
    lambda request: {"Records": [{"SequenceNumber": "1", "ShardId": "s"} for _ in request["Records"]]},
)
FIREHOSE = Service(
    {"destination": "firehose", "deliveryStream": "orders"},
    "data",
    lambda request: {"RequestResponses": [{"RecordId": "1"} for _ in request["Records"]]},
)
SQS = Service({"destination": "sqs", "queueUrl": QUEUE}, "body", accept_messages)
DYNAMODB = Service(
    {"destination": "dynamodb", "tableName": "orders", "keyColumns": "id"},
    "id",
    lambda _: {"UnprocessedItems": {}},
)
SERVICES = (KINESIS, FIREHOSE, SQS, DYNAMODB)
# What the two that answer in the order of the entries call their results.
IN_ORDER = ((KINESIS, "Records", "SequenceNumber"), (FIREHOSE, "RequestResponses", "RecordId"))


SHARDS = {
    "Shards": [
        {
            "ShardId": "s",
            "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
            "SequenceNumberRange": {"StartingSequenceNumber": "1"},
        }
    ]
}


def ids(value: object) -> str:
    return value.name if isinstance(value, Service) else str(value)


def shape(service: Service, body: Any) -> tuple[Service, str]:
    return service, json.dumps(body)


def item(**values: Any) -> Fields:
    return {"PutRequest": {"Item": values}}


def results_of(receipt: str) -> list[Any]:
    """For three entries, each of which the service knows by a `receipt`."""
    return [
        None,
        5,
        "abc",
        {},
        {"a": {receipt: "1"}},
        [],
        [None] * 3,
        [5] * 3,
        ["x"] * 3,
        [[]] * 3,
        [{receipt: "1"}, {receipt: "2"}, None],
        [{receipt: "1"}] * 2,
        [{receipt: "1"}] * 4,
        [{"ErrorCode": 500}, {receipt: "1"}, {receipt: "1"}],
        [{"ErrorCode": ["Busy"]}, {receipt: "1"}, {receipt: "1"}],
        [{"ErrorCode": {}}, {receipt: "1"}, {receipt: "1"}],
        [{"ErrorCode": "Busy", "ErrorMessage": 5}, {receipt: "1"}, {receipt: "1"}],
        [{receipt: []}, {receipt: "1"}, {receipt: "1"}],
    ]


UNPROCESSED: list[Any] = [
    5,
    "abc",
    [],
    [None],
    {"orders": 5},
    {"orders": "abc"},
    {"orders": [None]},
    {"orders": [5]},
    {"orders": ["x"]},
    {"orders": [{}]},
    {"orders": [{"PutRequest": None}]},
    {"orders": [{"PutRequest": {}}]},
    {"orders": [{"PutRequest": {"Item": None}}]},
    {"orders": [{"PutRequest": {"Item": []}}]},
    {"orders": [{"DeleteRequest": {"Key": {}}}]},
    {"orders": [item(id={"S": "a"}) | {"DeleteRequest": {"Key": {"id": {"S": "a"}}}}]},
    {"orders": [item(id=None)]},
    {"orders": [item(id={})]},
    {"orders": [item(id={"S": 5})]},
    {"orders": [item(id={"S": ["a"]})]},
    {"orders": [item(id={"N": "one"})]},
    {"orders": [item(id={"B": "?"})]},
    {"orders": [item(id={"SS": ["a"]})]},
    {"orders": [item(id={"L": 5})]},
    {"orders": [item(id={"M": ["a"]})]},
    {"orders": [item(id={"S": "a", "N": "1"})]},
    {"orders": [item(id={"S": "nobody's"})]},
    {"orders": [item(id={"S": "a"})] * 2},
]
# JSON that is no answer of any service, and then of single ones.
FORMS = ("null", "[]", "5", '"x"', "true", "[{}]", "[null]")
SHAPES: list[tuple[Service, str]] = [
    *((service, text) for service in SERVICES for text in FORMS),
    *(
        shape(service, {name: results})
        for service, name, receipt in IN_ORDER
        for results in results_of(receipt)
    ),
    *(
        shape(SQS, {name: results})
        for name in ("Successful", "Failed")
        for results in (
            5,
            "abc",
            {"Id": "0"},
            [None],
            [5],
            ["0"],
            [[]],
            [{}],
            [{"Id": None}],
            [{"Id": 0}],
            [{"Id": ["0"]}],
            *([{"Id": unknown}] for unknown in ("3", "99", "-1", "", "x", "00", " 0", "1_0", "\u0661")),
        )
    ),
    shape(SQS, {"Successful": [{"Id": "0"}] * 2}),
    shape(SQS, {"Failed": [{"Id": "0", "Code": 5}]}),
    shape(SQS, {"Failed": [{"Id": "0", "Code": "Busy", "Message": {}}]}),
    *(shape(DYNAMODB, {"UnprocessedItems": items}) for items in UNPROCESSED),
    shape(DYNAMODB, {}),
    shape(DYNAMODB, {"message": "welcome"}),
    shape(DYNAMODB, {"UnprocessedItems": None}),
]


@pytest.mark.parametrize(("service", "body"), SHAPES, ids=ids)
def test_json_that_is_no_answer_is_damaged(service: Service, body: str) -> None:
    """As a body that is no JSON: retried, with a separate code, and the error names the target."""
    for text in (body, "<html>"):
        FakeService(service.name, lambda _, __, text=text: raw_answer(text.encode()))  # type: ignore[misc]
        setup = read_async_sink(OPTIONS | service.options)
        entries = [*setup.destination.create_converter().convert(service.rows)]
        with pytest.raises(ServiceError, match="of orders") as caught:
            setup.destination.submit(entries)

        assert caught.value.code == "DamagedAnswer"
        assert caught.value.retryable
        assert not setup.destination.is_fatal(caught.value)
        assert caught.value.target == "orders"


@pytest.mark.parametrize(("service", "body"), SHAPES, ids=ids)
def test_all_rows_are_written_after_a_damaged_answer(service: Service, body: str) -> None:
    """Each of them is sent again until an answer says that it was accepted."""
    bodies = iter([body] * 3)

    def respond(_: str, request: Fields) -> Any:
        text = next(bodies, None)
        return answer(service.accept(request)) if text is None else raw_answer(text.encode())

    fake = FakeService(service.name, respond)

    assert write_all(service.options, service.rows).records == len(ROWS)
    assert len(fake.calls) == 4


@pytest.mark.parametrize("body", [*FORMS, '{"__type": 5}', '{"message": []}', "{"])
@pytest.mark.parametrize("service", SERVICES, ids=ids)
def test_an_error_whose_body_is_not_that_of_an_error_is_its_status(service: Service, body: str) -> None:
    """A server error is retried, one of the client is fatal, and both name the target."""
    for status, retried in ((500, True), (503, True), (429, True), (404, False)):
        FakeService(service.name, lambda _, __, status=status: raw_answer(body.encode(), status))  # type: ignore[misc]
        setup = read_async_sink(OPTIONS | service.options)
        entries = [*setup.destination.create_converter().convert(service.rows)]
        with pytest.raises(ServiceError, match="of orders") as caught:
            setup.destination.submit(entries)

        assert caught.value.retryable is retried, caught.value
        assert str(status) in str(caught.value)


# Results that say neither that the entry was accepted nor that it was refused.
EMPTY: tuple[Fields, ...] = (
    {},
    {"ErrorMessage": "m"},
    {"ErrorCode": ""},
    {"ErrorCode": None},
    {"ErrorCode": None, "ErrorMessage": None},
    {"ErrorCode": "", "ErrorMessage": "m"},
    {"ShardId": "s"},
    {"SequenceNumber": "", "RecordId": ""},
    {"SequenceNumber": None, "RecordId": None},
)


@pytest.mark.parametrize("result", EMPTY, ids=str)
@pytest.mark.parametrize(("service", "name", "receipt"), IN_ORDER, ids=ids)
def test_a_result_without_an_id_is_no_acknowledgement(
    service: Service, name: str, receipt: str, result: Fields
) -> None:
    """The entry is sent again, alone, under code NoResult.."""
    empty = iter([result] * 2)

    def respond(_: str, request: Fields) -> Any:
        results = [{receipt: "1"} for _ in request["Records"]]
        return answer({name: [*results[:-1], next(empty, results[-1])]})

    fake = FakeService(service.name, respond)
    figures = write_all(service.options, service.rows)

    assert [len(request["Records"]) for _, request in fake.calls] == [3, 1, 1]
    assert figures.records == len(ROWS)
    assert figures.refused_by_code == {"NoResult": 2}


@pytest.mark.parametrize(("service", "name", "receipt"), IN_ORDER, ids=ids)
def test_an_id_of_another_service_is_no_acknowledgement(service: Service, name: str, receipt: str) -> None:
    """A record of a stream has a sequence number, one of a delivery stream a record id."""
    other = {"SequenceNumber": "RecordId", "RecordId": "SequenceNumber"}[receipt]
    kinds = iter([other])
    fake = FakeService(
        service.name,
        lambda _, request: answer({name: [{next(kinds, receipt): "1"} for _ in request["Records"]]}),
    )

    assert write_all(service.options, service.rows).records == len(ROWS)
    assert [len(request["Records"]) for _, request in fake.calls] == [3, 1]


def test_an_aggregate_without_an_id_is_sent_again() -> None:
    """As a single record is."""
    results = iter([{}, {"ShardId": "s"}])

    def respond(operation: str, _: Fields) -> Any:
        if operation == "ListShards":
            return answer(SHARDS)
        return answer({"Records": [next(results, {"SequenceNumber": "1", "ShardId": "s"})]})

    fake = FakeService("kinesis", respond)
    figures = write_all(KINESIS.options | {"aggregate": "true"}, KINESIS.rows)

    assert [operation for operation, _ in fake.calls].count("PutRecords") == 3
    assert (figures.records, figures.refused_by_code) == (len(ROWS), {"NoResult": 2 * len(ROWS)})
