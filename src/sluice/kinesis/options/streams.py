"""The streams that a source reads: options ``streamName`` and ``streamArn``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice.aws.names.arns import (
    STREAM_ARN_FORM,
    StreamArn,
    parse_name,
    references,
    references_from_options,
)
from sluice.errors import OptionError
from sluice.options import Option, OptionValues

__all__ = ["STREAM_ARN", "STREAM_NAME", "StreamRef", "streams_from_options"]

_NAME_KEY: Final = "streamName"
_ARN_KEY: Final = "streamArn"


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream. Offsets, rows and messages use its name; calls use its ARN if the user gave one."""

    name: str
    arn: str | None = None

    @property
    def region(self) -> str | None:
        """The region that the ARN names."""
        return None if self.arn is None else StreamArn.parse(self.arn).region

    @property
    def address(self) -> dict[str, str]:
        """The parameter that names it in a request."""
        return {"StreamName": self.name} if self.arn is None else {"StreamARN": self.arn}


def _by_name(text: str) -> StreamRef:
    if text.startswith("arn:"):
        raise OptionError(f"is {text!r}: that is an ARN, which belongs into '{_ARN_KEY}'")
    return StreamRef(parse_name(text))


def _by_arn(text: str) -> StreamRef:
    arn = StreamArn.parse(text)
    return StreamRef(arn.stream, arn.text)


STREAM_NAME: Option[tuple[StreamRef, ...]] = Option(
    _NAME_KEY,
    references("streams", "a stream's name (letters, digits, _ . -)", "stream", _by_name),
    None,
    "Stream to read, or several, comma-separated.",
    shown_default=f"this or `{_ARN_KEY}` is required",
)
STREAM_ARN: Option[tuple[StreamRef, ...]] = Option(
    _ARN_KEY,
    references("arns", STREAM_ARN_FORM, "stream", _by_arn),
    None,
    "Streams by ARN, for example of another account. All in one region.",
    shown_default=f"this or `{_NAME_KEY}` is required",
)


def streams_from_options(values: OptionValues) -> tuple[StreamRef, ...]:
    """Reads the streams, in the user's order; `OptionValues.check` raises the errors.

    Args:
        values: read with STREAM_NAME and STREAM_ARN declared.
    """
    return references_from_options(values, STREAM_NAME, STREAM_ARN)
