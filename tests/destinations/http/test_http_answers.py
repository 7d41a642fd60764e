"""Answers as they come over a connection: informational ones, and ones that break off."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_endpoint import destination
from raw_endpoint import RawEndpoint, raw_endpoint

from sluice.aws.wire import watchdog
from sluice.destinations.common import first_contact
from sluice.destinations.http import HttpDestination, transport
from sluice.destinations.http.call import HttpCall
from sluice.destinations.http.options import HTTP_OPTIONS, rules_from_options
from sluice.destinations.http.transport import HttpTransport, UnreadableAnswerError
from sluice.errors import ServiceError
from sluice.options import read_options

ACCEPTED = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CUT_SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{" + RawEndpoint.CUT
CUT_IN_CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n5\r\n" + RawEndpoint.CUT
TWO_LENGTHS = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}" + RawEndpoint.CUT
NOT_COMPRESSED = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"
FAILED = b"HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\nbusy"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\ncontent-length: 7\r\n\r\n"
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"


@pytest.fixture(autouse=True)
def nothing_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy, no kept connection, and no endpoint that has answered before."""
    monkeypatch.setattr(transport, "getproxies", dict)
    transport._pool.cache_clear()
    monkeypatch.setattr(first_contact, "_answered", set())


def statuses(endpoint: RawEndpoint, count: int) -> list[int]:
    to = HttpTransport(url=endpoint.url, read_timeout=10.0)
    return [to.send(b"[1]", {}).status for _ in range(count)]


def test_an_answer_is_waited_for_past_100() -> None:
    """Each request gets its own, on one connection."""
    with raw_endpoint(CONTINUE + ACCEPTED, CONTINUE + FAILED, ACCEPTED) as endpoint:
        assert statuses(endpoint, 3) == [200, 500, 200]
        assert endpoint.connections == 1


LISTS_REFUSED_ROWS = {"resultsPath": "$.errors", "resultIndexPath": "$.row", "resultErrorPath": "$.reason"}


@pytest.mark.parametrize(
    "empty",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\r\n",
    ],
)
def test_an_empty_answer_lists_no_refused_row(empty: bytes) -> None:
    """All rows are accepted if the endpoint lists only refused ones; otherwise nothing is known of them."""
    with raw_endpoint(empty, empty) as endpoint:
        result = destination(url=endpoint.url, **LISTS_REFUSED_ROWS).submit([b"1", b"2"])
        assert not result.failed
        assert not result.rejected
        with pytest.raises(ServiceError, match="the answer is empty") as caught:
            destination(url=endpoint.url, resultsPath="$.results").submit([b"1", b"2"])

    assert caught.value.retryable


def test_a_connection_that_ends_after_the_headers_accepts_no_row() -> None:
    """The endpoint may have failed before it could list the rows that it refuses."""
    failed = pytest.raises(ServiceError, match="the answer is empty and has no length")
    with raw_endpoint(b"HTTP/1.1 200 OK\r\n\r\n" + RawEndpoint.CUT) as endpoint, failed as caught:
        destination(url=endpoint.url, **LISTS_REFUSED_ROWS).submit([b"1", b"2"])

    assert caught.value.retryable


@pytest.mark.parametrize("before", [HINTS, PROCESSING, SWITCHED])
def test_after_another_informational_answer_the_connection_is_closed(before: bytes) -> None:
    """What else is on it is not read: else a row that is refused would count as accepted, and be lost."""
    with raw_endpoint(before + ACCEPTED, FAILED) as endpoint:
        with pytest.raises(UnreadableAnswerError, match=r"status 10. is not a final answer"):
            statuses(endpoint, 1)

        assert statuses(endpoint, 1) == [500]
        assert endpoint.connections == 2


def test_a_request_with_an_informational_answer_is_sent_again() -> None:
    """It is no status that an option could call accepted."""
    with raw_endpoint(SWITCHED) as endpoint:
        made = destination(url=endpoint.url, acceptedStatuses="1xx, 2xx")
        with pytest.raises(ServiceError, match=r"status 10. is not a final answer") as caught:
            made.submit([b"1"])

    assert caught.value.retryable
    assert not made.is_fatal(caught.value)


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (CUT_SHORT, "ProtocolError"),
        (CUT_IN_CHUNKS, "ProtocolError"),
        (NOT_COMPRESSED, "DecodeError"),
        (TWO_LENGTHS, "InvalidHeader"),
    ],
)
def test_an_endpoint_whose_answer_breaks_off_has_answered(broken: bytes, code: str) -> None:
    """Its address is not wrong: it is waited for, also when it does not answer the next time."""
    now = [0.0]
    with raw_endpoint(broken, RawEndpoint.CUT) as endpoint:
        made = destination_with_a_clock(now, HttpTransport(url=endpoint.url, read_timeout=10.0))
        for expected in (code, "ProtocolError"):  # the second is a connection that closes without an answer
            with pytest.raises(ServiceError) as caught:
                made.submit([b"1"])
            now[0] += 60.0

            assert caught.value.code == expected
            assert not made.is_fatal(caught.value)


def test_headers_that_cannot_be_read_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """urllib3 would log what stands behind them, as it came: an endpoint may repeat a credential there."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"
    broken = head + b"no header\r\nauthorization: Bearer t0k3n-0f-u5\r\n\r\n{}"
    with caplog.at_level("DEBUG"), raw_endpoint(broken, CONTINUE + broken) as endpoint:
        made = destination(url=endpoint.url, bearerToken="t0k3n-0f-u5")
        assert not made.submit([b"1"]).failed
        assert not made.submit([b"2"]).failed

    assert "t0k3n" not in caplog.text


def test_timeouts_may_be_longer_than_any_clock_counts() -> None:
    """As JVMs spell "never": the largest long, in milliseconds."""
    never = "9223372036854775807"
    with raw_endpoint(ACCEPTED) as endpoint:
        made = destination(url=endpoint.url, connectTimeout=never, readTimeout=never)
        assert not made.submit([b"1"]).failed


LARGE = b"x" * 30_000_000
"""More than the system takes for an endpoint that does not read."""


def destination_with_a_clock(now: list[float], transport: HttpTransport) -> HttpDestination:
    values = read_options("test", HTTP_OPTIONS, {"url": transport.url})
    return HttpDestination(HttpCall(transport, {}, clock=lambda: now[0]), rules=rules_from_options(values))


def test_an_endpoint_that_does_not_read_a_request_is_waited_for() -> None:
    """Something takes the connection, so its address is not wrong: the request is sent again."""
    now = [0.0]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/rows"
        made = destination_with_a_clock(now, HttpTransport(url=url, connect_timeout=5.0, read_timeout=0.1))
        with pytest.raises(
            ServiceError, match=r"not read the request within 0\.1 s \(readTimeout\)"
        ) as caught:
            made.submit([LARGE])
        now[0] += 60.0

        assert caught.value.code == "SendTimeoutError"
        assert not made.is_fatal(caught.value)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"HTTP/1.1 200 ",
        b"HTTP/1.1 200 OK\r\nx-trace: ",
        CONTINUE + b"HTTP/1.1 200 ",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffff\r\n{",
        b"HTTP/1.1 500 No\r\ncontent-length: 1000000\r\n\r\n{",
    ],
)
def test_a_request_has_one_deadline_though_its_answer_trickles(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`readTimeout` begins anew with each byte. No thread, connection or deadline is left behind."""
    monkeypatch.setattr(watchdog, "_INTERVAL", 0.01)
    with raw_endpoint(begun + RawEndpoint.TRICKLE, ACCEPTED) as endpoint:
        made = destination(url=endpoint.url, requestTimeout="1s")  # time enough to connect on a busy machine
        with pytest.raises(ServiceError, match=r"took longer than 1 s \(requestTimeout\)") as caught:
            made.submit([b"1"])

        assert caught.value.code == "LateAnswerError"
        assert caught.value.retryable
        assert endpoint.gone.wait(60)
        assert transport._running == {}
        assert not made.submit([b"2"]).failed


def test_a_destination_that_is_closed_leaves_no_request_behind() -> None:
    """As when a task fails, and its next attempt sends the same rows."""
    with raw_endpoint(b"HTTP/1.1 200 OK\r\n\r\n{" + RawEndpoint.TRICKLE, ACCEPTED) as endpoint:
        made = destination(url=endpoint.url)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(made.submit, [b"1"])
            while not endpoint.bodies:
                running.done()
            made.close()
            with pytest.raises(ServiceError, match="or the task has ended"):
                running.result(60)

        assert endpoint.gone.wait(60)
        assert not made.submit([b"2"]).failed  # it may be used again
