"""Finds the messages of OptionError and ServiceError in the source, and compares them with the page.

A message is what is written in the source, with ``…`` for what is known only when it is raised. Names of
modules (``STREAM_NAME.key``) are replaced by their values. Run it to see what docs/messages.md lacks,
and what it has too much; with --check, either fails.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
PAGE: Final = ROOT / "docs" / "messages.md"
ERRORS: Final = frozenset({"OptionError", "ServiceError"})
# What notes a problem for one OptionError that has them all; the message is the last argument.
NOTES: Final = frozenset({"reject", "reject_each", "reject_value", "refuse"})
# Variables that hold a message, or a part of one.
PARTS: Final = frozenset({"problem", "why"})
# Others who are told by a message: the command `sluice` prints findings, and nothing is raised; in tests
# without a service nobody looks for help.
ELSEWHERE: Final = ("sluice/cli/", "sluice/testing/")
GAP: Final = "…"
_LETTERS: Final = 5  # of an entry that stands for several messages
_WORDS: Final = re.compile(r"[A-Za-z]{2,}\W* (\W*\w\W+)*\W*[A-Za-z]{2,}")


def find_messages(source: Path = SOURCE) -> dict[str, str]:
    """Every message, with the place (``sluice/options.py:294``) at which it is first made."""
    trees = {
        path: ast.parse(path.read_text())
        for path in sorted(source.rglob("*.py"))
        if not str(path.relative_to(source)).startswith(ELSEWHERE)
    }
    makers = find_makers(trees.values())
    found: dict[str, str] = {}
    for path, tree in trees.items():
        module = _import(path.relative_to(source))
        for node in _message_nodes(tree, makers):
            for text in render(node, module):
                if _WORDS.search(text.replace(GAP, " ")):
                    found.setdefault(text, f"{path.relative_to(source)}:{node.lineno}")
    return found


def find_makers(trees: Iterable[ast.Module]) -> dict[str, set[int]]:
    """Functions that put an argument into a message: by name, the positions of these arguments."""
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    makers: dict[str, set[int]] = {}
    while True:
        before = {name: set(positions) for name, positions in makers.items()}
        for function in functions:
            names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
            used = {
                name.id
                for node in _calls_of(function, makers)
                for name in ast.walk(node)
                if isinstance(name, ast.Name)
            }
            if positions := {number for number, name in enumerate(names) if name in used}:
                makers.setdefault(function.name, set()).update(positions)
        if makers == before:
            return makers


def _calls_of(tree: ast.AST, makers: Mapping[str, set[int]]) -> Iterator[ast.expr]:
    """The arguments of calls in `tree` that become messages of errors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _called(node)
            if name in ERRORS:
                yield from node.args[:1]
            else:
                for position in makers.get(name, ()):
                    yield from node.args[position : position + 1]


def _message_nodes(tree: ast.Module, makers: Mapping[str, set[int]]) -> Iterator[ast.expr]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for argument in _calls_of(tree, makers):
        yield argument
        if isinstance(argument, ast.Call) and _called(argument) in functions:
            yield from _returned(functions[_called(argument)])
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[_, message]) if name in NOTES:
                yield message
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="problems"), attr="append" | "insert"),
                args=[*_, message],
            ):
                yield message
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in PARTS:
                yield value
            case ast.FunctionDef(name=name) if name.endswith("_problem"):
                yield from _returned(node)


def _returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    return (node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value)


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def render(node: ast.expr, module: ModuleType) -> Iterator[str]:
    """The texts that `node` may be. A conditional is each of its branches."""
    match node:
        case ast.Constant(value=str(text)):
            yield _tidy(text)
        case ast.IfExp(body=body, orelse=orelse):
            yield from render(body, module)
            yield from render(orelse, module)
        case ast.JoinedStr() | ast.BinOp(op=ast.Add()):
            yield _tidy(_joined(node, module))


def _joined(node: ast.expr, module: ModuleType) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_joined(each, module) for each in values)
        case ast.BinOp(left=left, right=right, op=ast.Add()):
            return _joined(left, module) + _joined(right, module)
        case ast.FormattedValue(value=ast.Name() | ast.Attribute() as name):
            value = _value(name, module)
            return GAP if value is None else str(value)
    return GAP


def _value(node: ast.expr, module: ModuleType) -> object | None:
    """The value of a module's name, or of an attribute of one; None for what only a call knows."""
    match node:
        case ast.Name(id=name):
            return getattr(module, name, None)
        case ast.Attribute(value=inner, attr=name):
            return getattr(_value(inner, module), name, None)
    return None


def _tidy(text: str) -> str:
    return re.sub(rf"{GAP}(\s*{GAP})+", GAP, " ".join(text.split()))


def _import(path: Path) -> ModuleType:
    parts = path.with_suffix("").parts
    if parts[-1] == "__main__":
        return ModuleType("")  # it would run
    return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def messages_on(page: str) -> set[str]:
    """The messages that the page explains: what stands in code in the first cell of its tables."""
    cells = re.findall(r"^\| (.+?) \| ", page.replace("\\|", "¦"), re.MULTILINE)
    return {
        span.replace("¦", "|") for cell in cells for span in re.findall(r"``? ?(.+?) ?``?(?:<br>|$)", cell)
    }


def missing_and_outdated(found: Iterable[str], explained: Iterable[str]) -> tuple[set[str], set[str]]:
    """Messages that the page does not explain, and entries of the page that are no message.

    An entry with enough text explains every message that it matches: ``…`` is any text.
    """
    found, explained = set(found), set(explained)
    matched = {
        entry: {text for text in found if re.fullmatch(".*".join(map(re.escape, entry.split(GAP))), text)}
        for entry in explained - found
        if sum(map(str.isalpha, entry)) >= _LETTERS
    }
    known = explained.union(*matched.values())
    return found - known, {entry for entry in explained - found if not matched.get(entry)}


def main() -> int:
    found = find_messages()
    missing, outdated = missing_and_outdated(found, messages_on(PAGE.read_text()))
    for text in sorted(missing):
        print(f"not on the page: {text}    ({found[text]})")
    for text in sorted(outdated):
        print(f"no longer in the source: {text}")
    return int(bool(missing or outdated) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
