"""Tokens of OAuth and from files: shared, renewed early and when they are refused, and never shown."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus

import pytest
from fake_endpoint import destination, numbers, write_all
from fake_endpoint import sent as sent_numbers
from integration.support.http_server import Sent, http_server

from sluice.destinations.common import first_contact
from sluice.destinations.http import oauth2
from sluice.destinations.http.auth import Authorized
from sluice.destinations.http.call import HttpCall
from sluice.destinations.http.oauth2 import ClientCredentials, Grant
from sluice.destinations.http.transport import Answer, HttpTransport
from sluice.errors import OptionError, ServiceError

ID, SECRET = "client:ü/1", "hunter2 +/%:secret"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(first_contact, "_answered", set())
    oauth2.client_credentials.cache_clear()
    yield
    oauth2.client_credentials.cache_clear()


class Company:
    """A token endpoint, and an endpoint that accepts its tokens.

    Attributes:
        asked: requests for tokens, with their fields.
        ways: in which they gave id and secret.
        valid: tokens that are accepted now.
        rows: numbers that were accepted, by how often.
        refusals: requests that were refused.
        lifetime: of the next tokens, as the answer says; None: it does not say.
        reply: in the place of a token: status and answer.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.ways: list[str] = []
        self.valid: set[str] = set()
        self.rows: Counter[int] = Counter()
        self.refusals = 0
        self.lifetime: Any = 3600
        self.reply: tuple[int, Any] | None = None
        self.pause = 0.0
        self.refuses_with = 401
        self.on_row: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def __call__(self, sent: Sent) -> tuple[int, bytes]:
        return self._token(sent) if sent.target.startswith("/token") else self._take(sent)

    def _token(self, sent: Sent) -> tuple[int, bytes]:
        time.sleep(self.pause)
        assert sent.method == "POST"
        assert sent.header("content-type") == "application/x-www-form-urlencoded"
        fields = {key: value for key, (value,) in parse_qs(sent.body.decode()).items()}
        basic = sent.header("authorization")
        assert (basic is None) is ("client_secret" in fields)
        self.ways.append("post" if basic is None else "basic")
        if basic is not None:
            user, _, password = base64.b64decode(basic.removeprefix("Basic ")).decode().partition(":")
            fields |= {"client_id": unquote_plus(user), "client_secret": unquote_plus(password)}
        with self._lock:
            self.asked.append(fields)
            if self.reply is not None:
                status, answer = self.reply
                return status, json.dumps(answer).encode() if not isinstance(answer, bytes) else answer
            if (fields["client_id"], fields["client_secret"]) != (ID, SECRET):
                shown = f"no client has {fields['client_secret']}"
                return 401, json.dumps({"error": "invalid_client", "error_description": shown}).encode()
            token = f"hunter2-token-{len(self.asked)}"
            self.valid.add(token)
            answer = {"access_token": token, "token_type": "bearer"}
            return 200, json.dumps(
                answer | ({} if self.lifetime is None else {"expires_in": self.lifetime})
            ).encode()

    def _take(self, sent: Sent) -> tuple[int, bytes]:
        with self._lock:
            self.on_row()
            token = (sent.header("authorization") or "").removeprefix("Bearer ")
            if token not in self.valid:
                self.refusals += 1
                return self.refuses_with, f"bad token {token}".encode()
            self.rows.update(sent_numbers(sent.body))
            return 200, b""


@pytest.fixture
def company() -> Iterator[tuple[Company, dict[str, str]]]:
    made = Company()
    with http_server(made) as url:
        yield (
            made,
            {
                "url": f"{url}/rows",
                "auth": "oauth2ClientCredentials",
                "oauth2TokenUrl": f"{url}/token?tenant=1",
                "oauth2ClientId": ID,
                "oauth2ClientSecret": SECRET,
            },
        )


Fixture = tuple[Company, dict[str, str]]


@pytest.mark.parametrize("way", ["basic", "post"])
def test_a_token_is_asked_for_once(company: Fixture, way: str) -> None:
    """Also for the destinations of later epochs, with id and secret in either way."""
    made, options = company
    more = {"oauth2ClientAuthentication": way, "oauth2Scope": "rows.write rows.read"}
    for number in range(3):
        used = destination(**options, **more)
        used.submit([b'{"n":%d}' % number])
        used.close()

    assert made.rows == Counter(range(3))
    expected = {"grant_type": "client_credentials", "scope": "rows.write rows.read"}
    assert made.asked == [expected | {"client_id": ID, "client_secret": SECRET}]
    assert made.ways == [way]


@pytest.mark.parametrize("status", [401, 403])
def test_tokens_that_expire_lose_no_row_and_double_none(company: Fixture, status: int) -> None:
    """Many requests at a time; each token is good for some requests only."""
    made, options = company
    made.refuses_with = status
    uses = 0

    def use() -> None:
        nonlocal uses
        uses += 1
        if uses % 40 == 0:
            made.valid.clear()

    made.on_row = use
    write_all(numbers(2000), None, None, **options, maxBatchSize="5")

    assert made.rows == Counter(range(2000))
    assert 5 <= len(made.asked) <= 30  # not one for each of the requests that are refused together
    assert made.refusals >= len(made.asked) - 1


def test_if_another_request_is_accepted_a_refusal_is_no_failure(company: Fixture) -> None:
    """Its token may have expired in transit, more than once."""
    made, options = company
    used = destination(**options)
    used.submit([b'{"n":1}'])
    made.on_row = made.valid.clear
    answer = used._call(b'[{"n":2}]')
    made.on_row = lambda: None
    used._call._no_renewal_until = 0.0
    used.submit([b'{"n":3}'])

    assert answer.status == 401
    assert used._call.awaits_credentials(answer)


def test_a_new_token_that_is_refused_is_replaced_in_time(company: Fixture) -> None:
    """Before refusals are fatal: a token endpoint may give old tokens for a while."""
    made, options = company
    used = destination(**options)
    used.submit([b'{"n":1}'])
    made.on_row = made.valid.clear
    with pytest.raises(ServiceError):
        used.submit([b'{"n":2}'])
    made.on_row = lambda: None
    used._call.clock = lambda: time.monotonic() + 20
    used.submit([b'{"n":2}'])

    assert made.rows == Counter([1, 2])


def test_a_token_that_is_always_refused_is_asked_for_twice(company: Fixture) -> None:
    """Then the status means what it says, and the message shows no token."""
    made, options = company
    made.on_row = made.valid.clear
    used = destination(**options)
    for _ in range(5):
        with pytest.raises(ServiceError, match="HTTP status 401") as caught:
            used.submit([b"1"])

    assert used.is_fatal(caught.value)
    assert "check options 'oauth2Scope' and 'oauth2ClientId'" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert len(made.asked) == 2
    assert made.refusals == 2 + 4


@pytest.mark.parametrize(
    ("reply", "is_fatal"),
    [
        ((500, {"error": SECRET}), False),
        ((503, {}), False),
        ((429, {}), False),
        ((200, b"<html>"), False),
        ((200, {"access_token": 1}), False),
        ((200, {"access_token": "a", "expires_in": "soon"}), False),
        ((400, {"error": "invalid_scope"}), True),
        ((404, {}), True),
        ((302, {}), True),
        ((200, {"access_token": "a", "token_type": "mac"}), True),
        ((200, {"access_token": "hunter2\r\nX: y"}), True),
    ],
)
def test_what_the_token_endpoint_answers(company: Fixture, reply: tuple[int, Any], is_fatal: bool) -> None:
    """An outage passes; a wrong option does not. No message has a secret."""
    made, options = company
    made.reply = reply
    used = destination(**options)
    with pytest.raises(ServiceError) as caught:
        used.submit([b'{"n":1}'])

    assert used.is_fatal(caught.value) is is_fatal
    assert "/token?***" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert not used.is_throttling(caught.value.code)
    assert ("check options 'oauth2ClientId'" in str(caught.value)) is (reply[0] == 400)
    assert ("check option 'oauth2TokenUrl'" in str(caught.value)) is (reply[0] in (302, 404))
    made.reply = None
    used.submit([b'{"n":1}'])
    assert made.rows == Counter([1])


def test_a_wrong_secret_says_so(company: Fixture) -> None:
    """Although the endpoint repeats it."""
    _, options = company
    used = destination(**options | {"oauth2ClientSecret": "hunter2-wrong"})
    with pytest.raises(ServiceError) as caught:
        used.submit([b"1"])

    assert used.is_fatal(caught.value)
    assert "check options 'oauth2ClientId', 'oauth2ClientSecret'" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_outage_of_the_token_endpoint_is_waited_for(company: Fixture) -> None:
    """All rows arrive, once each."""
    made, options = company
    made.reply = 503, {}
    timer = threading.Timer(0.5, lambda: setattr(made, "reply", None))
    timer.start()
    write_all(numbers(50), None, None, **options, maxBatchSize="5")
    timer.join()

    assert made.rows == Counter(range(50))


def test_a_token_endpoint_that_nothing_answers_at_is_an_outage(company: Fixture) -> None:
    """Also from the first request on: it is not known to be wrong."""
    _, options = company
    with http_server(lambda _: (200, b"")) as gone:
        pass
    used = destination(**options | {"oauth2TokenUrl": f"{gone}/token"})
    with pytest.raises(ServiceError, match="NewConnectionError") as caught:
        used.submit([b"1"])

    assert not used.is_fatal(caught.value)


def test_requests_at_the_same_time_share_one_answer(company: Fixture) -> None:
    """A token, or why there is none."""
    made, options = company
    made.pause, made.reply = 0.3, (500, {})
    used = destination(**options)

    def submit(number: int) -> object:
        try:
            return used.submit([b'{"n":%d}' % number])
        except ServiceError as error:
            return error.code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(submit, range(4))) == {"Token500"}
        failed = len(made.asked)
        made.reply = None
        list(pool.map(submit, range(4)))

    assert failed < 4  # on a busy machine a request may come when the first has its answer
    assert len(made.asked) == failed + 1
    assert made.rows == Counter(range(4))


def test_a_task_that_ends_does_not_wait_for_a_token(company: Fixture) -> None:
    """As it does not wait for an answer."""
    made, options = company
    made.pause = 20.0
    used = destination(**options)
    timer = threading.Timer(0.3, used.close)
    timer.start()
    began = time.monotonic()
    with pytest.raises(ServiceError, match="or the task has ended"):
        used.submit([b"1"])
    timer.join()

    assert time.monotonic() - began < 10


class FakeEndpoint:
    """Gives tokens by a clock of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lifetime: Any) -> None:
        self.now, self.asked, self.status = 0.0, 0, 200
        self.lifetime = lifetime
        monkeypatch.setattr(HttpTransport, "send", self.send)
        grant = Grant(transport=HttpTransport(url="https://t.test"), client_id="a", client_secret="hunter2")
        self.tokens = ClientCredentials(grant, lambda: self.now)

    def send(self, *_: Any) -> Answer:
        self.asked += 1
        answer = {"access_token": f"t{self.asked}", "expires_in": self.lifetime}
        return Answer(self.status, "", {}, json.dumps(answer).encode())

    def token_at(self, now: float) -> object:
        self.now = now
        return self.tokens.authorize(b"", {}).used


@pytest.mark.parametrize(
    ("lifetime", "renewed_at"), [(3600, 3300), ("3599", 3299), (100, 90), (10.0, 9), (None, None), (0, None)]
)
def test_a_token_is_renewed_before_it_expires(
    monkeypatch: pytest.MonkeyPatch, lifetime: Any, renewed_at: float | None
) -> None:
    """Without a time it is used until it is refused."""
    endpoint = FakeEndpoint(monkeypatch, lifetime)

    assert endpoint.token_at(0) == "t1"
    if renewed_at is None:
        assert endpoint.token_at(1e9) == "t1"
    else:
        assert endpoint.token_at(renewed_at - 0.1) == "t1"
        assert endpoint.token_at(renewed_at + 0.1) == "t2"


def test_a_renewal_that_fails_early_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old token is used while it is valid, and the endpoint is asked every five seconds."""
    endpoint = FakeEndpoint(monkeypatch, 1000)
    endpoint.token_at(0)
    endpoint.status = 503
    used = [endpoint.token_at(900 + second / 10) for second in range(1, 991)]

    assert set(used) == {"t1"}
    assert endpoint.asked == 1 + 20
    with pytest.raises(ServiceError):
        endpoint.token_at(1000.1)
    endpoint.status = 200
    assert endpoint.token_at(1000.2) == f"t{endpoint.asked}"


def test_a_token_that_somebody_else_has_renewed_is_not_renewed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of several requests that were refused together."""
    endpoint = FakeEndpoint(monkeypatch, 1000)
    refused = Authorized({}, "t1", endpoint.token_at(0))
    for _ in range(3):
        assert endpoint.tokens.renew(refused)
        assert endpoint.token_at(1) == "t2"


@pytest.mark.parametrize(("seconds", "asked"), [(4.0, 2), (6.0, 1)])
def test_a_refusal_that_comes_late_leaves_no_time_for_a_second_request(
    monkeypatch: pytest.MonkeyPatch, seconds: float, asked: int
) -> None:
    """The writer gives up on requests that take more than twice `requestTimeout`."""
    endpoint = FakeEndpoint(monkeypatch, 1000)

    def send(transport: HttpTransport, *_: Any) -> Answer:
        if "t.test" in transport.url:
            return endpoint.send()
        endpoint.now += seconds
        return Answer(401, "", {}, b"")

    monkeypatch.setattr(HttpTransport, "send", send)
    transport = HttpTransport(url="https://h.test", request_timeout=10.0)
    HttpCall(transport, {}, auth=endpoint.tokens, clock=lambda: endpoint.now)(b"")

    assert endpoint.asked == asked


# --- a file ------------------------------------------------------------------------------------------------


def test_a_token_file_may_change_at_any_time(company: Fixture, tmp_path: Path) -> None:
    """A request that comes with the old token is sent again with the new one."""
    made, options = company
    file = tmp_path / "token"
    file.write_text("hunter2-1\n")
    made.valid.add("hunter2-1")
    used = destination(url=options["url"], bearerTokenFile=str(file))
    used.submit([b'{"n":1}'])

    def expire() -> None:
        made.valid.discard("hunter2-1")
        made.valid.add("hunter2-2")
        file.write_text(" hunter2-2 ")
        made.on_row = lambda: None

    made.on_row = expire
    used.submit([b'{"n":2}'])
    file.write_text("")  # somebody is writing it
    used.submit([b'{"n":3}'])
    file.unlink()
    used.submit([b'{"n":4}'])
    made.valid.clear()
    with pytest.raises(ServiceError, match="HTTP status 401") as late:
        used.submit([b'{"n":5}'])
    file.write_text("hunter2-5")
    made.valid.add("hunter2-5")
    used.submit([b'{"n":5}'])
    made.valid.clear()
    with pytest.raises(ServiceError, match="HTTP status 401"):
        used.submit([b'{"n":6}'])
    used._call.clock = lambda: time.monotonic() + 31
    with pytest.raises(ServiceError, match="HTTP status 401") as caught:
        used.submit([b'{"n":6}'])

    assert made.rows == Counter([1, 2, 3, 4, 5])
    assert made.refusals == 4
    assert not used.is_fatal(late.value)
    assert used.is_fatal(caught.value)
    assert "check option 'bearerTokenFile'" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"", "it does not hold a token"),
        (b"two words", "it does not hold a token"),
        ("hunter2ü".encode(), "it does not hold a token"),
    ],
)
def test_a_token_file_without_a_token(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """The error says so, without the file's content."""
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        destination(bearerTokenFile=str(file)).submit([b"1"])

    assert str(caught.value) == f"option 'bearerTokenFile' is '{file}': {problem}"
