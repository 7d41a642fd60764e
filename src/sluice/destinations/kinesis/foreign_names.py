"""What other sinks for Kinesis, and Spark's for Kafka, call the options of this destination."""

from __future__ import annotations

from typing import Final

from sluice.aws.names.foreign_names import AWSLABS, CONNECTION_NAMES
from sluice.option_names import Explained, ForeignName, Taken

__all__ = ["SINK_NAMES"]

_FLUSH: Final = "has no counterpart: a task ends when its records are acknowledged; leave it out"
_CONNECTIONS: Final = "has no counterpart: 'maxInFlightRequests' limits the requests of a task"

SINK_NAMES: Final[tuple[ForeignName, ...]] = (
    *CONNECTION_NAMES,
    Taken("kinesis.streamName", AWSLABS, "streamName"),
    Taken("kinesis.sink.recordMaxBufferedTimeMs", AWSLABS, "maxTimeInBuffer"),
    Taken("kinesis.sink.aggregationEnabled", AWSLABS, "aggregate"),
    Explained("kinesis.sink.flushWaitTimeMs", AWSLABS, _FLUSH),
    Explained("kinesis.sink.maxConnections", AWSLABS, _CONNECTIONS),
    Explained(
        "kinesis.sink.recordTtl",
        AWSLABS,
        "drops records that are late, which nothing does here: a record that is refused for longer than "
        "'maxRetryDuration' fails its task",
    ),
    Explained("topic", "Kafka", "is Kafka's: the stream is named in 'streamName'"),
    Explained(
        "kafka.bootstrap.servers",
        "Kafka",
        "is Kafka's: a stream is found by 'region', or by 'endpointUrl' where that is not AWS",
    ),
    Explained("kafka.*", "Kafka", "is Kafka's, and has no counterpart: leave it out"),
    Explained("includeHeaders", "Kafka", "is Kafka's: records of Kinesis have no headers"),
)
