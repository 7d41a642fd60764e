"""Reads the rows of all committed files back, as the public helper lists them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import pyarrow.parquet as pq

from integration.chaos.oracle import Row
from integration.support.s3 import Lake

_AT_ONCE: Final = 8


@dataclass
class Committed:
    # in their order, each with the rows of its files. Can be gone through once
    batches: Iterable[tuple[int, Iterable[Sequence[Row]]]]
    problems: list[str] = field(default_factory=list)


def read_committed(lake: Lake) -> Committed:
    """Everything below the path of the lake."""
    batches: dict[int, list[str]] = {}
    queries = set()
    for key in sorted(lake.files(), key=_batch_of):
        # Files of a second manifest of a batch double its rows, or vanish: both are found.
        batches.setdefault(_batch_of(key), []).append(key)
        queries.add(key.rpartition("/")[2].split("_")[1])
    problems = []
    listed = {key for keys in batches.values() for key in keys}
    if len(queries) > 1:
        problems.append(f"files of {len(queries)} queries, from one checkpoint")
    there = {key for key in lake.listed() if "/_sluice/" not in key}
    if missing := listed - there:
        problems.append(f"{len(missing)} committed files are not there")
    there_by_batch = {batch: [key for key in keys if key in there] for batch, keys in batches.items()}
    return Committed(_rows(lake, there_by_batch), problems)


def _batch_of(key: str) -> int:
    """Of a data file, by its name: it is in a manifest, or in a checkpoint."""
    return int(key.rpartition("/")[2].split("_")[2])


def _rows(lake: Lake, batches: dict[int, list[str]]) -> Iterator[tuple[int, Iterable[Sequence[Row]]]]:
    def read(key: str) -> list[Row]:
        table = pq.read_table(
            io.BytesIO(lake.get(key)), columns=["shardId", "sequenceNumber", "partitionKey"]
        )
        return [
            Row(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)
        ]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for batch, keys in batches.items():
            yield batch, list(pool.map(read, keys))
