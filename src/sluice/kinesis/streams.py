"""How streams are named: by name, or by ARN, which also says where they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.errors import OptionError
from sluice.options import Kind, Option, OptionValues

__all__ = ["STREAM_ARN", "STREAM_NAME", "StreamRef", "streams_from_options"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ARN = re.compile(
    r"arn:aws[a-z-]*:kinesis:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):stream/(?P<name>[A-Za-z0-9_.-]{1,128})"
)


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream. Everywhere else it goes by its name; calls use the ARN where there is one."""

    name: str
    arn: str | None = None

    @property
    def region(self) -> str | None:
        """The region that the ARN names."""
        match = _ARN.fullmatch(self.arn or "")
        return match["region"] if match else None


def _items(text: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise ValueError(text)
    return items


def _parse_names(text: str) -> tuple[StreamRef, ...]:
    names = _items(text)
    for name in names:
        if name.startswith("arn:"):
            raise OptionError(f"is {text!r}: that is an ARN, which belongs into '{_ARN_KEY}'")
        if _NAME.fullmatch(name) is None:
            raise ValueError(text)
    return _once(tuple(StreamRef(name) for name in names), text)


def _parse_arns(text: str) -> tuple[StreamRef, ...]:
    matches = [_ARN.fullmatch(arn) for arn in _items(text)]
    refs = tuple(StreamRef(match["name"], match[0]) for match in matches if match)
    if len(refs) < len(matches):
        raise ValueError(text)
    if len({ref.region for ref in refs}) > 1:
        raise OptionError(f"is {text!r}: all streams of one source have to be in the same region")
    return _once(refs, text)


def _once(refs: tuple[StreamRef, ...], text: str) -> tuple[StreamRef, ...]:
    for name in _duplicates(ref.name for ref in refs):
        # Offsets and rows know streams by name.
        raise OptionError(f"is {text!r}: stream '{name}' is there more than once")
    return refs


def _duplicates(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


_NAME_KEY, _ARN_KEY = "streamName", "streamArn"

STREAM_NAME: Option[tuple[StreamRef, ...]] = Option(
    _NAME_KEY,
    Kind("streams", "a stream's name (letters, digits, _ . -), or several, comma-separated", _parse_names),
    None,
    "Stream to read, or several, comma-separated.",
    shown_default=f"this or `{_ARN_KEY}` is required",
)
STREAM_ARN: Option[tuple[StreamRef, ...]] = Option(
    _ARN_KEY,
    Kind(
        "arns", "arn:aws:kinesis:<region>:<account>:stream/<name>, or several, comma-separated", _parse_arns
    ),
    None,
    "The same by ARN, for instance a stream of another account. All in one region.",
    shown_default=f"this or `{_NAME_KEY}` is required",
)


def streams_from_options(values: OptionValues, *, mentioned: bool) -> tuple[StreamRef, ...]:
    """The streams, in the order given. What does not fit is noted for `values.check()`.

    Args:
        values: read with STREAM_NAME and STREAM_ARN declared.
        mentioned: whether the user gave either key, maybe with a value that was refused.
    """
    by_name, by_arn = values.get(STREAM_NAME) or (), values.get(STREAM_ARN) or ()
    if by_name and by_arn:
        values.reject(_NAME_KEY, f"and '{_ARN_KEY}' exclude one another: give one of them")
    if not mentioned:
        values.reject(_NAME_KEY, f"or '{_ARN_KEY}' is required: {STREAM_NAME.kind.allowed}")
    return by_arn or by_name
