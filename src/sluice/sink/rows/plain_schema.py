"""Schemas of names and types alone, where there is none of PySpark's: what `StructType` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["PlainField", "PlainSchema", "PlainType"]


@dataclass(frozen=True)
class PlainType:
    """A type, as SQL spells it."""

    name: str

    def simpleString(self) -> str:  # noqa: N802 - PySpark's name
        """The name."""
        return self.name


@dataclass(frozen=True)
class PlainField:
    """A column; its type is a `PlainType`, or PySpark's."""

    name: str
    dataType: Any  # noqa: N815 - PySpark's name


@dataclass(frozen=True)
class PlainSchema:
    """The columns, in their order."""

    fields: Sequence[Any]
