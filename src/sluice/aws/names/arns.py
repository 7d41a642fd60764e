"""Names and ARNs of Kinesis streams and of their consumers, and lists of names and ARNs in options.

The forms are those of
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonkinesisdatastreams.html,
in any partition (``aws``, ``aws-cn``, ``aws-us-gov``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from sluice.errors import OptionError
from sluice.options import Kind, Option, OptionValues

__all__ = [
    "CONSUMER_ARN_FORM",
    "NAME_FORM",
    "STREAM_ARN_FORM",
    "ConsumerArn",
    "StreamArn",
    "consumer_path",
    "parse_name",
    "references",
    "references_from_options",
]

NAME_FORM: Final = "1 to 128 letters, digits or any of _.-"
STREAM_ARN_FORM: Final = "arn:aws:kinesis:<region>:<account>:stream/<name>"
CONSUMER_ARN_FORM: Final = (
    "arn:aws:kinesis:<region>:<account>:stream/<stream>/consumer/<consumer>:<creationTimestamp>"
)

_NAME: Final = r"[A-Za-z0-9_.-]{1,128}"
_STREAM: Final = (
    rf"arn:aws[a-z-]*:kinesis:(?P<region>[a-z0-9-]+):(?P<account>\d{{12}}):stream/(?P<stream>{_NAME})"
)
_NAME_PATTERN: Final = re.compile(_NAME)
_STREAM_PATTERN: Final = re.compile(_STREAM)
_CONSUMER_PATTERN: Final = re.compile(rf"(?P<stream_arn>{_STREAM})/consumer/(?P<consumer>{_NAME}):\d+")


def parse_name(text: str) -> str:
    """The name of a stream or of a consumer, without spaces around it. Raises ValueError for other text."""
    name = text.strip()
    if _NAME_PATTERN.fullmatch(name) is None:
        raise ValueError(text)
    return name


@dataclass(frozen=True, slots=True)
class StreamArn:
    """The ARN of a stream, and its parts."""

    text: str
    region: str
    account: str
    stream: str

    @classmethod
    def parse(cls, text: str) -> StreamArn:
        """Raises ValueError for other text."""
        match = _STREAM_PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        return cls(match[0], match["region"], match["account"], match["stream"])


@dataclass(frozen=True, slots=True)
class ConsumerArn:
    """The ARN of a consumer, and its parts."""

    text: str
    region: str
    stream_arn: str
    stream: str
    consumer: str

    @classmethod
    def parse(cls, text: str) -> ConsumerArn:
        """Raises ValueError for other text."""
        match = _CONSUMER_PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        return cls(match[0], match["region"], match["stream_arn"], match["stream"], match["consumer"])


def consumer_path(arn: str) -> str:
    """``<stream>/consumer/<consumer>`` for messages; an ARN of another form as it is."""
    return arn.partition(":stream/")[2].rpartition(":")[0] or arn


class _Reference(Protocol):
    """A stream or table that is read."""

    @property
    def name(self) -> str: ...
    @property
    def region(self) -> str | None: ...


RefT = TypeVar("RefT", bound=_Reference)


def references(name: str, allowed: str, noun: str, parse: Callable[[str], RefT]) -> Kind[tuple[RefT, ...]]:
    """A comma-separated list of names, or of ARNs: none twice, all of one region.

    Args:
        name: of the kind.
        allowed: what one of them is, for messages.
        noun: ``stream`` or ``table``.
        parse: reads one, without spaces around it. Raises ValueError for other text.
    """

    def parse_all(text: str) -> tuple[RefT, ...]:
        refs = [parse(item.strip()) for item in text.split(",")]
        if len({ref.region for ref in refs}) > 1:
            raise OptionError(f"is {text!r}: all streams of one source have to be in the same region")
        names = [ref.name for ref in refs]
        for each in names:
            if names.count(each) > 1:  # offsets and rows have only the names of streams, also of two accounts
                raise OptionError(f"is {text!r}: {noun} '{each}' is named more than once")
        return tuple(refs)

    return Kind(name, f"{allowed}, or several, comma-separated", parse_all)


def references_from_options(
    values: OptionValues, by_name: Option[tuple[RefT, ...]], by_arn: Option[tuple[RefT, ...]]
) -> tuple[RefT, ...]:
    """The entries of one of two options, in the given order; `OptionValues.check` raises the errors."""
    named, given = values.get(by_name) or (), values.get(by_arn) or ()
    if named and given:
        values.reject(by_name.key, f"and '{by_arn.key}' exclude one another: give one of them")
    if not values.mentions(by_name) and not values.mentions(by_arn):
        values.reject(by_name.key, f"or '{by_arn.key}' is required: {by_name.kind.allowed}")
    return given or named
