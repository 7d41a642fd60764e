"""Plain English: phrases that readers read twice, and what to write instead of them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_END = r"(?=[.,;:)]|\Z)"
_NO_NOUN = r"(?=[.,;:()]|\Z| (?:and|as|for|has|in|is|may|on|than|that|there|to|when|where|which|with)\b)"

INSTEAD = {
    r"(?:goes|go|went|going|gone) on\b": "continues, resumes, keeps running",
    r"beside\b": "next to, in addition to, in parallel to; on (a host)",
    rf"of (?:one's|your|its|their|our) own{_NO_NOUN}": "custom, separate, its own …",
    r"untold\b": "unclassified",
    r"(?:stands?|stood) (?:in|there)\b": "is recorded in; replaces",
    rf"(?:is|are|was|were) (?:not )?there{_END}": "exists, has arrived, is running",
    r"(?:comes?|came) too late\b": "is late",
    r"(?:comes?|came) twice\b": "is duplicated",
    r"on (?:its|their|his) way\b": "in flight",
    r"under way\b": "in progress",
    rf"(?:reads?|reading) on(?:{_END}| (?:after|and|from|until|when|where|without)\b)": "continues reading",
    r"(?:is|are|was|were|be|been|being|not) told\b(?! apart)": "receives, learns, is notified",
    r"taken for\b": "mistaken for, counts as",
    r"put(?:s|ting)? up with\b": "tolerates",
    r"let through\b": "accepted, passed on",
    r"holds? for\b": "applies to, is valid for",
    r"dear(?:er|est)?\b": "expensive",
    r"a look\b": "a read, a check",
    r"comes? to (?:an|its|their) end\b": "ends",
    r"some (?:hundred|ten|dozen|thousand|million)\b": "about a hundred",
    r"as far as \w+ goes\b": "only",
}
PATTERNS = {re.compile(r"\b" + key.replace(" ", r"\s+"), re.IGNORECASE): new for key, new in INSTEAD.items()}
CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, blocks of comments and names of tests, or a page without code, each with its first line."""
    text = path.read_text()
    if path.suffix == ".md":
        yield 1, CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
    block, first = "", 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != first + block.count("\n"):
                yield first, block
                block, first = "", token.start[0]
            block += token.string.lstrip("#") + "\n"
    yield first, block


def hits(path: Path) -> list[str]:
    found, name = [], str(path).removeprefix(f"{ROOT}/")
    for first, text in prose(path):
        for pattern, instead in PATTERNS.items():
            for match in pattern.finditer(text):
                line = first + text.count("\n", 0, match.start())
                found.append(f"{name}:{line}: not '{' '.join(match[0].split())}', but: {instead}")
    return found


@pytest.mark.parametrize("folder", ["src", "tests", "integration", "examples"])
def test_comments_are_plain_english(folder: str) -> None:
    found = [hit for path in sorted((ROOT / folder).rglob("*.py")) for hit in hits(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_pages_are_plain_english(page: Path) -> None:
    found = hits(page)
    assert not found, "\n".join(found)


def test_a_phrase_is_found(tmp_path: Path) -> None:
    """Also across the lines of a comment; not in other code or strings."""
    module = tmp_path / "module.py"
    module.write_text('a = "goes on"\n# It goes\n# on\n\n\ndef f():\n    """Where\n    it is there."""\n')
    page = tmp_path / "page.md"
    page.write_text("```\ngo on\n```\nIt\ngoes on.\n")

    assert [hit.split(": not ")[0] for hit in hits(module)] == [f"{module}:8", f"{module}:2"]
    assert [hit.split(": not ")[0] for hit in hits(page)] == [f"{page}:5"]
