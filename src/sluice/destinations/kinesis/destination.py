"""Kinesis Data Streams: rows become records, in batches, through ``PutRecords``.

Limits: https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from sluice.destinations.kinesis.rows import KinesisEntry, KinesisRowConverter
from sluice.errors import OptionError, ServiceError
from sluice.kinesis.connection import ConnectionConfig, client_for, endpoint_for
from sluice.kinesis.errors import is_unanswered, translate
from sluice.options import BOOLEAN, Kind, Option, OptionValues
from sluice.sink.config import SinkLimits
from sluice.sink.contracts import SubmitResult

__all__ = ["KinesisStreamsDestination"]

_MIB: Final = 1024 * 1024
_OPERATION: Final = "PutRecords"
# An endpoint that has never answered, for this long (seconds), is taken for a wrong one.
_FIRST_CONTACT: Final = 5.0
# Those that have, while this process lives: a destination is made anew for every epoch.
_known: Final[set[ConnectionConfig]] = set()

_ARN = re.compile(
    r"arn:aws[a-z-]*:kinesis:(?P<region>[a-z0-9-]+):\d{12}:stream/(?P<name>[a-zA-Z0-9_.-]{1,128})"
)


def _matching(name: str, allowed: str, pattern: re.Pattern[str]) -> Kind[str]:
    def parse(text: str) -> str:
        if pattern.fullmatch(text.strip()) is None:
            raise ValueError(text)
        return text.strip()

    return Kind(name, allowed, parse)


STREAM_NAME = Option(
    "streamName",
    _matching(
        "string", "one name of 1 to 128 letters, digits or any of _.-", re.compile(r"[a-zA-Z0-9_.-]{1,128}")
    ),
    None,
    "Name of the stream to write to; this or `streamArn` is required.",
)
STREAM_ARN = Option(
    "streamArn",
    _matching("arn", "one arn:aws:kinesis:<region>:<account>:stream/<name>", _ARN),
    None,
    "ARN of the stream to write to; its region holds unless `region` is given.",
)
AGGREGATE = Option(
    "aggregate",
    BOOLEAN,
    False,
    "Whether records are packed in the format of the Kinesis Producer Library.",
    shown_default="false",
)


class KinesisStreamsDestination:
    """A stream, as the async sink sees it.

    Args:
        connection: how to reach the service.
        stream_name: this or
        stream_arn: this one.
        client: makes the SDK's client; replaced in tests.
        clock: monotonic seconds.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (STREAM_NAME, STREAM_ARN, AGGREGATE)
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=500,
        max_batch_size_in_bytes=10 * _MIB,
        max_record_size_in_bytes=10 * _MIB,
        aimd_decrease_factor=0.99,
    )

    def __init__(
        self,
        connection: ConnectionConfig,
        *,
        stream_name: str | None = None,
        stream_arn: str | None = None,
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        arn = _ARN.fullmatch(stream_arn) if stream_arn else None
        if arn is not None and connection.region is None:
            connection = replace(connection, region=arn["region"])
        self._connection = connection
        self._stream = {"StreamARN": stream_arn} if stream_arn else {"StreamName": stream_name}
        self._target = stream_name or (arn["name"] if arn else str(stream_arn))
        self._make_client = client
        self._clock = clock
        self._first_try: float | None = None
        self.name = f"kinesis stream '{self._target}'"

    @classmethod
    def from_options(
        cls, values: OptionValues, connection: ConnectionConfig
    ) -> KinesisStreamsDestination | None:
        """Makes the destination from the options. What cannot be is noted in `values`."""
        if values.get(AGGREGATE):
            values.reject(AGGREGATE.key, "('true' given) is not supported yet")
        name, arn = values.get(STREAM_NAME), values.get(STREAM_ARN)
        if values.given(STREAM_NAME) and values.given(STREAM_ARN):
            values.reject(STREAM_ARN.key, f"and '{STREAM_NAME.key}' exclude one another: give one of them")
            return None
        if name is None and arn is None:
            values.reject(STREAM_NAME.key, f"or '{STREAM_ARN.key}' is required")
            return None
        return cls(connection, stream_name=name, stream_arn=arn)

    def create_converter(self) -> KinesisRowConverter:
        return KinesisRowConverter()

    def size_in_bytes(self, entry: KinesisEntry) -> int:
        """Data and partition key count, the key as UTF-8."""
        key = entry.partition_key
        return len(entry.data) + (len(key) if key.isascii() else len(key.encode()))

    def submit(self, entries: Sequence[KinesisEntry]) -> SubmitResult[KinesisEntry]:
        """Calls ``PutRecords`` once.

        Raises:
            ServiceError: nothing is known to have been accepted.
            OptionError: no client can be made from the connection options.
        """
        if self._first_try is None:
            self._first_try = self._clock()
        client = self._make_client(self._connection, "kinesis")
        try:
            response = client.put_records(Records=list(map(_as_request_entry, entries)), **self._stream)
            outcomes = response["Records"]
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, it leaves as a ServiceError
            raise self._translated(error) from None
        _known.add(self._connection)
        if len(outcomes) != len(entries):
            raise ServiceError(
                f"{_OPERATION} of {self._target}: {len(outcomes)} results for {len(entries)} records",
                operation=_OPERATION,
                target=self._target,
                code="DamagedAnswer",
                retryable=True,
            )
        # The count of failures in the answer is not relied upon: each record speaks for itself.
        failed = [n for n, outcome in enumerate(outcomes) if outcome.get("ErrorCode")]
        if not failed:
            return SubmitResult()
        codes = Counter(str(outcomes[n]["ErrorCode"]) for n in failed)
        return SubmitResult(failed=[entries[n] for n in failed], codes=codes)

    def is_fatal(self, error: Exception) -> bool:
        """Fatal is what another attempt will not change: no such stream, no access, bad credentials.

        Throttling, a failure of the service, a timeout or a lost connection is not, unless the
        endpoint has never answered at all: then it is more likely to be the wrong one.
        """
        if isinstance(error, OptionError):
            return True
        if not isinstance(error, ServiceError):
            error = self._translated(error)
        if not error.retryable:
            return True
        if self._connection in _known or not is_unanswered(error) or error.code == "ReadTimeoutError":
            return False
        return self._first_try is not None and self._clock() - self._first_try >= _FIRST_CONTACT

    def close(self) -> None:
        """Nothing to let go of: clients live as long as the process."""

    def _translated(self, error: Exception) -> ServiceError:
        translated = translate(
            error,
            operation=_OPERATION,
            target=self._target,
            endpoint=endpoint_for(self._connection, "kinesis"),
        )
        if not is_unanswered(translated):
            _known.add(self._connection)
        return translated


def _as_request_entry(entry: KinesisEntry) -> dict[str, Any]:
    data, key, hash_key = entry
    if hash_key is None:
        return {"Data": data, "PartitionKey": key}
    return {"Data": data, "PartitionKey": key, "ExplicitHashKey": hash_key}
