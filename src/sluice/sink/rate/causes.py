"""Why entries were not accepted: for load, or because something failed. Only load slows the sink down."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from sluice.errors import THROTTLING_CODES

__all__ = ["TABLE", "Cause", "Rule", "cause_of"]


class Cause(Enum):
    """What a code, a status or a message says. There is no third answer."""

    LOAD = "load"
    FAILURE = "failure"


class Rule(NamedTuple):
    """A line of the table. It applies if all that it names is the case.

    Attributes:
        cause: what it says.
        applies_to: for people.
        service: lower case, such as ``firehose``; empty for all.
        codes: a pattern for the code of an entry, of an answer, or the name of an exception's class.
        statuses: of HTTP; empty for any.
        messages: a pattern for the service's own sentence.
    """

    cause: Cause
    applies_to: str
    service: str = ""
    codes: str = ""
    statuses: range = range(0)
    messages: str = ""


# The first rule that applies decides. The last one applies to everything.
TABLE: Final = (
    Rule(Cause.LOAD, "Firehose: `ServiceUnavailableException`", "firehose", r"ServiceUnavailable\w*"),
    Rule(Cause.LOAD, "DynamoDB: `UnprocessedItems`", "dynamodb", "UnprocessedItems?"),
    Rule(Cause.LOAD, "the throttling codes of AWS", codes="|".join(sorted(THROTTLING_CODES))),
    Rule(
        Cause.LOAD,
        "codes with *throttle*, *too many requests*, *slow down*, *rate limit* or *rate exceeded* in them",
        codes=r"(\w+ )*(\w*throttl\w*|too many requests|slow down|rate (limit(ed)?|exceeded))( \w+)*",
    ),
    Rule(Cause.LOAD, "status or code 429", codes="(HTTP[ _]?)?429"),
    Rule(Cause.LOAD, "status or code 429", statuses=range(429, 430)),
    Rule(
        Cause.LOAD,
        "the sentences *Rate exceeded* and *Please reduce your request rate*",
        messages=r"(Rate exceeded|Please reduce your request rate)\.?",
    ),
    Rule(Cause.FAILURE, "any other status of 500 or more", statuses=range(500, 600)),
    Rule(Cause.LOAD, "entries that a destination refuses without a code", codes="(?!.)"),
    Rule(
        Cause.FAILURE, "everything else, such as time-outs, lost connections, `InternalFailure`, your codes"
    ),
)
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\W]+")


def cause_of(code: str, *, service: str = "", status: int | None = None, message: str = "") -> Cause:
    """The cause that a refusal names.

    Args:
        code: of an entry or an answer, or the name of an exception's class; a namespace before it is ignored.
        service: that it comes from, such as ``firehose``.
        status: of HTTP.
        message: the service's own sentence. Text with data of the user must not be passed.
    """
    name = re.split(r"[.#]", code)[-1]
    words = _WORDS.sub(" ", name).lower()
    return next(rule.cause for rule in TABLE if _applies(rule, name, words, service.lower(), status, message))


def _applies(  # noqa: PLR0913, PLR0917 - what a refusal consists of
    rule: Rule, name: str, words: str, service: str, status: int | None, message: str
) -> bool:
    return (
        rule.service in {"", service}
        and (not rule.statuses or status in rule.statuses)
        and (not rule.codes or bool(re.fullmatch(rule.codes, name) or re.fullmatch(rule.codes, words)))
        and (not rule.messages or re.fullmatch(rule.messages, message) is not None)
    )
