"""What codes say of load that many services use alike, for destinations that say nothing themselves."""

from __future__ import annotations

import builtins
import re
from typing import Final

__all__ = ["is_throttling_code"]

_LOAD: Final = re.compile(
    r"throttl|too_?many_?requests|slow_?down|rate_?limit|(throughput|rate)_?exceeded|^(http_?)?429$",
    re.IGNORECASE,
)
# Services fail like this whatever they are sent. (Not InternalError, nor Unavailable, nor 503: some use those
# for load, too.)
_FAILURE: Final = re.compile(r"^internal_?(server|service)?_?(failure|exception)$", re.IGNORECASE)
# The connection or the answer was lost, as HTTP clients call it: to slow down would not help.
_LOST: Final = re.compile(r"^((connect|read|write|pool)_?timeout|connection)(error)?$", re.IGNORECASE)


def is_throttling_code(code: str) -> bool | None:
    """Whether a code means load.

    Args:
        code: of an entry or an error, or the name of the class of one: ``ThrottlingException``,
            ``TooManyRequests``, ``InternalFailure``, ``ConnectionResetError``.

    Returns:
        True: load. False: a failure that has nothing to do with it. None: the code does not say.
    """
    if _LOAD.search(code):
        return True
    known = getattr(builtins, code, None)
    is_lost = _LOST.search(code) or (isinstance(known, type) and issubclass(known, OSError))
    return False if is_lost or _FAILURE.search(code) else None
