"""A source of a `MemoryLog`: the smallest `sluice.source.LogSource` there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from sluice.options import TEXT, Option, OptionValues
from sluice.source.log_source import LogSource
from sluice.source.logs.stream_log import Record
from sluice.source.model.splits import SplitId
from sluice.source.probing.probe import ProbeSettings
from sluice.testing.memory_log import MemoryLog

__all__ = ["MemorySource"]

STREAM = Option("stream", TEXT, "s", "The stream to read.")


class MemorySource(LogSource):
    """``format("memory")``: reads a stream of the log that `of` was given last, in this process only."""

    name: ClassVar[str] = "memory"
    OPTIONS: ClassVar[Sequence[Option[Any]]] = (STREAM,)
    log: ClassVar[MemoryLog]

    reads_per_second = 5

    def __init__(self, stream: str) -> None:
        self.streams = (stream,)

    @classmethod
    def of(cls, log: MemoryLog) -> type[MemorySource]:
        """The class, which now reads this log."""
        cls.log = log
        return cls

    @classmethod
    def from_options(cls, values: OptionValues) -> MemorySource:
        return cls(values.require(STREAM))

    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                ("shard", pa.string()),
                ("number", pa.string()),
                ("arrival", pa.timestamp("us", tz="UTC")),
                ("key", pa.string()),
                ("data", pa.binary()),
            ]
        )

    def create_log(self, pause: Callable[[float], None]) -> MemoryLog:
        del pause
        return self.log

    def to_record_batch(self, split: SplitId, records: Sequence[Record]) -> pa.RecordBatch:
        columns = [
            [split.shard] * len(records),
            [record.sequence_number for record in records],
            [record.arrival for record in records],
            [record.partition_key for record in records],
            [record.data for record in records],
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, self.schema(), strict=True)],
            schema=self.schema(),
        )

    def probe_settings(self) -> ProbeSettings:
        """Paces reads by the log's clock, which stands still unless a caller waits."""
        return ProbeSettings(pause=self.log.sleep, clock=self.log.monotonic)
