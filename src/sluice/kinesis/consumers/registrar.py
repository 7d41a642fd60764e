"""Registers fan-out consumers with streams, waits until they are ready, and deregisters them.

As Flink's StreamConsumerRegistrar. A consumer that exists already is used as it is. A query may deregister
only consumers that `ConsumerRegistrar.ensure` says it registered. Where two queries register one name at the
same time, it is the one's that the service has answered. Where the service may have carried out a
registration whose answer was lost, the consumer that is there then, and was not before, is the query's:
nobody else would deregister it, and it is paid for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sluice.aws.names.arns import ConsumerArn, consumer_path
from sluice.aws.names.shards import describe_stream
from sluice.errors import OptionError, ServiceError, SluiceError
from sluice.kinesis.consumers.calls import (
    DESCRIBE,
    NOT_CREATED,
    ConsumerDescription,
    deregister_consumer,
    list_consumers,
    not_ready,
    read_description,
)
from sluice.kinesis.log.client import kinesis_calls
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.options.fan_out import CONSUMER_ARN, CONSUMER_NAME
from sluice.retry import Retrier

__all__ = ["Consumer", "ConsumerRegistrar"]

_REGISTER: Final = "RegisterStreamConsumer"
_DESCRIBE_STREAM: Final = "DescribeStreamSummary"
# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_RegisterStreamConsumer.html
_LIMITS: Final = (
    "a stream has at most 20 consumers (50 in on-demand advantage mode), 5 of them being created at once, "
    "and an account registers 5 a second"
)

_REGISTRATIONS: Final = 3
"""How often to register a consumer that somebody else deregisters while it is being created."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer that is ready to be subscribed with.

    Attributes:
        registered: the call that returned this object has registered the consumer.
    """

    name: str
    arn: str
    registered: bool


@dataclass(frozen=True, slots=True)
class _ConsumerName:
    """A consumer by its name, whether it exists or not."""

    stream: str
    stream_arn: str
    name: str

    @property
    def path(self) -> str:
        """As `consumer_path` of its ARN."""
        return f"{self.stream}/consumer/{self.name}"

    @property
    def request(self) -> dict[str, str]:
        return {"StreamARN": self.stream_arn, "ConsumerName": self.name}


class ConsumerRegistrar:
    """Registers and deregisters the consumers of one source.

    Args:
        config: with `fan_out`.
        retrier: its sleep may raise, which ends the waiting of a query that is stopping.
        is_endpoint_known: as that of `sluice.aws.calling.calls.Calls`.
        on_registered: called with the stream and the consumer's ARN as soon as the service has answered a
            registration, some 10 s before the consumer is ready.
        registering: entered before a registration is asked for, and left after `on_registered`.

    Raises:
        ValueError: the source polls.
    """

    def __init__(
        self,
        config: SourceConfig,
        *,
        retrier: Retrier | None = None,
        is_endpoint_known: bool = False,
        on_registered: Callable[[str, str], object] = lambda _stream, _arn: None,
        registering: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        if config.fan_out is None:
            raise ValueError("records are polled: there are no consumers")
        self._fan_out = config.fan_out
        self._calls = kinesis_calls(config, retrier=retrier, is_endpoint_known=is_endpoint_known)
        self._stream_arns = {stream.name: stream.arn for stream in config.streams}
        self._on_registered = on_registered
        self._registering = registering

    def ensure(self, stream: str) -> Consumer:
        """Returns the consumer to read a stream with, when it is ready.

        A consumer that is being created is waited for. One that is being deleted, even while it is created,
        is waited out and registered anew. One that does not exist is registered, unless the user gives
        consumers by their ARNs.

        Raises:
            OptionError: the ARN that the user gave is not that of a consumer of the stream.
            ServiceError: the consumer cannot be used; the message names consumer, stream and cause.
        """
        if self._fan_out.registration == "none":
            return self._check_given(stream, self._fan_out.arns[stream])
        name = self._fan_out.consumer_name
        if name is None:
            raise OptionError(f"option '{CONSUMER_NAME.key}' is required to register a consumer")
        wanted = _ConsumerName(stream, self._stream_arn(stream), name)
        for _ in range(_REGISTRATIONS):
            consumer = self._find_ready(wanted) or self._register(wanted)
            if consumer is not None:
                return consumer
        raise ServiceError(
            f"{stream}/consumer/{name}: somebody else deregisters it while it is being created, "
            f"{_REGISTRATIONS} times in a row; give each query a '{CONSUMER_NAME.key}' of its own",
            operation=_REGISTER,
            target=wanted.path,
        )

    def deregister(self, arn: str) -> None:
        """Deregisters a consumer as `deregister_consumer` does.

        Raises:
            ServiceError: the consumer may still be there.
        """
        deregister_consumer(self._calls, arn)

    # --- a consumer by name ---------------------------------------------------------------------------

    def _find_ready(self, wanted: _ConsumerName) -> Consumer | None:
        """Waits until the consumer is active; None if it does not exist, or not any more."""

        def read(answer: Mapping[str, Any]) -> Consumer | None:
            consumer = read_description(answer)
            if consumer.status != "ACTIVE":
                raise not_ready(wanted.path, consumer.status)
            return Consumer(consumer.name, consumer.arn, registered=False)

        try:
            return self._calls.call(DESCRIBE, wanted.path, wanted.request, read)
        except ServiceError as error:
            if error.missing:
                return None
            raise

    def _register(self, wanted: _ConsumerName) -> Consumer | None:
        """Registers the consumer and waits until it is active; None if it is deregistered meanwhile."""
        may_be_done = False

        def recover(error: ServiceError) -> Consumer | None:
            nonlocal may_be_done
            if error.code != "ResourceInUseException":
                may_be_done = may_be_done or _may_be_done(error)
                return None
            ours = self._find_own(wanted) if may_be_done else None
            return ours or self._find_of_another(wanted)

        def read(answer: Mapping[str, Any]) -> Consumer:
            consumer = ConsumerDescription.parse(answer["Consumer"])
            return Consumer(consumer.name, consumer.arn, registered=True)

        self._check_permission(wanted)
        try:
            with self._registering():
                consumer = self._calls.call(_REGISTER, wanted.path, wanted.request, read, recover=recover)
                if consumer.registered:
                    self._on_registered(wanted.stream, consumer.arn)
        except ServiceError as error:
            if error.code == "LimitExceededException" and error.operation == _REGISTER:
                self._raise_limits(error, wanted.stream_arn)
            raise
        if consumer.registered:
            _log.info("consumer %s is registered; waiting until it is active", consumer.arn)
            if not self._becomes_active(wanted, consumer.arn):
                _log.warning("%s: somebody else deregisters it; waiting until it is gone", wanted.path)
                return None
        return consumer

    def _check_permission(self, wanted: _ConsumerName) -> None:
        """Describes a consumer that cannot be there by its ARN, as those are described that are registered.

        IAM decides before the service looks for it, on another ARN than for one by name. So a caller who may
        register and not see what becomes of it is told before there is a consumer, which is paid for.

        Raises:
            ServiceError: the caller may not.
        """
        self._calls.call(
            DESCRIBE,
            f"{wanted.path}:*",
            {"ConsumerARN": f"{wanted.stream_arn}/consumer/{wanted.name}:{NOT_CREATED}"},
            lambda _answer: True,
            recover=lambda error: None if error.code == "AccessDeniedException" else True,
        )

    def _find_own(self, wanted: _ConsumerName) -> Consumer | None:
        """The consumer that a call of ours has registered whose answer did not come; None if there is none.

        Nothing is waited for, so that it is known at once what to deregister.
        """
        try:
            found = self._calls.call(DESCRIBE, wanted.path, wanted.request, read_description)
        except ServiceError as error:
            if error.missing:
                return None  # the stream is being changed
            error.retryable = False  # this call has used up its own retries
            raise
        return Consumer(found.name, found.arn, registered=True) if found.status != "DELETING" else None

    def _find_of_another(self, wanted: _ConsumerName) -> Consumer | None:
        """The consumer that another query has just registered, so that registering it was refused.

        If there is none, the stream is being created or resharded: returns None when that is over.
        """
        try:
            found = self._find_ready(wanted)
        except SluiceError as problem:
            problem.retryable = False  # `_find_ready` has used up its own retries
            raise
        if found is None:
            self._wait_for_stream(wanted)
        return found

    def _becomes_active(self, wanted: _ConsumerName, arn: str) -> bool:
        """Waits for a consumer that was registered a moment ago; False if it is being deleted instead."""

        def read(answer: Mapping[str, Any]) -> bool:
            status = read_description(answer).status
            if status == "CREATING":
                raise not_ready(wanted.path, status)
            return status == "ACTIVE"

        def recover(error: ServiceError) -> bool | None:
            # It takes a moment until every host of the service knows a new consumer.
            error.retryable = error.retryable or error.missing
            return None

        return self._calls.call(DESCRIBE, wanted.path, {"ConsumerARN": arn}, read, recover=recover)

    def _raise_limits(self, error: ServiceError, stream_arn: str) -> NoReturn:
        message = f"{error} ({_LIMITS}"
        try:
            consumers = list_consumers(self._calls, stream_arn)
        except SluiceError as problem:
            _log.warning("cannot list the consumers of %s to name them in an error: %s", stream_arn, problem)
        else:
            creating = sum(each.status == "CREATING" for each in consumers)
            names = ", ".join(sorted(each.name for each in consumers)) or "none"
            message += f"; this stream has {len(consumers)}, {creating} of them being created: {names}"
        raise ServiceError(
            message + ")",
            operation=error.operation,
            target=error.target,
            code=error.code,
            retryable=error.retryable,
            throttling=error.throttling,
        ) from None

    # --- a consumer by its ARN ------------------------------------------------------------------------

    def _check_given(self, stream: str, arn: str) -> Consumer:
        target = consumer_path(arn)

        def read(answer: Mapping[str, Any]) -> ConsumerDescription:
            consumer = read_description(answer)
            if consumer.status == "CREATING":
                raise not_ready(target, consumer.status)
            return consumer

        try:
            consumer = self._calls.call(DESCRIBE, target, {"ConsumerARN": arn}, read)
        except ServiceError as error:
            if not error.missing:
                raise
            problem = f"there is no such consumer{self._known_arns(arn)}"
        else:
            stream_arn = self._stream_arn(stream)
            if consumer.status == "ACTIVE" and arn.startswith(f"{stream_arn}/consumer/"):
                return Consumer(consumer.name, consumer.arn, registered=False)
            problem = f"that is not a consumer of {stream_arn}"
            if consumer.status != "ACTIVE":
                problem = f"the consumer is {consumer.status}"
        key = CONSUMER_ARN.key if len(self._stream_arns) == 1 else f"{CONSUMER_ARN.key}.{stream}"
        raise OptionError(f"option '{key}' is {arn!r}: {problem}")

    def _known_arns(self, arn: str) -> str:
        """The consumers that the stream of a wrong ARN has, to be appended to an error's message."""
        stream_arn = ConsumerArn.parse(arn).stream_arn
        try:
            consumers = list_consumers(self._calls, stream_arn)
        except SluiceError as problem:
            _log.info("cannot list the consumers of %s to name them in an error: %s", stream_arn, problem)
            return ""
        return ": the stream has " + (", ".join(sorted(each.arn for each in consumers)) or "none")

    # --- the stream -----------------------------------------------------------------------------------

    def _stream_arn(self, stream: str) -> str:
        known = self._stream_arns.get(stream)
        if known is None:
            known = self._stream_arns[stream] = describe_stream(
                self._calls,
                stream,
                {"StreamName": stream},
                lambda answer: str(answer["StreamDescriptionSummary"]["StreamARN"]),
            )
        return known

    def _wait_for_stream(self, wanted: _ConsumerName) -> None:
        """Waits while the stream is being created or resharded, which may take minutes in all."""

        def read(answer: Mapping[str, Any]) -> bool:
            status = answer["StreamDescriptionSummary"]["StreamStatus"]
            if status in ("CREATING", "UPDATING"):
                raise ServiceError(
                    f"{_DESCRIBE_STREAM} of {wanted.stream}: the stream is {status}",
                    code=status,
                    retryable=True,
                )
            return True

        try:
            self._calls.call(_DESCRIBE_STREAM, wanted.stream, {"StreamARN": wanted.stream_arn}, read)
        except ServiceError as error:
            _log.info("%s: registering again, though the stream may not be ready: %s", wanted.stream, error)


def _may_be_done(error: ServiceError) -> bool:
    """Whether the service may have carried out a call that failed: it has not refused it."""
    return error.retryable and not error.throttling
