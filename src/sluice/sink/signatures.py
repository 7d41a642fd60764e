"""How classes and functions that options name are called."""

from __future__ import annotations

import functools
import inspect
from inspect import Parameter
from typing import Any, Final

from sluice.sink.contracts import ElementConverter

__all__ = ["not_run_by_a_call", "takes_argument"]

_WITHOUT_NAME: Final = (
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
)


def not_run_by_a_call(function: object) -> str:
    """What a function is of which a call runs no code: "async def" or "a generator"; empty for any other."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "async def"
    return "a generator" if inspect.isgeneratorfunction(function) else ""


def takes_argument(make: Any) -> bool:
    """Whether a class or function that makes something is called with an argument, or without.

    Arguments that only a keyword gives are left to their defaults.

    Raises:
        TypeError, ValueError: it cannot be called like this, or does not say what it takes.
    """
    of_protocols, given = vars(ElementConverter)["__init__"], make
    if isinstance(make, type) and given.__init__ is of_protocols and given.__new__ is object.__new__:
        # Protocols have an `__init__` that seems to take anything, and calls the next one.
        methods = (vars(each).get("__init__", of_protocols) for each in make.__mro__)
        own = next(method for method in methods if method is not of_protocols)
        if own is object.__init__:
            return False
        make = functools.partial(own, None)  # with its `self`
    signature = inspect.signature(make)
    takes = any(parameter.kind in _WITHOUT_NAME for parameter in signature.parameters.values())
    signature.bind(*([None] if takes else []))
    return takes
