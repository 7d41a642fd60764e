"""Batches of large items: what a task gathers is bounded by bytes, and all of it is handed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pytest

from sluice.aws.wire.changes import Change, ChangeRecord
from sluice.dynamodb_streams import record_batches
from sluice.dynamodb_streams.record_batches import to_record_batches
from sluice.source.model.splits import SplitId

SPLIT = SplitId("table", "shard")
ITEM = 400_000


def change(number: int) -> ChangeRecord:
    image = msgspec.Raw(msgspec.json.encode({"id": {"N": str(number)}, "text": {"S": "x" * ITEM}}))
    made = Change(
        str(number), 1.0, msgspec.Raw(b'{"id":{"N":"1"}}'), image, image, ITEM, "NEW_AND_OLD_IMAGES"
    )
    return ChangeRecord(made, "e", "MODIFY", msgspec.Raw(b"null"))


def test_few_large_items_are_handed_on_before_there_are_many_rows() -> None:
    """A page of the service has 1 MiB at most: two of these."""
    read = 0

    def pages() -> Iterator[tuple[SplitId, Sequence[ChangeRecord]]]:
        nonlocal read
        while read < 100:
            read += 2
            yield SPLIT, [change(read - 1), change(read)]

    batches = to_record_batches(pages(), "json")
    first = next(batches)
    assert read <= 8
    assert first.nbytes < 16 * 2**20
    assert first.num_rows + sum(each.num_rows for each in batches) == 100


def test_what_fits_into_no_single_array_is_handed_on_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more than 2 GiB in a column."""
    parts = [pa.RecordBatch.from_pydict({"a": [1, 2]}), pa.RecordBatch.from_pydict({"a": [3]})]

    table = pa.Table.from_batches(parts)

    class Apart:
        from_batches = staticmethod(lambda _batches: Apart())

        def combine_chunks(self) -> pa.Table:
            return table

    monkeypatch.setattr("sluice.dynamodb_streams.record_batches.pa.Table", Apart)
    assert [each.num_rows for each in record_batches._joined(parts)] == [2, 1]
