"""Messages of the processes that Spark starts on the driver host."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from sluice.spark.logs import configure_driver_log

COLLECTED = "PYSPARK_SPARK_SESSION_UUID"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The project's logger, as in a new process."""
    log = logging.getLogger("sluice")
    kept = log.handlers[:], log.level, log.propagate
    log.handlers, log.level, log.propagate = [], logging.NOTSET, True
    monkeypatch.delenv(COLLECTED, raising=False)
    yield log
    log.handlers, log.level, log.propagate = kept


def test_messages_go_to_standard_error_from_info_on(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure_driver_log()

    (handler,) = log.handlers
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr
    assert (log.level, log.propagate) == (logging.INFO, False)


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_handler_of_the_application_or_of_spark_stays_alone(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, *, is_collected: bool
) -> None:
    """Spark's handler is on the root logger, and gets messages from INFO on."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    if is_collected:
        monkeypatch.setenv(COLLECTED, "5f1c")
    configure_driver_log()

    assert log.handlers == []
    assert (log.level, log.propagate) == (logging.INFO if is_collected else logging.NOTSET, True)
