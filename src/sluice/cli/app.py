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
from sluice.cli.options import add_flags, check_flags
from sluice.cli.report import Report, UsageError
from sluice.environment import installed_sluice
from sluice.errors import OptionError, SluiceError

__all__ = ["FAILED", "FINE", "PROBLEM", "WRONG_USE", "Command", "leaves", "main"]

FINE: Final = 0
PROBLEM: Final = 1
WRONG_USE: Final = 2
FAILED: Final = 3
_INTERRUPTED: Final = 130  # as shells have it: 128 and the number of SIGINT

_EXIT_CODES: Final = f"""Exit codes:
  {FINE}  all is well, or done
  {PROBLEM}  the output names a problem, or what the command refused to do
  {WRONG_USE}  the command line or an option is wrong; nothing was done
  {FAILED}  the command could not finish; the error is on standard error"""


class Command(Protocol):
    """A module of `sluice.cli.commands`, named like its command.

    Attributes:
        HELP: one line for ``sluice --help``.
        EXAMPLE: a command line. A command with subcommands gives each of their parsers an epilog.
    """

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declares the arguments, and sets the default ``run`` to a function of the arguments.

        The function returns a `Report`, or raises `UsageError` or a `SluiceError`. A command with subcommands
        sets ``run`` on each of their parsers.
        """


def main(
    arguments: Sequence[str] | None = None, *, out: TextIO | None = None, errors: TextIO | None = None
) -> int:
    """Runs a command.

    Args:
        arguments: of the command line; None: the process's own.
        out, errors: standard output and error if they are not given.

    Returns:
        The exit code.
    """
    sys.stdout, sys.stderr = _printable(sys.stdout), _printable(sys.stderr)
    out, errors = out or sys.stdout, errors or sys.stderr
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could follow
        import argcomplete  # noqa: PLC0415 - an extra, and of no use to others

        argcomplete.autocomplete(parser)
    try:
        parsed = parser.parse_args(arguments)
    except _CommandLineError as error:
        _print(error.usage, errors)
        wrong = argparse.Namespace(command_path=error.command_path, json="--json" in arguments)
        return _fail(wrong, str(error), WRONG_USE, out, errors)
    return _run(parsed, out, errors)


def _run(parsed: argparse.Namespace, out: TextIO, errors: TextIO) -> int:
    try:
        check_flags(parsed)
        report = cast("Callable[[argparse.Namespace], Report]", parsed.run)(parsed)
    except (UsageError, OptionError) as error:
        return _fail(parsed, str(error), WRONG_USE, out, errors)
    except (SluiceError, OSError) as error:
        return _fail(parsed, str(error), FAILED, out, errors)
    except KeyboardInterrupt:
        return _fail(parsed, "interrupted", _INTERRUPTED, out, errors)
    except Exception as error:  # noqa: BLE001 - readers of --json get an object all the same
        _print(traceback.format_exc(), errors)
        return _fail(
            parsed, f"unexpected {type(error).__name__}: {error}; please report it", FAILED, out, errors
        )
    text = report.text
    if parsed.json:
        text = _json({"command": parsed.command_path, "ok": not report.has_problem, **report.value})
    try:
        _print(text + "\n", out)
    except OSError as error:
        no_json = argparse.Namespace(command_path=parsed.command_path, json=False)
        return _fail(no_json, f"standard output cannot be written: {error}", FAILED, out, errors)
    return PROBLEM if report.has_problem else FINE


def _fail(parsed: argparse.Namespace, message: str, code: int, out: TextIO, errors: TextIO) -> int:
    with contextlib.suppress(OSError):  # a disk that is full: of two streams one may take it
        _print(f"{' '.join(('sluice', *parsed.command_path.split()))}: {message}\n", errors)
    if parsed.json:
        with contextlib.suppress(OSError):
            _print(_json({"command": parsed.command_path, "ok": False, "error": message}) + "\n", out)
    return code


def _printable(stream: TextIO | None) -> TextIO:
    """A stream that takes all characters, also if its encoding lacks them, or if it is closed.

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


class _Help(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Leaves text of several lines as it is."""
        return text if "\n" in text else super()._fill_text(text, width, indent)


class _Parser(argparse.ArgumentParser):
    """Raises errors of the command line, with the command's usage; `main` prints them and ends."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Fails for what it does not know. argparse hands that on, and the top level would fail for it."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        raise _CommandLineError(self, message)


def leaves() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, with its parser."""
    return ((" ".join(path), each) for path, each, is_leaf in _parsers(_parser(), ()) if is_leaf)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sluice",
        description="Shows, checks and repairs checkpoints, consumers, files and dead letters of queries.",
        epilog="sluice offsets show s3://bucket/checkpoints/orders --region eu-west-1",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed_sluice() or 0}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _commands():
        child = subparsers.add_parser(name, help=command.HELP, description=command.HELP)
        child.epilog = getattr(command, "EXAMPLE", None)
        command.configure(child)
    for path, each, is_leaf in _parsers(parser, ()):
        each.formatter_class = _Help
        if each.epilog:
            each.epilog = f"Example:\n  {each.epilog}\n\n{_EXIT_CODES}"
        if is_leaf:
            each.add_argument("--json", action="store_true", help="print one JSON object, for programs")
            each.set_defaults(command_path=" ".join(path))
        add_flags(each, is_top=each is parser)
    return parser


def _commands() -> Iterator[tuple[str, Command]]:
    for module in pkgutil.iter_modules(commands.__path__):
        yield module.name, cast("Command", importlib.import_module(f"{commands.__name__}.{module.name}"))


def _parsers(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser, bool]]:
    """All parsers, with the words that lead to them, and whether they have no subcommands."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001 - argparse has no other way to them
    yield path, parser, not groups
    for group in groups:
        for name, child in group.choices.items():
            yield from _parsers(child, (*path, name))
