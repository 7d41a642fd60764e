"""Fan-out consumers as the service describes them, and the calls that list and deregister them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice.aws.calling.calls import Calls
from sluice.aws.names.arns import consumer_path
from sluice.errors import ServiceError
from sluice.instants import micros_from_datetime

__all__ = [
    "DESCRIBE",
    "ConsumerDescription",
    "deregister_consumer",
    "list_consumers",
    "not_ready",
    "read_description",
]

DESCRIBE: Final = "DescribeStreamConsumer"
_DEREGISTER: Final = "DeregisterStreamConsumer"
_LIST: Final = "ListStreamConsumers"


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A consumer as the service describes it.

    Attributes:
        status: ``CREATING``, ``ACTIVE`` or ``DELETING``.
        created: when it was registered (microseconds since the epoch); None if the answer has no time.
    """

    name: str
    arn: str
    status: str
    created: int | None = None

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> ConsumerDescription:
        at = fields.get("ConsumerCreationTimestamp")
        created = None if at is None else micros_from_datetime(at)
        return cls(fields["ConsumerName"], fields["ConsumerARN"], fields["ConsumerStatus"], created)


def read_description(answer: Mapping[str, Any]) -> ConsumerDescription:
    """The consumer that an answer of `DESCRIBE` describes."""
    return ConsumerDescription.parse(answer["ConsumerDescription"])


def not_ready(target: str, status: str) -> ServiceError:
    """The consumer is not ready yet: it will be described again."""
    return ServiceError(
        f"{DESCRIBE} of {target}: the consumer is {status}",
        operation=DESCRIBE,
        target=target,
        code=status,
        retryable=True,
    )


def deregister_consumer(calls: Calls, arn: str) -> None:
    """Deregisters a consumer, unless it is deleted or being deleted. Does not wait until it is deleted. The
    service refuses to deregister a consumer that it is still creating: then this waits until it is active.

    Raises:
        ServiceError: the consumer may still exist.
    """
    target = consumer_path(arn)

    def read(answer: Mapping[str, Any]) -> bool:
        status = read_description(answer).status
        if status == "CREATING":
            raise not_ready(target, status)
        return status == "DELETING"

    def is_going() -> bool:
        try:
            return calls.call(DESCRIBE, target, {"ConsumerARN": arn}, read)
        except ServiceError as error:
            return error.missing

    def recover(error: ServiceError) -> bool | None:
        if error.code == "ResourceInUseException":
            return is_going() or None
        return error.missing or None

    calls.call(_DEREGISTER, target, {"ConsumerARN": arn}, lambda _answer: True, recover=recover)


def list_consumers(calls: Calls, stream_arn: str) -> Sequence[ConsumerDescription]:
    """All consumers of a stream, including those that are being created or deleted.

    Raises:
        ServiceError: they cannot be listed.
    """
    consumers: list[ConsumerDescription] = []
    request = {"StreamARN": stream_arn}
    while True:
        page, token = calls.call(
            _LIST,
            stream_arn.rpartition("/")[2],
            request,
            lambda answer: (
                [ConsumerDescription.parse(each) for each in answer["Consumers"]],
                answer.get("NextToken"),
            ),
        )
        consumers += page
        if not token:
            return consumers
        request = {"StreamARN": stream_arn, "NextToken": token}
