"""Decides which consumers a query uses, and which of them it owns.

A query owns a consumer if this run has registered it, or if the offset log names its ARN. An ARN ends with
the second of the registration, so an equal ARN is the same consumer. A query never owns a consumer that the
user has named by ARN.

Own consumers are deregistered when the query is stopped, unless another reader has taken over a subscription
in this run. The service only notifies the reader that loses a subscription. So other readers are unknown
until this run loses a subscription to them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from sluice.errors import SluiceError
from sluice.kinesis.consumers.registrar import ConsumerRegistrar
from sluice.kinesis.options.config import SourceConfig
from sluice.retry import Retrier

__all__ = ["QueryConsumers"]

_log = logging.getLogger(__name__)


class QueryConsumers:
    """The consumers of one run of a query, in its planning process. Thread-safe.

    Args:
        config: with `fan_out`.
        retrier, registering: see `ConsumerRegistrar`.

    Attributes:
        arns: stream's name to the ARN of its consumer.
        own: the same for consumers that are the query's own. The offset log names these.
        logged: ARNs of own consumers that the offset log names: the next run knows that they are its own.
        on_change: called after any change, without a lock.
    """

    def __init__(
        self,
        config: SourceConfig,
        *,
        retrier: Retrier | None = None,
        registering: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._registrar = ConsumerRegistrar(
            config, retrier=retrier, on_registered=self._add_own, registering=registering
        )
        self._streams = [stream.name for stream in config.streams]
        self._may_own = config.fan_out is not None and config.fan_out.registration != "none"
        self._deregisters = config.fan_out is not None and config.fan_out.deregister
        self._lock = threading.Lock()
        self._renewing: set[str] = set()
        # Signal handlers read these without the lock, so each is replaced as a whole.
        self.arns: Mapping[str, str] = {}
        self.own: Mapping[str, str] = {}
        self._contested: frozenset[str] = frozenset()
        self._named: Mapping[str, str] = {}
        self.logged: frozenset[str] = frozenset()
        self.on_change: Callable[[], object] = lambda: None

    @property
    def going(self) -> frozenset[str]:
        """ARNs of the consumers that are deregistered when the query is stopped."""
        return frozenset(self.own.values()) - self._contested if self._deregisters else frozenset()

    # --- registering ----------------------------------------------------------------------------------

    def ensure_all(self) -> None:
        """Finds or registers the consumer of each stream, and waits until it is ready.

        Raises:
            SluiceError: as `ConsumerRegistrar.ensure`. Own consumers stay registered.
        """
        found = {stream: self._ensure(stream) for stream in self._streams}
        with self._lock:
            self.arns = found
        self.on_change()

    def begin_renewal(self, stream: str) -> bool:
        """Whether to call `renew`: False while another call is running."""
        with self._lock:
            is_first = stream not in self._renewing
            self._renewing.add(stream)
            return is_first

    def renew(self, stream: str) -> bool:
        """Registers a consumer again that may be deleted. Returns whether the stream has another one now."""
        try:
            arn = self._ensure(stream)
        except SluiceError as error:
            _log.warning(
                "%s: the consumer is gone or going, and can't be registered; polling meanwhile: %s",
                stream,
                error,
            )
            return False
        finally:
            with self._lock:
                self._renewing.discard(stream)
        with self._lock:
            is_other = self.arns.get(stream) != arn
            self.arns = {**self.arns, stream: arn}
        self.on_change()
        return is_other

    def _ensure(self, stream: str) -> str:
        arn = self._registrar.ensure(stream)
        with self._lock:
            if self.own.get(stream) != arn:  # somebody else has registered it meanwhile
                self.own = {name: each for name, each in self.own.items() if name != stream}
        return arn

    def _add_own(self, stream: str, arn: str) -> None:
        with self._lock:
            self.own = {**self.own, stream: arn}
        self.on_change()

    # --- the offset log -------------------------------------------------------------------------------

    def restore(self, named: Mapping[str, str]) -> None:
        """Takes the query's own consumers from offsets, which may not be logged yet: stream's name to ARN."""
        if named == self._named:  # as for nearly every trigger
            return
        with self._lock:
            self._named = named
            if self._may_own:
                own = {stream: arn for stream, arn in named.items() if self.arns.get(stream) == arn}
                self.own = {**self.own, **own}
        self.on_change()

    def record_logged(self) -> None:
        """Notes that the offsets of the last `restore` are in the offset log, so the next run will recognise
        their consumers.
        """
        with self._lock:
            self.logged = frozenset(self._named.values())
        self.on_change()

    # --- other readers --------------------------------------------------------------------------------

    def contest(self, stream: str, arn: str) -> bool:
        """Another reader has taken over a subscription with a consumer of this query.

        Returns:
            Whether to take it back. A query that does not own the consumer takes back the first subscription
            that it loses, because otherwise the owner would not learn that the consumer is in use.
        """
        with self._lock:
            is_new = bool(arn) and arn not in self._contested
            self._contested |= {arn}
            takes_back = is_new and arn not in self.own.values()
        if is_new:
            _log.warning(
                "%s: another reader uses consumer %s, so this run does not deregister it", stream, arn
            )
            self.on_change()
        return takes_back

    # --- deregistering --------------------------------------------------------------------------------

    def release(self) -> None:
        """Deregisters the query's own consumers, as the agent does when the query is stopped."""
        for stream, arn in self.own.items():
            if arn not in self.going:
                continue
            try:
                self._registrar.deregister(arn)
            except SluiceError as error:
                _log.warning("%s: consumer %s stays registered: %s", stream, arn, error)
                continue
            _log.info("%s: deregistered consumer %s, which is not used", stream, arn)
            with self._lock:
                self.own = {name: each for name, each in self.own.items() if each != arn}
        self.on_change()
