"""Writes rows with a custom destination: the sink handles batching, retries and rates.

This one appends to a file, request by request. docs/custom-destinations.md has one for a service, with all
that may be in it.
"""

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from sluice.options import TEXT, Option
from sluice.sink import Destination, ElementConverter, SinkLimits, SubmitResult

FILE = Option("file", TEXT, None, "File that requests are appended to.", required=True)


class Lines(ElementConverter):
    """Makes a line of JSON of each row."""

    def open(self, schema, origin):
        pass  # a place to look at the columns, and to refuse them

    def convert(self, batch):
        return [json.dumps(row) for row in batch.to_pylist()]


class FileDestination(Destination):
    """A request is a line with the rows of a batch."""

    OPTIONS = (FILE,)
    LIMITS = SinkLimits(max_batch_size=5, max_batch_size_in_bytes=10_000, max_record_size_in_bytes=1_000)
    name = "a file"

    def __init__(self, file):
        self._file = Path(file)

    @classmethod
    def from_options(cls, values, connection):
        return cls(values.get(FILE)) if values.given(FILE) else None

    def create_converter(self):
        return Lines()

    def size_in_bytes(self, entry):
        return len(entry.encode())

    def submit(self, entries):
        with self._file.open("a") as file:
            file.write(f"{len(entries)} rows: {' '.join(entries)}\n")
        return SubmitResult()  # with what was refused, if anything was

    def is_fatal(self, error):
        return True  # what could not be written now can't be written later


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    target = Path(tempfile.mkdtemp(), "requests")
    (
        spark.range(12)
        .selectExpr("id", "id * id AS square")
        .write.format("async-sink")
        .mode("append")
        .option("destination", "examples.own_destination:FileDestination")
        .option("file", str(target))
        .save()
    )
    print(target.read_text())
