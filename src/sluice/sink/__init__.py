"""The async sink: contracts, writer, rate limiting (FLIP-171, FLIP-242, FLIP-143)."""

from sluice.sink.config import AsyncSinkConfig, SinkLimits
from sluice.sink.contracts import (
    Committer,
    Destination,
    ElementConverter,
    GlobalCommitter,
    RateLimitingStrategy,
    RequestInfo,
    ResultInfo,
    StructType,
    SubmitResult,
)
from sluice.sink.machine import SinkFigures
from sluice.sink.rate_limiting import (
    AIMDScalingStrategy,
    CongestionControlRateLimitingStrategy,
    NoRateLimitingStrategy,
    ScalingStrategy,
)
from sluice.sink.writer import AsyncSinkWriter

__all__ = [
    "AIMDScalingStrategy",
    "AsyncSinkConfig",
    "AsyncSinkWriter",
    "Committer",
    "CongestionControlRateLimitingStrategy",
    "Destination",
    "ElementConverter",
    "GlobalCommitter",
    "NoRateLimitingStrategy",
    "RateLimitingStrategy",
    "RequestInfo",
    "ResultInfo",
    "ScalingStrategy",
    "SinkFigures",
    "SinkLimits",
    "StructType",
    "SubmitResult",
]
