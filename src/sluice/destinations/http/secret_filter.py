"""Leaves out what an endpoint says if it repeats a secret, as it is or escaped.

Known are the escapes of JSON and of programming languages (``\\/``, ``\\u003d``, ``\\x3d``), of URLs
(``%3D``) and of HTML (``&amp;``, ``&#61;``), also one in another: a text is unescaped again and again, and
each form of it is searched.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterable
from functools import partial
from typing import Final
from urllib.parse import unquote

__all__ = ["SecretFilter"]

_SHORTEST: Final = 4
"""Characters. Shorter secrets are parts of many words."""
_TOO_SHORT: Final = f"(not shown, because a secret has fewer than {_SHORTEST} characters)"
_REPEATED: Final = "(not shown, because a secret is in it)"
_SHOWN: Final = 2000
"""Characters of a text."""
_LONGEST_FORM: Final = 48
"""Characters that one character becomes."""
_ROUNDS: Final = 4
"""How often a text is unescaped."""
_ESCAPE: Final = re.compile(
    r"(?<!\\)\\+(?:u\{0{0,6}([0-9a-f]{1,6})\}|u([0-9a-f]{4})|U([0-9a-f]{8})|x([0-9a-f]{2}))", re.IGNORECASE
)
_UNCLEAR: Final = re.compile(r"\\+[abtnfrv]?|[^!-~]|\+")
"""Characters that can be written in many ways: backslashes, blanks, control characters, and characters beyond
ASCII.
"""


class SecretFilter:
    """Leaves out texts that hold secrets.

    Args:
        secrets: the values.

    Attributes:
        has_short: whether a secret is so short that it is a part of many words.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = {each for each in secrets if each}
        self.has_short = any(len(each) < _SHORTEST for each in self._secrets)
        self._window = _SHOWN + _LONGEST_FORM * max(map(len, self._secrets), default=0)

    def hide(self, text: str) -> str:
        """The beginning of `text`, or why it is not shown. It is searched beyond its end."""
        forms = _forms(text[: self._window])
        if any(_is_in(secret, forms) for secret in self._secrets):
            return _REPEATED
        return text[:_SHOWN]

    def hide_in_answer(self, text: bytes | str) -> str:
        """The same for the endpoint's own words, which are always left out if a secret is short."""
        if self.has_short and text:
            return _TOO_SHORT
        if isinstance(text, bytes):
            # At most four bytes are a character. Without zeros, UTF-16 is text that can be searched, too.
            text = text[: 4 * self._window].decode(errors="replace").replace("\0", "")
        return self.hide(text)


def _is_in(secret: str, forms: Iterable[str]) -> bool:
    if len(secret) < _SHORTEST:
        word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])")
        return any(map(word.search, forms))
    bare = _forms(secret)[-1]
    return any(secret in form or (len(bare) > 1 and bare in form) for form in forms)


def _forms(text: str) -> list[str]:
    """The text, unescaped once and more often, and finally without characters that can be written in many
    ways.
    """
    forms = [text]
    for _ in range(_ROUNDS):
        for unescape in (unquote, html.unescape, partial(_ESCAPE.sub, _unescaped)):
            forms.append(unescape(forms[-1]))
    return [*forms, _UNCLEAR.sub("", forms[-1])]


def _unescaped(found: re.Match[str]) -> str:
    code = int(next(filter(None, found.groups())), 16)
    return chr(code) if code <= sys.maxunicode else ""
