"""What users see of an error that leaves the library.

Spark shows the whole traceback before the message, in streaming queries within 200 lines of its own
traceback. If an error says what is wrong and what to do, the frames of this library tell users nothing more.
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
    """The error that is being handled, without the frames that it has come through."""
    _log.debug("where %s was raised", type(error).__name__, exc_info=True)
    return error.with_traceback(None)


def shorten_traceback(method: Callable[P, R]) -> Callable[P, R]:
    """Decorates a method that Spark calls: a `SluiceError` leaves it without traceback. Its cause stays.

    With logging at DEBUG, the whole traceback is logged.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except SluiceError as error:
            raise shortened(error) from error.__cause__

    return call
