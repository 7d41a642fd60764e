"""An element converter, as docs/custom-destination.md has them: what OpenSearch's bulk API takes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

__all__ = ["BulkConverter"]


class BulkConverter:
    """Makes an action and a document, on two lines, of columns ``id`` and ``body``."""

    def open(self, schema: object) -> None:
        """Nothing depends on the schema."""

    def convert(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """The entries of a batch: a row that is written again replaces its document."""
        ids, bodies = batch.column("id").to_pylist(), batch.column("body").to_pylist()
        for number, body in zip(ids, bodies, strict=True):
            action = msgspec.json.encode({"index": {"_id": str(number)}})
            yield action + b"\n" + body.encode()
