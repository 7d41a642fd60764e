"""What the benchmarks' server answers for a stream of closed shards; every page is prepared."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from integration.benchmarks import server
from integration.support.kinesis import REGION

STREAM = "bench"
PAGE_NUMBER = "999999"  # replaced by the page's number in the sequence numbers of the model page


def summary(created: float) -> Mapping[str, Any]:
    """The answer to DescribeStreamSummary; `created` in seconds since the epoch."""
    return {
        "StreamDescriptionSummary": {
            "StreamName": STREAM,
            "StreamARN": f"arn:aws:kinesis:{REGION}:000000000000:stream/{STREAM}",
            "StreamStatus": "ACTIVE",
            "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": created,
            "EnhancedMonitoring": [],
            "OpenShardCount": 0,
        }
    }


def read_options(endpoint: str) -> dict[str, str]:
    """Options of a read of all of it, as fast as the server answers."""
    return {
        "streamName": STREAM,
        "startingPosition": "TRIM_HORIZON",
        "endpointUrl": endpoint,
        "region": REGION,
        "getRecordsInterval": "0",
    }


def backlog(shards: int, pages: int, records: int, size: int) -> server.Operations:
    """Closed shards, so that nothing is probed; each has `pages` of `records` of `size` bytes."""
    now = time.time()
    numbers = [f"49{'0' * 42}{PAGE_NUMBER}{index:06d}" for index in range(records)]
    model = server.page(numbers, b"x" * size, arrival=now)
    prepared = [_page(model, number, is_last=number + 1 == pages) for number in range(pages)]
    width = 2**128 // shards
    listed = [
        {
            "ShardId": f"shardId-{index:012d}",
            "HashKeyRange": {
                "StartingHashKey": str(index * width),
                "EndingHashKey": str((index + 1) * width - 1),
            },
            "SequenceNumberRange": {
                "StartingSequenceNumber": f"49{'0' * 54}",
                "EndingSequenceNumber": f"49{'0' * 41}9{'0' * 12}",
            },
        }
        for index in range(shards)
    ]
    return {
        "DescribeStreamSummary": lambda _: summary(now - 3600),
        "ListShards": lambda _: {"Shards": listed},
        "GetShardIterator": lambda _: {"ShardIterator": "0"},
        "GetRecords": lambda request: prepared[int(request["ShardIterator"])],
    }


def _page(model: server.Page, number: int, *, is_last: bool) -> server.Page:
    following = {} if is_last else {"NextShardIterator": str(number + 1)}
    return model.numbered(PAGE_NUMBER, f"{number:06d}").ended(
        MillisBehindLatest=int(not is_last), **following
    )
