"""Secrets that an endpoint repeats: as they are, escaped, cut, or too short to be found."""

from __future__ import annotations

import html
import json
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from fake_endpoint import answer, destination, in_place_of_the_network
from hypothesis import given
from hypothesis import strategies as st

from sluice.destinations.http.secret_filter import SecretFilter
from sluice.destinations.http.transport import Answer
from sluice.errors import ServiceError

LEFT_OUT = "(not shown, because a secret is in it)"
HARD = "ab/c+d=e&f<g>h\"i'j\\k l%m~n.\N{LATIN SMALL LETTER E WITH ACUTE}\N{PILE OF POO}\to"


def in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def in_plain_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_php_does(text: str) -> str:
    return in_json(text).replace("/", "\\/")


def as_go_does(text: str) -> str:
    return in_plain_json(text).replace("&", "\\u0026").replace("<", "\\u003C").replace(">", "\\u003E")


def in_percent(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def in_html_numbers(text: str) -> str:
    return "".join(f"&#{ord(each)};" if not each.isalnum() else each for each in text)


FORMS: list[Callable[[str], str]] = [
    str,
    in_json,
    in_plain_json,
    as_php_does,
    as_go_does,
    in_percent,
    urllib.parse.quote,
    urllib.parse.quote_plus,
    html.escape,
    in_html_numbers,
    lambda text: "".join(f"&#x{ord(each):X};" for each in text),
    lambda text: "".join(f"\\u{{{ord(each):x}}}" for each in text),
    lambda text: repr(text.encode())[2:-1],
    lambda text: repr(text)[1:-1],
    lambda text: in_json(in_json(text)),
    lambda text: in_percent(in_percent(text)),
    lambda text: html.escape(html.escape(text)),
    lambda text: as_go_does(html.escape(text)),
    lambda text: html.escape(in_json(text)),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "secret", [HARD, "abcd/efgh+ijkl=mnop", 'pass"word\\1', "\\\\\\\\srv\\me", "%2F&amp;"]
)
def test_escaped_secrets_are_hidden(form: Callable[[str], str], secret: str) -> None:
    """With the text around it."""
    shown = form(secret)

    assert SecretFilter([secret]).hide(f"<{shown}> {shown}.") == LEFT_OUT


@given(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=4, max_size=30),
    st.sampled_from(FORMS),
)
def test_whatever_the_secret_is(secret: str, form: Callable[[str], str]) -> None:
    assert SecretFilter([secret]).hide(f"[{form(secret)}]") == LEFT_OUT


def test_a_text_without_a_secret_is_shown() -> None:
    text = 'no such index "orders%2Fnew" &amp; co'

    assert SecretFilter(["s3cr3t/"]).hide(text) == SecretFilter(["s3cr3t/"]).hide_in_answer(text) == text


@pytest.mark.parametrize("before", [1999, 1990, 1950])
def test_a_text_is_searched_beyond_what_is_shown(before: int) -> None:
    """Of a secret across the cut nothing is shown, however long its escaped form is."""
    secret = "s3cr3t/" * 30
    text = " " * before + "".join(f"\\u{ord(each):04x}" for each in secret)

    assert SecretFilter([secret]).hide(text) == LEFT_OUT
    assert SecretFilter([secret]).hide_in_answer(text.encode()) == LEFT_OUT


@pytest.mark.parametrize(("secret", "encoding"), [("hunter2", "utf-16-le"), ("h\xfcnter2", "latin-1")])
def test_a_secret_in_an_answer_that_is_not_utf_8(secret: str, encoding: str) -> None:
    """In UTF-16, ASCII is read with zeros between; other characters are read as replacements."""
    assert SecretFilter([secret]).hide_in_answer(f"the {secret}".encode(encoding)) == LEFT_OUT


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("\\" * 40 + "x", "\\" * 3000),
        ("/" * 40 + "x", "\\\\\\/" * 700),
        ("&" * 40 + "x", "&amp;amp;" * 300),
        ("'" * 40 + "x", "\\\\u0026amp;#0039;" * 200),
        ("%25" * 20 + "x", "%252525" * 300),
        ("u005c" * 20 + "x", "\\u005c" * 300),
        ("\\u" * 20 + "x", "\\\\\\\\u" * 500),
    ],
)
def test_no_answer_makes_it_slow(secret: str, text: str) -> None:
    """An endpoint chooses what it answers; seconds of work for one answer would hold up a task."""
    start = time.process_time()
    SecretFilter([secret]).hide(text)

    assert time.process_time() - start < 5.0


def error_of(made: Any) -> str:
    with pytest.raises(ServiceError) as caught:
        made.submit([b"1"])
    return str(caught.value)


@pytest.mark.parametrize(
    ("answered", "shown"),
    [
        (
            answer(401, b'{"error": "bad token: abcd\\/efgh\\u003dijkl"}'),
            f"HTTP status 401: {LEFT_OUT}",
        ),
        (answer(401)._replace(reason="No abcd%2Fefgh%3Dijkl"), f"HTTP status 401 {LEFT_OUT}"),
        (
            answer(307, location="https://elsewhere.test/abcd%2Fefgh%3dijkl/x"),
            f"it leads to '{LEFT_OUT}'",
        ),
    ],
)
def test_an_answer_shows_no_escaped_secret(
    monkeypatch: pytest.MonkeyPatch, answered: Answer, shown: str
) -> None:
    """In the answer, its reason, and where a redirect leads."""
    in_place_of_the_network(monkeypatch)(lambda _: answered)

    assert shown in error_of(destination(bearerToken="abcd/efgh=ijkl"))


def test_a_secret_is_no_code_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and messages contain codes."""
    in_place_of_the_network(monkeypatch)(lambda _: answer(200, [{"error": "hunter2hunter2"}]))
    made = destination(bearerToken="hunter2hunter2", resultsPath="$", resultErrorPath="$.error")

    assert made.submit([b"1"]).codes == {"Refused": 1}


def test_with_a_short_secret_the_endpoint_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where three letters are replaced, the text around them says what they were. A row's status stays."""
    answers: list[Answer | Exception] = [
        answer(401, b"pw abc")._replace(reason="abc"),
        answer(200, [{"status": 400, "why": "pw abc"}, {"status": 429}, {"why": "abc"}]),
        ConnectionResetError("abcd abc"),
    ]
    in_place_of_the_network(monkeypatch)(lambda _: answers.pop(0))
    made = destination(
        basicUser="me",
        basicPassword="abc",
        resultsPath="$",
        resultErrorPath="$.why",
        resultStatusPath="$.status",
    )
    assert error_of(made).startswith(
        "POST https://orders.test/v1/rows failed: HTTP status 401: "
        "(not shown, because a secret has fewer than 4 characters)"
    )
    result = made.submit([b"1", b"2", b"3"])

    assert result.codes == {"429": 1, "Refused": 1}
    assert "abc" not in result.rejected[0].reason
    assert f"ConnectionResetError: {LEFT_OUT}" in error_of(made)
