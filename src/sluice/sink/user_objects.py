"""Classes and functions that options name as ``package.module:Name``."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

from sluice.options import matching

__all__ = ["OBJECT", "load_object"]

OBJECT: Final = matching("object", "package.module:Name", "[^:]+:[^:]+")
"""What `load_object` imports."""


def load_object(name: str) -> Any:
    """Imports the object that ``package.module:Name`` stands for; ``Name`` may have dots.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such object.
        ValueError: `name` has no module.
        TypeError: the module's name is relative.
    """
    module, _, attributes = name.partition(":")
    return functools.reduce(getattr, attributes.split("."), importlib.import_module(module))
