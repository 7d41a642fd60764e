"""The user's classes and functions: how they are imported, called, and completed with defaults."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final, cast

from sluice.errors import OptionError, SluiceError
from sluice.options import Option, OptionValues, matching
from sluice.sink.contracts import Destination, ElementConverter, Origin, StructType

__all__ = [
    "OBJECT",
    "ConverterFactory",
    "adopted",
    "converter_factory",
    "destination_name",
    "load_function",
    "load_object",
    "not_run_by_a_call",
    "open_converter",
    "run",
    "takes_argument",
]

OBJECT: Final = matching("object", "package.module:Name", "[^:]+:[^:]+")
"""What `load_object` imports."""

_BY_POSITION: Final = (
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
)

# The writer awaits the first two if they are methods of a `Destination`, and iterates over the others.
_AWAITED: Final = ("submit", "close")
_ITERATED: Final = ("convert", "unpacked", "prepare_commit")


def load_object(name: str) -> Any:
    """Imports the object that ``package.module:Name`` names; ``Name`` may have dots.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such object.
        ValueError: `name` has no module.
        TypeError: the module's name is relative.
    """
    module, _, attributes = name.partition(":")
    return functools.reduce(getattr, attributes.split("."), importlib.import_module(module))


def load_function(option: Option[Any], name: str) -> Any:
    """Imports the function that an option names.

    Raises:
        OptionError: it cannot be loaded, or not be called, or would not run when it is called.
    """
    try:
        function = load_object(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise OptionError(f"option '{option.key}' is {name!r}: it cannot be loaded: {error}") from None
    if not callable(function):
        raise OptionError(f"option '{option.key}' is {name!r}: it cannot be called")
    if what := not_run_by_a_call(function):
        raise OptionError(f"option '{option.key}' is {name!r}: it is {what}, and would not run")
    return function


def takes_argument(make: Any) -> bool:
    """Whether a class or function that makes something is called with an argument, or without.

    Arguments that only a keyword gives are left to their defaults.

    Raises:
        TypeError, ValueError: it cannot be called like this, or does not say what it takes.
    """
    signature = inspect.signature(make)
    takes = any(parameter.kind in _BY_POSITION for parameter in signature.parameters.values())
    signature.bind(*([None] if takes else []))
    return takes


def open_converter(converter: ElementConverter[Any], schema: StructType, origin: Origin) -> None:
    """Opens a converter; with the schema alone if its `open` takes no `origin`."""
    parameters = inspect.signature(converter.open).parameters
    if "origin" in parameters and parameters["origin"].kind is not Parameter.POSITIONAL_ONLY:
        run(converter.open, schema, origin=origin)
        return
    takes_origin = any(
        each.kind in _BY_POSITION[:2] and each.default is Parameter.empty
        for each in list(parameters.values())[1:2]
    )
    run(converter.open, schema, *([origin] if takes_origin else []))


def destination_name(destination: object) -> str:
    """How messages call a destination, of either kind: its ``name``, else the name of its class."""
    return str(getattr(destination, "name", "") or type(destination).__name__)


def adopted(given: Any, base: type[Any]) -> Any:
    """`given` itself if it inherits from `base`, else an object of `base` with the attributes of `given`.

    Attributes that `given` lacks, or that are None, come from `base`.

    Raises:
        SluiceError: calling a method of `given` would not run it, so its rows would be lost without an error.
    """
    for name in vars(base):
        own = inspect.getattr_static(given, name, None) if not name.startswith("_") else None
        kind = not_run_by_a_call(getattr(own, "__func__", own))  # of a class method or a static one
        allowed = _ITERATED if kind == "a generator" else _AWAITED if base is Destination else ()
        if kind and name not in allowed:
            raise SluiceError(
                f"{type(given).__name__}.{name} is {kind}, and would not run: it has to be a plain method. "
                "Allowed as async def are 'submit' and 'close' of a destination"
            )
    if isinstance(given, base):
        return given

    def attribute(self: object, name: str) -> Any:
        try:
            found = getattr(given, name)
        except AttributeError:
            # A required method must be reported as missing, and a property must show its own error.
            if name in base.__abstractmethods__ or hasattr(type(given), name):
                raise
            found = None
        return object.__getattribute__(self, name) if found is None else found

    completed: Any = type(type(given).__name__, (base,), {"__getattribute__": attribute})
    completed.__abstractmethods__ = frozenset()
    return completed()


def not_run_by_a_call(function: object) -> str:
    """What a function is if a call of it runs none of its code: "async def" or "a generator"; else empty."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "async def"
    return "a generator" if inspect.isgeneratorfunction(function) else ""


def run(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Calls a synchronous method, and returns what it returned.

    `adopted` refuses methods that are coroutine functions themselves. A plain method may call a coroutine
    function, or be a decorator's.

    Raises:
        SluiceError: what it returned would have to be awaited or iterated over.
    """
    returned = method(*arguments, **named)
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # or Python warns that it was never awaited
        owner = getattr(method, "__self__", None)
        name = getattr(method, "__name__", "a method")
        raise SluiceError(
            f"{name if owner is None else f'{type(owner).__name__}.{name}'} returned a "
            f"{type(returned).__name__}, so none of it has run: it has to do its work before it returns"
        )
    return returned


@dataclass(frozen=True)
class ConverterFactory:
    """Makes the converters that `elementConverter` names.

    Attributes:
        name: the option's value.
        options: of the converter, in addition to the options of the sink.
    """

    name: str
    _make: Any
    options: Sequence[Option[Any]] = ()

    def create(self, values: OptionValues, destination: Destination[Any]) -> ElementConverter[Any]:
        """Makes a converter.

        Raises:
            OptionError: it does not fit the destination or its options, or it is not a converter.
        """
        try:
            made = self._made(values, destination)
        except OptionError:
            raise
        except Exception as error:
            raise OptionError(f"it cannot be made: {type(error).__name__}: {error}") from error
        missing = [part for part in ("open", "convert") if not callable(getattr(made, part, None))]
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
