"""What is printed in README.md and docs/: Python that compiles, and options that the parsers take.

The pages of custom destinations and committers, and the README's first screen, also run
(`test_custom_destination`, `test_custom_committer`, `integration/test_readme_examples.py`).
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice import OptionError
from sluice.cli import app
from sluice.destinations import read_sink
from sluice.kinesis.options.config import source_config_from_options

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Values that the text has in a variable.
MADE_UP = {"url": "https://example.org/bulk", "bearerToken": "token"}
# Destinations and converters that a page has as its subject: tests of these pages run them.
OF_A_PAGE = re.compile(r"\w+:\w+")


@dataclass(frozen=True)
class Chain:
    """``spark.read…format(…).option(…)`` of a page.

    Attributes:
        kind: ``read``, ``readStream``, ``write`` or ``writeStream``; None where the chain does not say.
    """

    place: str
    kind: str | None
    format: str
    options: dict[str, str]

    def __str__(self) -> str:
        return self.place


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The place (``recipes.md:12``) and the text of each block."""
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match[1] == language:
                yield f"{page.name}:{text.count(chr(10), 0, match.start()) + 2}", match[2]


def chains(place: str, program: str) -> Iterator[Chain]:
    """Every chain of calls that names one of the two formats."""
    for node in ast.walk(ast.parse(program)):
        if not isinstance(node, ast.Call):
            continue
        called = dict(reversed(list(calls(node))))
        given = [arguments for name, arguments in calls(node) if name == "option"]
        form = next((value(arguments[0]) for name, arguments in calls(node) if name == "format"), None)
        if form in ("kinesis-efo", "async-sink") and is_outermost(node, program):
            kinds = ("readStream", "writeStream", "read", "write")
            kind = next((kind for kind in kinds if kind in called), None)
            options = {value(key): value(text, MADE_UP.get(value(key))) for key, text in given}
            yield Chain(f"{place}+{node.lineno}", kind, form, options)


def calls(node: ast.expr) -> Iterator[tuple[str, list[ast.expr]]]:
    """The methods and attributes of a chain from its end to its begin; a sink's ends at `write`."""
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Attribute):
            yield node.attr, []
            if node.attr in ("readStream", "writeStream", "read", "write"):
                return
            node = node.value
        elif isinstance(node.func, ast.Attribute):
            yield node.func.attr, node.args
            node = node.func.value
        else:
            return


def is_outermost(node: ast.Call, program: str) -> bool:
    """Whether no further ``option`` follows."""
    for other in ast.walk(ast.parse(program)):
        match other:
            case ast.Call(func=ast.Attribute(attr="option" | "format" | "mode", value=ast.Call() as inner)):
                if ast.dump(inner) == ast.dump(node):
                    return False
    return any(isinstance(node.func, ast.Attribute) and node.func.attr == name for name in ("option", "mode"))


def value(node: ast.expr, otherwise: str | None = None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else otherwise or "made-up"


def sql_options() -> Iterator[Chain]:
    for place, text in blocks("sql"):
        for name, listed in re.findall(r"(\w+|`[\w-]+`)\s+(?:OPTIONS|WITH) \(([^…]*?)\)[;\s]", text):
            options = dict(re.findall(r"(\w+) '([^']*)'", listed))
            form = "async-sink" if "destination" in options else "kinesis-efo"
            yield Chain(f"{place} {name}", None, form, options)


PYTHON = list(blocks("python"))
CHAINS = [chain for place, program in PYTHON for chain in chains(place, program)] + list(sql_options())


@pytest.mark.parametrize(("place", "program"), PYTHON, ids=[place for place, _ in PYTHON])
def test_python_compiles(place: str, program: str) -> None:
    """Each as a separate module."""
    compile(program, place, "exec")


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_options_are_taken(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parser that Spark's own call would use; values of the same kind replace variables."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    if chain.format == "kinesis-efo":
        streaming = {"read": False, "readStream": True}.get(chain.kind or "")
        source_config_from_options(chain.options, streaming=streaming)
    elif not OF_A_PAGE.fullmatch(chain.options.get("destination", "")):
        of_a_page = OF_A_PAGE.fullmatch(chain.options.get("elementConverter", ""))
        read_sink({k: v for k, v in chain.options.items() if k != "elementConverter" or not of_a_page})


def commands() -> Iterator[tuple[str, str]]:
    """The place and the text of each ``sluice …``: on a separate line, and in a sentence."""
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if match := re.match(r"(?:\$ )?sluice (.*?)(?: +#.*)?$", line):
                yield f"{page.name}:{number}", match[1]
            for text in re.findall(r"`sluice ([^`]+)`", line):
                yield f"{page.name}:{number}", text


COMMANDS = list(dict.fromkeys(commands()))


@pytest.mark.parametrize(("place", "command"), COMMANDS, ids=[place for place, _ in COMMANDS])
def test_commands_are_there_with_their_options(place: str, command: str) -> None:
    """In a sentence the arguments may be left out, and so may the last word of a name (``consumers``)."""
    parsers = dict(app.leaves())
    words = shlex.split(command)
    names = [name for name in parsers if f"{command} ".startswith(f"{name} ")]
    if not names:
        assert any(name.startswith(f"{command} ") for name in parsers), place
        return
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}

    assert flags <= set(parsers[names[0]]._option_string_actions), place


def test_json_is_json() -> None:
    """Policies and configurations can be copied."""
    assert [json.loads(text) for _, text in blocks("json")]


def test_the_check_sees_the_options() -> None:
    """A misspelt one in the middle of a chain fails."""
    program = (
        'x = spark.readStream.format("kinesis-efo").option("streamNam", "a").option("region", "b").load()'
    )
    (chain,) = chains("here", program)

    assert (chain.kind, chain.options) == ("readStream", {"streamNam": "a", "region": "b"})
    with pytest.raises(OptionError, match="streamNam"):
        source_config_from_options(chain.options, streaming=True)
    assert len(CHAINS) > 30
