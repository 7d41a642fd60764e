"""Reads segments of a table in a task, at the user's read capacity."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import msgspec

    from sluice.aws.calling.calls import Calls
    from sluice.aws.wire.items import ItemPage

__all__ = ["UNIT_BYTES", "ScanRange", "scan_pages"]

UNIT_BYTES: Final = 4096
"""Bytes that one unit of read capacity reads with strong consistency:
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/read-write-operations.html
"""


@dataclass(frozen=True, slots=True)
class ScanRange:
    """One segment of a table.

    "For a given TotalSegments value, all items with the same partition key are always assigned to the
    same Segment": https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Scan.html

    Attributes:
        table: its name in rows and messages.
        target: its name or ARN.
        keys: the attributes of its key.
        units: read capacity a second for the task; None: no limit.
    """

    table: str
    target: str
    keys: tuple[str, ...]
    segment: int
    segments: int
    units: float | None = None


def scan_pages(
    calls: Calls,
    ranges: Sequence[ScanRange],
    pause: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[ScanRange, Sequence[msgspec.Raw]]]:
    """Yields the items of segments, page by page.

    Args:
        calls: of ``Scan``.
        ranges: of one task: all with the same `ScanRange.units`.
        pause: sleeps for a number of seconds.
        clock: monotonic seconds.

    Raises:
        ServiceError: a call failed, and retries did not help.
    """
    from sluice.aws.wire.items import page_of  # noqa: PLC0415 - not at `load()`

    pace = _Pace(ranges[0].units, pause, clock)
    for each in ranges:
        # Strongly consistent: an old copy could lack a change from before the positions of the stream.
        request: dict[str, Any] = {
            "TableName": each.target,
            "ConsistentRead": True,
            "ReturnConsumedCapacity": "TOTAL",
        }
        if each.segments > 1:
            request |= {"Segment": each.segment, "TotalSegments": each.segments}
        while True:
            page = calls.call("Scan", f"table {each.table}", {**request, **pace.limit()}, page_of)
            pace.pay(page)
            if page.items:
                yield each, page.items
            if page.last_key is None:
                break
            request["ExclusiveStartKey"] = page.last_key


class _Pace:
    """Waits after each page until its consumption is covered. Idle time is not saved up."""

    def __init__(
        self, units: float | None, pause: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._units = units
        self._pause = pause
        self._clock = clock
        self._paid_at = clock()
        self._per_item = 1.0

    def limit(self) -> dict[str, int]:
        """Limits a page to about a second's consumption: by default it would be 256 units at once."""
        return {} if self._units is None else {"Limit": max(1, int(self._units / self._per_item))}

    def pay(self, page: ItemPage) -> None:
        if self._units is None:
            return
        units = (
            sum(len(bytes(item)) for item in page.items) / UNIT_BYTES if page.units is None else page.units
        )
        if page.items:
            self._per_item = max(units / len(page.items), 1 / UNIT_BYTES)
        self._paid_at += units / self._units
        if (wait := self._paid_at - self._clock()) > 0:
            self._pause(wait)
        self._paid_at = self._clock()
