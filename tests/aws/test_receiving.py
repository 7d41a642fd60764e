"""Answers received in one piece: through the SDK's session, as soon as an answer has shown it."""

from __future__ import annotations

import http.client
import io
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session
from urllib3.exceptions import ProtocolError
from urllib3.response import HTTPResponse

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.errors import translate
from sluice.aws.wire.receiving import BodyReceiver
from sluice.aws.wire.watchdog import Watchdog

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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def receiver_and_session(
    given: Any, clock: Callable[[], float] = time.monotonic, watchdog: Watchdog | None = None
) -> tuple[BodyReceiver, Session]:
    """A receiver after the first answer, and the session that answers with `given`."""
    receiver, session = BodyReceiver(clock, watchdog), Session(given)
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


def test_a_body_that_is_cut_short_is_retryable() -> None:
    """As when the SDK reads it."""
    receiver, _ = receiver_and_session(from_the_network(length=len(BODY) + 1))
    with pytest.raises(ProtocolError) as caught:
        receiver.send(request=Request())

    assert translate(caught.value, operation="GetRecords", target="s", endpoint=None).retryable


class Trickle:
    """A body of which a byte comes every 50 s, until the connection is shut down: never 60 s of silence."""

    def __init__(self, clock: Clock, watchdog: Watchdog, *, says_so: bool) -> None:
        self._clock = clock
        self._watchdog = watchdog
        self._says_so = says_so
        self._is_shut = False
        self.is_closed = False

    def read(self) -> bytes:
        while not self._is_shut:
            assert self._clock.now < 1_000.0, "it is read for ever"
            self._clock.now += 50.0
            self._watchdog.check()
        if self._says_so:
            raise ProtocolError("Connection broken")
        return b'{"Records": []'

    def shutdown(self) -> None:
        self._is_shut = True

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("says_so", [True, False])
def test_a_body_that_trickles_is_given_up(*, says_so: bool) -> None:
    """A body without a length ends where its connection does, and the transport takes it for whole."""
    clock = Clock()
    watchdog = Watchdog(clock)
    watchdog._thread = threading.current_thread()  # none of its own
    body: Any = Trickle(clock, watchdog, says_so=says_so)
    headers: Any = {}
    receiver, _ = receiver_and_session(AWSResponse("http://fake", 200, headers, body), clock, watchdog)
    with pytest.raises(ReadTimeoutError) as caught:
        receiver.send(request=Request())

    assert clock.now <= 200.0
    assert body.is_closed
    error = translate(caught.value, operation="GetRecords", target="s", endpoint="http://fake")
    assert error.retryable
    assert "the answer was not complete after 120 s" in str(error)
    assert watchdog._armed == {}


@pytest.mark.parametrize(("status", "is_read"), [(200, False), (400, True), (500, True)])
def test_an_answer_that_is_read_event_by_event_is_left_to_its_reader(status: int, *, is_read: bool) -> None:
    """But for errors: a subscriber that waited for one could not even be closed."""
    answered = from_the_network()
    answered.status_code = status
    receiver, _ = receiver_and_session(answered)
    request = Request()
    request.stream_output = True
    received = receiver.send(request=request)

    assert received is not None
    assert (received is not answered) == is_read
    assert received.content == BODY


def test_a_client_receives_in_one_piece_from_its_second_page_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK calls the hooks. All operations have the same limit of time."""
    left_unread: list[bool] = []

    def send(_session: Any, request: Any) -> AWSResponse:
        left_unread.append(request.stream_output)
        return from_the_network(b'{"Records": [], "MillisBehindLatest": 7, "Shards": []}')

    monkeypatch.setattr(URLLib3Session, "send", send)
    config = ConnectionConfig(region="eu-west-3", access_key_id="a", secret_access_key="b")
    client = client_for(config, "kinesis")
    answers = [client.get_records(ShardIterator="i") for _ in range(3)]
    client.list_shards(StreamName="s")

    assert left_unread == [False, True, True, True]
    assert [each["MillisBehindLatest"] for each in answers] == [7, 7, 7]
