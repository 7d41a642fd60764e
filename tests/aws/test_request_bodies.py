"""Bodies that the library writes: the same as the SDK's, in requests that are otherwise the SDK's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from kinesis_transport import Transport, answer, forget_process_state, header

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire.request_bodies import PreparedParameter
from sluice.destinations.kinesis import KinesisEntry

CONFIG = ConnectionConfig(region="eu-west-1", access_key_id="AKIDEXAMPLE", secret_access_key="hush")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ENTRY = {"Data": b"", "PartitionKey": "-"}
# Headers that change with every request.
VOLATILE = {"authorization", "x-amz-date", "amz-sdk-invocation-id", "content-length"}


@pytest.fixture(autouse=True, scope="module")
def _fresh_clients() -> Iterator[None]:
    forget_process_state()
    yield
    forget_process_state()


def sent(service: str, method: str, **parameters: Any) -> AWSPreparedRequest:
    """The request that a call of the SDK's client sends."""
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


def as_sdk_parameter(entries: list[KinesisEntry]) -> Any:
    return [
        {"Data": entry.data, "PartitionKey": entry.partition_key}
        | ({} if entry.explicit_hash_key is None else {"ExplicitHashKey": entry.explicit_hash_key})
        for entry in entries
    ]


def check_the_same(
    service: str, method: str, name: str, value: Any, *, placeholder: Any, **more: Any
) -> None:
    """A call with a prepared parameter sends what a plain call sends, but for volatile headers."""
    plain = as_sdk_parameter(value) if name == "Records" and service == "kinesis" else value
    ours = sent(service, method, **{name: PreparedParameter(value, placeholder)}, **more)
    theirs = sent(service, method, **{name: plain}, **more)

    assert body_of(ours) == body_of(theirs)
    assert (ours.method, ours.url) == (theirs.method, theirs.url)
    shown = [
        {key.lower(): header(each, key) for key in each.headers if key.lower() not in VOLATILE}
        for each in (ours, theirs)
    ]
    assert shown[0] == shown[1]


@given(ENTRIES, STREAM)
def test_put_records_has_the_body_of_the_sdk(entries: list[KinesisEntry], stream: dict[str, str]) -> None:
    """Data, keys and the stream; at the endpoint that belongs to the stream's ARN."""
    check_the_same("kinesis", "put_records", "Records", entries, placeholder=(ENTRY,), **stream)


@given(st.lists(st.fixed_dictionaries({"Data": BYTES}), min_size=1, max_size=5))
def test_put_record_batch_has_the_body_of_the_sdk(records: Any) -> None:
    """The same for Firehose."""
    check_the_same(
        "firehose",
        "put_record_batch",
        "Records",
        records,
        placeholder=({"Data": b""},),
        DeliveryStreamName="orders",
    )


@given(MESSAGES)
def test_send_message_batch_has_the_body_of_the_sdk(messages: Any) -> None:
    """The same for SQS, nested attributes included."""
    check_the_same(
        "sqs",
        "send_message_batch",
        "Entries",
        messages,
        placeholder=({"Id": "0", "MessageBody": "-"},),
        QueueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
    )


@given(WRITES, st.sampled_from(["orders", "arn:aws:dynamodb:eu-west-1:123456789012:table/orders"]))
def test_batch_write_item_has_the_body_of_the_sdk(writes: Any, table: str) -> None:
    """The same for DynamoDB, with any nesting of an item, bytes in lists included."""
    placeholder: Any = {table: ({"DeleteRequest": {"Key": {}}},)}
    check_the_same("dynamodb", "batch_write_item", "RequestItems", {table: writes}, placeholder=placeholder)


@pytest.mark.parametrize("stream", [{"StreamName": "orders"}, {"StreamARN": ARN}])
def test_length_and_signature_are_those_of_the_body(stream: dict[str, str]) -> None:
    """Of the body that is sent, not of the placeholder."""
    request = sent(
        "kinesis",
        "put_records",
        Records=PreparedParameter([KinesisEntry(b"x" * 5000, "k")], (ENTRY,)),
        **stream,
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


def test_an_entry_has_the_fields_of_the_api() -> None:
    """A missing hash key is left out, as the service would refuse null."""
    assert msgspec.to_builtins(KinesisEntry(b"a", "k"), builtin_types=(bytes,)) == {
        "Data": b"a",
        "PartitionKey": "k",
    }
