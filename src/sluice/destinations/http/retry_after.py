"""Reads the header ``Retry-After``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sluice.instants import http_date

__all__ = ["retry_after"]

_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait; None if it does not, or not in a form that is allowed.

    A date is compared with the answer's own: the clocks of two hosts differ. Without one it is not used.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    until, now = http_date(text), http_date(headers.get("date", ""))
    if until is None or now is None:
        return None
    return max(0.0, (until - now).total_seconds())
