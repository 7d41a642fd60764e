"""Finds the commands, reads the command line, runs one command, and says how it ended.

The help of each command has the exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TextIO, cast

from sluice.cli import commands
from sluice.cli.report import Report, UsageError
from sluice.errors import OptionError, SluiceError

__all__ = ["FINE", "PROBLEM", "WRONG_USE", "Command", "leaves", "main"]

FINE: Final = 0
PROBLEM: Final = 1
WRONG_USE: Final = 2
_INTERRUPTED: Final = 130  # as shells have it: 128 and the number of SIGINT


_EXIT_CODES: Final = (
    "Exit codes: 0, all is well or done; 1, a problem was found, the command refused to do it, or a service "
    "or file could not be reached; 2, the command line or an option is wrong."
)


class Command(Protocol):
    """What a module of `sluice.cli.commands` has. Its name is that of the command.

    Attributes:
        HELP: one line for ``sluice --help``.
    """

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declares the arguments, and sets the default ``run`` to a function of the arguments.

        The function returns a `Report`, or raises `UsageError` or a `SluiceError`. A command with commands of
        its own sets ``run`` on each of their parsers.
        """


def main(
    arguments: Sequence[str] | None = None, *, out: TextIO | None = None, errors: TextIO | None = None
) -> int:
    """Runs a command.

    Args:
        arguments: of the command line; those of the process where they are not given.
        out, errors: standard output and error where they are not given.

    Returns:
        The exit code.
    """
    sys.stdout, sys.stderr = _printable(sys.stdout), _printable(sys.stderr)
    out, errors = out or sys.stdout, errors or sys.stderr
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        parsed = _parser().parse_args(arguments)
    except _CommandLineError as error:
        _print(error.usage, errors)
        wrong = argparse.Namespace(command_path=error.command_path, json="--json" in arguments)
        return _fail(wrong, str(error), WRONG_USE, out, errors)
    return _run(parsed, out, errors)


def _run(parsed: argparse.Namespace, out: TextIO, errors: TextIO) -> int:
    try:
        report = cast("Callable[[argparse.Namespace], Report]", parsed.run)(parsed)
    except (UsageError, OptionError) as error:
        return _fail(parsed, str(error), WRONG_USE, out, errors)
    except (SluiceError, OSError) as error:
        return _fail(parsed, str(error), PROBLEM, out, errors)
    except KeyboardInterrupt:
        return _fail(parsed, "interrupted", _INTERRUPTED, out, errors)
    except Exception as error:  # noqa: BLE001 - whoever reads --json gets an object all the same
        _print(traceback.format_exc(), errors)
        return _fail(
            parsed, f"unexpected {type(error).__name__}: {error}; please report it", PROBLEM, out, errors
        )
    text = report.text
    if parsed.json:
        text = _json({"command": parsed.command_path, "ok": not report.has_problem, **report.value})
    try:
        _print(text + "\n", out)
    except OSError as error:
        no_json = argparse.Namespace(command_path=parsed.command_path, json=False)
        return _fail(no_json, f"standard output cannot be written: {error}", PROBLEM, out, errors)
    return PROBLEM if report.has_problem else FINE


def _fail(parsed: argparse.Namespace, message: str, code: int, out: TextIO, errors: TextIO) -> int:
    with contextlib.suppress(OSError):  # a disk that is full: of two streams one may take it
        _print(_error_line(parsed, message), errors)
    if parsed.json:
        with contextlib.suppress(OSError):
            _print(_json({"command": parsed.command_path, "ok": False, "error": message}) + "\n", out)
    return code


def _error_line(parsed: argparse.Namespace, message: str) -> str:
    return f"{' '.join(('sluice', *parsed.command_path.split()))}: {message}\n"


def _printable(stream: TextIO | None) -> TextIO:
    """A stream that takes all characters, also where its encoding lacks them, and where it is closed.

    A command must not end by what it prints: a reset has been made by then, and the name of the copy that
    undoes it is to be printed.
    """
    if stream is None:  # how Python has a stream that is closed when it starts
        return Path(os.devnull).open("w")
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")
    return stream


def _print(text: str, stream: TextIO) -> None:
    """Raises OSError if the stream takes no more; not if its reader has read enough, as `| head` does."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        # Without this Python would try once more when it ends, and print an error.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2)


class _CommandLineError(Exception):
    """The command line is wrong."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.usage = parser.format_usage()
        self.command_path = parser.prog.partition(" ")[2]


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong with the command line; `main` prints it and ends."""

    def error(self, message: str) -> NoReturn:
        raise _CommandLineError(self, message)


def leaves() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, with its parser."""
    return ((" ".join(path), leaf) for path, leaf in _leaves(_parser(), ()))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sluice",
        description="Looks at, checks and repairs what queries of Sluice leave behind.",
        epilog=_EXIT_CODES,
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _commands():
        command.configure(subparsers.add_parser(name, help=command.HELP, description=command.HELP))
    for path, leaf in _leaves(parser, ()):
        leaf.add_argument("--json", action="store_true", help="print one JSON object, for programs")
        leaf.set_defaults(command_path=" ".join(path))
        leaf.epilog = f"{leaf.epilog or ''} {_EXIT_CODES}".lstrip()
    return parser


def _commands() -> Iterator[tuple[str, Command]]:
    for module in pkgutil.iter_modules(commands.__path__):
        yield module.name, cast("Command", importlib.import_module(f"{commands.__name__}.{module.name}"))


def _leaves(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """The parsers without commands of their own, with the words that lead to them."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001 - argparse has no other way to them
    if not groups:
        yield path, parser
    for group in groups:
        for name, child in group.choices.items():
            yield from _leaves(child, (*path, name))
