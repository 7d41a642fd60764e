"""Why entries were not accepted: for load, or because something failed. Only load slows the sink down."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from sluice.errors import THROTTLING_CODES

__all__ = ["TABLE", "Cause", "Rule", "cause_of"]


class Cause(Enum):
    """Every refusal is one of these two."""

    LOAD = "load"
    FAILURE = "failure"


class Rule(NamedTuple):
    """A line of the table. It applies if every field that is set matches; `applies_to` is for the docs."""

    cause: Cause
    applies_to: str
    service: str = ""  # lower case
    codes: str = ""  # a pattern for the code, or for its words in lower case
    statuses: range = range(0)
    messages: str = ""  # a pattern for the service's own sentence


_NO_CODE: Final = "(?!.)"  # matches the empty code alone
# The first rule that applies decides. The last one applies to everything.
TABLE: Final = (
    Rule(Cause.LOAD, "Firehose: `ServiceUnavailableException`", "firehose", r"ServiceUnavailable\w*"),
    Rule(Cause.LOAD, "DynamoDB: `UnprocessedItems`", "dynamodb", "UnprocessedItems?"),
    Rule(Cause.LOAD, "the throttling codes of AWS", codes="|".join(sorted(THROTTLING_CODES))),
    Rule(
        Cause.LOAD,
        "codes with *throttle*, *too many requests*, *slow down*, *rate limit* or *rate exceeded* in them",
        codes=r"(\w+ )*(\w*throttl\w*|too many requests|slow ?down|rate (limit\w*|exceeded))( \w+)*",
    ),
    Rule(Cause.LOAD, "code 429", codes="(http ?|error )?429"),
    Rule(Cause.LOAD, "status 429", statuses=range(429, 430)),
    Rule(
        Cause.LOAD,
        "the sentences *Rate exceeded* and *Please reduce your request rate*",
        messages=r"(Rate exceeded|Please reduce your request rate)\.?",
    ),
    Rule(Cause.FAILURE, "any other status", statuses=range(1, 1000)),
    Rule(Cause.LOAD, "entries that a destination refuses without a code", codes=_NO_CODE),
    Rule(
        Cause.FAILURE, "everything else, such as time-outs, lost connections, `InternalFailure`, your codes"
    ),
)
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\W]+")


def cause_of(code: str, *, service: str = "", status: int | None = None, message: str = "") -> Cause:
    """The cause that a refusal names.

    Args:
        code: of an entry or an answer, or the name of an exception's class.
        service: that it comes from, such as ``firehose``.
        status: of HTTP.
        message: the service's own sentence, without data of the user.
    """
    # ``com.amazonaws#Throttling:http://…`` has a namespace before the code and a page behind it.
    name = re.split(r"[.#]", code.partition(":")[0].rstrip(".#"))[-1]
    words = _WORDS.sub(" ", name).lower()

    def applies(rule: Rule) -> bool:
        return (
            rule.service in {"", service.lower()}
            and (not rule.statuses or status in rule.statuses)
            and (not rule.codes or any(re.fullmatch(rule.codes, each) for each in (name, words)))
            and (not rule.messages or re.fullmatch(rule.messages, message) is not None)
        )

    return next(rule.cause for rule in TABLE if applies(rule))
