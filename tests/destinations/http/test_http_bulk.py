"""docs/destinations.md: the converter and the options that are printed for OpenSearch and Elasticsearch."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_endpoint import answer, in_place_of_the_network, letters_in, write_all
from pyspark.sql.types import StringType, StructField, StructType

from sluice.destinations import read_sink
from sluice.errors import OptionError

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "destinations.md").read_text()
SECTION = PAGE.split("### OpenSearch and Elasticsearch")[1].split("\n### ")[0]
CONVERTER, QUERY = re.findall(r"^```python\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
PRINTED = dict(re.findall(r'option\("(\w+)", "([^"]+)"\)', QUERY))
OPTIONS = {k: v for k, v in PRINTED.items() if k not in ("checkpointLocation", "deadLetterPath")}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves the converter as the page says."""
    (tmp_path / "bulk_rows.py").write_text(CONVERTER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bulk_rows", raising=False)


class Index:
    """Answers as the bulk API does: a line that is no action is a bad request."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.is_busy = True

    def respond(self, body: bytes) -> Any:
        lines = body.split(b"\n")
        assert lines.pop() == b""
        items = []
        for action, line in zip(lines[::2], lines[1::2], strict=True):
            (meta,) = [json.loads(action)["index"]]
            items.append({"index": {"_id": meta["_id"]} | self.put(meta["_id"], json.loads(line))})
        return answer(200, {"errors": True, "items": items})

    def put(self, name: str, document: Any) -> dict[str, Any]:
        if self.is_busy:
            self.is_busy = False
            return {"status": 429, "error": {"type": "es_rejected_execution_exception"}}
        if document["price"] is None:
            return {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "no"}}
        self.documents[name] = document
        return {"status": 201}


def rows(*prices: Any) -> pa.RecordBatch:
    bodies = [json.dumps({"id": n, "price": price}) for n, price in enumerate(prices)]
    return pa.record_batch({"id": pa.array(range(len(prices))), "body": pa.array(bodies)})


def test_rows_become_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A document that is refused for load is sent again; one that does not fit the mapping becomes a dead
    letter.
    """
    index = Index()
    in_place_of_the_network(monkeypatch)(index.respond)
    figures = write_all(rows(*range(2000), None), tmp_path, **OPTIONS)
    (letter,) = letters_in(tmp_path)

    assert index.documents == {str(n): {"id": n, "price": n} for n in range(2000)}
    assert (figures.records, figures.dead_letters, figures.refused) == (2000, 1, 1)
    assert letter["reason"].endswith("status 400: mapper_parsing_exception")


def test_a_row_without_an_id_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two of them would be one document."""
    index = Index()
    in_place_of_the_network(monkeypatch)(index.respond)
    batch = pa.record_batch({"id": pa.array([None, "a"]), "body": pa.array(['{"price":1}'] * 2)})
    figures = write_all(batch, tmp_path, **OPTIONS)

    assert (list(index.documents), figures.dead_letters) == (["a"], 1)


def test_the_columns_are_checked() -> None:
    """Where the query starts."""
    setup: Any = read_sink(OPTIONS)
    with pytest.raises(OptionError, match="the bulk API needs columns: id"):
        setup.new_converter().open(StructType([StructField("body", StringType())]))
