"""The async sink: contracts, writer, rate limiting (FLIP-171, FLIP-242, FLIP-143)."""

from sluice.sink.config import AsyncSinkConfig, SinkLimits
from sluice.sink.contracts import (
    Committer,
    CommittingDestination,
    Destination,
    ElementConverter,
    Epoch,
    GlobalCommitter,
    Origin,
    RateLimitingStrategy,
    Rejection,
    RequestInfo,
    ResultInfo,
    SinkWriter,
    StructType,
    SubmitResult,
)
from sluice.sink.letters.dead_letters import DeadLetter, DeadLetterQueue
from sluice.sink.rate.strategies import (
    AIMDScalingStrategy,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    PacedRateLimitingStrategy,
    ScalingStrategy,
)
from sluice.sink.rate.token_bucket import TokenBucketRateLimitingStrategy
from sluice.sink.reporting.figures import SinkFigures
from sluice.sink.reporting.progress import SinkProgress
from sluice.sink.writing.writer import AsyncSinkWriter

__all__ = [
    "AIMDScalingStrategy",
    "AsyncSinkConfig",
    "AsyncSinkWriter",
    "Committer",
    "CommittingDestination",
    "CongestionControlRateLimitingStrategy",
    "DeadLetter",
    "DeadLetterQueue",
    "Destination",
    "ElementConverter",
    "Epoch",
    "GlobalCommitter",
    "NoRateLimitingStrategy",
    "Origin",
    "PacedRateLimitingStrategy",
    "RateLimitingStrategy",
    "Rejection",
    "RequestInfo",
    "ResultInfo",
    "ScalingStrategy",
    "SinkFigures",
    "SinkLimits",
    "SinkProgress",
    "SinkWriter",
    "StructType",
    "SubmitResult",
    "TokenBucketRateLimitingStrategy",
]
