"""The option ``elementConverter``: a converter of the user's, in the place of the destination's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sluice.errors import OptionError
from sluice.options import Option, OptionValues
from sluice.sink.contracts import Destination, ElementConverter
from sluice.sink.user_code.loading import load_object, takes_argument

__all__ = ["ConverterFactory", "converter_factory"]

_PARTS: Final = ("open", "convert")


@dataclass(frozen=True)
class ConverterFactory:
    """Makes the converters that `elementConverter` names.

    Attributes:
        name: the option's value.
        options: that the converter has besides those of the sink.
    """

    name: str
    _make: Any
    options: Sequence[Option[Any]] = ()

    def create(self, values: OptionValues, destination: Destination[Any]) -> ElementConverter[Any]:
        """Makes a converter.

        Raises:
            OptionError: it does not fit the destination or its options, or it is no converter.
        """
        try:
            made = self._made(values, destination)
        except OptionError:
            raise
        except Exception as error:
            raise OptionError(f"it cannot be made: {type(error).__name__}: {error}") from error
        missing = [part for part in _PARTS if not callable(getattr(made, part, None))]
        if missing:
            raise OptionError(f"what it makes has no {', '.join(missing)}")
        return cast("ElementConverter[Any]", made)

    def _made(self, values: OptionValues, destination: Destination[Any]) -> Any:
        if hasattr(self._make, "from_options"):
            return self._make.from_options(values, destination)
        return self._make(destination) if takes_argument(self._make) else self._make()


def converter_factory(name: str) -> ConverterFactory:
    """Finds the class or function of a converter.

    Args:
        name: the value of the option.

    Raises:
        OptionError: there is no such object, or it cannot be called.
    """
    try:
        make = load_object(name)
        if not hasattr(make, "from_options"):
            takes_argument(make)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise OptionError(f"option 'elementConverter' is {name!r}: it cannot be loaded: {error}") from None
    return ConverterFactory(name, make, tuple(getattr(make, "OPTIONS", ())))
