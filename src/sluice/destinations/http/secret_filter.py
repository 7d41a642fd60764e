"""Hides secrets in what an endpoint says: it may repeat them, as they are or escaped.

Known are the escapes of JSON and of programming languages (``\\/``, ``\\u003d``, ``\\x3d``), of URLs
(``%3D``) and of HTML (``&amp;``, ``&#61;``, ``&#x3d;``), applied twice as well, and HTML within JSON.

An endpoint may also send what makes a pattern slow: patterns are made so that there are few ways to match a
text.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from html.entities import html5
from typing import Final

__all__ = ["SecretFilter"]

_HIDDEN: Final = "***"
# Shorter values would hide parts of words, and be guessed from what is left.
_SHORTEST: Final = 4
_LEFT_OUT: Final = f"(not shown, because a secret has fewer than {_SHORTEST} characters)"
_SHOWN: Final = 2000  # characters of a text
_LONGEST_FORM: Final = 48  # characters that one character becomes

_CONTROLS: Final = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}


class SecretFilter:
    """Hides values in texts.

    Args:
        secrets: the values.

    Attributes:
        has_short: whether a secret is so short that it cannot be hidden in a text without guessing.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        given = {each for each in secrets if each}
        self.has_short = any(len(each) < _SHORTEST for each in given)
        self._window = _SHOWN + _LONGEST_FORM * max(map(len, given), default=0)
        self._secrets = given

    @functools.cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        # Made when first needed: most tasks see no error, and long secrets take a while. Within a lookahead,
        # matches that overlap are found as well.
        return [re.compile(f"(?=({_pattern(each)}))") for each in self._secrets]

    def hide(self, text: str) -> str:
        """The beginning of `text` without the secrets. Of short ones, those that are words of their own.

        It is cut last: of a secret that stands across the cut, nothing is shown.
        """
        window = text[: self._window]
        spans = sorted(match.span(1) for each in self._patterns for match in each.finditer(window))
        shown: list[str] = []
        position = 0
        for start, end in spans:
            if start >= _SHOWN:
                break
            if start >= position:
                shown += (window[position:start], _HIDDEN)
            position = max(position, end)
        return "".join([*shown, window[position:_SHOWN]])

    def hide_in_answer(self, text: bytes | str) -> str:
        """The same for the endpoint's own words, which are left out if a secret is short."""
        if self.has_short and text:
            return _LEFT_OUT
        if isinstance(text, bytes):
            # At most four bytes are a character. Without zeros, UTF-16 is text that can be searched, too.
            text = text[: 4 * self._window].decode(errors="replace").replace("\0", "")
        return self.hide(text)


def _pattern(secret: str) -> str:
    runs = ((char, sum(1 for _ in same)) for char, same in itertools.groupby(secret))
    text = "".join(_backslashes(n) if char == "\\" else _character(char) * n for char, n in runs)
    return text if len(secret) >= _SHORTEST else f"(?<![A-Za-z0-9]){text}(?![A-Za-z0-9])"


@functools.lru_cache(maxsize=256)
def _character(char: str) -> str:
    """A pattern of all forms of a character."""
    literal = re.escape(char) if char.isalnum() else r"\\{0,4}" + re.escape(char)
    forms = [_entity(char), *_escapes(char), _percent(char), literal]
    if char in _CONTROLS:
        forms.append(r"\\{1,4}" + _CONTROLS[char])
    if char == " ":
        forms.append(r"\+")
    if not char.isascii():
        forms.append("\N{REPLACEMENT CHARACTER}")  # of an answer that is not UTF-8
    return f"(?:{'|'.join(forms)})"


def _backslashes(count: int) -> str:
    """As one pattern: patterns of their own could share out a long row of them in too many ways."""
    forms = (r"\\(?i:u005c|u\{0{0,6}5c\}|x5c)?", _percent("\\"), "&(?:bsol|#92|#[xX]5[cC]);")
    return f"(?:{'|'.join(forms)}){{{count},{8 * count}}}"


def _escapes(char: str) -> list[str]:
    r"""``\u003d``, also as two surrogates, ``\U0001f4a9`` or ``\u{3d}``, and ``\x3d``, also of each byte."""
    units = char.encode("utf-16-be", "surrogatepass")
    codes = [units[n : n + 2].hex() for n in range(0, len(units), 2)]
    data = char.encode("utf-8", "surrogatepass")
    forms = [[f"u{code}" for code in codes], [f"x{byte:02x}" for byte in data]]
    forms.append([rf"u\{{0{{0,6}}{ord(char):x}\}}"])
    if len(codes) == 2:
        forms.append([f"u{ord(char):08x}"])
    elif 0x80 <= ord(char) < 0x100:
        forms.append([f"x{ord(char):02x}"])
    return ["".join(rf"\\{{1,4}}(?i:{part})" for part in form) for form in forms]


def _percent(char: str) -> str:
    data = char.encode("utf-8", "surrogatepass")
    return "".join(f"%(?:25){{0,2}}(?i:{byte:02x})" for byte in data)


def _entity(char: str) -> str:
    names = sorted({name.rstrip(";") for name, value in html5.items() if value == char})
    forms = [f"#0{{0,6}}{ord(char)}", f"#(?i:x0{{0,6}}{ord(char):x})", *names]
    # JSON may escape the ampersand, or have a backslash before what is then written in HTML.
    ampersand = r"(?:\\{0,4}&|\\{1,4}(?i:u0026))"
    return f"{ampersand}(?:amp;){{0,2}}(?:{'|'.join(forms)});?"
