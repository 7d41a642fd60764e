"""Destinations for tests through Spark: by ``integration.support.sink_destinations:Name``, in any process."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from sluice.errors import InvalidRecordError
from sluice.options import TEXT, Option
from sluice.sink import SinkLimits, SubmitResult

DIRECTORY = Option("directory", TEXT, None, "Where requests are noted.", required=True)


class PickyConverter:
    """Text of column ``value``; refuses text that starts with an exclamation mark."""

    def open(self, schema: Any) -> None:
        pass

    def convert(self, batch: pa.RecordBatch) -> Iterator[str]:
        for value in batch.column(0).to_pylist():
            if value.startswith("!"):
                raise InvalidRecordError("starts with an exclamation mark")
            yield value


class FilesDestination:
    """Appends what it is given to a file for each process below ``directory``."""

    OPTIONS: ClassVar[Any] = (DIRECTORY,)
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=10, max_batch_size_in_bytes=10_000, max_record_size_in_bytes=1000
    )

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.name = "files"

    @classmethod
    def from_options(cls, values: Any, connection: Any) -> FilesDestination | None:  # noqa: ARG003
        directory = values.get(DIRECTORY)
        return cls(directory) if directory else None

    def create_converter(self) -> PickyConverter:
        return PickyConverter()

    def size_in_bytes(self, entry: str) -> int:
        return len(entry)

    def submit(self, entries: Sequence[str]) -> SubmitResult[str]:
        with (self.directory / "stored").open("a") as file:
            file.write("".join(f"{entry}\n" for entry in entries))
        return SubmitResult()

    def is_fatal(self, error: Exception) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:
        (self.directory / "closed").touch()


class Hanging(FilesDestination):
    """Notes its process, and does not answer for as long as any test waits."""

    def submit(self, entries: Sequence[str]) -> SubmitResult[str]:
        (self.directory / f"pid-{os.getpid()}").touch()
        time.sleep(900.0)
        return super().submit(entries)


class Metered(FilesDestination):
    """Notes when each request came, and its entries and bytes, in a separate file for each writer."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._file = self.directory / f"requests-{os.getpid()}-{uuid.uuid4().hex}"

    def submit(self, entries: Sequence[str]) -> SubmitResult[str]:
        # Monotonic time is the same for all processes of a machine.
        line = f"{time.monotonic()} {len(entries)} {sum(map(len, entries))}\n"
        with self._file.open("a") as file:
            file.write(line)
        return SubmitResult()

    def close(self) -> None:
        pass


def requests_noted(directory: Path) -> list[tuple[float, int, int]]:
    """What `Metered` has noted, in the order of time: when, how many entries, how many bytes."""
    lines = [line.split() for file in directory.glob("requests-*") for line in file.read_text().splitlines()]
    return sorted((float(at), int(entries), int(size)) for at, entries, size in lines)
