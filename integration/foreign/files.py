"""Destination `s3`: Parquet, partitioned by awkward values, read by pyarrow, DuckDB and Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from integration.foreign.rows import PARTS, ROWS, Row, expected, part_of
from integration.foreign.target import Target
from integration.support.kinesis import REGION
from integration.support.paths import ROOT
from integration.support.s3 import Lake
from integration.support.spark import spark_session

_SCHEMA: Final = (
    "id BIGINT, text STRING, data BINARY, price DECIMAL(38,10), list ARRAY<BIGINT>, map MAP<STRING,STRING>, "
    "part STRING"
)
_LARGE_ROWS: Final = 60  # of 1 MiB each: 8 parts of 8 MiB


class S3(Target):
    """A data set in a fresh bucket."""

    @staticmethod
    def shape(frame: DataFrame) -> DataFrame:
        return frame.select("*", part_of())

    def prepare(self) -> dict[str, str]:
        self.lake = Lake(self.endpoint)
        return self.lake.options(partitionBy="part", publish="symlink")

    def read(self) -> Iterable[Row]:
        for key in self.lake.files():
            part = unquote(key.split("/part=")[1].split("/")[0])
            for row in pq.read_table(pa.BufferReader(self.lake.get(key))).to_pylist(maps_as_pydicts="strict"):
                found = row | {"part": None if part == "__HIVE_DEFAULT_PARTITION__" else part}
                yield _row(found.items())

    def expected(self, number: int) -> Row:
        # As in Hive and Spark, an empty value is none.
        part = PARTS[number % len(PARTS)]
        return expected(number) | ({"part": part} if part else {})

    def check(self) -> list[str]:
        """Leftovers, other readers, a file in parts, files that are visible, and `sluice files`."""
        problems = self._leftovers() + self._compact() + self._leftovers()
        return problems + self._with_duckdb() + self._with_spark() + self._expire()

    def _leftovers(self) -> list[str]:
        try:
            self.lake.check_nothing_else()
        except AssertionError as error:
            others = set(self.lake.listed()) - set(self.lake.files())
            return [f"leftovers: uploads {self.lake.uploads()}, {len(others)} other keys; {error}"[:400]]
        return []

    def _with_duckdb(self) -> list[str]:
        files = []
        for number, key in enumerate(self.lake.files()):
            files.append(self.directory / f"{number}.parquet")
            files[-1].write_bytes(self.lake.get(key))
        relation = duckdb.read_parquet([str(each) for each in files])
        names = list(relation.columns)
        rows = [_row(zip(names, values, strict=True)) for values in relation.fetchall()]
        wrong = sum(row != expected(row["id"]) for row in rows)
        return [f"DuckDB reads {len(rows)} rows, {wrong} wrong"] if wrong or len(rows) != ROWS else []

    def _with_spark(self) -> list[str]:
        problems = []
        with spark_session(self.directory / "spark-reader") as spark:
            found = [each.asDict() for each in self.lake.read(spark, self.directory, _SCHEMA).collect()]
            rows = [_row(each.items()) for each in found]
            wrong = sum(row != self.expected(row["id"]) for row in rows)
            if wrong or len(rows) != ROWS:
                problems.append(f"Spark reads {len(rows)} rows, {wrong} wrong")
            options = self.lake.options(path=f"{self.lake.path}-large", compression="none")
            large = (
                spark.range(_LARGE_ROWS).coalesce(1).selectExpr("repeat(lpad(id, 16, ' '), 65536) AS text")
            )
            large.write.format("async-sink").mode("append").options(**options).save()
            options = self.lake.options(path=f"{self.lake.path}-visible", publish="visible")
            spark.range(ROWS).write.format("async-sink").mode("append").options(**options).save()
        shown = [key for key in self.lake.listed() if "-visible/" in key and "/_sluice/" not in key]
        tables = [pq.read_table(pa.BufferReader(self.lake.get(key))) for key in shown]
        if sorted(row for table in tables for row in table["id"].to_pylist()) != list(range(ROWS)):
            problems.append(f"a listing shows {sum(table.num_rows for table in tables)} visible rows")
        [key] = [each for each in self.lake.listed() if each.endswith(".parquet") and "-large/" in each]
        tag = self.lake.client.head_object(Bucket=self.lake.bucket, Key=key)["ETag"]
        if pq.read_table(pa.BufferReader(self.lake.get(key))).num_rows != _LARGE_ROWS or '-8"' not in tag:
            problems.append(f"a file of 8 parts has the tag {tag}")
        return problems

    def _compact(self) -> list[str]:
        """In each partition one file, and that of the newest batch, with the same rows."""
        options = ("--option", "targetFileSize=64MiB", "--option", "replacedFileRetention=0s")
        merged = sum(self._files("compact", *options)["merged"] for _ in range(3))  # others delete
        rows = sorted(self.read(), key=lambda row: row["id"])
        wrong = [row for number, row in enumerate(rows) if row != self.expected(number)]
        files, links = self.lake.files(), self.lake.symlinked()
        if wrong or len(rows) != ROWS or len(files) > 2 * len(PARTS) or not merged:
            return [f"{merged} merged: {len(files)} files, {len(rows)} rows, {len(wrong)} wrong"]
        if sorted(links) != sorted(files):
            return [f"symlink manifests have {len(links)} files, and {len(files)} are committed"]
        return []

    def _expire(self) -> list[str]:
        count = len(self.lake.files())
        listed = self._files("list")
        rows = sum(batch["rows"] for batch in listed["batches"])
        later = str(int(time.time()) + 3600)
        deleted = self._files("expire", "--before", later, "--execute")["deletedFiles"]
        left = [key for key in self.lake.listed() if key.startswith("events/part=")]
        if len(listed["files"]) != count or rows != ROWS or listed["uncommitted"] or deleted != count or left:
            return [f"sluice files: {rows} rows listed, {deleted} of {count} files deleted, {len(left)} left"]
        return []

    def _files(self, *arguments: str) -> Any:
        where = ("--option", f"endpointUrl={self.endpoint}", "--option", f"region={REGION}")
        command = (sys.executable, "-m", "sluice", "files", *arguments, self.lake.path, *where, "--json")
        return json.loads(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout)


def _row(values: Iterable[tuple[str, Any]]) -> Row:
    """Without nulls, and with plain bytes."""
    return {
        name: bytes(value) if isinstance(value, bytearray) else value
        for name, value in values
        if value is not None
    }
