"""Shortens the traceback of errors that leave the library.

Spark shows the whole traceback before the message. The library's frames do not help users if the error
explains what to do.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from sluice.errors import SluiceError

__all__ = ["shorten_traceback", "shortened"]

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)


def shortened(error: SluiceError) -> SluiceError:
    """Returns the error that is being handled, without its frames. They are logged at DEBUG."""
    _log.debug("where %s was raised", type(error).__name__, exc_info=True)
    return error.with_traceback(None)


def shorten_traceback(method: Callable[P, R]) -> Callable[P, R]:
    """Decorates a method that Spark calls: a `SluiceError` leaves it without traceback, but with its
    cause.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except SluiceError as error:
            raise shortened(error) from error.__cause__

    return call
