"""A source of a log whose records hold values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from sluice.options import OptionValues
from sluice.source import LogSource, SplitId, StreamLog, ValueRecord

__all__ = ["ValueSource"]


class ValueSource(LogSource):
    """Its rows have a split and a value.

    Attributes:
        LOG: makes the log of `store`.
    """

    LOG: ClassVar[Any]
    TYPE: ClassVar[pa.DataType] = pa.int64()
    store: ClassVar[Any]

    @classmethod
    def from_options(cls, values: OptionValues) -> ValueSource:
        del values
        return cls()

    def schema(self) -> pa.Schema:
        return pa.schema([("split", pa.string()), ("value", self.TYPE)])

    def create_log(self, pause: Callable[[float], None]) -> StreamLog:
        del pause
        log: StreamLog = self.LOG(self.store)
        return log

    def to_record_batch(self, split: SplitId, records: Sequence[ValueRecord]) -> pa.RecordBatch:
        values = pa.array([each.value for each in records], self.TYPE)
        return pa.record_batch([pa.array([split.shard] * len(records)), values], schema=self.schema())
