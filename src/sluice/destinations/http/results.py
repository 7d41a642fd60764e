"""Reads the results of single rows from an endpoint's answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from sluice.destinations.http.json_path import JsonPath

__all__ = ["UNNAMED", "ResultPaths", "RowResult"]

_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_ACCEPTED_STATUS: Final = 200
_STATUSES: Final = range(100, 600)
UNNAMED: Final = "Refused"
"""The code of a row that was refused without one."""
_MOST_EXACT: Final = 2.0**53  # larger floats may equal several integers


class RowResult(NamedTuple):
    """What the endpoint says of one row.

    Attributes:
        status: an HTTP status; None: the row was refused, and the endpoint does not say how.
        code: of the error, for figures: the status if there is one.
        message: of the error, in the endpoint's words.
    """

    status: int | None
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ResultPaths:
    """Where an answer has the results.

    Attributes:
        results: the results, in an array or by a wildcard.
        status: in a result: its status, or true if the row was accepted and false if it was refused.
        error: in a result: its error; without `status`, a row that has none was accepted.
        index: in a result: the row's number in the request, from 0; rows without a result were accepted, all
            of them by an empty answer. None: there is a result for each row, in their order.
    """

    results: JsonPath
    status: JsonPath | None = None
    error: JsonPath | None = None
    index: JsonPath | None = None

    def read(self, body: bytes, count: int) -> list[tuple[int, RowResult]]:
        """The results, each with the row's number in the request. A row without a result was accepted.

        If the answer names rows by their numbers, a row may have several results.

        Args:
            body: the answer.
            count: rows of the request.

        Raises:
            ValueError: the answer is not JSON, lacks a result, or has a result that fits no row.
        """
        try:
            return self._read(body, count)
        except RecursionError:
            raise ValueError("the answer is nested too deeply") from None

    def _read(self, body: bytes, count: int) -> list[tuple[int, RowResult]]:
        if not body.strip():
            if self.index is not None:
                return []
            raise ValueError(
                f"the answer is empty: 'resultsPath' {self.results.text!r} without 'resultIndexPath' needs a "
                "result for each row"
            )
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ValueError("the answer is not JSON") from None
        results = self.results.find(document)
        if not self.results.has_wildcard:
            if self.index is not None and results == [None]:
                results = []  # how some languages write a list of refused rows that is empty
            if results and not isinstance(results[0], list):
                raise ValueError(f"'{self.results.text}' is not an array")
            results = results[0] if results else []
        if self.index is not None:
            return [(self._index(result, count), self._result(result)) for result in results]
        if len(results) != count:
            raise ValueError(f"{len(results)} results for {count} rows at '{self.results.text}'")
        return [(number, self._result(result)) for number, result in enumerate(results)]

    def _index(self, result: Any, count: int) -> int:
        assert self.index is not None  # noqa: S101 - for mypy; asked by the caller
        index = _whole(self.index.first(result))
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise ValueError(f"a result has no row's number at '{self.index.text}'")
        return index

    def _result(self, result: Any) -> RowResult:
        status = None if self.status is None else _whole(self.status.first(result))
        error = None if self.error is None else self.error.first(result)
        if isinstance(status, str) and re.fullmatch(r"[1-5]\d\d", status):
            status = int(status)
        message = error if isinstance(error, str) else msgspec.json.encode(error).decode() if error else ""
        if isinstance(status, bool):
            refused = not status
        elif isinstance(status, int) and status in _STATUSES:
            return RowResult(status, str(status), message)
        elif status is not None:
            raise ValueError(f"a result's '{self.status.text if self.status else ''}' is not a status")
        elif self.index is not None:
            refused = True  # a result with a row's number is there for that
        else:
            refused = error not in (None, False, "", [], {})
            if self.status is not None and not refused:
                # With a wrong path, or of a null, all rows would count as accepted.
                raise ValueError(f"a result has no '{self.status.text}'")
        if not refused:
            return RowResult(_ACCEPTED_STATUS, "", message)
        return RowResult(None, message if _CODE.fullmatch(message) else UNNAMED, message)


def _whole(value: Any) -> Any:
    """A whole number as an int: if all numbers are floats, 200 is written as 200.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_EXACT:
        return int(value)
    return value
