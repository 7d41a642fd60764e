"""Requests, answers and refusals, alone and through whole writers."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import urllib3.exceptions as http
from fake_endpoint import (
    Endpoint,
    Respond,
    answer,
    destination,
    in_place_of_the_network,
    letters_in,
    numbers,
    rows,
    sent,
    write_all,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.destinations.common import first_contact
from sluice.destinations.http.call import HttpCall
from sluice.destinations.http.destination import HttpBody, HttpDestination
from sluice.destinations.http.options import HTTP_OPTIONS, rules_from_options
from sluice.destinations.http.transport import HttpTransport, TooLargeAnswerError
from sluice.errors import InvalidRecordError, ServiceError
from sluice.options import read_options
from sluice.sink import Rejection, SubmitResult

DOCUMENTS = [b'{"n":0}', b'{"n":1}', b'{"n":2}']
REFUSED = http.NewConnectionError(None, "Connection refused")  # type: ignore[arg-type]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Callable[[Respond], Endpoint]:
    return in_place_of_the_network(monkeypatch)


@pytest.mark.parametrize(
    ("options", "body", "kind"),
    [
        ({}, b'[{"n":0},{"n":1},{"n":2}]', "application/json"),
        ({"arrayField": 'the "rows"'}, b'{"the \\"rows\\"":[{"n":0},{"n":1},{"n":2}]}', "application/json"),
        ({"bodyFormat": "jsonLines"}, b'{"n":0}\n{"n":1}\n{"n":2}\n', "application/x-ndjson"),
    ],
)
def test_documents_become_one_body(endpoint: Any, options: dict[str, str], body: bytes, kind: str) -> None:
    """In their order."""
    made = endpoint(lambda _: answer(204))

    assert destination(**options).submit(DOCUMENTS) == SubmitResult()
    assert made.bodies == [body]
    assert made.headers["content-type"] == kind


def test_a_body_can_be_compressed(endpoint: Any) -> None:
    """The same body each time, so that a signature of it would be."""
    made = endpoint(lambda _: answer(204))
    for _ in range(2):
        destination(compression="gzip").submit(DOCUMENTS)

    assert made.headers["content-encoding"] == "gzip"
    assert gzip.decompress(made.bodies[0]) == b'[{"n":0},{"n":1},{"n":2}]'
    assert made.bodies[0] == made.bodies[1]


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_body_is_no_larger_than_its_entries_are_said_to_be(lines: bool, count: int) -> None:
    """So a request is within maxBatchSizeInBytes."""
    made = destination(bodyFormat="jsonLines" if lines else "jsonArray")
    entries = [b"x" * 10] * count

    assert len(HttpBody(lines=lines).of(entries)) <= sum(map(made.size_in_bytes, entries))


@pytest.mark.parametrize(
    ("status", "retryable", "throttling"),
    [
        (429, True, True),
        (503, True, True),
        (500, True, False),
        (408, True, False),
        (400, False, False),
        (404, False, False),
        (501, False, False),
        (304, False, False),
    ],
)
def test_a_status_says_what_happens(endpoint: Any, status: int, retryable: bool, throttling: bool) -> None:
    """Load, another failure, or the end of the task."""
    endpoint(lambda _: answer(status, {"why": "because"}))
    made = destination()
    with pytest.raises(
        ServiceError, match=f'POST https://orders.test/v1/rows failed: HTTP status {status}: {{"why'
    ) as caught:
        made.submit(DOCUMENTS)

    assert (caught.value.retryable, caught.value.throttling) == (retryable, throttling)
    assert caught.value.code == str(status)
    assert made.is_fatal(caught.value) is not retryable


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": " 0.5 "}, 0.5),
        ({"Retry_After": "Fri, 31 Dec 1999 23:59:59 GMT", "Date": "Fri, 31 Dec 1999 23:59:29 GMT"}, 30.0),
        ({"Retry_After": "Fri, 31 Dec 1999 23:59:59 GMT", "Date": "Sat, 01 Jan 2000 23:59:29 GMT"}, 0.0),
        ({"Retry_After": "Fri, 31 Dec 1999 23:59:59 GMT"}, None),
        ({"Retry_After": "soon"}, None),
        ({"Retry_After": "-5"}, None),
        ({"Retry_After": "1e9"}, None),
        ({"Retry_After": "Fri, 99 Dec 1999 99:59:59 GMT", "Date": "x"}, None),
        ({}, None),
    ],
)
def test_how_long_the_endpoint_asks_to_wait(
    endpoint: Any, headers: dict[str, str], pause: float | None
) -> None:
    """Seconds, or a date by the endpoint's own clock. Anything else is as if it did not ask."""
    endpoint(lambda _: answer(503, **headers))
    with pytest.raises(ServiceError) as caught:
        destination().submit(DOCUMENTS)

    assert caught.value.retry_after == pause


@pytest.mark.parametrize("host", ["https://elsewhere.test", ""])
def test_a_redirect_is_not_followed(endpoint: Any, host: str) -> None:
    """The error says where it leads, without what a query hides."""
    endpoint(lambda _: answer(307, location=f"{host}/rows?key=hunter2"))
    with pytest.raises(ServiceError, match=rf"it leads to '{host}/rows") as caught:
        destination().submit(DOCUMENTS)

    assert destination().is_fatal(caught.value)
    assert "hunter2" not in str(caught.value)


def test_rate_limiting_learns_which_codes_mean_load() -> None:
    """A status says it; a lost connection or an error's name does not."""
    made = destination(throttlingStatuses="420, 503")

    assert [made.is_throttling(code) for code in ("420", "503", "429", "500", "ReadTimeoutError", "2²")] == [
        *(True, True, False, False, False, False),
    ]


# --- results of rows --------------------------------------------------------------------------------------


def test_each_row_has_a_result(endpoint: Any) -> None:
    """Accepted, refused for load, or never to be accepted; a status that no option has means the last."""
    results = [{"status": 201}, {"status": 429}, {"status": 400, "error": "no such colour"}]
    endpoint(lambda _: answer(200, {"results": results}))
    made = destination(resultsPath="$.results", resultStatusPath="$.status", resultErrorPath="$.error")

    assert made.submit(DOCUMENTS) == SubmitResult(
        failed=[DOCUMENTS[1]],
        codes={"429": 1},
        rejected=[
            Rejection(DOCUMENTS[2], "http endpoint 'https://orders.test/v1/rows': status 400: no such colour")
        ],
    )


@pytest.mark.parametrize("statuses", [(400, 201), (201, 400), (400, 400)])
def test_of_several_results_of_a_row_one_that_refuses_it_counts(
    endpoint: Any, statuses: tuple[int, ...]
) -> None:
    """Where the answer names rows by their numbers, the last one would hide it, and the row would be lost."""
    results = [{"row": 1, "status": status} for status in statuses]
    endpoint(lambda _: answer(200, results))
    made = destination(resultsPath="$", resultIndexPath="$.row", resultStatusPath="$.status")
    result = made.submit(DOCUMENTS)

    assert [each.entry for each in result.rejected] == [DOCUMENTS[1]]
    assert result.failed == []


def test_a_row_may_be_fatal(endpoint: Any) -> None:
    """With a status that the user calls so."""
    endpoint(lambda _: answer(207, [{"status": 201}, {"status": 401}, {"status": 201}]))
    made = destination(resultsPath="$", fatalStatuses="401")
    with pytest.raises(ServiceError, match="HTTP status 401 for a row") as caught:
        made.submit(DOCUMENTS)

    assert made.is_fatal(caught.value)


def test_an_error_s_word_may_say_what_happens_to_a_row(endpoint: Any) -> None:
    """As CouchDB answers: a row that came before conflicts, and a forbidden row will never be accepted."""
    results = [{"error": "Conflict"}, {"error": "forbidden"}, {"error": "busy"}]
    endpoint(lambda _: answer(201, results))
    errors = {"acceptedErrors": "gone, conflict", "fatalErrors": "Forbidden"}
    made = destination(resultsPath="$", resultErrorPath="$.error", **errors)

    assert made.submit(DOCUMENTS) == SubmitResult(
        failed=[DOCUMENTS[2]],
        codes={"busy": 1},
        rejected=[Rejection(DOCUMENTS[1], "http endpoint 'https://orders.test/v1/rows': forbidden")],
    )


def test_results_that_do_not_fit_are_a_damaged_answer(endpoint: Any) -> None:
    """It is sent again: none of its rows is known to have been accepted."""
    endpoint(lambda _: answer(200, [{"status": 201}]))
    made = destination(resultsPath="$")
    with pytest.raises(ServiceError, match="1 results for 3 rows at") as caught:
        made.submit(DOCUMENTS)

    assert caught.value.code == "DamagedAnswer"
    assert not made.is_fatal(caught.value)


@pytest.mark.parametrize(("status", "pause"), [(429, 7.0), (500, 7.0), (400, None), (201, None)])
def test_an_accepted_answer_may_ask_to_wait(endpoint: Any, status: int, pause: float | None) -> None:
    """If a row is to be sent again."""
    results = [{"status": 201}, {"status": status}, {"status": 201}]
    endpoint(lambda _: answer(200, results, Retry_After="7"))

    assert destination(resultsPath="$").submit(DOCUMENTS).retry_after == pause


def test_without_results_a_row_is_found_by_halving(endpoint: Any, tmp_path: Path) -> None:
    """One row of a hundred is refused, with nothing said of which: it alone becomes a dead letter."""
    stored: list[int] = []

    def respond(body: bytes) -> Any:
        if 61 in sent(body):
            return answer(422, b"one of them has no colour")
        stored.extend(sent(body))
        return answer(204)

    made = endpoint(respond)
    figures = write_all(numbers(100), tmp_path, rejectedStatuses="422")
    (letter,) = letters_in(tmp_path)

    assert sorted(stored) == sorted({*range(100)} - {61})
    assert (figures.records, figures.dead_letters) == (99, 1)
    assert json.loads(base64.b64decode(letter["data"])) == {"n": 61}
    assert "HTTP status 422: one of them has no colour" in letter["reason"]
    assert len(made.bodies) <= 15


def test_what_was_accepted_while_halving_is_not_sent_again(endpoint: Any) -> None:
    """One half was accepted; the other one is to be sent again."""
    answers = {3: answer(422), 1: answer(200), 2: answer(503)}
    endpoint(lambda body: answers[len(sent(body))])

    result = destination(rejectedStatuses="422").submit(DOCUMENTS)

    assert (result.failed, result.codes, list(result.rejected)) == (DOCUMENTS[1:], {"503": 2}, [])


def test_without_dead_letters_a_rejected_row_fails_the_task(endpoint: Any) -> None:
    """With the endpoint's reason."""
    endpoint(lambda body: answer(422 if 1 in sent(body) else 200, b"no colour"))
    with pytest.raises(InvalidRecordError, match=r"no deadLetterPath is given.*422: no colour"):
        write_all(numbers(3), rejectedStatuses="422")


class Halving:
    """A destination that calls an answer of 422 rejected, and whose requests each take a second.

    Attributes:
        sizes: rows of each request.
    """

    def __init__(self, endpoint: Any, respond: Callable[[list[int]], Any], patience: float) -> None:
        self.now = 0.0
        self.sizes: list[int] = []
        self._respond = respond
        endpoint(self._answer)
        values = read_options("test", HTTP_OPTIONS, {"url": "https://host", "rejectedStatuses": "422"})
        self.made = HttpDestination(
            HttpCall(HttpTransport(url="https://orders.test"), {}, clock=lambda: self.now),
            rules=rules_from_options(values),
            patience=patience,
        )

    def _answer(self, body: bytes) -> Any:
        self.now += 1.0
        self.sizes.append(len(sent(body)))
        return self._respond(sent(body))


def test_halving_ends_before_the_request_times_out(endpoint: Any) -> None:
    """What was found is kept; the rest is sent again. A later request resumes from that."""
    halving = Halving(endpoint, lambda _: answer(422), patience=4.0)
    entries = [b'{"n":%d}' % n for n in range(4)]
    result = halving.made.submit(entries)

    assert halving.sizes == [4, 2, 1, 1]
    assert [each.entry for each in result.rejected] == entries[:2]
    assert (result.failed, result.codes, result.retry_after) == (entries[2:], {"422": 2}, None)
    assert len(halving.made.submit(result.failed).rejected) == 2


def test_halving_ends_with_the_task(endpoint: Any) -> None:
    """A task that has failed sends nothing more. A later task is not affected."""
    halving: Halving

    def respond(rows: list[int]) -> Any:
        if len(rows) == 2:
            halving.made.close()
        return answer(422)

    halving = Halving(endpoint, respond, patience=1e9)
    entries = [b'{"n":%d}' % n for n in range(4)]
    result = halving.made.submit(entries)

    assert halving.sizes == [4, 2]
    assert (result.failed, result.codes, result.rejected) == (entries, {"422": 4}, [])
    assert len(halving.made.submit(entries[:1]).rejected) == 1


# --- connections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (http.ReadTimeoutError(None, "", "Read timed out"), False),  # type: ignore[arg-type]
        (http.ProtocolError("Connection aborted."), False),
        (http.DecodeError("bad gzip"), False),
        (TooLargeAnswerError("the answer has more than 9 bytes"), True),
        (REFUSED, False),
        (ConnectionResetError(), False),
        (http.SSLError("EOF occurred in violation of protocol"), False),
        (http.SSLError("certificate verify failed: CERTIFICATE_VERIFY_FAILED"), True),
        (http.SSLError("hostname 'x' doesn't match"), True),
        (http.ProxyError("Unable to connect to proxy", OSError("Tunnel connection failed: 407")), True),
        (http.ProxyError("Unable to connect to proxy", OSError("Connection refused")), False),
        (http.LocationParseError("https://"), True),
        (KeyError("a mistake"), True),
    ],
)
def test_errors_of_connections(endpoint: Any, error: Exception, fatal: bool) -> None:
    """Those that pass are waited out; a certificate or a proxy's password does not change by itself."""
    endpoint(lambda _: error)
    made = destination()
    with pytest.raises(Exception, match=r".*") as caught:
        made.submit(DOCUMENTS)

    assert isinstance(caught.value, KeyError | ServiceError)
    assert made.is_fatal(caught.value) is fatal


def waiting(now: list[float]) -> HttpDestination:
    values = read_options("test", HTTP_OPTIONS, {"url": "https://host"})
    call = HttpCall(HttpTransport(url="https://nowhere.test"), {}, clock=lambda: now[0])
    return HttpDestination(call, rules=rules_from_options(values))


def test_an_endpoint_that_never_answers_is_fatal_within_seconds(endpoint: Any) -> None:
    """Its address is probably wrong."""
    endpoint(lambda _: REFUSED)
    now = [100.0]
    made = waiting(now)
    with pytest.raises(ServiceError, match="Connection refused") as caught:
        made.submit(DOCUMENTS)

    assert not made.is_fatal(caught.value)
    now[0] = 104.9
    assert not made.is_fatal(caught.value)
    now[0] = 105.0
    assert made.is_fatal(caught.value)


def test_one_that_has_answered_is_waited_for(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any answer, to any task."""
    monkeypatch.setattr(first_contact, "_answered", set())
    answers: list[Any] = [answer(503), REFUSED]
    endpoint(lambda _: answers.pop(0))
    with pytest.raises(ServiceError):
        waiting([0.0]).submit(DOCUMENTS)
    now = [0.0]
    made = waiting(now)
    with pytest.raises(ServiceError) as caught:
        made.submit(DOCUMENTS)
    now[0] = 60.0

    assert not made.is_fatal(caught.value)


# --- through a writer -------------------------------------------------------------------------------------

FAULTS = st.one_of(
    st.integers(0, 2**5 - 1),  # the rows whose bits are set are refused
    st.sampled_from([429, 500, 503, "cut", "damaged"]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FAULTS, max_size=30), st.integers(0, 40), st.integers(1, 8))
def test_everything_is_delivered(endpoint: Any, faults: list[Any], count: int, in_flight: int) -> None:
    """Each row once if no answer is lost, for any refusals and any number of requests in flight."""
    stored: list[int] = []
    lock = threading.Lock()
    left = iter(faults)

    def respond(body: bytes) -> Any:
        with lock:
            fault = next(left, 0)
        if fault == "cut":
            return http.ProtocolError("Connection aborted.")
        if fault == "damaged":
            return answer(200, b"{")
        if isinstance(fault, int) and fault >= 400:
            return answer(fault)
        statuses = [503 if fault >> n & 1 else 200 for n in range(len(sent(body)))]
        stored.extend(n for n, status in zip(sent(body), statuses, strict=True) if status == 200)
        return answer(207, {"r": [{"status": each} for each in statuses]})

    made = endpoint(respond)
    changes = {"max_in_flight_requests": in_flight, "max_batch_size": 5}
    figures = write_all(numbers(count), changes=changes, resultsPath="$.r")

    assert figures.records == count
    assert sorted(stored) == list(range(count))
    assert sum(figures.destination.values()) == figures.requests == len(made.bodies)


def test_answers_are_counted_by_class(endpoint: Any, tmp_path: Path) -> None:
    """Of every request to the endpoint, those included that halving sends and those without an answer."""
    answers = iter([answer(429), answer(503), http.ProtocolError("Connection aborted."), answer(500)])

    def respond(body: bytes) -> Any:
        return next(answers, None) or answer(422 if 2 in sent(body) else 204)

    made = endpoint(respond)
    figures = write_all(numbers(4), tmp_path, rejectedStatuses="422")

    # All four fail, half of them, then number 2 alone; 0 and 1 are accepted together, and so is 3.
    assert figures.destination == {
        "answers_2xx": 2,
        "answers_4xx": 1 + 3,
        "answers_5xx": 2,
        "unanswered": 1,
    }
    assert len(made.bodies) == 9
    assert (figures.requests, figures.records, figures.dead_letters) == (5, 3, 1)
    assert figures.refused_by_code == {"429": 4, "500": 4, "503": 4, "ProtocolError": 4}


def test_a_row_that_is_no_json_becomes_a_dead_letter(endpoint: Any, tmp_path: Path) -> None:
    """The others are delivered."""
    made = endpoint(lambda _: answer(200))
    figures = write_all(rows(['{"n":1}', "{", None, '{"n":2}']), tmp_path)

    assert [sent(body) for body in made.bodies] == [[1, 2]]
    assert (figures.records, figures.dead_letters) == (2, 2)
    assert {letter["reason"].rpartition(": ")[2] for letter in letters_in(tmp_path)} == {
        "Input data was truncated",
        "column 'body' is null",
    }
