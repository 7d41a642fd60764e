"""The settings of the async sink's writer, and the limits of a destination."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AsyncSinkConfig", "SinkLimits"]


@dataclass(frozen=True, kw_only=True)
class AsyncSinkConfig:
    """The settings of `AsyncSinkWriter`. Durations are seconds, sizes bytes.

    Attributes:
        max_batch_size: entries in one request.
        max_batch_size_in_bytes: bytes in one request, as the destination counts them.
        max_record_size_in_bytes: bytes of one entry; a larger one is refused.
        max_in_flight_requests: requests in flight at a time.
        max_buffered_requests: entries that may wait to be sent; a write waits while there are more.
        max_time_in_buffer: how long an entry waits for its batch to fill.
        request_timeout: when a request counts as failed; a later answer is ignored. A request that runs twice
            as long fails the task.
        max_retry_duration: how long one entry may be refused before the task fails.
        fail_on_timeout: whether a timeout is fatal.
        fail_on_error: whether the first entry that is not accepted is fatal.
        oversized_records: ``fail`` or ``deadLetter``, for an entry that is too large.

    Raises:
        ValueError: a value is out of its range, or does not fit another one. Names the field.
    """

    max_batch_size: int
    max_batch_size_in_bytes: int
    max_record_size_in_bytes: int
    max_in_flight_requests: int
    max_buffered_requests: int
    max_time_in_buffer: float
    request_timeout: float
    max_retry_duration: float
    fail_on_timeout: bool = False
    fail_on_error: bool = False
    oversized_records: str = "fail"

    def __post_init__(self) -> None:
        for name in (
            "max_batch_size",
            "max_batch_size_in_bytes",
            "max_record_size_in_bytes",
            "max_in_flight_requests",
            "max_buffered_requests",
            "request_timeout",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive: {getattr(self, name)!r}")
        for name in ("max_time_in_buffer", "max_retry_duration"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative: {getattr(self, name)!r}")
        if self.oversized_records not in ("fail", "deadLetter"):
            raise ValueError(f"oversized_records must be fail or deadLetter: {self.oversized_records!r}")
        if self.max_buffered_requests < self.max_batch_size:
            raise ValueError(
                f"max_buffered_requests ({self.max_buffered_requests}) must be at least max_batch_size "
                f"({self.max_batch_size}): no batch could fill"
            )
        if self.max_record_size_in_bytes > self.max_batch_size_in_bytes:
            raise ValueError(
                f"max_record_size_in_bytes ({self.max_record_size_in_bytes}) must be at most "
                f"max_batch_size_in_bytes ({self.max_batch_size_in_bytes}): such a record fits no batch"
            )

    @property
    def max_buffered_bytes(self) -> int:
        """Bytes that may wait to be sent; a write waits while there are more, however few the entries."""
        return self.max_batch_size_in_bytes * self.max_in_flight_requests


@dataclass(frozen=True, kw_only=True)
class SinkLimits:
    """The limits of a destination's service, and the defaults of its options.

    Attributes:
        max_batch_size: default and maximum of `maxBatchSize`.
        max_batch_size_in_bytes: default and maximum of `maxBatchSizeInBytes`.
        max_record_size_in_bytes: default and maximum of `maxRecordSizeInBytes`.
        max_in_flight_requests: default of `maxInFlightRequests`.
        max_buffered_requests: default of `maxBufferedRequests`.
        aimd_decrease_factor: default of `aimdDecreaseFactor`.
        are_maximum: whether the first three are maxima. False: the service's limits are not known, and users
            may raise them.
    """

    max_batch_size: int
    max_batch_size_in_bytes: int
    max_record_size_in_bytes: int
    max_in_flight_requests: int = 50
    max_buffered_requests: int = 10_000
    aimd_decrease_factor: float = 0.5
    are_maximum: bool = True
