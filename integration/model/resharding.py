"""SplitShard, MergeShards and UpdateShardCount.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_SplitShard.html
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_MergeShards.html
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_UpdateShardCount.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from integration.model.core import Core, Request, invalid, require
from integration.model.errors import ModelError
from integration.model.shards import Shard
from integration.model.streams import LAST_HASH, Stream

_DAY = 24 * 3600.0
_SCALINGS_A_DAY = 10


class Resharding:
    """Opens and closes shards. A stream is UPDATING meanwhile, and its shards change when it is ACTIVE
    again.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def split_shard(self, request: Request) -> dict[str, Any]:
        stream = self._core.stream_of(request)
        shard = self._open_shard(stream, require(request, "ShardToSplit"))
        key = int(require(request, "NewStartingHashKey"))
        low, high = shard.hash_range
        if not low + 1 < key < high:
            raise invalid(
                f"NewStartingHashKey {key} used in SplitShard() on shard {shard.id} in stream "
                f"{stream.name} under "
                f"account {self._core.account} is not both greater than one plus the shard's StartingHashKey "
                f"{low} and less than the shard's EndingHashKey {high}."
            )
        return self._start(stream, 1, lambda: self.split(stream, shard, key))

    def merge_shards(self, request: Request) -> dict[str, Any]:
        stream = self._core.stream_of(request)
        shard = self._open_shard(stream, require(request, "ShardToMerge"))
        other = self._open_shard(stream, require(request, "AdjacentShardToMerge"))
        left, right = sorted((shard, other), key=lambda each: each.hash_range)
        if left.hash_range[1] + 1 != right.hash_range[0]:
            raise invalid(
                f"Shards {shard.id} and {other.id} in stream {stream.name} under account "
                f"{self._core.account} are "
                "not an adjacent pair of shards eligible for merging"
            )
        return self._start(stream, -1, lambda: self.merge(stream, shard, other))

    def update_shard_count(self, request: Request) -> dict[str, Any]:
        core = self._core
        stream = core.stream_of(request)
        current, target = len(stream.open_shards), require(request, "TargetShardCount")
        now = core.clock.elapsed()
        stream.reshards = [at for at in stream.reshards if at > now - _DAY]
        if core.laws.resharding_rules:
            if target > 2 * current or 2 * target < current:
                raise ModelError(
                    "LimitExceededException",
                    f"UpdateShardCount cannot scale {current} shards to {target}: at most to "
                    f"{2 * current}, at "
                    f"least to {-(-current // 2)}.",
                )
            if len(stream.reshards) >= _SCALINGS_A_DAY:
                raise ModelError("LimitExceededException", "A stream can be scaled 10 times in 24 hours.")
        self._start(stream, target - current, lambda: self.scale(stream, target))
        stream.reshards.append(now)
        return {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "CurrentShardCount": current,
            "TargetShardCount": target,
        }

    # --- at once, for tests too ---

    def split(self, stream: Stream, shard: Shard, key: int | None = None) -> list[Shard]:
        """Closes a shard and opens two; in the middle where no key is given."""
        low, high = shard.hash_range
        key = (low + high + 1) // 2 if key is None else key
        self._core.close_shard(stream, shard)
        children = [self._core.add_shard(stream, (shard,), each) for each in ((low, key - 1), (key, high))]
        self._core.changed()
        return children

    def merge(self, stream: Stream, shard: Shard, other: Shard) -> Shard:
        """Closes two neighbours and opens one."""
        both = (*shard.hash_range, *other.hash_range)
        for each in (shard, other):
            self._core.close_shard(stream, each)
        child = self._core.add_shard(stream, (shard, other), (min(both), max(both)))
        self._core.changed()
        return child

    def scale(self, stream: Stream, target: int) -> None:
        """Splits and merges until there are `target` shards of the same size, short-lived ones between."""
        width = (LAST_HASH + 1) // target
        starts = [index * width for index in range(target)]
        for key in starts[1:]:
            shard = stream.shard_for(key)
            if shard.hash_range[0] < key:
                self.split(stream, shard, key)
        for index, start in enumerate(starts):
            end = LAST_HASH if index == target - 1 else starts[index + 1] - 1
            shard = stream.shard_for(start)
            while shard.hash_range[1] < end:
                shard = self.merge(stream, shard, stream.shard_for(shard.hash_range[1] + 1))

    def _open_shard(self, stream: Stream, shard_id: str) -> Shard:
        shard = self._core.shard_of(stream, shard_id)
        if not shard.is_open:
            raise invalid(f"Shard {shard_id} in stream {stream.name} is closed.")
        return shard

    def _start(self, stream: Stream, more: int, reshard: Callable[[], object]) -> dict[str, Any]:
        core = self._core
        if core.laws.resharding_rules and stream.status != "ACTIVE":
            raise ModelError(
                "ResourceInUseException",
                f"Stream {stream.name} under account {core.account} not ACTIVE, instead in state "
                f"{stream.status}",
            )
        open_shards = sum(len(each.open_shards) for each in core.streams.values())
        if core.laws.shard_limit is not None and open_shards + more > core.laws.shard_limit:
            raise ModelError(
                "LimitExceededException", "This request would exceed the shard limit of the account."
            )
        core.later(stream, "UPDATING", reshard)
        return {}
