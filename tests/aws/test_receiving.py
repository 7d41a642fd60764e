"""Pages received in one piece: through the SDK's session, as soon as an answer has shown it."""

from __future__ import annotations

import http.client
import io
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.httpsession import URLLib3Session
from kinesis_transport import Transport, answer
from urllib3.exceptions import ProtocolError
from urllib3.response import HTTPResponse

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.errors import translate
from sluice.aws.receiving import PageReceiver

BODY = b"x" * 1_000_000


class Connection:
    """In place of a socket."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._sent)


def from_the_network(body: bytes = BODY, length: int | None = None) -> AWSResponse:
    """An answer as the SDK's session returns it, with its body unread."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(body) if length is None else length)
    connection: Any = Connection(head + body)
    answered = http.client.HTTPResponse(connection)
    answered.begin()
    raw = HTTPResponse(
        answered, dict(answered.headers), 200, preload_content=False, original_response=answered
    )
    headers: Any = raw.headers
    return AWSResponse("http://fake", 200, headers, raw)


class Session:
    """In place of the SDK's HTTP session."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.requests: list[Any] = []

    def send(self, request: Any) -> AWSResponse:
        self.requests.append(request)
        if isinstance(self.given, Exception):
            raise self.given
        answered: AWSResponse = self.given
        return answered


class Endpoint:
    def __init__(self, session: Any) -> None:
        self.http_session = session


class Request:
    stream_output = False


def receiver_and_session(given: Any) -> tuple[PageReceiver, Session]:
    """A receiver after the first answer, and the session that answers with `given`."""
    receiver, session = PageReceiver(), Session(given)
    receiver.remember_session(response=(from_the_network(), {}), endpoint=Endpoint(session))
    return receiver, session


def test_a_body_is_read_at_once() -> None:
    """The session leaves the body unread, and the SDK gets it in one piece."""
    receiver, session = receiver_and_session(from_the_network())
    request = Request()
    received = receiver.send(request=request)

    assert received is not None
    assert session.requests == [request]
    assert request.stream_output
    assert list(received.raw.stream()) == [BODY]
    assert received.content == BODY
    assert (received.status_code, received.headers["content-length"]) == (200, "1000000")


def test_before_the_first_answer_the_sdk_sends() -> None:
    """A failed attempt has no answer, and shows no session."""
    receiver = PageReceiver()
    receiver.remember_session(response=None, endpoint=Endpoint(Session(from_the_network())))

    assert receiver.send(request=Request()) is None


def test_the_sdk_sends_where_the_endpoint_has_no_session() -> None:
    """A later SDK may have something else in its place."""
    receiver = PageReceiver()
    receiver.remember_session(response=(from_the_network(), {}), endpoint=object())

    assert receiver.send(request=Request()) is None


def test_a_body_that_is_cut_short_is_retryable() -> None:
    """As when the SDK reads it."""
    receiver, _ = receiver_and_session(from_the_network(length=len(BODY) + 1))
    with pytest.raises(ProtocolError) as caught:
        receiver.send(request=Request())

    assert translate(caught.value, operation="GetRecords", target="s", endpoint=None).retryable


def test_what_the_session_raises_reaches_the_sdk() -> None:
    """The SDK hands the error to the caller."""
    receiver, session = receiver_and_session(ConnectionRefusedError("nobody there"))
    with pytest.raises(ConnectionRefusedError):
        receiver.send(request=Request())
    assert len(session.requests) == 1


def test_a_client_receives_in_one_piece_from_its_second_page_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK calls the hooks; other operations stay as they are."""
    left_unread: list[bool] = []

    def send(_session: Any, request: Any) -> AWSResponse:
        left_unread.append(request.stream_output)
        return from_the_network(b'{"Records": [], "MillisBehindLatest": 7, "Shards": []}')

    monkeypatch.setattr(URLLib3Session, "send", send)
    config = ConnectionConfig(region="eu-west-3", access_key_id="a", secret_access_key="b")
    client = client_for(config, "kinesis")
    answers = [client.get_records(ShardIterator="i") for _ in range(3)]
    client.list_shards(StreamName="s")

    assert left_unread == [False, True, True, False]
    assert [each["MillisBehindLatest"] for each in answers] == [7, 7, 7]


def test_a_mock_of_the_network_goes_on_answering() -> None:
    """Mocks of the SDK handle the same event. After an answer of a mock the client still sends nothing."""
    client = client_for(
        ConnectionConfig(region="eu-west-1", access_key_id="a", secret_access_key="b"), "kinesis"
    )
    transport = Transport(lambda *_: answer({"Records": [], "MillisBehindLatest": 0}))
    transport.install(client)
    for _ in range(3):
        assert client.get_records(ShardIterator="i")["Records"] == []

    assert [operation for operation, _ in transport.calls] == ["GetRecords"] * 3
