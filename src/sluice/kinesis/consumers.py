"""Fan-out consumers: found, registered, waited for and deregistered.

A consumer that exists is used as it is. Only what `Consumers.ensure` says it registered is ever this
query's to deregister: in doubt (two queries register one name at once, or an answer was lost) it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sluice.errors import OptionError, ServiceError, SluiceError
from sluice.kinesis.arns import ConsumerArn, consumer_path
from sluice.kinesis.client import kinesis_calls
from sluice.kinesis.fanout_options import CONSUMER_ARN, CONSUMER_NAME, FanOutConfig
from sluice.kinesis.options import SourceConfig
from sluice.retry import Retrier

__all__ = ["Consumer", "Consumers", "register_at_load"]

_DESCRIBE: Final = "DescribeStreamConsumer"
_REGISTER: Final = "RegisterStreamConsumer"
_DEREGISTER: Final = "DeregisterStreamConsumer"
_LIST: Final = "ListStreamConsumers"
_LIMITS: Final = (
    "a stream has at most 20 consumers (50 in on-demand advantage mode), 5 of them being created at once, "
    "and an account registers 5 a second"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer that is ready. ``registered``: the call that gave it has registered it."""

    name: str
    arn: str
    registered: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """A consumer as the service describes it."""

    name: str
    arn: str
    status: str

    @classmethod
    def of(cls, answered: Mapping[str, Any]) -> _Seen:
        return cls(answered["ConsumerName"], answered["ConsumerARN"], answered["ConsumerStatus"])


def _described(answer: Mapping[str, Any]) -> _Seen:
    return _Seen.of(answer["ConsumerDescription"])


class Consumers:
    """The consumers of one source.

    Args:
        config: with `fan_out`.
        retrier: its sleep is where a stopping query gets out.
        is_known: the endpoint has answered another process of the query: it is not given up early.
    """

    def __init__(
        self, config: SourceConfig, *, retrier: Retrier | None = None, is_known: bool = False
    ) -> None:
        if config.fan_out is None:
            raise ValueError("records are polled: there are no consumers")
        self._fan_out: FanOutConfig = config.fan_out
        self._calls = kinesis_calls(config.connection, config.backoffs, retrier=retrier, is_known=is_known)
        self._stream_arns = {stream.name: stream.arn for stream in config.streams}

    def ensure(self, stream: str) -> Consumer:
        """The consumer to read `stream` with; returns when it is ready.

        One that is being created is waited for; one that is being deleted is waited out and registered
        anew; one that is not there is registered, unless the user does that.

        Raises:
            OptionError: an ARN that the user gave is not that of a consumer to read the stream with.
            ServiceError: the consumer can't be had; the message names it, the stream and the cause.
        """
        if self._fan_out.registration == "none":
            return self._given(stream, self._fan_out.arns[stream])
        name = self._fan_out.consumer_name
        if name is None:
            raise OptionError(f"option '{CONSUMER_NAME.key}' is required to register a consumer")
        stream_arn = self._arn_of(stream)
        found = self._find(stream, stream_arn, name)
        return found or self._register(stream, stream_arn, name)

    def deregister(self, arn: str) -> None:
        """Deregisters a consumer; one that is gone or going already is fine. Does not wait until it is gone.

        Raises:
            ServiceError: it may still be there.
        """

        def recover(error: ServiceError) -> bool | None:
            if error.code == "ResourceInUseException":
                return self._is_going(arn) or None
            return error.missing or None

        self._calls.call(
            _DEREGISTER,
            consumer_path(arn),
            {"ConsumerARN": arn},
            lambda _answer: True,
            recover=recover,
        )
        _log.info("consumer %s is deregistered", arn)

    def _is_going(self, arn: str) -> bool:
        request = {"ConsumerARN": arn}
        try:
            seen = self._calls.call(_DESCRIBE, consumer_path(arn), request, _described)
        except ServiceError as error:
            return error.missing
        return seen.status == "DELETING"

    # --- a consumer by name ---------------------------------------------------------------------------

    def _find(self, stream: str, stream_arn: str, name: str) -> Consumer | None:
        """The consumer once it is active; None where there is none, or none any more."""
        target = f"{stream}/consumer/{name}"

        def read(answer: Mapping[str, Any]) -> Consumer | None:
            seen = _described(answer)
            if seen.status != "ACTIVE":
                raise _not_ready(target, seen.status)
            return Consumer(seen.name, seen.arn, registered=False)

        try:
            return self._calls.call(_DESCRIBE, target, {"StreamARN": stream_arn, "ConsumerName": name}, read)
        except ServiceError as error:
            if error.missing:
                return None
            raise

    def _register(self, stream: str, stream_arn: str, name: str) -> Consumer:
        target = f"{stream}/consumer/{name}"

        def recover(error: ServiceError) -> Consumer | None:
            # In use is the name, which another query has just registered, or the stream, which is being
            # created or changed: then this is tried again.
            if error.code != "ResourceInUseException":
                return None
            try:
                return self._find(stream, stream_arn, name)
            except SluiceError as problem:
                problem.retryable = False  # it has had its retries
                raise

        def read(answer: Mapping[str, Any]) -> Consumer:
            seen = _Seen.of(answer["Consumer"])
            return Consumer(seen.name, seen.arn, registered=True)

        try:
            consumer = self._calls.call(
                _REGISTER, target, {"StreamARN": stream_arn, "ConsumerName": name}, read, recover=recover
            )
        except ServiceError as error:
            if error.code == "LimitExceededException" and error.operation == _REGISTER:
                self._raise_limits(error, stream_arn)
            raise
        if consumer.registered:
            _log.info("consumer %s is registered", consumer.arn)
            self._wait_for_new(target, consumer.arn)
        return consumer

    def _wait_for_new(self, target: str, arn: str) -> None:
        def read(answer: Mapping[str, Any]) -> bool:
            status = _described(answer).status
            if status != "ACTIVE":
                raise _not_ready(target, status, retryable=status == "CREATING")
            return True

        def recover(error: ServiceError) -> bool | None:
            # What has just been registered may take a moment until it is known everywhere.
            error.retryable = error.retryable or error.missing
            return None

        self._calls.call(_DESCRIBE, target, {"ConsumerARN": arn}, read, recover=recover)

    def _raise_limits(self, error: ServiceError, stream_arn: str) -> NoReturn:
        message = f"{error} ({_LIMITS}"
        try:
            seen = self._list(stream_arn)
        except SluiceError as problem:
            _log.warning("the consumers of %s can't be listed: %s", stream_arn, problem)
        else:
            creating = sum(each.status == "CREATING" for each in seen)
            names = ", ".join(sorted(each.name for each in seen)) or "none"
            message += f"; this stream has {len(seen)}, {creating} of them being created: {names}"
        raise ServiceError(
            message + ")",
            operation=error.operation,
            target=error.target,
            code=error.code,
            retryable=error.retryable,
            throttling=error.throttling,
        ) from None

    # --- a consumer by its ARN ------------------------------------------------------------------------

    def _given(self, stream: str, arn: str) -> Consumer:
        target = consumer_path(arn)

        def read(answer: Mapping[str, Any]) -> _Seen:
            seen = _described(answer)
            if seen.status == "CREATING":
                raise _not_ready(target, seen.status)
            return seen

        try:
            seen = self._calls.call(_DESCRIBE, target, {"ConsumerARN": arn}, read)
        except ServiceError as error:
            if not error.missing:
                raise
            problem = f"there is no such consumer{self._others(arn)}"
        else:
            stream_arn = self._arn_of(stream)
            if seen.status == "ACTIVE" and arn.startswith(f"{stream_arn}/consumer/"):
                return Consumer(seen.name, seen.arn, registered=False)
            problem = f"that is not a consumer of {stream_arn}"
            if seen.status != "ACTIVE":
                problem = f"the consumer is {seen.status}"
        key = CONSUMER_ARN.key if len(self._stream_arns) == 1 else f"{CONSUMER_ARN.key}.{stream}"
        raise OptionError(f"option '{key}' is {arn!r}: {problem}")

    def _others(self, arn: str) -> str:
        try:
            seen = self._list(ConsumerArn.parse(arn).stream_arn)
        except SluiceError as problem:
            _log.info("the consumers to choose from can't be listed: %s", problem)
            return ""
        return ": the stream has " + (", ".join(sorted(each.arn for each in seen)) or "none")

    # --- the stream -----------------------------------------------------------------------------------

    def _arn_of(self, stream: str) -> str:
        known = self._stream_arns.get(stream)
        if known is None:
            known = self._stream_arns[stream] = self._calls.call(
                "DescribeStreamSummary",
                stream,
                {"StreamName": stream},
                lambda answer: str(answer["StreamDescriptionSummary"]["StreamARN"]),
            )
        return known

    def _list(self, stream_arn: str) -> Sequence[_Seen]:
        seen: list[_Seen] = []
        request = {"StreamARN": stream_arn}
        while True:
            page, token = self._calls.call(
                _LIST,
                stream_arn.rpartition("/")[2],
                request,
                lambda answer: (
                    [_Seen.of(each) for each in answer["Consumers"]],
                    answer.get("NextToken"),
                ),
            )
            seen += page
            if not token:
                return seen
            request = {"StreamARN": stream_arn, "NextToken": token}


def register_at_load(config: SourceConfig) -> Mapping[str, str]:
    """Makes the consumers of an eager source ready; gives the ARNs of those that this registered, by stream.

    Raises:
        SluiceError: what `Consumers.ensure` raises. Nothing that this registered is left then, unless
            consumers are to stay.
    """
    if config.fan_out is None or config.fan_out.registration != "eager":
        return {}
    consumers = Consumers(config)
    registered: dict[str, str] = {}
    try:
        for stream in config.streams:
            consumer = consumers.ensure(stream.name)
            if consumer.registered:
                registered[stream.name] = consumer.arn
    except BaseException:
        # There will be no query that could do it.
        for arn in registered.values() if config.fan_out.deregister else ():
            _try_to_deregister(consumers, arn)
        raise
    return registered


def _try_to_deregister(consumers: Consumers, arn: str) -> None:
    try:
        consumers.deregister(arn)
    except SluiceError as error:
        _log.warning("consumer %s stays registered: %s", arn, error)


def _not_ready(target: str, status: str, *, retryable: bool = True) -> ServiceError:
    return ServiceError(
        f"{_DESCRIBE} of {target}: the consumer is {status}",
        operation=_DESCRIBE,
        target=target,
        code=status,
        retryable=retryable,
    )
