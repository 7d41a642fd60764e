"""Options of source, sink and connection on the command line: ``--option key=value``, or a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sluice.aws.calling.connection import (
    CONNECTION_OPTIONS,
    ENDPOINT_URL,
    PROFILE,
    REGION,
    ConnectionConfig,
    connection_from_options,
)
from sluice.cli.report import UsageError
from sluice.errors import OptionError
from sluice.options import read_options
from sluice.source.settings import TIMESTAMP

__all__ = [
    "add_commands",
    "add_connection",
    "add_flags",
    "add_options",
    "add_repeated",
    "check_flags",
    "connection_of",
    "given_options",
    "has_options",
    "parse_time",
    "read_connection",
]

_FLAGS: Final = {"--region": REGION, "--profile": PROFILE, "--endpoint-url": ENDPOINT_URL}
"""Connection options that have a flag, as the AWS CLI spells it."""
_CONNECTION_KEYS: Final = frozenset(option.key.lower() for option in CONNECTION_OPTIONS)


def add_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, tuple[str, str]]
) -> Sequence[argparse.ArgumentParser]:
    """Declares the commands of a command: by name, its help and an example. Returns their parsers."""
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    return [
        subparsers.add_parser(name, help=text, description=text, epilog=example)
        for name, (text, example) in commands.items()
    ]


def add_repeated(parser: argparse.ArgumentParser, flag: str, metavar: str, text: str) -> None:
    """Declares an argument that may be given several times."""
    parser.add_argument(
        flag, action="append", default=[], metavar=metavar, help=f"{text}; may be given again"
    )


def add_options(parser: argparse.ArgumentParser, what: str, *, name: str = "option") -> None:
    """Declares ``--option`` and ``--options``, or others by the name of the first."""
    add_repeated(parser, f"--{name}", "KEY=VALUE", what)
    parser.add_argument(
        f"--{name}s",
        metavar="FILE",
        help=f"{what}, from a file: a JSON object, or lines of KEY=VALUE; the place for secrets",
    )


def add_flags(parser: argparse.ArgumentParser, *, is_top: bool) -> None:
    """Declares the flags of `_FLAGS`, before a command (`is_top`), or after it; the last one holds."""
    for flag, option in _FLAGS.items():
        parser.add_argument(
            flag,
            dest=option.key,
            metavar="VALUE",
            default=None if is_top else argparse.SUPPRESS,
            help=f"the same as --option {option.key}=VALUE",
        )


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UsageError if a flag is given to a command that calls no service."""
    for flag, option in _FLAGS.items():
        if getattr(arguments, option.key) is not None and not hasattr(arguments, "option"):
            raise UsageError(f"{flag}: '{arguments.command_path}' calls no service; leave it out")


def has_options(arguments: argparse.Namespace, *, name: str = "option") -> bool:
    """Whether ``--option`` or ``--options`` is given."""
    pairs, file = _given(arguments, name)
    return bool(pairs or file)


def _given(arguments: argparse.Namespace, name: str) -> tuple[Sequence[str], str | None]:
    attribute = name.replace("-", "_")
    return getattr(arguments, attribute), getattr(arguments, f"{attribute}s")


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Declares ``--option`` and ``--options`` for connection options."""
    add_options(parser, "a connection option, such as region=eu-west-1 or endpointUrl=http://…")


def given_options(arguments: argparse.Namespace, *, name: str = "option") -> dict[str, str]:
    """The given options, with the flags. Options of the command line replace options of the file.

    Raises:
        UsageError: an option has no value, the file cannot be read, or a flag and an option disagree.
    """
    pairs, file = _given(arguments, name)
    options = {} if file is None else _read_file(Path(file))
    for pair in pairs:
        key, value = _split(pair, f"--{name}")
        options = {each: options[each] for each in options if each.lower() != key.lower()} | {key: value}
    given = {key.lower(): value for key, value in options.items()}
    for flag, option in _FLAGS.items():
        value = getattr(arguments, option.key)
        other = given.get(option.key.lower(), value)
        if value is not None and other != value:
            raise UsageError(f"{flag} is {value!r}, and option '{option.key}' is {other!r}: give one of them")
        if value is not None and option.key.lower() not in given:
            options[option.key] = value
    return options


def connection_of(arguments: argparse.Namespace) -> ConnectionConfig:
    """The connection that the options describe.

    Raises:
        OptionError: an option is unknown or has a value that is not allowed.
    """
    return read_connection(given_options(arguments))


def read_connection(options: Mapping[str, str], *, only: bool = False) -> ConnectionConfig:
    """A connection from options.

    Args:
        only: leave out other options, instead of refusing them.
    """
    if only:
        options = {key: value for key, value in options.items() if key.lower() in _CONNECTION_KEYS}
    values = read_options("connection", CONNECTION_OPTIONS, options)
    connection = connection_from_options(values)
    values.check()
    return connection


def parse_time(flag: str, text: str) -> int:
    """An instant (microseconds), as option ``startingTimestamp`` has it.

    Raises:
        UsageError: it is none.
    """
    try:
        return TIMESTAMP.parse(text)
    except OptionError as error:
        raise UsageError(f"{flag} {error}") from None
    except ValueError:
        raise UsageError(f"{flag} is {text!r}: allowed is {TIMESTAMP.allowed}") from None


def _split(pair: str, where: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals or not key.strip():
        # The message does not show the text: in a file of another form it is a secret.
        missing = "key" if equals else repr("=")
        raise UsageError(f"{where}: expected KEY=VALUE, but the {missing} is missing")
    return key.strip(), value.strip()


def _read_file(file: Path) -> dict[str, str]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"options file {file} cannot be read: {error}") from None
    if text.lstrip().startswith("{"):
        return _read_json(file, text)
    lines = (line.strip() for line in text.splitlines())
    return dict(
        _split(line, f"{file}, line {number}")
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    )


def _read_json(file: Path, text: str) -> dict[str, str]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"options file {file} is not JSON: {error}") from None
    # A boolean becomes `true`, as in Spark's own options; an object is a startingPosition.
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
