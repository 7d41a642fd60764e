"""docs/messages.md has every message of OptionError and ServiceError, and no outdated one."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load(name: str) -> ModuleType:
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MESSAGES = load("messages")
PAGE = (ROOT / "docs" / "messages.md").read_text()


def test_the_page_has_every_message_and_no_other() -> None:
    """Add a row for a new message: `python docs/messages.py` prints missing and outdated ones."""
    found = MESSAGES.find_messages()

    assert MESSAGES.missing_and_outdated(found, MESSAGES.messages_on(PAGE)) == (set(), set())
    assert len(found) > 150


def test_an_entry_explains_what_it_matches() -> None:
    found = ["needs 'roleArn'", "needs 'auth' …", "is late"]

    assert MESSAGES.missing_and_outdated(found, ["needs '…", "is late"]) == (set(), set())
    assert MESSAGES.missing_and_outdated(found, ["needs 'x…", "is …"]) == ({*found}, {"needs 'x…", "is …"})


def test_each_message_is_explained_once() -> None:
    """With a cause or a remedy behind it, in a sentence."""
    rows = [line for line in PAGE.splitlines() if line.startswith(("| `", "| ``"))]
    explanations = [row.replace("\\|", "").split(" | ")[-1].removesuffix(" |") for row in rows]

    assert all(text.endswith((".", ".)", "?")) and len(text) > 10 for text in explanations), explanations
    assert sum(row.count("<br>") + 1 for row in rows) == len(MESSAGES.messages_on(PAGE))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('raise OptionError("it is not there")', ["it is not there"]),
        ('raise OptionError(f"{FORMAT}: no {thing} here")', ["async-sink: no … here"]),
        ('raise ServiceError("one " f"of {many}{them}", code="x")', ["one of …"]),
        ('values.reject(KEY, f"needs it {now}")', ["needs it …"]),
        ('problems.append("no column" if many else "not a column")', ["no column", "not a column"]),
        ('raise ValueError("is none of ours")', []),
        ('def wrong(why):\n    return OptionError(f"{why}")\nwrong("as it is so")', ["as it is so"]),
        ('def text(a):\n    return f"made of {a}"\nraise ServiceError(text(1))', ["made of …"]),
        ('def header_problem(x):\n    return "is no header"', ["is no header"]),
    ],
)
def test_messages_are_found_in_the_source(source: str, expected: Sequence[str]) -> None:
    """Where they are raised, noted for later, put together, or handed on to what raises them."""
    module = ModuleType("made_up")
    module.__dict__["FORMAT"] = "async-sink"
    tree = ast.parse(source)
    makers = MESSAGES.find_makers([tree])

    texts = [text for node in MESSAGES._message_nodes(tree, makers) for text in MESSAGES.render(node, module)]

    assert [text for text in texts if MESSAGES._WORDS.search(text)] == expected
