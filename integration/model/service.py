"""The model of Kinesis Data Streams: one object that is called as the API is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from integration.model.clock import Clock, ManualClock
from integration.model.consumers import Consumers
from integration.model.control import Control, api_shard
from integration.model.core import Core, Request
from integration.model.errors import LOST_ANSWER, ModelError
from integration.model.faults import FaultPlan
from integration.model.laws import Laws
from integration.model.oracle import Oracle
from integration.model.reads import Page, Reads, Stranger
from integration.model.resharding import Resharding
from integration.model.shards import Shard, StoredRecord
from integration.model.subscriptions import Subscription, Subscriptions
from integration.model.writes import Writes

T = TypeVar("T")


class KinesisModel:
    """Kinesis Data Streams of one account and region. Thread-safe; nothing inside waits or runs by itself.

    `laws`: which rules hold; `clock`: the service's; nobody else may set it back by `Clock.elapsed`; `seed`:
    of everything that is left to chance; `faults`: what fails on top of the laws.
    """

    def __init__(
        self,
        laws: Laws | None = None,
        clock: Clock | None = None,
        seed: int = 0,
        *,
        faults: FaultPlan | None = None,
        region: str = "us-east-1",
        account: str = "000000000000",
    ) -> None:
        self.clock: Clock = clock if clock is not None else ManualClock()
        self._core = core = Core(
            laws or Laws(),
            self.clock,
            seed=seed,
            faults=faults or FaultPlan(),
            region=region,
            account=account,
        )
        self._reads = reads = Reads(core)
        self._writes = writes = Writes(core)
        self._control = control = Control(core)
        self._resharding = resharding = Resharding(core)
        consumers = Consumers(core, control)
        self._subscriptions = Subscriptions(core, consumers)
        self.oracle = Oracle(core)  # what really happened
        self._operations: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "CreateStream": control.create_stream,
            "DecreaseStreamRetentionPeriod": control.decrease_stream_retention_period,
            "DeleteStream": control.delete_stream,
            "DeregisterStreamConsumer": consumers.deregister_stream_consumer,
            "DescribeStream": control.describe_stream,
            "DescribeStreamConsumer": consumers.describe_stream_consumer,
            "DescribeStreamSummary": control.describe_stream_summary,
            "GetRecords": reads.get_records,
            "GetShardIterator": reads.get_shard_iterator,
            "IncreaseStreamRetentionPeriod": control.increase_stream_retention_period,
            "ListShards": control.list_shards,
            "ListStreamConsumers": consumers.list_stream_consumers,
            "ListStreams": control.list_streams,
            "MergeShards": resharding.merge_shards,
            "PutRecord": writes.put_record,
            "PutRecords": writes.put_records,
            "RegisterStreamConsumer": consumers.register_stream_consumer,
            "SplitShard": resharding.split_shard,
            "SubscribeToShard": self._subscriptions.subscribe_to_shard,
            "UpdateMaxRecordSize": control.update_max_record_size,
            "UpdateShardCount": resharding.update_shard_count,
        }

    # --- the API ---

    def call(self, operation: str, request: Request | None = None, *, access_key: str = "") -> dict[str, Any]:
        """Carries out an operation.

        `operation`: as the API names it; `request`: as the API has it, with bytes for data and seconds since
        the epoch for times; `access_key`: whose call it is; see `expire_credentials`.
        """
        function = self._operations.get(operation)
        if function is None:
            raise ModelError("UnknownOperationException", f"There is no {operation}.")
        return self._enter(operation, request or {}, access_key, function)

    def get_page(self, request: Request) -> Page:
        """GetRecords with records as they are kept: for readers in process, who save 10,000 mappings a
        page.
        """
        return self._enter("GetRecords", request, "", self._reads.get_page)

    def _enter(
        self, operation: str, request: Request, access_key: str, function: Callable[[Request], T]
    ) -> T:
        core = self._core
        with core.lock:
            core.calls[operation] += 1
            try:
                return self._carry_out(operation, request, access_key, function)
            except ModelError as error:
                core.refusals[operation, error.code] += 1
                raise

    def _carry_out(
        self, operation: str, request: Request, access_key: str, function: Callable[[Request], T]
    ) -> T:
        core = self._core
        core.settle()
        if access_key in core.expired_keys or (core.expired_keys and not access_key):
            raise ModelError("ExpiredTokenException")
        fault = core.faults.draw(operation, request)
        if fault is not None and fault.code != LOST_ANSWER:
            raise fault
        core.limit_calls(operation, _named(request))
        answer = function(request)
        if fault is not None:
            if isinstance(answer, dict):
                core.lose(operation, answer)
            raise fault
        return answer

    # --- for tests ---

    @property
    def laws(self) -> Laws:
        """The rules that hold. Setting them changes the rules of shards that are there already."""
        return self._core.laws

    @laws.setter
    def laws(self, laws: Laws) -> None:
        with self._core.lock:
            self._core.laws = laws
            for stream in self._core.streams.values():
                for shard in stream.shards.values():
                    shard.laws = laws

    @property
    def faults(self) -> FaultPlan:
        """What fails on top of the laws."""
        return self._core.faults

    @faults.setter
    def faults(self, faults: FaultPlan) -> None:
        self._core.faults = faults

    @property
    def calls(self) -> Counter[str]:
        return self._core.calls

    @property
    def refusals(self) -> Counter[tuple[str, str]]:
        """Operation and code to how often it was refused, by a law or a fault."""
        return self._core.refusals

    def create(self, name: str, shards: int = 1) -> list[str]:
        """A stream that is ACTIVE at once, and its shards' ids."""
        with self._core.lock:
            stream = self._core.add_stream(name, shards)
            stream.status = "ACTIVE"
            return list(stream.shards)

    def status(self, stream: str) -> str:
        """Of a stream, as DescribeStreamSummary has it; no call is counted."""
        with self._core.lock:
            self._core.settle()
            return self._core.named(stream).status

    def describe_shards(self, stream: str) -> list[dict[str, Any]]:
        """All shards that have not expired, as ListShards has them, whether a listing shows them or not."""
        with self._core.lock:
            self._core.settle()
            shards = self._core.named(stream).shards.values()
            return [api_shard(shard) for shard in shards if not shard.is_expired]

    def put(
        self,
        stream: str,
        key: str,
        data: bytes = b"x",
        *,
        arrival: int | None = None,
        explicit_hash_key: int | None = None,
    ) -> tuple[str, StoredRecord]:
        """Puts a record past all limits and faults; its shard's id and the record as it is kept.

        `arrival`: microseconds since the epoch; now, where it is not given.
        """
        with self._core.lock:
            self._core.settle()
            shard, record = self._writes.put(
                stream, key, data, arrival=arrival, explicit_hash_key=explicit_hash_key
            )
            return shard.id, record

    def split(self, stream: str, shard: str) -> list[str]:
        """Splits a shard in the middle, at once."""
        with self._core.lock:
            found = self._core.named(stream)
            return [child.id for child in self._resharding.split(found, self._open(stream, shard))]

    def merge(self, stream: str, shard: str, other: str) -> str:
        """Merges two neighbours, at once."""
        with self._core.lock:
            found = self._core.named(stream)
            return self._resharding.merge(found, self._open(stream, shard), self._open(stream, other)).id

    def scale(self, stream: str, shards: int) -> None:
        """Splits and merges at once until `shards` shards are open."""
        with self._core.lock:
            self._resharding.scale(self._core.named(stream), shards)

    def delete(self, stream: str) -> None:
        """Deletes a stream at once, with its consumers."""
        with self._core.lock:
            del self._core.streams[stream]
            self._core.changed()

    def trim(self, stream: str, shard: str, count: int) -> None:
        """The oldest `count` records of a shard that have not expired expire now."""
        with self._core.lock:
            found = self._core.shard_of(self._core.named(stream), shard)
            found.first = min(len(found.records), found.first + count)

    def expire_shard(self, stream: str, shard: str) -> None:
        """A shard has expired, with all its records."""
        with self._core.lock:
            self._core.shard_of(self._core.named(stream), shard).is_expired = True
            self._core.changed()

    def shards(self) -> list[Shard]:
        """All shards that have not expired."""
        with self._core.lock:
            self._core.settle()
            streams = self._core.streams.values()
            return [shard for stream in streams for shard in stream.shards.values() if not shard.is_expired]

    def expire_iterators(self) -> None:
        """All iterators given so far have expired."""
        with self._core.lock:
            self._core.generation += 1

    def expire_credentials(self, *access_keys: str) -> None:
        """Calls with these keys are refused from now on. In process, where calls have none, all are."""
        with self._core.lock:
            self._core.expired_keys.update(access_keys)

    def renew_credentials(self) -> None:
        """No key is refused any more."""
        with self._core.lock:
            self._core.expired_keys.clear()

    def lose(self, operation: str, answer: Mapping[str, Any]) -> None:
        """An answer that was given may not arrive, which `Oracle.unacknowledged` knows from now on."""
        with self._core.lock:
            self._core.lose(operation, answer)

    def add_stranger(self, stream: str, calls: float, size: int = 0) -> None:
        """From now on somebody else polls each shard of a stream, `calls` a second with pages of `size`
        bytes.
        """
        with self._core.lock:
            self._reads.add_stranger(stream, Stranger(calls, size))

    def subscriptions(self, stream: str, shard: str) -> list[Subscription]:
        """The open subscriptions of a shard, to be closed, taken over or silenced."""
        with self._core.lock:
            return self._subscriptions.open_ones(stream, shard)

    def has_pushed_end(self, stream: str, shard: str) -> bool:
        """Whether a consumer has received the end of a shard."""
        with self._core.lock:
            return self._subscriptions.have_pushed_end(stream, shard)

    def on_change(self, notify: Callable[[], None]) -> None:
        """Has `notify` called, under the lock, when records come, shards end or subscriptions change."""
        self._core.on_change.append(notify)

    def _open(self, stream: str, shard: str) -> Shard:
        found = self._core.shard_of(self._core.named(stream), shard)
        if not found.is_open:
            raise ValueError(f"{shard} is closed")
        return found


def _named(request: Request) -> str:
    for name in ("StreamName", "StreamARN", "ConsumerARN"):
        if name in request:
            text = str(request[name])
            return text.partition(":stream/")[2].partition("/")[0] or text
    return ""
