"""Registers fan-out consumers with streams, waits until they are ready, and deregisters them.

It corresponds to Flink's StreamConsumerRegistrar. An existing consumer is used as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from sluice.aws.names.arns import ConsumerArn, consumer_path
from sluice.aws.names.shards import describe_stream
from sluice.errors import OptionError, ServiceError, SluiceError
from sluice.kinesis.consumers.calls import (
    DESCRIBE,
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

__all__ = ["ConsumerRegistrar"]

_REGISTER: Final = "RegisterStreamConsumer"
_IN_USE: Final = "ResourceInUseException"
# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_RegisterStreamConsumer.html
_LIMITS: Final = (
    "a stream has at most 20 consumers (50 in on-demand advantage mode), 5 of them being created at once, "
    "and an account registers 5 a second"
)

_log = logging.getLogger(__name__)


class ConsumerRegistrar:
    """Registers and deregisters the consumers of one source.

    Args:
        config: with `fan_out`.
        retrier: its sleep may raise, so that a query that is being stopped does not wait.
        is_endpoint_known: see `sluice.aws.calling.calls.Calls`.
        on_registered: called with the stream and the ARN of a consumer that this registrar has registered,
            as soon as the service has answered, about 10 s before the consumer is ready.
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

    def ensure(self, stream: str) -> str:
        """Returns the ARN of the consumer to read a stream with, when it is ready.

        The consumer is described until it is active. If it does not exist, it is registered, unless the user
        names consumers by their ARNs. The service refuses that while another query registers the consumer,
        and while the stream is being created or resharded: then the next description shows what to do.

        Raises:
            OptionError: the user's ARN names no consumer of the stream.
            ServiceError: the consumer cannot be used; the message names consumer, stream and cause.
        """
        if self._fan_out.registration == "none":
            return self._check_given(stream, self._fan_out.arns[stream])
        if self._fan_out.consumer_name is None:
            raise OptionError(f"option '{CONSUMER_NAME.key}' is required to register a consumer")
        return self._ensure_named(stream, self._fan_out.consumer_name)

    def deregister(self, arn: str) -> None:
        """Deregisters a consumer as `deregister_consumer` does.

        Raises:
            ServiceError: the consumer may still be there.
        """
        deregister_consumer(self._calls, arn)

    # --- a consumer by name ---------------------------------------------------------------------------

    def _ensure_named(self, stream: str, name: str) -> str:
        path = f"{stream}/consumer/{name}"
        request = {"StreamARN": self._stream_arn(stream), "ConsumerName": name}
        is_own = False  # this call has registered it
        is_maybe_own = (
            False  # a registration got no answer: if it succeeded, nobody else would deregister the consumer
        )

        def read(answer: Mapping[str, Any]) -> str:
            nonlocal is_own, is_maybe_own
            found = read_description(answer)
            if found.status == "DELETING":
                is_own = is_maybe_own = False  # when it is gone, it is registered anew
            elif is_maybe_own:
                is_own, is_maybe_own = True, False
                self._on_registered(stream, found.arn)
            if found.status != "ACTIVE":
                raise not_ready(path, found.status)
            return found.arn

        def recover(error: ServiceError) -> None:
            nonlocal is_own, is_maybe_own
            if not error.missing:
                return
            error.retryable = True  # not every host of the service knows a new consumer at once
            if not is_own:
                is_maybe_own = False
                self._register(stream, path, request, watch)
                is_own, is_maybe_own = True, False

        def watch(error: ServiceError) -> None:
            nonlocal is_maybe_own
            if error.code == _IN_USE:
                error.retryable = False  # not before the consumer is described again
            is_maybe_own = is_maybe_own or (error.retryable and not error.throttling)

        return self._calls.call(DESCRIBE, path, request, read, recover=recover)

    def _register(
        self, stream: str, path: str, request: Mapping[str, str], watch: Callable[[ServiceError], None]
    ) -> None:
        """Registers a consumer.

        Raises:
            ServiceError: it can't be registered; retryable if that may change while the query waits for other
                consumers.
        """

        def read(answer: Mapping[str, Any]) -> str:
            return str(answer["Consumer"]["ConsumerARN"])

        try:
            with self._registering():
                arn = self._calls.call(_REGISTER, path, request, read, recover=watch)
                self._on_registered(stream, arn)
        except ServiceError as error:
            error.retryable = error.code == _IN_USE  # other errors have used up their own retries
            if error.code == "LimitExceededException":
                raise self._with_limits(error, request["StreamARN"]) from None
            raise
        _log.info("consumer %s is registered; waiting until it is active", arn)

    def _with_limits(self, error: ServiceError, stream_arn: str) -> ServiceError:
        message = f"{error} ({_LIMITS}"
        if (consumers := self._list(stream_arn)) is not None:
            creating = sum(each.status == "CREATING" for each in consumers)
            names = ", ".join(sorted(each.name for each in consumers)) or "none"
            message += f"; this stream has {len(consumers)}, {creating} of them being created: {names}"
        return ServiceError(
            message + ")",
            operation=error.operation,
            target=error.target,
            code=error.code,
            throttling=error.throttling,
        )

    # --- a consumer by its ARN ------------------------------------------------------------------------

    def _check_given(self, stream: str, arn: str) -> str:
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
            problem = "this consumer does not exist"
            if (consumers := self._list(ConsumerArn.parse(arn).stream_arn)) is not None:
                problem += ": the stream has " + (", ".join(sorted(each.arn for each in consumers)) or "none")
        else:
            stream_arn = self._stream_arn(stream)
            if consumer.status == "ACTIVE" and arn.startswith(f"{stream_arn}/consumer/"):
                return arn
            problem = f"that is not a consumer of {stream_arn}"
            if consumer.status != "ACTIVE":
                problem = f"the consumer is {consumer.status}"
        key = CONSUMER_ARN.key if len(self._stream_arns) == 1 else f"{CONSUMER_ARN.key}.{stream}"
        raise OptionError(f"option '{key}' is {arn!r}: {problem}")

    # --- the stream -----------------------------------------------------------------------------------

    def _list(self, stream_arn: str) -> Sequence[ConsumerDescription] | None:
        """The stream's consumers, to name them in an error; None if they cannot be listed."""
        try:
            return list_consumers(self._calls, stream_arn)
        except SluiceError as problem:
            _log.info("cannot list the consumers of %s to name them in an error: %s", stream_arn, problem)
            return None

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
