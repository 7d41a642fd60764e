"""Destination sqs: requests, refusals, sizes, and FIFO order despite failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from botocore import exceptions as sdk
from fake_service import CONNECTION, OPTIONS, FakeService, answer, read_async_sink, refusal, write_all
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations import read_sink
from sluice.destinations.sqs import SqsDestination, SqsMessage
from sluice.errors import InvalidRecordError, OptionError, ServiceError
from sluice.sink import Rejection, SubmitResult

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
SQS = {"destination": "sqs", "queueUrl": URL}
FIFO = {"destination": "sqs", "queueUrl": f"{URL}.fifo"}
AB = [SqsMessage("a"), SqsMessage("b")]


def destination(
    respond: Callable[[str, dict[str, Any]], Any], url: str = URL
) -> tuple[SqsDestination, FakeService]:
    return SqsDestination(CONNECTION, url), FakeService("sqs", respond)


def results(accepted: Sequence[int], *failed: tuple[int, str, bool]) -> Any:
    """An answer: the ids of accepted messages, and (id, code, sender's fault) of failed ones."""
    return answer(
        {
            "Successful": [{"Id": str(n), "MessageId": "m", "MD5OfMessageBody": "0" * 32} for n in accepted],
            "Failed": [
                {"Id": str(n), "Code": code, "Message": "because", "SenderFault": fault}
                for n, code, fault in failed
            ],
        }
    )


ATTRIBUTES = {"MessageAttributes": {"kind": {"DataType": "String", "StringValue": "x"}}}


@pytest.mark.parametrize(
    ("url", "full", "fields"),
    [
        (
            URL,
            SqsMessage("a", "g", None, 7, {"kind": "x"}),
            {"MessageGroupId": "g", "DelaySeconds": 7, **ATTRIBUTES},
        ),
        (
            f"{URL}.fifo",
            SqsMessage("a", "g", "d", None, {"kind": "x"}),
            {"MessageGroupId": "g", "MessageDeduplicationId": "d", **ATTRIBUTES},
        ),
    ],
    ids=["standard", "fifo"],
)
def test_a_request_holds_all_fields_of_a_message(url: str, full: SqsMessage, fields: dict[str, Any]) -> None:
    """Except for those that are None."""
    made, service = destination(lambda _, __: results([0, 1]), url)

    assert made.submit([full, SqsMessage("b", "h")]) == SubmitResult([], {}, [])
    ((operation, sent),) = service.calls
    assert operation == "SendMessageBatch"
    assert sent == {
        "QueueUrl": url,
        "Entries": [
            {"Id": "0", "MessageBody": "a", **fields},
            {"Id": "1", "MessageBody": "b", "MessageGroupId": "h"},
        ],
    }


def test_results_belong_to_messages_by_id() -> None:
    """In any order. Refused messages keep theirs."""
    entries = [SqsMessage(each) for each in "abc"]
    made, _ = destination(
        lambda _, __: results([1], (2, "InternalError", False), (0, "RequestThrottled", False))
    )
    result = made.submit(entries)

    assert result.failed == [entries[0], entries[2]]
    assert result.codes == {"RequestThrottled": 1, "InternalError": 1}


@pytest.mark.parametrize("code", ["RequestThrottled", "KmsThrottled", "ThrottlingException"])
def test_a_throttled_message_is_sent_again(code: str) -> None:
    """Although SQS marks throttling as the sender's fault."""
    made, _ = destination(lambda _, __: results([1], (0, code, True)))

    assert made.submit(AB).failed == [AB[0]]


@pytest.mark.parametrize("code", ["InvalidParameterValue", "InvalidMessageContents", "Unheard"])
def test_a_message_refused_by_the_senders_fault_is_rejected(code: str) -> None:
    """It would be refused again. The rejection has the service's message."""
    made, _ = destination(lambda _, __: results([1], (0, code, True)))
    result = made.submit(AB)

    assert result.failed == []
    assert result.rejected == [Rejection(AB[0], f"{code}: because")]


def test_a_message_without_a_result_is_sent_again() -> None:
    """It is not known to have been accepted."""
    made, _ = destination(lambda _, __: results([1]))
    result = made.submit(AB)

    assert (result.failed, result.codes) == ([AB[0]], {"NoResult": 1})


@pytest.mark.parametrize("number", ["7", "x"])
def test_a_result_for_no_message_is_a_damaged_answer(number: str) -> None:
    """The batch is sent again."""
    made, _ = destination(lambda _, __: answer({"Successful": [{"Id": number}], "Failed": []}))
    with pytest.raises(ServiceError, match="a result for no message") as caught:
        made.submit(AB)

    assert not made.is_fatal(caught.value)


@pytest.mark.parametrize(
    "code", ["AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress"]
)
def test_a_missing_queue_is_fatal(code: str) -> None:
    """With all error codes that SQS has for it."""
    made, _ = destination(lambda _, __: refusal(f"com.amazonaws.sqs#{code}"))
    with pytest.raises(ServiceError, match="orders") as caught:
        made.submit(AB)

    assert made.is_fatal(caught.value)


@pytest.mark.parametrize("code", ["RequestThrottled", "KmsThrottled"])
def test_a_throttled_request_is_not_fatal(code: str) -> None:
    """With the error codes that only SQS has for it."""
    made, _ = destination(lambda _, __: refusal(f"com.amazonaws.sqs#{code}"))
    with pytest.raises(ServiceError) as caught:
        made.submit(AB)

    assert not made.is_fatal(caught.value)


def test_sizes_count_attributes() -> None:
    """The body, and the name, type and value of each attribute, in UTF-8."""
    made, _ = destination(lambda _, __: results([]))

    assert made.size_in_bytes(SqsMessage("grün", "group", "dedup", 3)) == 5
    assert (
        made.size_in_bytes(SqsMessage("ab", attributes={"name": "€", "n": "12"})) == 2 + 4 + 6 + 3 + 1 + 6 + 2
    )


def test_the_default_region_is_that_of_the_url(connections: list[ConnectionConfig]) -> None:
    """SQS refuses requests that are signed for another region than the queue's."""
    FakeService("sqs", lambda _, __: results([0, 1]))
    for region in (None, "us-east-1"):
        SqsDestination(ConnectionConfig(region=region), URL).submit(AB)

    assert [each.region for each in connections] == ["eu-west-1", "us-east-1"]


def test_the_limits_and_the_name() -> None:
    """A request: 10 messages, 1 MiB. A message: 1 MiB. 50 requests in flight, 5,000 messages buffered."""
    setup = read_async_sink(OPTIONS | FIFO)
    config = setup.config

    assert isinstance(setup.destination, SqsDestination)
    assert setup.destination.name == "sqs queue 'orders.fifo'"
    assert (config.max_batch_size, config.max_batch_size_in_bytes) == (10, 2**20)
    assert (config.max_record_size_in_bytes, config.max_in_flight_requests) == (2**20, 50)
    assert config.max_buffered_requests == 5000


@pytest.mark.parametrize(
    "url", ["https://sqs.eu-west-1.amazonaws.com/1/q", "http://127.0.0.1:5000/1/q_-.fifo"]
)
def test_urls_of_queues(url: str) -> None:
    """The URLs of AWS, of emulators and of gateways."""
    assert read_sink(OPTIONS | {"destination": "sqs", "queueUrl": url}).destination


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({}, "option 'queueUrl' is required"),
        ({"queueUrl": "orders"}, "option 'queueUrl' is 'orders': allowed is a queue's URL"),
        ({"queueUrl": "arn:aws:sqs:eu-west-1:123456789012:orders"}, "allowed is a queue's URL"),
        ({"queueUrl": "https://sqs.eu-west-1.amazonaws.com/"}, "allowed is a queue's URL"),
        (
            {"queueUrl": "me:secret@sqs/orders?x"},
            "option 'queueUrl' is '***@sqs/orders?***': allowed",
        ),
        ({"queueUrl": URL, "maxBatchSize": "11"}, "the destination takes at most 10"),
        ({"queueUrl": URL, "maxRecordSizeInBytes": "2MiB"}, "the destination takes at most 1048576"),
    ],
)
def test_options_that_cannot_work_are_refused(given_options: dict[str, str], message: str) -> None:
    """With their names, before the query starts."""
    with pytest.raises(OptionError) as caught:
        read_sink({"destination": "sqs"} | given_options)

    assert message in str(caught.value)


def test_a_message_that_is_too_large_is_refused() -> None:
    """Before it is sent. 1 MiB is allowed."""
    FakeService("sqs", lambda _, __: results([0]))

    assert write_all(SQS, pa.record_batch([pa.array(["x" * 2**20])], names=["body"])).records == 1
    with pytest.raises(InvalidRecordError, match="a record of 1048577 bytes"):
        write_all(SQS, pa.record_batch([pa.array(["x" * (2**20 + 1)])], names=["body"]))


class Queue:
    """A FIFO queue that answers the SDK, with a fault for each request."""

    def __init__(self, faults: Sequence[int | str]) -> None:
        self._faults = iter(faults)
        self._known: set[str | None] = set()
        self.messages: list[tuple[str, int]] = []
        self.most_of_a_group = 0

    def respond(self, _: str, params: dict[str, Any]) -> Any:
        fault = next(self._faults, 0)
        entries = params["Entries"]
        groups = [entry.get("MessageGroupId") for entry in entries]
        self.most_of_a_group = max([self.most_of_a_group, *(groups.count(group) for group in groups)])
        if fault == "throttle":
            return refusal("com.amazonaws.sqs#RequestThrottled")
        if fault == "cut":
            return sdk.ConnectionClosedError(endpoint_url="http://service.test")
        refused = fault if isinstance(fault, int) else 0
        accepted = [n for n in range(len(entries)) if not refused >> n & 1]
        for n in accepted:
            self._accept(entries[n])
        if fault == "lost":
            return sdk.ReadTimeoutError(endpoint_url="http://service.test")
        failed = [(n, "InternalError", False) for n in range(len(entries)) if n not in accepted]
        return results(accepted, *failed)

    def _accept(self, entry: dict[str, Any]) -> None:
        deduplication = entry.get("MessageDeduplicationId")
        if deduplication not in self._known:
            self._known |= {deduplication} - {None}
            self.messages.append((entry.get("MessageGroupId", ""), int(entry["MessageBody"])))


@settings(max_examples=80)
@given(
    st.lists(st.sampled_from("aaaabbc"), min_size=1, max_size=60),
    st.lists(st.one_of(st.integers(0, 1023), st.sampled_from(["throttle", "cut", "lost"])), max_size=40),
    st.integers(1, 8),
)
def test_a_fifo_queue_gets_each_group_in_order(
    groups: list[str], faults: list[int | str], in_flight: int
) -> None:
    """Each message once, and each group in the order of its rows, with several requests in flight."""
    queue = Queue(faults)
    FakeService("sqs", queue.respond)
    numbers = [str(n) for n in range(len(groups))]
    batch = pa.record_batch(
        [pa.array(numbers), pa.array(groups), pa.array(numbers)],
        names=["body", "messageGroupId", "messageDeduplicationId"],
    )
    figures = write_all(FIFO, batch, max_in_flight_requests=in_flight)

    assert figures.records == len(groups)
    assert sorted(number for _, number in queue.messages) == list(range(len(groups)))
    by_group: dict[str, list[int]] = defaultdict(list)
    for group, number in queue.messages:
        by_group[group].append(number)
    assert all(found == sorted(found) for found in by_group.values())
    assert queue.most_of_a_group == 1


@pytest.mark.parametrize(
    ("host", "region", "endpoint"),
    [
        ("sqs.eu-west-1.amazonaws.com", "eu-west-1", None),
        ("eu-west-1.queue.amazonaws.com", "eu-west-1", None),
        ("queue.amazonaws.com", "us-east-1", None),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1", None),
        ("sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1", None),
        ("sqs-fips.us-east-2.amazonaws.com", "us-east-2", "https://sqs-fips.us-east-2.amazonaws.com"),
        ("sqs.ap-southeast-2.api.aws", "ap-southeast-2", "https://sqs.ap-southeast-2.api.aws"),
        (
            "vpce-1a-2b.sqs.eu-central-1.vpce.amazonaws.com",
            "eu-central-1",
            "https://vpce-1a-2b.sqs.eu-central-1.vpce.amazonaws.com",
        ),
    ],
)
def test_a_queue_s_url_says_where_it_is(
    host: str, region: str, endpoint: str | None, connections: list[ConnectionConfig]
) -> None:
    """In every form that AWS documents. By default the SDK calls the region's own host."""
    FakeService("sqs", lambda _, __: results([0, 1]))
    SqsDestination(ConnectionConfig(), f"https://{host}/123456789012/orders").submit(AB)

    assert (connections[0].region, connections[0].endpoint_url) == (region, endpoint)


def test_a_region_that_is_not_the_queue_s_is_refused() -> None:
    """SQS would not know the queue there. With an endpoint of the user's it may be anything."""
    given = {"destination": "sqs", "queueUrl": URL, "region": "us-east-1"}
    with pytest.raises(OptionError, match="that queue is in eu-west-1, and 'region' is 'us-east-1'"):
        read_sink(given)
    read_sink(given | {"endpointUrl": "http://127.0.0.1:4566"})
