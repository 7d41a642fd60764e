"""The streams that a source reads: options ``streamName`` and ``streamArn``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice.aws.names.arns import STREAM_ARN_FORM, StreamArn, parse_name
from sluice.errors import OptionError
from sluice.options import Kind, Option, OptionValues

__all__ = ["STREAM_ARN", "STREAM_NAME", "StreamRef", "streams_from_options"]

_NAME_KEY: Final = "streamName"
_ARN_KEY: Final = "streamArn"


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream. Offsets, rows and messages know it by its name; calls use its ARN where it is given."""

    name: str
    arn: str | None = None

    @property
    def region(self) -> str | None:
        """The region that the ARN names."""
        return None if self.arn is None else StreamArn.parse(self.arn).region

    @property
    def address(self) -> dict[str, str]:
        """What a request of the service names it by."""
        return {"StreamName": self.name} if self.arn is None else {"StreamARN": self.arn}


def _parse_names(text: str) -> tuple[StreamRef, ...]:
    items = _split_list(text)
    if any(item.startswith("arn:") for item in items):
        raise OptionError(f"is {text!r}: that is an ARN, which belongs into '{_ARN_KEY}'")
    return _without_duplicates((StreamRef(parse_name(item)) for item in items), text)


def _parse_arns(text: str) -> tuple[StreamRef, ...]:
    arns = [StreamArn.parse(item) for item in _split_list(text)]
    if len({arn.region for arn in arns}) > 1:
        raise OptionError(f"is {text!r}: all streams of one source have to be in the same region")
    return _without_duplicates((StreamRef(arn.stream, arn.text) for arn in arns), text)


def _split_list(text: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise ValueError(text)
    return items


def _without_duplicates(refs: Iterable[StreamRef], text: str) -> tuple[StreamRef, ...]:
    by_name: dict[str, StreamRef] = {}
    for ref in refs:
        if ref.name in by_name:
            # Offsets and rows know streams by name, also those of two accounts.
            raise OptionError(f"is {text!r}: stream '{ref.name}' is there more than once")
        by_name[ref.name] = ref
    return tuple(by_name.values())


STREAM_NAME: Option[tuple[StreamRef, ...]] = Option(
    _NAME_KEY,
    Kind("streams", "a stream's name (letters, digits, _ . -), or several, comma-separated", _parse_names),
    None,
    "Stream to read, or several, comma-separated.",
    shown_default=f"this or `{_ARN_KEY}` is required",
)
STREAM_ARN: Option[tuple[StreamRef, ...]] = Option(
    _ARN_KEY,
    Kind("arns", f"{STREAM_ARN_FORM}, or several, comma-separated", _parse_arns),
    None,
    "The same by ARN, for instance a stream of another account. All in one region.",
    shown_default=f"this or `{_NAME_KEY}` is required",
)


def streams_from_options(values: OptionValues) -> tuple[StreamRef, ...]:
    """Reads the streams, in the order given; notes what is wrong for `OptionValues.check`.

    Args:
        values: read with STREAM_NAME and STREAM_ARN declared.
    """
    by_name, by_arn = values.get(STREAM_NAME) or (), values.get(STREAM_ARN) or ()
    if by_name and by_arn:
        values.reject(_NAME_KEY, f"and '{_ARN_KEY}' exclude one another: give one of them")
    if not values.mentions(STREAM_NAME) and not values.mentions(STREAM_ARN):
        values.reject(_NAME_KEY, f"or '{_ARN_KEY}' is required: {STREAM_NAME.kind.allowed}")
    return by_arn or by_name
