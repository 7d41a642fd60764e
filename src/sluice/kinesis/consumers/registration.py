"""The fan-out consumers of a source: one for each of its streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from sluice.errors import SluiceError
from sluice.kinesis.consumers import loaded as loaded_consumers
from sluice.kinesis.consumers.registrar import Consumer, ConsumerRegistrar
from sluice.kinesis.options.config import SourceConfig

__all__ = ["ensure_all", "register_at_load"]

_log = logging.getLogger(__name__)


def register_at_load(config: SourceConfig) -> Mapping[str, str]:
    """Registers the consumers of a source with ``consumerRegistration=eager``; does nothing for others.

    Returns:
        Stream's name to its consumer's ARN, for the consumers that this call registered, or an earlier
        ``load()`` with which no query has begun.

    Raises:
        SluiceError: as `ConsumerRegistrar.ensure`. Consumers that this call registered are deregistered
            first, unless ``consumerDeregistration`` is ``never``.
    """
    if config.fan_out is None or config.fan_out.registration != "eager":
        return {}
    # Noted before it is ready, which takes some 10 s, in which the application may be killed.
    note = loaded_consumers.note if config.fan_out.deregister else _do_nothing
    consumers = ensure_all(config, on_registered=note)
    return {
        stream: consumer.arn
        for stream, consumer in consumers.items()
        if consumer.registered or loaded_consumers.is_noted(consumer.arn)
    }


def _do_nothing(_arn: str) -> None:
    pass


def ensure_all(
    config: SourceConfig, *, on_registered: Callable[[str], object] = _do_nothing
) -> Mapping[str, Consumer]:
    """The consumer of each stream of a source, by the stream's name, when all are ready.

    Args:
        on_registered: told the ARN of each consumer as soon as this call has registered it.

    Raises:
        SluiceError: as `ConsumerRegistrar.ensure`. Consumers that this call registered are deregistered
            first, unless ``consumerDeregistration`` is ``never``.
    """
    registered: dict[str, str] = {}

    def own(stream: str, arn: str) -> None:
        registered[stream] = arn
        on_registered(arn)

    registrar = ConsumerRegistrar(config, on_registered=own)
    try:
        return {stream.name: registrar.ensure(stream.name) for stream in config.streams}
    except BaseException:
        if config.fan_out is not None and config.fan_out.deregister:
            for arn in registered.values():  # no query begins that would deregister them
                _try_to_deregister(registrar, arn)
        raise


def _try_to_deregister(registrar: ConsumerRegistrar, arn: str) -> None:
    try:
        registrar.deregister(arn)
        loaded_consumers.forget(arn)
        _log.info("consumer %s is deregistered, since not every stream has got a consumer", arn)
    except SluiceError as error:
        _log.warning("consumer %s stays registered: %s", arn, error)
