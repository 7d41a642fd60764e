"""The source's option names in Spark's Kafka source and in other Kinesis connectors.

Kafka: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html. The others
are listed in `sluice.aws.names.foreign_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sluice.aws.names.foreign_names import AWSLABS, CONNECTION_NAMES, DATABRICKS
from sluice.errors import OptionError
from sluice.option_names import Explained, ForeignName, Taken

__all__ = ["KAFKA", "SOURCE_NAMES"]

KAFKA: Final = "Kafka"

_TIME: Final = (
    "a time is written as 'startingPosition' AT_TIMESTAMP and 'startingTimestamp', such as "
    "2026-01-31T12:00:00Z"
)
_BY_SHARD: Final = (
    "Kinesis has sequence numbers, by shard: "
    '\'startingPosition\' {"<shardId>": {"AFTER_SEQUENCE_NUMBER": "..."}}'
)


def _position(text: str) -> Mapping[str, str]:
    """Translates positions of Databricks and awslabs: a word, ``AT_TIMESTAMP <time>`` or JSON."""
    if text.lstrip().startswith("{"):
        if "at_timestamp" in text.lower():
            raise OptionError(f"has a time in an unsupported form: {_TIME}")
        if "iteratortype" in text.lower():
            raise OptionError(f"has iterator types, which are not supported: {_BY_SHARD}")
        return {"startingPosition": text}
    word, _, time = text.strip().partition(" ")
    if word.upper() == "AT_TIMESTAMP" and time:
        return {"startingPosition": "AT_TIMESTAMP", "startingTimestamp": time.strip()}
    return {"startingPosition": "TRIM_HORIZON" if text.strip().upper() == "EARLIEST" else text}


def _offsets(key: str, words: Mapping[str, str]) -> Callable[[str], Mapping[str, str]]:
    """Translates offsets of Kafka: ``earliest``, ``latest``, or JSON with an offset for each partition."""

    def translate(text: str) -> Mapping[str, str]:
        try:
            return {key: words[text.strip().lower()]}
        except KeyError:
            raise OptionError(
                f"has something else than {' or '.join(words)}, which is not supported: {_BY_SHARD}"
            ) from None

    return translate


def _one_of(key: str, words: Mapping[str, str]) -> Callable[[str], Mapping[str, str]]:
    def translate(text: str) -> Mapping[str, str]:
        return {key: words.get(text.strip().lower(), text)}

    return translate


_PUBLISHER: Final = _one_of("recordPublisher", {"getrecords": "polling", "subscribetoshard": "efo"})
_DEREGISTRATION: Final = _one_of("consumerDeregistration", {"true": "auto", "false": "never"})
_EARLIEST_OR_LATEST: Final = {"earliest": "TRIM_HORIZON", "latest": "LATEST"}

_NO_TIME_LIMIT: Final = (
    "has no counterpart: what a batch reads is fixed before it is read, by 'maxRecordsPerTrigger', "
    "'maxBytesPerTrigger' or 'maxTimeSpanPerTrigger'"
)
_PER_SHARD: Final = (
    "limits each shard; here 'maxRecordsPerTrigger' limits the records of a batch, of all shards together"
)
_NO_PREFETCH: Final = "has no counterpart: nothing is fetched ahead of a batch; leave it out"
_NO_METADATA: Final = (
    "has no counterpart: positions are in Spark's own checkpoint and nowhere else; leave it out"
)
_RETRIES: Final = (
    "is set by operation here: 'getRecordsMaxRetries', 'getRecordsBackoffBase', 'getRecordsBackoffMax', and "
    "likewise for the others"
)
_CONSUMER_WAIT: Final = (
    "has no counterpart: how long a consumer is waited for is set by 'describeStreamConsumerMaxRetries' and "
    "'describeStreamConsumerBackoffMax'"
)
_STREAM: Final = "is Kafka's: the streams of Kinesis are named in 'streamName', comma-separated"
_NO_KAFKA: Final = "is Kafka's, and has no counterpart: leave it out"
_TRIGGER: Final = (
    "is Kafka's: a batch is planned at each trigger for which there are records; for larger batches make the "
    "interval of the query's trigger longer"
)
_TASKS: Final = (
    "is Kafka's: the records of a shard are read in order, by one task; 'shardsPerTask' says how many shards "
    "a task reads"
)
_BY_TIMESTAMP: Final = f"is Kafka's: {_TIME}"


def _explained(origin: str, why: str, *names: str) -> tuple[Explained, ...]:
    return tuple(Explained(name, origin, why) for name in names)


_DATABRICKS: Final[tuple[ForeignName, ...]] = (
    Taken("initialPosition", DATABRICKS, "startingPosition", _position),
    Taken("consumerMode", DATABRICKS, "recordPublisher"),
    Taken("requireConsumerDeregistration", DATABRICKS, "consumerDeregistration", _DEREGISTRATION),
    Taken("maxRecordsPerFetch", DATABRICKS, "getRecordsLimit"),
    Taken("shardFetchInterval", DATABRICKS, "shardDiscoveryInterval"),
    *_explained(
        DATABRICKS,
        _CONSUMER_WAIT,
        "registerConsumerTimeoutInterval",
        "deregisterConsumerTimeoutInterval",
    ),
    *_explained(
        DATABRICKS,
        "has no counterpart: whether a consumer is still there shows when shards are subscribed to",
        "consumerRefreshInterval",
    ),
    *_explained(DATABRICKS, "has no counterpart: 'consumerName' is the whole name", "consumerNamePrefix"),
    *_explained(
        DATABRICKS,
        "has no counterpart: a task keeps to the 2 MiB a second of a shard by itself; 'maxBytesPerTrigger' "
        "limits a batch",
        "maxFetchRate",
    ),
    *_explained(
        DATABRICKS,
        "has no counterpart: nothing is fetched ahead of a batch; 'getRecordsInterval' is the pause between "
        "two reads of one shard",
        "minFetchPeriod",
    ),
    *_explained(
        DATABRICKS,
        _NO_PREFETCH,
        "maxFetchDuration",
        "fetchBufferSize",
        "coalesce",
        "coalesceThresholdBlockSize",
        "coalesceBinSize",
    ),
    *_explained(DATABRICKS, "has no counterpart: clients are always used again", "reuseKinesisClient"),
    *_explained(DATABRICKS, _RETRIES, "clientRetries"),
)

_AWSLABS: Final[tuple[ForeignName, ...]] = (
    Taken("kinesis.streamName", AWSLABS, "streamName"),
    Taken("kinesis.startingPosition", AWSLABS, "startingPosition", _position),
    Taken("kinesis.consumerType", AWSLABS, "recordPublisher", _PUBLISHER),
    Taken("kinesis.consumerName", AWSLABS, "consumerName"),
    Taken("kinesis.failOnDataLoss", AWSLABS, "failOnDataLoss"),
    Taken("kinesis.describeShardInterval", AWSLABS, "shardDiscoveryInterval"),
    Taken("kinesis.subscribeToShard.maxRetries", AWSLABS, "subscribeToShardMaxRetries"),
    Taken("kinesis.getRecords.numberOfRecordsPerFetch", AWSLABS, "getRecordsLimit"),
    Taken("kinesis.getRecords.fetchIntervalMs", AWSLABS, "getRecordsInterval"),
    *_explained(AWSLABS, _PER_SHARD, "kinesis.maxFetchRecordsPerShard"),
    *_explained(AWSLABS, _NO_TIME_LIMIT, "kinesis.maxFetchTimePerShardSec"),
    *_explained(
        AWSLABS,
        "has no counterpart: subscriptions stay open between batches; leave it out",
        "kinesis.subscribeToShard.timeoutSec",
    ),
    *_explained(
        AWSLABS,
        _NO_METADATA,
        "kinesis.metadataCommitterType",
        "kinesis.metadataPath",
        "kinesis.metadataNumRetries",
        "kinesis.metadataRetryIntervalsMs",
        "kinesis.metadataMaxRetryIntervalMs",
        "kinesis.minBatchesToRetain",
        "kinesis.dynamodb.*",
    ),
    *_explained(
        AWSLABS,
        "has no counterpart: shards are looked at as many at a time as need be; leave it out",
        "kinesis.checkNewRecordThreads",
    ),
    *_explained(
        AWSLABS,
        _RETRIES,
        "kinesis.clientNumRetries",
        "kinesis.clientRetryIntervalsMs",
        "kinesis.clientMaxRetryIntervalMs",
    ),
)

_KAFKA: Final[tuple[ForeignName, ...]] = (
    Taken("startingOffsets", KAFKA, "startingPosition", _offsets("startingPosition", _EARLIEST_OR_LATEST)),
    Taken("endingOffsets", KAFKA, "endingPosition", _offsets("endingPosition", {"latest": "LATEST"})),
    Taken("maxOffsetsPerTrigger", KAFKA, "maxRecordsPerTrigger"),
    *_explained(KAFKA, _STREAM, "subscribe", "subscribePattern", "assign", "topic"),
    *_explained(KAFKA, _TRIGGER, "minOffsetsPerTrigger", "maxTriggerDelay"),
    *_explained(KAFKA, _TASKS, "minPartitions", "maxRecordsPerPartition"),
    *_explained(KAFKA, _BY_TIMESTAMP, "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *_explained(
        KAFKA,
        "is Kafka's: a batch read ends at a time with 'endingPosition' AT_TIMESTAMP and 'endingTimestamp'",
        "endingOffsetsByTimestamp",
    ),
    *_explained(
        KAFKA,
        "is Kafka's: there are no groups; each query has its positions in its own checkpoint, and all read "
        "all records",
        "groupIdPrefix",
        "kafka.group.id",
    ),
    *_explained(
        KAFKA,
        "is Kafka's: a stream is found by 'region', or by 'endpointUrl' where that is not AWS",
        "kafka.bootstrap.servers",
    ),
    *_explained(KAFKA, _RETRIES, "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *_explained(KAFKA, _NO_KAFKA, "includeHeaders", "kafkaConsumer.*", "kafka.*"),
)

SOURCE_NAMES: Final = (*CONNECTION_NAMES, *_DATABRICKS, *_AWSLABS, *_KAFKA)
