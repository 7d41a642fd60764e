"""The streams of the strict model: filled and looked at from inside, read by Spark over a socket."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from integration.model import SECOND, FaultPlan, KinesisModel, Laws
from integration.model.faults import Callback
from integration.model.sending import WireFault
from integration.model.server import ModelServer
from integration.support.kinesis import WAIT, Put, Stored, Streams

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef, ShardTypeDef

LAWS: Final = Laws(
    empty_pages=1, listing_delay=0.5, status_delay=(0.05, 0.2), consumer_delay=(0.05, 0.3), heartbeat=2.0
)
"""All laws. What the service's pages give no figure for, or the service takes its time for, is short."""


class ServiceClock:
    """The service's clock. It can be set forward, so records expire when they are old enough."""

    def __init__(self, model: KinesisModel) -> None:
        self._model = model

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._model.clock.now() / SECOND

    def advance(self, *, hours: float = 0, seconds: float = 0) -> None:
        self._model.clock.advance(hours * 3600 + seconds)


class ModelStreams(Streams):
    """The streams of a model.

    Tests put and look past all limits, delays and faults. Reshards are calls of the API, under the laws.
    """

    def __init__(self, server: ModelServer) -> None:
        super().__init__(server.endpoint)
        self.model = server.model  # the service
        self.clock = ServiceClock(server.model)  # the service's
        self._wire = server.wire
        self._damaged_before = 0

    def reset(self) -> None:
        """Takes back what a test has changed, but for the clock and the streams."""
        self.model.laws = LAWS
        self.clear_faults()
        self.model.renew_credentials()

    def at_once(self) -> AbstractContextManager[object]:
        """No call is carried out, and nothing is pushed, between the steps of the ``with`` block: nobody sees
        the states between them, however long the machine pauses.
        """
        return self.model._core.lock

    # --- streams and records --------------------------------------------------------------------------

    def create(self, shards: int = 1, *, name: str | None = None) -> str:
        name = name or f"stream-{uuid.uuid4().hex[:8]}"
        self.model.create(name, shards)
        return name

    def delete(self, stream: str) -> None:
        self.model.delete(stream)

    def recreate(self, stream: str, shards: int = 1) -> None:
        with self.at_once():
            super().recreate(stream, shards)

    def wait_active(self, stream: str) -> None:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if self.model.status(stream) == "ACTIVE":
                return
            time.sleep(0.02)
        raise TimeoutError(f"{stream} does not become ACTIVE")

    def shards(self, stream: str) -> list[ShardTypeDef]:
        """All shards that have not expired, whether a listing shows them or not."""
        found = cast("list[ShardTypeDef]", self.model.describe_shards(stream))
        return sorted(found, key=lambda shard: shard["ShardId"])

    def read_shard(self, stream: str, shard: str) -> Iterator[Stored]:
        for record in self.model.oracle.readable(stream):
            if record.shard == shard:
                yield Stored(shard, int(record.sequence_number), record.partition_key, record.data)

    def _put(self, stream: str, entries: Iterable[PutRecordsRequestEntryTypeDef]) -> list[Put]:
        placed = []
        for entry in entries:
            key = entry.get("ExplicitHashKey")
            shard, record = self.model.put(
                stream,
                entry["PartitionKey"],
                cast("bytes", entry["Data"]),
                explicit_hash_key=None if key is None else int(key),
            )
            placed.append(Put(shard, record.sequence_number))
        return placed

    # --- calls and faults -----------------------------------------------------------------------------

    def count(self, operation: str) -> int:
        return self.model.calls[operation]

    def fail(self, rates: Mapping[str, Mapping[str, float]], *, seed: int = 0) -> None:
        """Calls fail at random from now on; see `FaultPlan`."""
        self.model.faults = FaultPlan(rates, seed=seed)

    def fail_if(self, callback: Callback) -> None:
        """Calls fail from now on where `callback` says so; see `FaultPlan`."""
        self.model.faults = FaultPlan(callback=callback)

    def damage(self, *faults: WireFault) -> None:
        """Answers are damaged from now on."""
        self._damaged_before = self._wire.fired
        self._wire.set(*faults)

    @property
    def failed(self) -> dict[tuple[str, str], int]:
        """Operation and code to how often it failed so since faults were set last."""
        return dict(self.model.faults.fired)

    @property
    def damaged(self) -> int:
        """How many answers were damaged since `damage` was called last."""
        return self._wire.fired - self._damaged_before

    def clear_faults(self) -> None:
        self.model.faults = FaultPlan()
        self._wire.set()

    def change_laws(self, **laws: Any) -> None:
        """Changes some of the laws for this test."""
        self.model.laws = replace(self.model.laws, **laws)
