"""PutRecord and PutRecords.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

import hashlib
from typing import Any

from integration.model.core import Core, Request, invalid, require
from integration.model.errors import LOST_ANSWER, ModelError
from integration.model.shards import Shard, StoredRecord
from integration.model.streams import LAST_HASH, Stream


def hash_key(partition_key: str) -> int:
    """The hash key of a partition key: its MD5 as a 128-bit number."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


class Writes:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._order = 0

    def put_records(self, request: Request) -> dict[str, Any]:
        """The operation. A record that is refused says why; the others are taken."""
        core, laws = self._core, self._core.laws
        stream = core.created_stream_of(request)
        entries = require(request, "Records")
        if laws.request_records is not None and not 1 <= len(entries) <= laws.request_records:
            raise ModelError(
                "ValidationException",
                "1 validation error detected: Value at 'records' failed to satisfy constraint: Member "
                "must have "
                f"length less than or equal to {laws.request_records}",
            )
        size = 0
        for number, entry in enumerate(entries, 1):
            size += self._check(stream, entry, f"records.{number}.member.")
        if laws.request_bytes is not None and size > laws.request_bytes:
            raise invalid(f"Records size exceeds {laws.request_bytes // 2**20} MB limit")
        results = [self._take(stream, entry) for entry in entries]
        failed = sum("ErrorCode" in result for result in results)
        core.changed()
        return {"FailedRecordCount": failed, "Records": results}

    def put_record(self, request: Request) -> dict[str, Any]:
        stream = self._core.created_stream_of(request)
        self._check(stream, request, "")
        result = self._take(stream, request)
        if "ErrorCode" in result:
            raise ModelError(result["ErrorCode"], result["ErrorMessage"])
        self._core.changed()
        return result

    def put(
        self,
        stream: str,
        key: str,
        data: bytes,
        *,
        arrival: int | None = None,
        explicit_hash_key: int | None = None,
    ) -> tuple[Shard, StoredRecord]:
        """Puts a record beyond all limits, for tests.

        `arrival`: microseconds since the epoch; by the service's clock where it is not given.
        """
        core = self._core
        found = core.named(stream)
        shard = found.shard_for(hash_key(key) if explicit_hash_key is None else explicit_hash_key)
        now = core.clock.now()
        record = shard.put(key, data, self._arrival(now) if arrival is None else arrival, now)
        core.changed()
        return shard, record

    def _arrival(self, now: int) -> int:
        laws = self._core.laws
        self._order += 1
        if laws.arrival_disorder and self._core.chance("arrival", self._order) < laws.arrival_disorder:
            now -= round(self._core.chance("before", self._order) * 20_000)
        return now // 1000 * 1000 if laws.arrival_milliseconds else now

    def _take(self, stream: Stream, entry: Request) -> dict[str, Any]:
        core, laws = self._core, self._core.laws
        given = entry.get("ExplicitHashKey")
        shard = stream.shard_for(hash_key(entry["PartitionKey"]) if given is None else int(given))
        fault = core.faults.draw("PutRecords.record", entry)
        if fault is not None and fault.code != LOST_ANSWER:
            return _failed(fault)
        elapsed = core.clock.elapsed()
        size = len(entry["Data"]) + len(entry["PartitionKey"].encode())
        has_records = shard.written_records.has(1, laws.write_records, elapsed)
        has_bytes = shard.written_bytes.has(size, laws.write_bytes, elapsed)
        if not (has_records and has_bytes):
            return _failed(
                ModelError(
                    "ProvisionedThroughputExceededException",
                    f"Rate exceeded for shard {shard.id} in stream {stream.name} under account "
                    f"{core.account}.",
                )
            )
        shard.written_records.take(1, laws.write_records)
        shard.written_bytes.take(size, laws.write_bytes)
        now = core.clock.now()
        record = shard.put(entry["PartitionKey"], bytes(entry["Data"]), self._arrival(now), now)
        if fault is not None:
            # It is stored, but the answer to the producer says that it is not.
            core.unacknowledged.add(record.sequence_number)
            return _failed(ModelError("InternalFailure"))
        return {"ShardId": shard.id, "SequenceNumber": record.sequence_number}

    def _check(self, stream: Stream, entry: Request, where: str) -> int:
        laws = self._core.laws
        key, data = require(entry, "PartitionKey"), require(entry, "Data")
        if laws.partition_key_units is not None:
            units = (
                len(key) if laws.partition_key_units == "code points" else len(key.encode("utf-16-le")) // 2
            )
            if not 1 <= units <= 256:
                raise ModelError(
                    "ValidationException",
                    f"1 validation error detected: Value at '{where}partitionKey' failed to satisfy "
                    "constraint: "
                    "Member must have length less than or equal to 256",
                )
        given = entry.get("ExplicitHashKey")
        if given is not None and not (str(given).isdigit() and 0 <= int(given) <= LAST_HASH):
            raise invalid(
                f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]: {given}"
            )
        size = len(data) + len(key.encode())
        if laws.record_bytes and size > stream.max_record_bytes:
            raise ModelError(
                "ValidationException",
                f"1 validation error detected: Value at '{where}data' failed to satisfy constraint: "
                "Member must "
                f"have length less than or equal to {stream.max_record_bytes}",
            )
        return size


def _failed(error: ModelError) -> dict[str, Any]:
    return {"ErrorCode": error.code, "ErrorMessage": error.message}
