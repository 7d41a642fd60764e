"""Sizes of text as services count them."""

from __future__ import annotations

__all__ = ["utf8_length"]


def utf8_length(text: str) -> int:
    """The bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
