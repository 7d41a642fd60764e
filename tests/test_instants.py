"""Instants: every form they are read and written in, to the microsecond."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.instants import (
    EPOCH,
    http_date,
    iso_instant,
    micros_from_datetime,
    micros_from_seconds,
    micros_to_datetime,
    parse_instant,
    parse_time,
)

NOON = 1_767_268_800_000_000  # 2026-01-01T12:00:00Z
HOUR = 3_600_000_000
EVERY_INSTANT = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)

ISO = [
    ("2026-01-01T12:00:00Z", NOON),
    ("2026-01-01t12:00:00z", NOON),
    ("2026-01-01T12:00:00+00:00", NOON),
    ("2026-01-01T13:30:00+01:30", NOON),
    ("2026-01-01T07:00:00-0500", NOON),
    ("2026-01-01T13:00:00+01", NOON),
    ("2026-01-01T12:00:00", NOON),
    ("2026-01-01 12:00:00", NOON),
    ("2026-01-01T12:00", NOON),
    ("2026-01-01", NOON - 12 * HOUR),
    ("2026-01-01T12:00:00.5Z", NOON + 500_000),
    ("2026-01-01T12:00:00.250", NOON + 250_000),
    ("2026-01-01T12:00:00,000001Z", NOON + 1),
    ("2026-01-01T12:00:00.123456789Z", NOON + 123_456),
    ("1970-01-01T00:00:00Z", 0),
    ("1969-12-31T23:59:59.999999Z", -1),
    ("0001-01-01T01:00:00+01:00", -62_135_596_800_000_000),
    ("9999-12-31T22:59:59.999999-01:00", 253_402_300_799_999_999),
]
SECONDS = [
    (" 1767268800 ", NOON),
    ("1767268800.25", NOON + 250_000),
    ("1767268800.000001", NOON + 1),
    ("1000000000", 1_000_000_000_000_000),
]
NEITHER = [
    "",
    "noon",
    "12:00",
    "2026-13-01T00:00:00Z",
    "2026-01-01T25:00:00Z",
    "2026-01-01T12:00:00+99:00",
    "2026-01-01T12:00:00+01:75",
    "0001-01-01T00:00:00+14:00",
    "0001-01-01T00:59:59.999999+01:00",
    "9999-12-31T23:59:59-12:00",
    "9999-12-31T23:00:00-01:00",
    "1767268800000",
    "99999999999",
    "999999999",
    "20260131",
    "2026",
    "0",
    "-5",
    "1e9",
    "nan",
]


@pytest.mark.parametrize(("text", "micros"), ISO)
def test_iso_times_are_read_to_the_microsecond(text: str, micros: int) -> None:
    """With any offset, without one as UTC, with as many digits of a fraction as there are."""
    assert parse_instant(text) == micros
    assert parse_time(text) == micros


@pytest.mark.parametrize(("text", "micros"), SECONDS)
def test_users_may_write_seconds(text: str, micros: int) -> None:
    """Seconds since the epoch, with fractions; only where a user writes the time."""
    assert parse_time(text) == micros
    with pytest.raises(ValueError, match=text.strip()):
        parse_instant(text)


@pytest.mark.parametrize("text", NEITHER)
def test_other_text_is_refused(text: str) -> None:
    """Also milliseconds since the epoch, which would be in the far future."""
    with pytest.raises(ValueError):  # noqa: PT011 - the caller names the option
        parse_time(text)
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        parse_instant(text)


@given(EVERY_INSTANT)
def test_every_form_gives_the_instant_back(micros: int) -> None:
    """Written as ISO-8601 or as a datetime, an instant is read as itself."""
    assert parse_instant(iso_instant(micros)) == micros
    assert micros_from_datetime(micros_to_datetime(micros)) == micros


@given(st.floats(-62_135_596_800.0, 253_402_300_798.0))
def test_seconds_become_the_microseconds_that_python_makes_of_them(seconds: float) -> None:
    """The SDK makes datetimes of seconds in this way: both ways of reading a record agree."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)

    assert micros_from_seconds(seconds) == (moment - EPOCH) // timedelta(microseconds=1)


def test_seconds_are_rounded_half_to_even() -> None:
    """As Python rounds."""
    seconds = (1.5, -1.5, 1 / 128, 3 / 128, -1 / 128, -3 / 128)

    assert [micros_from_seconds(each) for each in seconds] == [
        1_500_000,
        -1_500_000,
        7_812,
        23_438,
        -7_812,
        -23_438,
    ]


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000", "UT"])
@pytest.mark.parametrize("here", ["UTC", "Asia/Tokyo"])
def test_dates_of_answers_are_utc(zone: str, here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a host that does not tell its zone, wherever they are read."""
    monkeypatch.setenv("TZ", here)
    time.tzset()
    try:
        found = http_date(f" Sun, 06 Nov 1994 08:49:37 {zone}")
        assert found is not None
        assert found.timestamp() == 784_111_777
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "now", "Sun, 99 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z"])
def test_what_is_no_date_is_none(text: str) -> None:
    assert http_date(text) is None
