"""Calls of the model in place of those of a service: the source's own client works on it without a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from integration.model.errors import ModelError
from integration.model.log import service_error
from integration.streams_model.model import StreamsModel
from sluice.aws.calling.calls import Calls
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire.changes import read_changes
from sluice.aws.wire.items import read_scan
from sluice.errors import ServiceError
from sluice.instants import MICROS_PER_SECOND, micros_from_seconds, micros_to_datetime
from sluice.retry import Backoff, Retrier

T = TypeVar("T")

LISTING: Final = Backoff(10, 1.0, 5.0, 1.5, throttle_patience=900.0)
READING: Final = Backoff(3, 0.3, 1.0, 1.5)


class ModelCalls(Calls):
    """`Calls` of a `StreamsModel`. Requests and answers pass through JSON, as they would on the wire."""

    model: StreamsModel

    def __init__(self, model: StreamsModel) -> None:
        backoffs = dict.fromkeys(("GetRecords", "GetShardIterator"), READING)
        backoffs |= dict.fromkeys(("DescribeStream", "ListStreams", "DescribeTable", "Scan"), LISTING)
        super().__init__(ConnectionConfig(), "dynamodbstreams", backoffs)
        object.__setattr__(self, "model", model)

    def for_planning(self, *reads: str) -> ModelCalls:
        """See `Calls.for_planning`. The model leaves no call unanswered."""
        assert self.backoffs.keys() >= {*reads}
        return self

    def server_time(self) -> float:
        return self.model.clock.now() / MICROS_PER_SECOND

    def call(
        self,
        operation: str,
        target: str,
        request: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
        *,
        recover: Callable[[ServiceError], T | None] = lambda _error: None,
    ) -> T:
        def attempt() -> T:
            try:
                body = msgspec.json.encode(self.model.call(operation, msgspec.json.decode(_encoded(request))))
            except ModelError as error:
                problem = service_error(error, operation, target)
                if (result := recover(problem)) is not None:
                    return result
            else:
                return read(_answer(operation, body))
            raise problem

        retrier = Retrier(self.model.clock.sleep, lambda: 0.5)
        return retrier.call(self.backoffs[operation], attempt)


def _encoded(request: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(dict(request))


def _answer(operation: str, body: bytes) -> Mapping[str, Any]:
    if operation == "GetRecords":
        return read_changes({"body": body, "headers": {}, "status_code": 200})
    if operation == "Scan":
        return read_scan({"body": body, "headers": {}, "status_code": 200})
    answer: dict[str, Any] = msgspec.json.decode(body)
    if (description := answer.get("StreamDescription")) is not None:
        created = micros_from_seconds(description["CreationRequestDateTime"])
        description["CreationRequestDateTime"] = micros_to_datetime(created)
    return answer
