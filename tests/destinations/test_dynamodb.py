"""Destination dynamodb: requests, unprocessed items, and the last write of a key despite failures."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from botocore import exceptions as sdk
from fake_service import (
    CONNECTION,
    OPTIONS,
    FakeService,
    answer,
    read_async_sink,
    refusal,
    write_all,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations import read_sink
from sluice.destinations.dynamodb import DynamoDbDestination, DynamoDbWrite
from sluice.errors import InvalidRecordError, OptionError, ServiceError
from sluice.sink import SubmitResult

TABLE = {"destination": "dynamodb", "tableName": "orders"}
KEYED = TABLE | {"keyColumns": "id"}
ARN = "arn:aws:dynamodb:ap-south-1:123456789012:table/orders"


def put(key: str, **attributes: Any) -> DynamoDbWrite:
    return DynamoDbWrite("PUT", {"id": {"S": key}, **attributes}, (("S", key),), 10)


def delete(key: str) -> DynamoDbWrite:
    return DynamoDbWrite("DELETE", {"id": {"S": key}}, (("S", key),), 10)


def destination(
    respond: Callable[[str, dict[str, Any]], Any], **more: Any
) -> tuple[DynamoDbDestination, FakeService]:
    return DynamoDbDestination(CONNECTION, "orders", **more), FakeService("dynamodb", respond)


def left_over(*requests: Any, table: str = "orders") -> Any:
    return answer({"UnprocessedItems": {table: list(requests)} if requests else {}})


def test_a_request_holds_all_writes() -> None:
    """Puts as items and deletions as keys, in their order, with the name of the table."""
    made, service = destination(lambda _, __: left_over())

    assert made.submit([put("a", b={"B": b"\x00"}), delete("b")]) == SubmitResult([], {}, [])
    ((operation, sent),) = service.calls
    assert operation == "BatchWriteItem"
    assert sent == {
        "RequestItems": {
            "orders": [
                {"PutRequest": {"Item": {"id": {"S": "a"}, "b": {"B": base64.b64encode(b"\x00").decode()}}}},
                {"DeleteRequest": {"Key": {"id": {"S": "b"}}}},
            ]
        }
    }


@pytest.mark.parametrize("table", ["orders", ARN])
def test_unprocessed_items_are_matched_by_content(table: str) -> None:
    """In any order and notation of numbers, under the name or the ARN of the table."""
    entries = [
        put("a", n={"N": "1.50"}, b={"B": b"\x00\xff"}, m={"M": {"x": {"N": "1"}, "y": {"L": []}}}),
        put("b"),
        delete("c"),
    ]
    unprocessed = {
        "m": {"M": {"y": {"L": []}, "x": {"N": "1.0"}}},
        "n": {"N": "1.5"},
        "b": {"B": base64.b64encode(b"\x00\xff").decode()},
        "id": {"S": "a"},
    }
    made, _ = destination(
        lambda _, __: left_over(
            {"DeleteRequest": {"Key": {"id": {"S": "c"}}}}, {"PutRequest": {"Item": unprocessed}}, table=table
        )
    )
    result = made.submit(entries)

    assert all(one is other for one, other in zip(result.failed, [entries[0], entries[2]], strict=True))
    assert result.codes == {"UnprocessedItem": 2}


def test_one_of_two_equal_items_is_sent_again() -> None:
    """If the answer has it once."""
    twin = DynamoDbWrite("PUT", {"id": {"S": "a"}}, None, 10)
    entries = [twin, DynamoDbWrite(*twin)]
    made, _ = destination(lambda _, __: left_over({"PutRequest": {"Item": {"id": {"S": "a"}}}}))

    assert len(made.submit(entries).failed) == 1


def test_an_item_that_was_not_sent_is_a_damaged_answer() -> None:
    """The batch is sent again."""
    made, _ = destination(lambda _, __: left_over({"PutRequest": {"Item": {"id": {"S": "x"}}}}))
    with pytest.raises(ServiceError, match="unprocessed item that was not in the request") as caught:
        made.submit([put("a")])

    assert not made.is_fatal(caught.value)


def test_the_error_of_duplicate_keys_names_key_columns() -> None:
    """DynamoDB refuses a request that has a key twice; with the option, the sink avoids it."""
    duplicates = refusal("ValidationException", "Provided list of item keys contains duplicates")
    made, _ = destination(lambda _, __: duplicates)
    with pytest.raises(ServiceError, match="option 'keyColumns' makes the last") as caught:
        made.submit([put("a"), put("a")])

    assert made.is_fatal(caught.value)


NO_SORT_KEY = "One or more parameter values were invalid: Size of rangekey has exceeded 1024 bytes"


def refusing(*bad: str) -> Callable[[str, dict[str, Any]], Any]:
    """Refuses a request as a whole that holds one of these keys, as the service does."""

    def respond(_: str, params: dict[str, Any]) -> Any:
        keys = [write["PutRequest"]["Item"]["id"]["S"] for write in params["RequestItems"]["orders"]]
        return refusal("ValidationException", NO_SORT_KEY) if set(keys) & set(bad) else left_over()

    return respond


@pytest.mark.parametrize("bad", ["b", "bc"])
def test_a_table_that_has_accepted_items_is_the_right_one(bad: str) -> None:
    """So an item that it refuses is to blame, also where it is alone in its request, or with others of its
    kind: which request an item comes in is chance.
    """
    made, _ = destination(refusing(*bad))
    made.submit([put("a")])
    entries = [put(each) for each in bad]
    result = made.submit(entries)

    assert [each.entry for each in result.rejected] == entries
    assert "exceeded 1024 bytes" in result.rejected[0].reason
    assert not result.failed


@pytest.mark.parametrize("count", [1, 2])
def test_keys_of_other_columns_than_the_table_s_are_fatal(count: int) -> None:
    """With half of the table's key, puts are accepted, and no deletion ever is: `keyColumns` is wrong."""

    def respond(_: str, params: dict[str, Any]) -> Any:
        writes = params["RequestItems"]["orders"]
        mismatch = refusal("ValidationException", "The provided key element does not match the schema")
        return mismatch if any("DeleteRequest" in each for each in writes) else left_over()

    made, _ = destination(respond)
    made.submit([put("a")])
    with pytest.raises(ServiceError, match="match the schema") as caught:
        made.submit([put("b"), *(delete(f"c{number}") for number in range(count))])

    assert made.is_fatal(caught.value)


@pytest.mark.parametrize(
    "code",
    ["ProvisionedThroughputExceededException", "RequestLimitExceeded", "ReplicatedWriteConflictException"],
)
def test_throttling_of_a_table_is_retried(code: str) -> None:
    """With the error codes that only DynamoDB has for it, too."""
    made, _ = destination(lambda _, __: refusal(code))
    with pytest.raises(ServiceError) as caught:
        made.submit([put("a")])

    assert not made.is_fatal(caught.value)


@pytest.mark.parametrize("others", ["", "abcdefghijkl"])
def test_a_full_item_collection_costs_no_other_item(others: str) -> None:
    """The service refuses the request as a whole. A retry would find it as full, alone too."""

    def respond(_: str, params: dict[str, Any]) -> Any:
        ((_, writes),) = params["RequestItems"].items()
        is_full = any(write["PutRequest"]["Item"]["id"]["S"] == "full" for write in writes)
        return refusal("ItemCollectionSizeLimitExceededException") if is_full else left_over()

    made, service = destination(respond)
    full = put("full")
    result = made.submit([*map(put, others), full, *map(put, others.upper())])

    assert [each.entry for each in result.rejected] == [full]
    assert not result.failed
    assert len(service.calls) <= 2 * 5


@pytest.mark.parametrize("table", ["order-duplicates", "does-not-match-the-schema"])
def test_what_a_table_is_called_decides_nothing(table: str) -> None:
    """The service's sentence holds it."""

    def respond(_: str, params: dict[str, Any]) -> Any:
        ((_, writes),) = params["RequestItems"].items()
        is_bad = any(write["PutRequest"]["Item"]["id"]["S"] == "b" for write in writes)
        return refusal("ValidationException", f"An item of {table} is too large") if is_bad else left_over()

    FakeService("dynamodb", respond)
    made = DynamoDbDestination(CONNECTION, table, key_columns=["id"])
    entries = [put("a"), put("b"), put("c")]
    result = made.submit(entries)

    assert [each.entry for each in result.rejected] == [entries[1]]


def test_a_table_by_its_arn(connections: list[ConnectionConfig]) -> None:
    """The ARN is sent. Its region is used unless the connection has one."""
    service = FakeService("dynamodb", lambda _, __: left_over())
    made = DynamoDbDestination(ConnectionConfig(), ARN)
    made.submit([put("a")])

    assert [each.region for each in connections] == ["ap-south-1"]
    assert list(service.calls[0][1]["RequestItems"]) == [ARN]
    assert made.name == "dynamodb table 'orders'"


def test_a_write_waits_for_a_timed_out_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a timed-out request runs, its older item could overwrite a newer one with the same key."""
    running, release = threading.Event(), threading.Event()

    class Client:
        sent: list[Any] = []  # noqa: RUF012 - of this test

        def batch_write_item(self, RequestItems: Any) -> Any:  # noqa: N803
            writes = RequestItems.value["orders"]
            self.sent.append([write["PutRequest"]["Item"]["id"]["S"] for write in writes])
            if len(self.sent) == 1:
                running.set()
                release.wait(120)
            return {"UnprocessedItems": {}}

    monkeypatch.setattr("sluice.destinations.common.batch_call.client_for", lambda _, __: Client())
    made = DynamoDbDestination(CONNECTION, "orders", key_columns=["id"])
    timed_out = threading.Thread(target=made.submit, args=([put("a")],))
    timed_out.start()
    running.wait(120)
    newer = put("a")
    held = made.submit([newer, put("b")])
    alone = made.submit([newer])
    release.set()
    timed_out.join()

    assert held.failed == [newer]
    assert held.codes == {"StillBeingWritten": 1}
    assert alone.failed == [newer]
    assert made.submit([newer]).failed == []
    assert Client.sent == [["a"], ["b"], ["a"]]


def test_the_limits_and_the_name() -> None:
    """A request: 25 writes, 16 MB. An item: 400 KB. 50 requests in flight, 10,000 writes buffered."""
    setup = read_async_sink(OPTIONS | TABLE)
    config = setup.config

    assert isinstance(setup.destination, DynamoDbDestination)
    assert setup.destination.name == "dynamodb table 'orders'"
    assert (config.max_batch_size, config.max_batch_size_in_bytes) == (25, 16_000_000)
    assert (config.max_record_size_in_bytes, config.max_in_flight_requests) == (400_000, 50)
    assert config.max_buffered_requests == 10_000


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({}, "option 'tableName' is required"),
        ({"tableName": "ab"}, "option 'tableName' is 'ab': allowed is 3 to 255 letters"),
        ({"tableName": "arn:aws:s3:::orders"}, "allowed is 3 to 255 letters"),
        ({"tableName": "orders", "operationColumn": "op"}, "option 'operationColumn' needs 'keyColumns'"),
        ({"tableName": "orders", "keyColumns": "a,b,c"}, "allowed is the one or two columns"),
        ({"tableName": "orders", "keyColumns": "a,a"}, "allowed is the one or two columns"),
        ({"tableName": "orders", "keyColumns": "a,"}, "allowed is the one or two columns"),
        (
            {"tableName": "orders", "keyColumns": "Op", "operationColumn": "op"},
            "option 'operationColumn' is 'op', which is one of 'keyColumns' as well",
        ),
        ({"tableName": "orders", "maxBatchSize": "26"}, "the destination takes at most 25"),
    ],
)
def test_options_that_cannot_work_are_refused(given_options: dict[str, str], message: str) -> None:
    """With their names, before the query starts."""
    with pytest.raises(OptionError) as caught:
        read_sink({"destination": "dynamodb"} | given_options)

    assert message in str(caught.value)


def rows(keys: Sequence[str], **more: Any) -> pa.RecordBatch:
    """Rows with these keys, and with their position as attribute ``v``."""
    columns = {"id": list(keys), "v": list(range(len(keys)))} | more
    return pa.record_batch([pa.array(values) for values in columns.values()], names=list(columns))


def test_an_item_that_is_too_large_is_refused() -> None:
    """Before it is sent. 400,000 bytes are allowed, including names."""
    FakeService("dynamodb", lambda _, __: left_over())

    def one(length: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(["x" * length])], names=["id"])

    assert write_all(TABLE, one(399_998)).records == 1
    with pytest.raises(InvalidRecordError, match="a record of 400001 bytes"):
        write_all(TABLE, one(399_999))


class Table:
    """A table that answers the SDK, with a fault for each request."""

    def __init__(self, faults: Sequence[int | str]) -> None:
        self._faults = iter(faults)
        self.items: dict[str, int] = {}
        self.history: list[tuple[str, int | None]] = []

    def respond(self, _: str, params: dict[str, Any]) -> Any:
        fault = next(self._faults, 0)
        writes = params["RequestItems"]["orders"]
        keys = [self._key(write) for write in writes]
        if len(set(keys)) < len(keys):
            return refusal("ValidationException", "Provided list of item keys contains duplicates")
        if fault == "throttle":
            return refusal("ProvisionedThroughputExceededException")
        if fault == "cut":
            return sdk.ConnectionClosedError(endpoint_url="http://service.test")
        left = [write for n, write in enumerate(writes) if isinstance(fault, int) and fault >> n & 1]
        for write in writes:
            if write not in left:
                self._write(write)
        if fault == "lost":
            return sdk.ReadTimeoutError(endpoint_url="http://service.test")
        return left_over(*left[::-1])

    @staticmethod
    def _key(write: dict[str, Any]) -> str:
        ((_, parameters),) = write.items()
        ((_, attributes),) = parameters.items()
        return str(attributes["id"]["S"])

    def _write(self, write: dict[str, Any]) -> None:
        key = self._key(write)
        if "PutRequest" in write:
            value = int(write["PutRequest"]["Item"]["v"]["N"])
            self.items[key] = value
            self.history.append((key, value))
        else:
            self.items.pop(key, None)
            self.history.append((key, None))


FAULTS = st.lists(st.one_of(st.integers(0, 1023), st.sampled_from(["throttle", "cut", "lost"])), max_size=40)


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("aaabbcdefgh"), st.booleans()), max_size=12), max_size=8),
    FAULTS,
    st.integers(1, 6),
)
def test_the_last_write_of_a_key_wins(
    batches: list[list[tuple[str, bool]]], faults: list[int | str], in_flight: int
) -> None:
    """In the end the table is as if all rows had been written in order, one at a time."""
    table = Table(faults)
    FakeService("dynamodb", table.respond)
    expected: dict[str, int] = {}
    made = []
    number = 0
    for each in batches:
        for n, (key, is_put) in enumerate(each, number):
            if is_put:
                expected[key] = n
            else:
                expected.pop(key, None)
        columns = {
            "id": pa.array([key for key, _ in each], pa.string()),
            "v": pa.array(list(range(number, number + len(each))), pa.int64()),
            "op": pa.array(["PUT" if is_put else "DELETE" for _, is_put in each], pa.string()),
        }
        made.append(pa.record_batch(list(columns.values()), names=list(columns)))
        number += len(each)
    options = KEYED | {"operationColumn": "op"}
    write_all(options, *made, max_in_flight_requests=in_flight, max_batch_size=10)

    assert table.items == expected
    by_key: dict[str, list[int]] = {}
    for key, value in table.history:
        if value is not None:
            by_key.setdefault(key, []).append(value)
    assert all(found == sorted(found) for found in by_key.values())


@settings(max_examples=30)
@given(FAULTS)
def test_without_keys_everything_is_written(faults: list[int | str]) -> None:
    """Unprocessed items are matched with the rows by content."""
    table = Table(faults)
    FakeService("dynamodb", table.respond)
    write_all(TABLE, rows([f"key {n}" for n in range(90)]), max_batch_size=10)

    assert table.items == {f"key {n}": n for n in range(90)}
