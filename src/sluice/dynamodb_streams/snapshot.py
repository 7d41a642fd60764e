"""Plans a query that reads a table first, and then the changes since before that.

1. The planner records the current positions of the stream. Then it describes the table and divides it
into segments. All offsets of the scan contain both.
2. A batch reads whole segments, with strongly consistent reads, and its end names them. Items never
change segments, so a repeated batch covers the same keys, regardless of later writes. The last key of a
page cannot be the end, because the end of a batch is logged before it is read.
3. After all segments, the planner reads the stream from the recorded positions. Changes that a scan may
have missed are later than these positions; earlier changes are in the items.
4. So every item ends in the state of its last change. Until the changes since the scan have been read,
an item may be newer than its neighbours.
5. This fails if changes expire before they are read: hence `_TIME_FOR_SCAN`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sluice.aws.calling.calls import Calls
from sluice.dynamodb_streams.client import RETENTION
from sluice.dynamodb_streams.options import INITIAL_SNAPSHOT, SCAN_READ_UNITS
from sluice.dynamodb_streams.streams import TableRef
from sluice.dynamodb_streams.table_scan import UNIT_BYTES, ScanRange
from sluice.errors import OptionError, SluiceError
from sluice.instants import MICROS_PER_SECOND, micros_from_seconds
from sluice.source.contracts import SplitEnumerator
from sluice.source.model.offsets import Offsets, Scan, SplitRange
from sluice.source.model.splits import SplitId
from sluice.source.planning.enumerator import StreamEnumerator
from sluice.source.settings import NO_LIMITS, Limits

__all__ = ["ScanSettings", "SnapshotEnumerator", "TableCatalog"]

_TIME_FOR_SCAN: Final = RETENTION - 3600.0
"""Maximum seconds from the positions to the end of the scan. The remaining hour is for the old changes."""
_JUDGED_AFTER: Final = 1800.0
"""Seconds of a run after which its pace predicts the end of the scan."""
_SEGMENT_BYTES: Final = 2**19
"""Approximate bytes of a segment: most are one page, which has up to 1 MiB."""
_SEGMENTS_PER_LIMIT: Final = 8
"""Minimum number of segments within a batch's limits, because segments differ in size."""
_MOST_SEGMENTS: Final = 1_000_000
"""The service's limit."""
_UNKNOWN_SEGMENTS: Final = 256
"""For a table without items by its description, which is up to six hours old."""
_LARGEST_BATCH: Final = 1_024
"""Maximum segments of a batch without limits: half a GiB. After a failure Spark reads a batch again."""
_PACED_BATCH: Final = 60.0
"""Approximate seconds of a batch if ``scanReadUnits`` sets the pace."""

_ANOTHER_WAY: Final = (
    "the docs (read.md, 'Tables that take longer than a day') show the other way: an export of the "
    "table to S3, then its changes since the export"
)


@dataclass(frozen=True)
class ScanSettings:
    """How tables are scanned.

    Attributes:
        is_asked: whether a new query, or a table added to one, begins with a scan. A scan that a
            checkpoint records is completed in any case.
        segments: per table; None: by its size.
        read_units: read capacity a second; None: no limit.
        limits: of one batch.
    """

    is_asked: bool = False
    segments: int | None = None
    read_units: float | None = None
    limits: Limits = NO_LIMITS


@dataclass(frozen=True)
class _Table:
    """The description of a table. Its figures are up to six hours old."""

    target: str
    keys: tuple[str, ...]
    items: int
    size: int
    stream: str | None
    view: str | None


class TableCatalog:
    """Describes each table once.

    Args:
        calls: of ``DescribeTable``.
    """

    def __init__(self, calls: Calls, tables: Iterable[TableRef]) -> None:
        self._calls = calls
        # The ARN of a stream begins with the ARN of its table, which may belong to another account.
        self._targets = {each.name: (each.arn or each.name).partition("/stream/")[0] for each in tables}
        self._known: dict[str, _Table] = {}

    @property
    def names(self) -> Collection[str]:
        return self._targets.keys()

    def describe(self, name: str) -> _Table:
        """Raises ServiceError if the call failed, and retries did not help."""
        if name not in self._known:
            target = self._targets[name]

            def read(answer: Mapping[str, Any]) -> _Table:
                table = answer["Table"]
                stream = table.get("StreamSpecification") or {}
                return _Table(
                    target,
                    tuple(key["AttributeName"] for key in table["KeySchema"]),
                    int(table.get("ItemCount") or 0),
                    int(table.get("TableSizeBytes") or 0),
                    table.get("LatestStreamArn") if stream.get("StreamEnabled") else None,
                    stream.get("StreamViewType"),
                )

            self._known[name] = self._calls.call(
                "DescribeTable", f"table {name}", {"TableName": target}, read
            )
        return self._known[name]


class SnapshotEnumerator(SplitEnumerator["ScanRange | SplitRange", Offsets]):
    """Reads tables first if offsets require it. All else is planned by the enumerator of their streams.

    Args:
        streams: enumerates the streams; closed with this one.
        arn_of: returns the ARN of a table's stream that the query reads.
        now: the time by the service's clock (microseconds).
        settings: how tables are scanned.
    """

    def __init__(
        self,
        streams: StreamEnumerator,
        tables: TableCatalog,
        arn_of: Callable[[str], str],
        now: Callable[[], int],
        settings: ScanSettings,
    ) -> None:
        self.streams = streams
        self._tables = tables
        self._arn_of = arn_of
        self._now = now
        self._settings = settings
        self._initial: Offsets | None = None
        self._run: tuple[int, int] | None = None  # when this run began to scan, and the segments done by then

    def initial(self) -> Offsets:
        if self._initial is None:
            self._initial = self._with_scans({}, self.streams.initial)
        return self._initial

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        """See `SplitEnumerator.advance`.

        Raises:
            SluiceError: the scan will not end in time.
            DataLossError, ServiceError, OptionError: as `StreamEnumerator.advance`.
        """
        if not start.streams.issuperset(self._tables.names):
            start = self._with_scans(start.scan, lambda: self.streams.with_added(start), start.streams)
        left = [name for name, scan in start.scan.items() if scan.end < scan.segments]
        if not left:
            return self.streams.advance(start, limits)
        self._check_time(start.scan)
        scans = {name: replace(scan, begin=scan.end) for name, scan in start.scan.items()}
        here = scans[left[0]]
        count = min(self._batch_size(left[0], here, limits), here.segments - here.end)
        scans[left[0]] = replace(here, end=here.end + count)
        return replace(start, scan=scans, start=None)

    def ranges(self, start: Offsets, end: Offsets) -> Sequence[ScanRange | SplitRange]:
        if not end.scan or end.scan == start.scan:
            return self.streams.ranges(start, end)
        return [
            ScanRange(name, table.target, table.keys, segment, scan.segments)
            for name, scan in end.scan.items()
            if scan.begin < scan.end
            for table in [self._tables.describe(name)]
            for segment in range(scan.begin, scan.end)
        ]

    def stop_at_available(self) -> None:
        self.streams.stop_at_available()

    def newest(self, start: Offsets) -> Offsets:
        return self.streams.newest(start)

    @property
    def millis_behind_latest(self) -> Mapping[SplitId, int]:
        return self.streams.millis_behind_latest

    def close(self) -> None:
        self.streams.close()

    # --- inside ---------------------------------------------------------------------------------------

    def _with_scans(
        self, scans: Mapping[str, Scan], positions: Callable[[], Offsets], known: frozenset[str] = frozenset()
    ) -> Offsets:
        """Returns offsets with a scan of each new stream, which begins after its position."""
        since = self._now()
        offsets = positions()
        if not self._settings.is_asked:
            return offsets
        added = {name: Scan(self._segments(name), 0, 0, since) for name in sorted(offsets.streams - known)}
        self._check_pace(added)
        return replace(offsets, scan={**scans, **added})

    def _segments(self, name: str) -> int:
        table, settings = self._tables.describe(name), self._settings
        if table.stream is None or table.stream != self._arn_of(name):
            raise OptionError(
                f"option '{INITIAL_SNAPSHOT.key}' is scan: table {name} has no enabled stream, or the query "
                "reads an older one, which lacks the changes since the scan"
            )
        if table.view not in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES"):
            raise OptionError(
                f"option '{INITIAL_SNAPSHOT.key}' is scan: the stream of table {name} has the view type "
                f"{table.view}, without new images: allowed are NEW_IMAGE and NEW_AND_OLD_IMAGES"
            )
        if settings.segments is not None:
            return settings.segments
        if not table.items:
            return _UNKNOWN_SEGMENTS
        wanted = table.size / _SEGMENT_BYTES
        if settings.limits.records is not None:
            wanted = max(wanted, _SEGMENTS_PER_LIMIT * table.items / settings.limits.records)
        if settings.limits.bytes is not None:
            wanted = max(wanted, _SEGMENTS_PER_LIMIT * table.size / settings.limits.bytes)
        return min(max(1, math.ceil(wanted)), _MOST_SEGMENTS, max(1, table.items))

    def _batch_size(self, name: str, scan: Scan, limits: Limits) -> int:
        """Returns how many segments of a table the next batch reads: one, if their size is unknown."""
        table, units = self._tables.describe(name), self._settings.read_units
        sizes = [float(_LARGEST_BATCH)]
        if limits.records is not None:
            sizes.append(limits.records * scan.segments / table.items if table.items else 1.0)
        if limits.bytes is not None:
            sizes.append(limits.bytes * scan.segments / table.size if table.size else 1.0)
        if units is not None and table.size:
            sizes.append(_PACED_BATCH * units * UNIT_BYTES * scan.segments / table.size)
        return max(1, int(min(sizes)))

    def _check_pace(self, added: Iterable[str]) -> None:
        units = self._settings.read_units
        needed = sum(self._tables.describe(name).size for name in added) / UNIT_BYTES / _TIME_FOR_SCAN
        if units is not None and needed > units:
            raise OptionError(
                f"option '{SCAN_READ_UNITS.key}' is {units:g}: a scan of {', '.join(added)} would not end "
                f"before its first changes expire, after 24 hours: it takes at least {math.ceil(needed)}, or "
                f"{_ANOTHER_WAY}"
            )

    def _check_time(self, scans: Mapping[str, Scan]) -> None:
        """Fails as soon as the pace of this run shows that changes would expire before the scan ends."""
        now = self._now()
        done = sum(scan.end for scan in scans.values())
        if self._run is None:
            self._run = now, done
        begun, before = self._run
        left = sum(scan.segments - scan.end for scan in scans.values())
        since = min(scan.since for scan in scans.values())  # streams are read when all scans have ended
        spent = now - begun
        ends = now
        if spent >= micros_from_seconds(_JUDGED_AFTER):
            ends += left * spent // max(1, done - before)
        if ends - since <= micros_from_seconds(_TIME_FOR_SCAN):
            return
        names = ", ".join(name for name, scan in scans.items() if scan.end < scan.segments)
        raise SluiceError(
            f"the scan of {names} will not end before the changes since it began expire, after 24 hours: "
            f"{left} of {done + left} segments are left after {(now - since) / MICROS_PER_SECOND / 3600:.1f} "
            f"hours. Start the query again with a higher '{SCAN_READ_UNITS.key}' or more cores, and with a "
            f"new checkpoint if little time is left; or {_ANOTHER_WAY}"
        )
