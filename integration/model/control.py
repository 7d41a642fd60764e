"""Streams: made, described, listed, changed and deleted.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_ListShards.html and its neighbours.
"""

from __future__ import annotations

from typing import Any

from integration.model.clock import SECOND
from integration.model.core import Core, Request, invalid, require
from integration.model.errors import ModelError
from integration.model.laws import KIB
from integration.model.shards import Shard
from integration.model.streams import Stream

_HOUR = 3600 * SECOND
_CREATING_STREAMS = 5


class Control:
    """The operations of streams as a whole, but for resharding."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # --- life ---

    def create_stream(self, request: Request) -> dict[str, Any]:
        core = self._core
        name = require(request, "StreamName")
        if name in core.streams:
            raise ModelError(
                "ResourceInUseException", f"Stream {name} under account {core.account} already exists."
            )
        mode = request.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
        shards = request.get("ShardCount", 4 if mode == "ON_DEMAND" else 1)
        creating = sum(stream.status == "CREATING" for stream in core.streams.values())
        open_shards = sum(len(stream.open_shards) for stream in core.streams.values())
        if core.laws.resharding_rules and creating >= _CREATING_STREAMS:
            raise ModelError("LimitExceededException", "More than 5 streams are being created.")
        if core.laws.shard_limit is not None and open_shards + shards > core.laws.shard_limit:
            raise ModelError(
                "LimitExceededException", "This request would exceed the shard limit of the account."
            )
        stream = core.add_stream(name, shards)
        stream.mode = mode
        stream.max_record_bytes = request.get("MaxRecordSizeInKiB", 1024) * KIB
        core.later(stream, "CREATING", lambda: None)
        return {}

    def delete_stream(self, request: Request) -> dict[str, Any]:
        """The operation. Consumers go with the stream, if EnforceConsumerDeletion says so."""
        core = self._core
        stream = core.stream_of(request)
        if stream.consumers and not request.get("EnforceConsumerDeletion"):
            raise ModelError("ResourceInUseException", f"Stream {stream.name} has consumers.")

        def delete() -> None:
            stream.status = "DELETING"
            core.streams.pop(stream.name, None)
            core.changed()

        stream.pending.clear()
        core.later(stream, "DELETING", delete)
        return {}

    def describe_stream_summary(self, request: Request) -> dict[str, Any]:
        stream = self._core.stream_of(request)
        description = self._description(stream) | {
            "OpenShardCount": len(stream.open_shards),
            "ConsumerCount": len(stream.consumers),
            "MaxRecordSizeInKiB": stream.max_record_bytes // KIB,
        }
        return {"StreamDescriptionSummary": description}

    def describe_stream(self, request: Request) -> dict[str, Any]:
        """The operation; 100 shards a page at most."""
        stream = self._core.stream_of(request)
        shards = self._shards_after(stream, request.get("ExclusiveStartShardId", ""))
        count = min(request.get("Limit", 100), 100)
        description = self._description(stream) | {
            "Shards": [api_shard(shard) for shard in shards[:count]],
            "HasMoreShards": len(shards) > count,
        }
        return {"StreamDescription": description}

    def list_streams(self, request: Request) -> dict[str, Any]:
        """The operation; 100 streams a page at most."""
        after = request.get("ExclusiveStartStreamName", "")
        names = sorted(name for name in self._core.streams if name > after)
        count = min(request.get("Limit", 100), 100)
        return {"StreamNames": names[:count], "HasMoreStreams": len(names) > count}

    def _description(self, stream: Stream) -> dict[str, Any]:
        return {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "StreamStatus": stream.status,
            "StreamModeDetails": {"StreamMode": stream.mode},
            "RetentionPeriodHours": stream.retention_hours,
            "StreamCreationTimestamp": float(stream.created // SECOND),
            "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
            "EncryptionType": "NONE",
        }

    # --- shards ---

    def list_shards(self, request: Request) -> dict[str, Any]:
        """The operation, in pages."""
        core, laws = self._core, self._core.laws
        token = request.get("NextToken")
        if token is not None:
            if laws.token_alone and any(
                name in request for name in ("StreamName", "StreamCreationTimestamp")
            ):
                raise invalid("NextToken and StreamName cannot be provided together.")
            name, after, condition = self._open_token(token, "shards")
            stream = core.named(name)
        else:
            stream = core.stream_of(request)
            after = request.get("ExclusiveStartShardId", "")
            condition = request.get("ShardFilter")
        if stream.status == "CREATING":
            raise ModelError("ResourceInUseException", f"Stream {stream.name} is {stream.status}.")
        shards = [shard for shard in self._shards_after(stream, after) if self._matches(shard, condition)]
        count = min(request.get("MaxResults", laws.listing_page), laws.listing_page)
        answer: dict[str, Any] = {"Shards": [api_shard(shard) for shard in shards[:count]]}
        if len(shards) > count:
            answer["NextToken"] = self.token("shards", stream, shards[count - 1].id, condition)
        return answer

    def token(self, kind: str, stream: Stream, after: str, condition: object = None) -> str:
        return self._core.seal("token", kind, stream.name, after, condition, self._core.clock.elapsed())

    def open_token(self, token: str, kind: str) -> tuple[Stream, str]:
        """The stream and the last item that a NextToken names."""
        name, after, _ = self._open_token(token, kind)
        return self._core.named(name), after

    def _open_token(self, token: str, kind: str) -> tuple[str, str, Any]:
        fields = self._core.unseal(token)
        if fields is None or fields[:2] != ["token", kind]:
            raise invalid("NextToken is invalid.")
        life = self._core.laws.token_life
        if life is not None and self._core.clock.elapsed() - fields[5] > life:
            raise ModelError(
                "ExpiredNextTokenException", "NextToken has expired: it is older than 300 seconds."
            )
        return fields[2], fields[3], fields[4]

    def _shards_after(self, stream: Stream, after: str) -> list[Shard]:
        listed = stream.listed(self._core.clock.elapsed(), self._core.laws)
        return [shard for shard in listed if shard.id > after]

    def _matches(self, shard: Shard, condition: Request | None) -> bool:
        if condition is None:
            return True
        stream, now = self._core.streams[shard.stream], self._core.clock.now()
        at = round(condition.get("Timestamp", 0) * SECOND)
        closed = now + 1 if shard.closed is None else shard.closed
        horizon = max(now - stream.retention_hours * _HOUR, stream.created)
        matches: dict[str, bool] = {
            "AFTER_SHARD_ID": shard.id > condition.get("ShardId", ""),
            # Those that a stream begins with are made a moment after it.
            "AT_TRIM_HORIZON": (not shard.parents or shard.created <= horizon) and horizon <= closed,
            "FROM_TRIM_HORIZON": True,
            "AT_LATEST": shard.is_open,
            "AT_TIMESTAMP": shard.created <= at <= closed,
            "FROM_TIMESTAMP": at <= closed,
        }
        if condition["Type"] not in matches:
            raise invalid(f"ShardFilter is not valid: {condition['Type']}")
        return matches[condition["Type"]]

    # --- retention and sizes ---

    def increase_stream_retention_period(self, request: Request) -> dict[str, Any]:
        """The operation. What has expired stays away."""
        return self._set_retention(request, 1)

    def decrease_stream_retention_period(self, request: Request) -> dict[str, Any]:
        """The operation. What is older expires at once."""
        return self._set_retention(request, -1)

    def _set_retention(self, request: Request, direction: int) -> dict[str, Any]:
        stream = self._core.stream_of(request)
        hours = require(request, "RetentionPeriodHours")
        self._require_active(stream)
        if not 24 <= hours <= 8760 or (hours - stream.retention_hours) * direction < 0:
            raise invalid(
                f"RetentionPeriodHours {hours} is not allowed; it is {stream.retention_hours} hours now."
            )
        stream.retention_hours = hours
        self._core.settle()
        return {}

    def update_max_record_size(self, request: Request) -> dict[str, Any]:
        stream = self._core.stream_of(request)
        size = require(request, "MaxRecordSizeInKiB")
        if not 1024 <= size <= 10240:
            raise ModelError("ValidationException", f"MaxRecordSizeInKiB {size} is not in [1024, 10240].")
        self._require_active(stream)
        stream.max_record_bytes = size * KIB
        return {}

    def _require_active(self, stream: Stream) -> None:
        if stream.status != "ACTIVE":
            raise ModelError(
                "ResourceInUseException", f"Stream {stream.name} is {stream.status}, not ACTIVE."
            )


def api_shard(shard: Shard) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": shard.starting_number}
    if shard.ending_number is not None:
        numbers["EndingSequenceNumber"] = shard.ending_number
    answer: dict[str, Any] = {
        "ShardId": shard.id,
        "HashKeyRange": {
            "StartingHashKey": str(shard.hash_range[0]),
            "EndingHashKey": str(shard.hash_range[1]),
        },
        "SequenceNumberRange": numbers,
    }
    return answer | dict(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False))
