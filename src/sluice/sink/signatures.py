"""How classes and functions that options name are called."""

from __future__ import annotations

import inspect
from typing import Any

from sluice.sink.contracts import ElementConverter

__all__ = ["takes_argument"]


def takes_argument(make: Any) -> bool:
    """Whether a class or function that makes something is called with an argument, or without.

    Raises:
        TypeError, ValueError: it cannot be called, or does not say what it takes.
    """
    of_protocols, given = vars(ElementConverter)["__init__"], make
    if isinstance(make, type) and given.__init__ is of_protocols and given.__new__ is object.__new__:
        # Protocols have an `__init__` that seems to take anything, and calls the next one.
        methods = (vars(each).get("__init__", of_protocols) for each in make.__mro__)
        make = next(method for method in methods if method is not of_protocols)
        return make is not object.__init__ and len(inspect.signature(make).parameters) > 1
    return bool(inspect.signature(make).parameters)
