"""Bodies that the library writes: they say what the SDK's would, and all else of the request is the SDK's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinesis_transport import Transport, answer, header

from sluice.aws import clients, request_bodies
from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.request_bodies import Ready
from sluice.destinations.kinesis import KinesisEntry

CONFIG = ConnectionConfig(region="eu-west-1", access_key_id="AKIDEXAMPLE", secret_access_key="hush")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ENTRY = {"Data": b"", "PartitionKey": "-"}
# Those that change with every request.
VOLATILE = {"authorization", "x-amz-date", "amz-sdk-invocation-id", "content-length"}


@pytest.fixture(autouse=True, scope="module")
def _fresh_clients() -> Iterator[None]:
    clients._clients.clear()
    clients._sessions.clear()
    yield
    clients._clients.clear()
    clients._sessions.clear()


def sent(service: str, method: str, **parameters: Any) -> AWSPreparedRequest:
    """What goes out for a call of the SDK's client."""
    client = client_for(CONFIG, service)
    transport = Transport(lambda _, __: answer({}))
    transport.install(client)
    getattr(client, method)(**parameters)
    return transport.requests[0]


def body_of(request: AWSPreparedRequest) -> Any:
    assert isinstance(request.body, bytes)
    return json.loads(request.body)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
BYTES = st.one_of(st.binary(max_size=60), st.just(b""), st.just(b"\x00\xff" * 2000))
ENTRIES = st.lists(
    st.builds(KinesisEntry, BYTES, TEXTS, st.one_of(st.none(), st.integers(0, 2**128 - 1).map(str))),
    min_size=1,
    max_size=6,
)
STREAM = st.sampled_from([{"StreamName": "orders"}, {"StreamARN": ARN}])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"Id": st.integers(0, 9).map(str), "MessageBody": TEXTS},
        optional={
            "DelaySeconds": st.integers(0, 900),
            "MessageGroupId": TEXTS,
            "MessageAttributes": st.dictionaries(
                TEXTS,
                st.fixed_dictionaries({"DataType": st.just("String"), "StringValue": TEXTS}),
                max_size=3,
            ),
        },
    ),
    min_size=1,
    max_size=5,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.fixed_dictionaries({"S": TEXTS}),
        st.fixed_dictionaries({"N": st.decimals(allow_nan=False, allow_infinity=False).map(str)}),
        st.fixed_dictionaries({"B": BYTES}),
        st.fixed_dictionaries({"BOOL": st.booleans()}),
        st.fixed_dictionaries({"BS": st.lists(st.binary(max_size=9), min_size=1, max_size=3)}),
        st.just({"NULL": True}),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"L": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"M": st.dictionaries(TEXTS, inner, max_size=3)}),
    ),
    max_leaves=6,
)
ITEMS = st.dictionaries(TEXTS, VALUES, max_size=4)
WRITES = st.lists(
    st.one_of(
        ITEMS.map(lambda item: {"PutRequest": {"Item": item}}),
        ITEMS.map(lambda key: {"DeleteRequest": {"Key": key}}),
    ),
    min_size=1,
    max_size=4,
)
SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def as_the_sdk_takes_them(entries: list[KinesisEntry]) -> Any:
    return [
        {"Data": entry.data, "PartitionKey": entry.partition_key}
        | ({} if entry.explicit_hash_key is None else {"ExplicitHashKey": entry.explicit_hash_key})
        for entry in entries
    ]


def check_the_same(service: str, method: str, name: str, value: Any, *, stand_in: Any, **more: Any) -> None:
    """A call with what is ready and one without differ in nothing that means anything."""
    plain = as_the_sdk_takes_them(value) if name == "Records" and service == "kinesis" else value
    ours = sent(service, method, **{name: Ready(value, stand_in)}, **more)
    theirs = sent(service, method, **{name: plain}, **more)

    assert body_of(ours) == body_of(theirs)
    assert (ours.method, ours.url) == (theirs.method, theirs.url)
    shown = [
        {key.lower(): header(each, key) for key in each.headers if key.lower() not in VOLATILE}
        for each in (ours, theirs)
    ]
    assert shown[0] == shown[1]


@given(ENTRIES, STREAM)
@SLOW
def test_put_records_says_what_the_sdk_would(entries: list[KinesisEntry], stream: dict[str, str]) -> None:
    """Data, keys and the stream; to the endpoint that the stream's ARN asks for."""
    check_the_same("kinesis", "put_records", "Records", entries, stand_in=(ENTRY,), **stream)


@given(st.lists(st.fixed_dictionaries({"Data": BYTES}), min_size=1, max_size=5))
@SLOW
def test_put_record_batch_says_what_the_sdk_would(records: Any) -> None:
    """The same for Firehose."""
    check_the_same(
        "firehose",
        "put_record_batch",
        "Records",
        records,
        stand_in=({"Data": b""},),
        DeliveryStreamName="orders",
    )


@given(MESSAGES)
@SLOW
def test_send_message_batch_says_what_the_sdk_would(messages: Any) -> None:
    """The same for SQS, nested attributes included."""
    check_the_same(
        "sqs",
        "send_message_batch",
        "Entries",
        messages,
        stand_in=({"Id": "0", "MessageBody": "-"},),
        QueueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
    )


@given(WRITES, st.sampled_from(["orders", "arn:aws:dynamodb:eu-west-1:123456789012:table/orders"]))
@SLOW
def test_batch_write_item_says_what_the_sdk_would(writes: Any, table: str) -> None:
    """The same for DynamoDB, whatever is nested in an item, bytes in lists included."""
    stand_in: Any = {table: ({"DeleteRequest": {"Key": {}}},)}
    check_the_same("dynamodb", "batch_write_item", "RequestItems", {table: writes}, stand_in=stand_in)


@pytest.mark.parametrize("stream", [{"StreamName": "orders"}, {"StreamARN": ARN}])
def test_what_is_sent_is_what_is_signed_and_measured(stream: dict[str, str]) -> None:
    """Length and signature are those of the body that goes out, not of the stand-in."""
    request = sent(
        "kinesis", "put_records", Records=Ready([KinesisEntry(b"x" * 5000, "k")], (ENTRY,)), **stream
    )
    assert isinstance(request.body, bytes)
    assert int(header(request, "Content-Length")) == len(request.body) > 5000

    authorization = header(request, "Authorization")
    signed = authorization.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    unsigned: Any = AWSRequest(
        request.method,
        request.url,
        {name: header(request, name) for name in signed if name != "host"},
        request.body,
    )
    unsigned.context["timestamp"] = header(request, "X-Amz-Date")
    auth: Any = SigV4Auth(Credentials("AKIDEXAMPLE", "hush"), "kinesis", "eu-west-1")
    text = auth.string_to_sign(unsigned, auth.canonical_request(unsigned))
    assert authorization.endswith(f"Signature={auth.signature(text, unsigned)}")


def test_a_call_without_anything_ready_is_the_sdks_own() -> None:
    """It is checked and written by the SDK, byte for byte, also right after one that was ready."""
    sent("kinesis", "put_records", Records=Ready([KinesisEntry(b"a", "k")], (ENTRY,)), StreamName="orders")
    request = sent(
        "kinesis", "put_records", Records=[{"Data": b"a", "PartitionKey": "k"}], StreamName="orders"
    )

    assert (
        request.body
        == json.dumps({"Records": [{"Data": "YQ==", "PartitionKey": "k"}], "StreamName": "orders"}).encode()
    )


def test_other_parameters_are_still_checked() -> None:
    """What is not ready is the SDK's to refuse."""
    with pytest.raises(Exception, match="StreamName"):
        sent("kinesis", "put_records", Records=Ready([], (ENTRY,)), StreamName=5)


@pytest.mark.parametrize("resolved", [True, False])
def test_another_protocol_is_written_by_the_sdk(resolved: bool) -> None:
    """An SDK to come may speak CBOR with the service: it gets the entries as it takes them."""
    service = SimpleNamespace(metadata={"protocol": "json" if resolved else "smithy-rpc-v2-cbor"})
    if resolved:
        service.resolved_protocol = "smithy-rpc-v2-cbor"
    params: dict[str, Any] = {
        "Records": Ready([KinesisEntry(b"\xff", "k", "7")], (ENTRY,)),
        "StreamName": "s",
    }
    context: dict[str, Any] = {}
    request_bodies.substitute(params=params, model=SimpleNamespace(service_model=service), context=context)

    entry = {"Data": b"\xff", "PartitionKey": "k", "ExplicitHashKey": "7"}
    assert params == {"Records": [entry], "StreamName": "s"}
    assert context == {}


def test_an_entry_has_its_fields_as_on_the_wire() -> None:
    """A hash key that is not there is left out, as null would be refused."""
    assert msgspec.to_builtins(KinesisEntry(b"a", "k"), builtin_types=(bytes,)) == {
        "Data": b"a",
        "PartitionKey": "k",
    }
