"""Faults of the service: what the model refuses, loses, damages and delays; and the readers' clock."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from integration.chaos.pipeline import COPIED, ORDERS, QUERIES, consumer_of
from integration.chaos.plan import Fault
from integration.chaos.reader_clock import ReaderClock
from integration.model import LOST_ANSWER, SECOND, FaultPlan, KinesisModel, ModelError
from integration.model.sending import WireFault
from integration.model.server import ModelServer
from integration.model.shards import Shard

_THROTTLED: Final = "ProvisionedThroughputExceededException"
_LIMITED: Final = "LimitExceededException"
_KMS: Final = "KMSThrottlingException"
_READS: Final = ("GetRecords", "GetShardIterator")
_CONTROL: Final = (
    "DeregisterStreamConsumer",
    "DescribeStreamConsumer",
    "DescribeStreamSummary",
    "ListShards",
    "ListStreamConsumers",
    "RegisterStreamConsumer",
    "SubscribeToShard",
)
_WIRE_OPERATIONS: Final = (*_READS, "ListShards", "PutRecords", "PutRecords", "DescribeStreamSummary")

_Rates = Mapping[str, Mapping[str, float]]


def _each(operations: Iterable[str], code: str, chance: float) -> _Rates:
    return {operation: {code: chance} for operation in operations}


def _storm(chance: float) -> Mapping[str, _Rates]:
    """What fails how often in a storm, by kind of fault; `chance` says how hard it is."""
    most = 0.5 + 0.5 * chance  # half of all calls, up to all of them
    # Failures of the service are retried a few times, so they must not come too often for that.
    few = 0.02 + 0.06 * chance
    return {
        "throttle reads": _each(_READS, _THROTTLED, most),
        "throttle writes": {"PutRecords": {_THROTTLED: most}, "PutRecords.record": {_THROTTLED: most / 2}},
        "throttle control": _each(_CONTROL, _LIMITED, most),
        "throttle everything": {"*": {_LIMITED: most}},
        "KMS throttling": _each((*_READS, "PutRecords", "SubscribeToShard.event"), _KMS, most),
        "internal failures": {"*": {"InternalFailure": few, "ServiceUnavailable": few / 2}},
        "refuse records": {
            "PutRecords.record": {_THROTTLED: most / 3, "InternalFailure": most / 6, LOST_ANSWER: 0.02}
        },
        "lose answers": {"PutRecords": {LOST_ANSWER: most / 3}, "*": {LOST_ANSWER: few}},
        "end subscriptions": {
            "SubscribeToShard.event": {"end": 0.1, "InternalFailureException": 0.1, "silence": 0.05}
        },
    }


class Weather:
    """Makes the faults of the service and takes them back.

    `rotate`: makes a new access key and returns the old one.
    """

    def __init__(self, server: ModelServer, clock: ReaderClock, rotate: Callable[[], str]) -> None:
        self.fired: Counter[tuple[str, str]] = Counter()
        self._server = server
        self._model: KinesisModel = server.model
        self._clock = clock
        self._rotate = rotate
        self._storms: dict[Fault, _Rates] = {}
        self._others: Mapping[str, Callable[[Fault], str | None]] = {
            "expire credentials": self._expire_credentials,
            "clock ahead": self._set_clock,
            "clock behind": self._set_clock,
            "clock drifts": self._drift,
            "silence subscriptions": self._silence,
            "expire iterators": self._expire_iterators,
            "delete consumer": self._delete_consumer,
            "split": self._reshard,
            "merge": self._reshard,
            "scale": self._reshard,
        }

    def begin(self, fault: Fault) -> str | None:
        """Makes a fault: what it has hit. None where there is nothing to hit."""
        name = fault.kind.name
        storms = _storm(fault.draws[0])
        if name in storms:
            self._storms[fault] = storms[name]
            self._apply()
            return f"{fault.draws[0]:.0%}"
        return self._set_wire(fault) if name in _WIRE else self._others[name](fault)

    def end(self, fault: Fault) -> None:
        """Takes a fault back, if there is something to take back."""
        if self._storms.pop(fault, None) is not None:
            self._apply()
        elif fault.kind.name in _WIRE:
            self._server.wire.set()
        elif fault.kind.name == "clock drifts":
            self._clock.drift(0.0)

    def clear(self) -> None:
        """Nothing fails any more. The clock stays where it is."""
        self._storms.clear()
        self._apply()
        self._server.wire.set()
        self._clock.drift(0.0)

    # --- inside ---

    def _apply(self) -> None:
        merged: dict[str, dict[str, float]] = {}
        for rates in self._storms.values():
            for operation, codes in rates.items():
                merged.setdefault(operation, {}).update(codes)
        self.fired.update(self._model.faults.fired)
        self._model.faults = FaultPlan(merged, seed=len(self._storms))

    def _set_wire(self, fault: Fault) -> str:
        kind, is_stream = _WIRE[fault.kind.name]
        draw, other, third = fault.draws
        operation = "SubscribeToShard" if is_stream else _WIRE_OPERATIONS[int(draw * len(_WIRE_OPERATIONS))]
        at = int(other * (3000 if is_stream else 200))
        # One answer more than a few would use up the retries of a call.
        times = 1 + int(third * (4 if is_stream else 2))
        seconds = 0.01 if kind == "trickle" else 2 + 18 * third
        self._server.wire.set(
            WireFault(operation=operation, kind=kind, at=at, times=times, seconds=seconds, step=20)
        )
        return f"{times} of {operation} at byte {at}"

    def _expire_credentials(self, _: Fault) -> str:
        self._model.expire_credentials(self._rotate())
        return "the key in use"

    def _set_clock(self, fault: Fault) -> str:
        """Ahead of the service's or behind it; half of the times by so little that hardly anybody sees it."""
        draw, other, _ = fault.draws
        offset = 0.3 + 2 * other if draw < 0.5 else 5 + 85 * other
        if fault.kind.name == "clock behind":
            offset = -offset
        service = self._model.clock.now() / SECOND - time.time()
        self._clock.set_offset(service + offset)
        return f"{offset:+.1f} s"

    def _drift(self, fault: Fault) -> str:
        draw, other, _ = fault.draws
        rate = (0.01 + 0.09 * other) * (1 if draw < 0.5 else -1)
        self._clock.drift(rate)
        return f"{rate:+.1%}"

    def _expire_iterators(self, _: Fault) -> str:
        self._model.expire_iterators()
        return "all"

    def _silence(self, fault: Fault) -> str | None:
        silenced = 0
        for shard in self._open_shards(ORDERS) + self._open_shards(COPIED):
            if fault.draws[0] > _FEW_SILENT or shard.index % 2:
                for subscription in self._model.subscriptions(shard.stream, shard.id):
                    subscription.fall_silent()
                    silenced += 1
        return f"{silenced} subscriptions" if silenced else None

    def _delete_consumer(self, _: Fault) -> str | None:
        deleted = []
        for stream, query in zip((ORDERS, COPIED), QUERIES, strict=True):
            with contextlib.suppress(ModelError):
                summary = self._call("DescribeStreamSummary", StreamName=stream)["StreamDescriptionSummary"]
                request = {"StreamARN": summary["StreamARN"], "ConsumerName": consumer_of(query)}
                self._call("DeregisterStreamConsumer", **request)
                deleted.append(consumer_of(query))
        return ", ".join(deleted) or None

    def _reshard(self, fault: Fault) -> str | None:
        """As the API lets us; what it refuses has not happened."""
        draw, where, far = fault.draws
        stream, how = ORDERS if draw < _OF_ORDERS else COPIED, fault.kind.name
        shards = self._open_shards(stream)
        if how != "scale":
            how = "split" if len(shards) <= _FEWEST else "merge" if len(shards) >= _MOST else how
        index = int(where * (len(shards) - (how == "merge")))
        shard = shards[index]
        try:
            if how == "split":
                low, high = shard.hash_range
                middle = str(low + int((high - low) * (0.25 + 0.5 * far)))
                self._call("SplitShard", StreamName=stream, ShardToSplit=shard.id, NewStartingHashKey=middle)
            elif how == "merge":
                other = shards[index + 1].id
                self._call(
                    "MergeShards", StreamName=stream, ShardToMerge=shard.id, AdjacentShardToMerge=other
                )
            else:
                target = _FEWEST + int(far * (_MOST - _FEWEST + 1))
                self._call("UpdateShardCount", StreamName=stream, TargetShardCount=target)
        except ModelError:
            return None
        return f"{stream}, {how} of {len(shards)}"

    def _open_shards(self, stream: str) -> list[Shard]:
        shards = [each for each in self._model.shards() if each.stream == stream and each.is_open]
        return sorted(shards, key=lambda shard: shard.hash_range)

    def _call(self, operation: str, **request: Any) -> dict[str, Any]:
        return self._model.call(operation, request, access_key="chaos")


_FEWEST: Final = 2
_MOST: Final = 6  # open shards of a stream
_OF_ORDERS: Final = 0.7
_FEW_SILENT: Final = 0.3

# Kind of fault to what the wire does, and whether to event streams.
_WIRE: Final[Mapping[str, tuple[Any, bool]]] = {
    "cut answers": ("cut", False),
    "reset connections": ("reset", False),
    "damage answers": ("flip", False),
    "hold up answers": ("stall", False),
    "trickle answers": ("trickle", False),
    "cut event streams": ("cut", True),
    "damage event streams": ("flip", True),
}
