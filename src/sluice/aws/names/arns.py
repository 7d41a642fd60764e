"""Names and ARNs of Kinesis streams and of their consumers.

The forms are those of
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonkinesisdatastreams.html,
in any partition (``aws``, ``aws-cn``, ``aws-us-gov``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = [
    "CONSUMER_ARN_FORM",
    "NAME_FORM",
    "STREAM_ARN_FORM",
    "ConsumerArn",
    "StreamArn",
    "consumer_path",
    "parse_name",
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
