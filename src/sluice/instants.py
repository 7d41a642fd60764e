"""Instants: whole microseconds since the epoch in UTC, as Arrow and Spark keep them.

Inside the library, an instant is an int of microseconds and a duration a float of seconds. This module
converts instants from and to the forms of services, users and offsets.
"""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Final

from sluice.errors import OptionError

__all__ = [
    "EPOCH",
    "MICROS_PER_SECOND",
    "TIME_FORM",
    "far_date",
    "far_instant",
    "http_date",
    "iso_instant",
    "micros_from_datetime",
    "micros_from_seconds",
    "micros_to_datetime",
    "parse_instant",
    "parse_time",
]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROS_PER_SECOND: Final = 1_000_000

_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min.replace(tzinfo=timezone.utc) - EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=timezone.utc) - EPOCH) // _MICROSECOND
_MICROS_PER_DAY: Final = 86_400 * MICROS_PER_SECOND
_DAYS_IN_400_YEARS: Final = 146_097
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")
_FIRST_SECOND: Final = 1_000_000_000  # 2001-09-09: smaller numbers are years, or dates without dashes
_DAY: Final = 86_400.0
TIME_FORM: Final = (
    "ISO-8601 such as 2026-01-31 or 2026-01-31T12:00:00.250Z (without an offset: UTC), or seconds since the "
    f"epoch, from {_FIRST_SECOND} (2001-09-09) to a day from now"
)
"""The times that users may write, for messages."""
_ISO: Final = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](?P<minute>\d\d:\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"\s?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?"
)


def micros_from_datetime(moment: datetime) -> int:
    """Microseconds since the epoch of a datetime that has a time zone."""
    return (moment - EPOCH) // _MICROSECOND


def micros_to_datetime(micros: int) -> datetime:
    """The datetime in UTC. Raises OverflowError beyond the years 1 to 9999."""
    return EPOCH + micros * _MICROSECOND


def http_date(text: str) -> datetime | None:
    """The instant of a header such as ``Date``; None if it has another form.

    The zone "-0000" is UTC, too (RFC 5322, 3.3): Python parses it as a time without a zone.
    """
    try:
        found = parsedate_to_datetime(text.strip())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def micros_from_seconds(seconds: float) -> int:
    """Microseconds of seconds, rounded half to even, as `datetime.fromtimestamp` and so the SDK round."""
    fraction, whole = math.modf(seconds)
    return int(whole) * MICROS_PER_SECOND + round(fraction * 1e6)


def iso_instant(micros: int) -> str:
    """Microseconds since the epoch as ISO-8601 in UTC: ``2026-01-31T12:00:00.250000Z``."""
    return micros_to_datetime(micros).isoformat().replace("+00:00", "Z")


def far_date(days: int) -> str:
    """Days since the epoch as an ISO-8601 date, also beyond the years 1 to 9999: ``+12026-01-31``.

    The calendar repeats every 400 years, so the day is computed in years that `datetime` supports.
    """
    cycles, rest = divmod(days, _DAYS_IN_400_YEARS)
    day = EPOCH + timedelta(days=rest)
    year = day.year + 400 * cycles
    shown = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{shown}-{day.month:02}-{day.day:02}"


def far_instant(micros: int) -> str:
    """Microseconds since the epoch as date and time in UTC, also beyond the years 1 to 9999."""
    days, rest = divmod(micros, _MICROS_PER_DAY)
    return f"{far_date(days)} {(EPOCH + rest * _MICROSECOND).time().isoformat()}"


def parse_instant(text: str) -> int:
    """Microseconds since the epoch of an ISO-8601 date or time.

    Time, seconds, fraction and offset may be left out; a time without an offset is UTC. Digits beyond
    microseconds are cut off. `datetime.fromisoformat` of Python 3.10 knows neither ``Z`` nor most fractions.

    Raises:
        ValueError: the text is not such a date, or is outside the years 1 to 9999 in UTC.
    """
    match = _ISO.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    moment = datetime.fromisoformat(f"{match['day']} {match['minute'] or '00:00'}:{match['second'] or '00'}")
    micros = int((match["fraction"] or "").ljust(6, "0")[:6])
    zone = timezone(_utc_offset(match["zone"] or "Z"))
    instant = micros_from_datetime(moment.replace(tzinfo=zone)) + micros
    if not _FIRST <= instant <= _LAST:
        raise ValueError(text)
    return instant


def parse_time(text: str) -> int:
    """Microseconds since the epoch of a time that a user wrote: see `TIME_FORM`.

    Raises:
        ValueError: the text is neither a time nor a number.
        OptionError: the text is a number outside the range of seconds, such as a date without dashes.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text) is None:
        return parse_instant(text)
    if not _FIRST_SECOND <= float(text) <= time.time() + _DAY:
        raise OptionError(f"is {text!r}: allowed is {TIME_FORM}")
    return int(Decimal(text) * MICROS_PER_SECOND)


def _utc_offset(zone: str) -> timedelta:
    if zone in "Zz":
        return timedelta(0)
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[2:]) > 59:
        raise ValueError(zone)
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -offset if zone[0] == "-" else offset
