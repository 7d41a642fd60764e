"""Arrow arrays of Python values are those that pyarrow makes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.wire.arrow_arrays import binaries, floats, integers, repeated, scalar, strings

MICROSECONDS = pa.timestamp("us", tz="UTC")


def check(made: pa.Array, values: list[object], kind: pa.DataType) -> None:
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@given(st.lists(st.text()))
def test_strings(values: list[str]) -> None:
    check(strings(values), [*values], pa.string())


@given(st.lists(st.binary()))
def test_binaries(values: list[bytes]) -> None:
    check(binaries(values), [*values], pa.binary())


@given(st.lists(st.floats(allow_nan=False)))
def test_floats(values: list[float]) -> None:
    check(floats(values), [*values], pa.float64())


@pytest.mark.parametrize("kind", [pa.int64(), MICROSECONDS])
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers(kind: pa.DataType, values: list[int]) -> None:
    made = integers(values, kind)
    assert made.type == kind
    check(made.view(pa.int64()), [*values], pa.int64())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        integers([2**31], pa.int32())
    with pytest.raises(UnicodeEncodeError):
        strings(["\ud800"])
    with pytest.raises(OverflowError):
        repeated("k" * 2**10, 2**21)


def test_single_values() -> None:
    for value, count in (("key-ä", 3), ("", 2), ("key", 0)):
        check(repeated(value, count), [value] * count, pa.string())
    assert scalar(1000, pa.int64()) == pa.scalar(1000, pa.int64())
    assert scalar(1e6, pa.float64()) == pa.scalar(1e6, pa.float64())
