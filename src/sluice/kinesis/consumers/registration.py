"""The fan-out consumers of a source: one for each of its streams."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sluice.errors import SluiceError
from sluice.kinesis.consumers.registrar import Consumer, ConsumerRegistrar
from sluice.kinesis.options.config import SourceConfig

__all__ = ["ensure_all"]

_log = logging.getLogger(__name__)


def ensure_all(config: SourceConfig) -> Mapping[str, Consumer]:
    """The consumer of each stream of a source, by the stream's name, when all are ready.

    Raises:
        SluiceError: as `ConsumerRegistrar.ensure`. Consumers that this call registered are deregistered
            first, unless ``consumerDeregistration`` is ``never``.
    """
    registered: dict[str, str] = {}

    registrar = ConsumerRegistrar(config, on_registered=registered.__setitem__)
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
        _log.info("consumer %s is deregistered, since not every stream has got a consumer", arn)
    except SluiceError as error:
        _log.warning("consumer %s stays registered: %s", arn, error)
