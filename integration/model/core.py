"""What all operations share: streams, the clock, limits and the ways a request names things."""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from zlib import crc32

from integration.model.chance import fraction, within
from integration.model.clock import SECOND, Clock
from integration.model.errors import ModelError
from integration.model.faults import FaultPlan
from integration.model.laws import Laws
from integration.model.limits import CallLimit
from integration.model.shards import Shard
from integration.model.streams import LAST_HASH, Consumer, Stream

Request = Mapping[str, Any]

_STREAM_ARN: Final = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:(\d{12}):stream/([a-zA-Z0-9_.-]+)")
_PUTS: Final = frozenset({"PutRecord", "PutRecords"})
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def invalid(message: str) -> ModelError:
    """A request that can never work."""
    return ModelError("InvalidArgumentException", message)


def require(request: Request, name: str) -> Any:
    """A parameter that a request must have."""
    value = request.get(name)
    if value is None:
        raise ModelError(
            "ValidationException",
            f"1 validation error detected: Value null at '{name[0].lower()}{name[1:]}' failed to satisfy "
            "constraint: Member must not be null",
        )
    return value


def seconds_of(instant: int) -> float:
    """An instant as the API has it: seconds, with a fraction."""
    return instant / SECOND


class Core:
    """State under one lock, and what depends on nothing but it."""

    def __init__(
        self, laws: Laws, clock: Clock, *, seed: int, faults: FaultPlan, region: str, account: str
    ) -> None:
        self.laws = laws
        self.clock = clock
        self.seed = seed
        self.faults = faults
        self.region = region
        self.account = account
        self.lock = threading.RLock()
        self.streams: dict[str, Stream] = {}
        self.calls: Counter[str] = Counter()  # how often each operation was called
        # operation and code to how often it was refused, by a law or a fault
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.expired_keys: set[str] = set()  # access keys whose calls are refused with ExpiredTokenException
        self.generation = 0  # of iterators; those of an older one have expired
        # sequence numbers of records whose producer may not know that they were accepted
        self.unacknowledged: set[str] = set()
        self.on_change: list[Callable[[], None]] = []
        self._rates: dict[tuple[str, str], CallLimit] = {}
        self._created = 0

    # --- time ---

    def settle(self) -> None:
        """Does all that is due by now."""
        elapsed, now = self.clock.elapsed(), self.clock.now()
        for stream in list(self.streams.values()):
            while stream.pending and stream.pending[0][0] <= elapsed:
                stream.pending.pop(0)[1]()
            for consumer in list(stream.consumers.values()):
                if consumer.due is not None and consumer.due <= elapsed:
                    self._settle_consumer(stream, consumer)
            stream.expire(now)

    @staticmethod
    def _settle_consumer(stream: Stream, consumer: Consumer) -> None:
        consumer.due = None
        if consumer.status == "DELETING":
            del stream.consumers[consumer.name]
        else:
            consumer.status = "ACTIVE"

    def later(self, stream: Stream, status: str, action: Callable[[], object]) -> None:
        """A stream has another status until `action` is carried out."""
        stream.status = status
        delay = within(self.laws.status_delay, self.seed, stream.name, status, self.clock.elapsed())

        def act() -> None:
            stream.status = "ACTIVE"
            action()

        if delay <= 0.0:
            act()
        else:
            stream.pending.append((self.clock.elapsed() + delay, act))

    def changed(self) -> None:
        """Tells who waits for records or ends of shards."""
        for notify in self.on_change:
            notify()

    def lose(self, operation: str, answer: Mapping[str, Any]) -> None:
        """An answer may not reach whoever has called."""
        if operation in _PUTS:
            results = answer.get("Records", (answer,))
            self.unacknowledged.update(each["SequenceNumber"] for each in results if "SequenceNumber" in each)

    # --- what a request names ---

    def stream_of(self, request: Request) -> Stream:
        """The stream that a request names by StreamName or StreamARN."""
        name, arn = request.get("StreamName"), request.get("StreamARN")
        if arn is not None:
            match = _STREAM_ARN.fullmatch(arn)
            if match is None or (name is not None and name != match[2]):
                raise invalid("StreamARN is not that of a stream, or not that of StreamName.")
            name = match[2]
        if name is None:
            raise invalid("Either StreamName or StreamARN is required.")
        if not _NAME.fullmatch(name):
            raise ModelError(
                "ValidationException", f"Value '{name}' at 'streamName' failed to satisfy constraint"
            )
        return self.named(name)

    def created_stream_of(self, request: Request) -> Stream:
        """The same, for reads and writes. API_CreateStream: they work when the stream is ACTIVE."""
        stream = self.stream_of(request)
        if stream.status == "CREATING":
            raise ModelError("ResourceNotFoundException", f"Stream {stream.name} is being created.")
        return stream

    def named(self, name: str) -> Stream:
        stream = self.streams.get(name)
        if stream is None:
            raise ModelError(
                "ResourceNotFoundException", f"Stream {name} under account {self.account} not found."
            )
        return stream

    def shard_of(self, stream: Stream, shard_id: str) -> Shard:
        """A shard by its id, unless it has expired."""
        shard = stream.shards.get(shard_id)
        if shard is None or shard.is_expired:
            raise ModelError(
                "ResourceNotFoundException",
                f"Shard {shard_id} in stream {stream.name} under account {self.account} does not exist",
            )
        return shard

    def limit_calls(self, operation: str, stream: str = "") -> None:
        """Counts a call against the operation's rate."""
        found = self.laws.call_rates.get(operation)
        if found is None:
            return
        rate, scope = found
        limit = self._rates.setdefault((operation, stream if scope == "stream" else ""), CallLimit())
        if not limit.take(rate, self.clock.elapsed()):
            raise ModelError("LimitExceededException", f"Rate exceeded for {operation}: {rate:g} a second.")

    # --- shards ---

    def add_stream(self, name: str, shards: int) -> Stream:
        """A stream with shards of the same size."""
        self._created += 1
        arn = f"arn:aws:kinesis:{self.region}:{self.account}:stream/{name}"
        stream = Stream(name, arn, self._created, self.clock.now(), self.seed)
        self.streams[name] = stream
        width = (LAST_HASH + 1) // shards
        for index in range(shards):
            end = LAST_HASH if index == shards - 1 else (index + 1) * width - 1
            self.add_shard(stream, (), (index * width, end))
        return stream

    def add_shard(self, stream: Stream, parents: tuple[Shard, ...], hash_range: tuple[int, int]) -> Shard:
        """A new shard, whose numbers are greater than those of its parents."""
        now = self.clock.now()
        second = max([now // SECOND, *(parent.created_second + 1 for parent in parents)])
        shard = Shard(
            stream.name,
            len(stream.shards),
            tuple(parent.id for parent in parents),
            hash_range,
            now,
            self.clock.elapsed(),
            second,
            (self.seed, stream.number, len(stream.shards)),
            self.laws,
        )
        stream.shards[shard.id] = shard
        for parent in parents:
            parent.children.append(shard)
        stream.changed()
        return shard

    def close_shard(self, stream: Stream, shard: Shard) -> None:
        """The shard takes no more records."""
        shard.closed, shard.closed_elapsed = self.clock.now(), self.clock.elapsed()
        stream.changed()

    # --- opaque strings ---

    def seal(self, *fields: object) -> str:
        """An opaque string that `unseal` reads."""
        body = json.dumps([self.seed, *fields], separators=(",", ":")).encode()
        return base64.b64encode(body + crc32(body).to_bytes(4, "big")).decode()

    def unseal(self, text: str) -> list[Any] | None:
        """The fields of an opaque string; None where it was not made here."""
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return None
        if len(raw) < 5 or crc32(raw[:-4]).to_bytes(4, "big") != raw[-4:]:
            return None
        seed, *fields = json.loads(raw[:-4])
        return fields if seed == self.seed else None

    def chance(self, *things: object) -> float:
        """See `fraction`; for the seed of the model."""
        return fraction(self.seed, *things)
