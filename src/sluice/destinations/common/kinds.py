"""Kinds of options that are a matter of spelling."""

from __future__ import annotations

import re

from sluice.options import Kind

__all__ = ["matching"]


def matching(name: str, allowed: str, pattern: re.Pattern[str]) -> Kind[str]:
    """Text that `pattern` matches as a whole; blanks around it do not count.

    Args:
        name: of the kind.
        allowed: what error messages say is allowed.
        pattern: the spelling.
    """

    def parse(text: str) -> str:
        if pattern.fullmatch(text.strip()) is None:
            raise ValueError(text)
        return text.strip()

    return Kind(name, allowed, parse)
