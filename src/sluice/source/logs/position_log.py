"""A `StreamLog` over a service in which every record of a split has a number to read from, as in Kafka."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from sluice.errors import ServiceError, SourceRuleError
from sluice.source.logs.stream_log import IteratorStart, Page, StreamLog
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import SplitId

__all__ = ["PositionLog"]


class PositionLog(StreamLog):
    """A log that is read from numbers, without iterators.

    Implement `list_splits`, `bounds` and `read`; also `find_time` if the service supports it. A record's
    ``sequence_number`` is its number as text. Numbers may have gaps. If records after the last read
    position expire or are deleted, they count as lost. If `list_splits` returns a split with an
    ``ending_sequence``, the split gets no more records, and ends at its upper bound.

    Attributes:
        seeks_by_time: set it to True if `find_time` is implemented.
    """

    seeks_by_time = False
    pages_are_sorted = True  # `get_records` checks each record
    closed_splits_end_at_tip = True  # `read` cannot return the end

    @abstractmethod
    def bounds(self, split: SplitId) -> tuple[int, int]:
        """Returns the number of the oldest remaining record, and the number that the next new record
        will get.

        Raises:
            ServiceError: with ``missing``, if the split does not exist.
        """

    @abstractmethod
    def read(self, split: SplitId, number: int, limit: int) -> tuple[Sequence[Any], int]:
        """Returns up to `limit` records from `number` on, and the number to continue from.

        No records and a larger number mean that the numbers in between have no records. No records and
        the same number mean that none has arrived yet; the call may wait up to a second for records.
        """

    def find_time(self, split: SplitId, instant: int) -> int | None:
        """Returns the number of the first record that arrived at `instant` (microseconds) or later, or
        None.
        """
        raise NotImplementedError(f"{type(self).__name__} says seeks_by_time and has no find_time")

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        """See `StreamLog.get_iterator`. Iterators are numbers, and never expire."""
        low, high = self.bounds(split)
        match start.kind:
            case "TRIM_HORIZON":
                return str(low)
            case "LATEST":
                return str(high)
            case "AT_TIMESTAMP":
                found = self.find_time(split, start.timestamp or 0)
                return str(high if found is None else max(low, found))
        number, shown = _first_number(start), self.format_position
        if low <= number <= high:
            return str(number)
        raise ServiceError(
            f"{split}: number {shown(str(number))} is not there any more; the oldest one is {shown(str(low))}"
            if number < low
            else f"{split}: number {shown(str(number))} has not been written yet; the next one is "
            f"{shown(str(high))}",
            operation="bounds",
            target=str(split),
            invalid_argument=True,
        )

    def number_of(self, split: SplitId, start: IteratorStart) -> str | None:
        """See `StreamLog.number_of`."""
        is_unknown = start.kind == "AT_TIMESTAMP" and not self.seeks_by_time
        return None if is_unknown else self.get_iterator(split, start)

    def is_complete_from(self, split: SplitId, start: IteratorStart) -> bool:
        """See `StreamLog.is_complete_from`. By default: whether the oldest number is the first unread one."""
        return self.bounds(split)[0] == _first_number(start)

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        """See `StreamLog.get_records`.

        Raises:
            SourceRuleError: `read` returned records below `number`, or not in ascending order.
        """
        at = int(iterator)
        records, following = self.read(split, at, limit)
        last = at - 1
        for record in records:
            if (number := sequence_of(record.sequence_number)) <= last:
                raise SourceRuleError(
                    f"split {split}: positions rise; read(number={at}) gave record {number} after {last}"
                )
            last = number
        if following <= last:
            raise SourceRuleError(
                f"split {split}: read(number={at}) gave record {last}, and {following} as the next number, "
                "which is not higher"
            )
        _, high = self.bounds(split)
        if following >= high:
            return Page(records, str(following), 0)
        arrival = records[-1].arrival if records else self.server_time()
        return Page(records, str(following), max(1, (self.server_time() - arrival) // 1000))


def _first_number(start: IteratorStart) -> int:
    return int(start.sequence_number or 0) + (start.kind == "AFTER_SEQUENCE_NUMBER")
