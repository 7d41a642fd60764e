"""Reads the header ``Retry-After``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Final

__all__ = ["retry_after"]

_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait; None if it does not, or not in a form that is allowed.

    A date is compared with the answer's own: the clocks of two hosts differ. Without one it is not used.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    until, now = _instant(text), _instant(headers.get("date", ""))
    if until is None or now is None:
        return None
    return max(0.0, (until - now).total_seconds())


def _instant(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text.strip())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
