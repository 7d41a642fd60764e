"""The recipes of docs/read.md keep a copy of a table, as they are printed."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from test_snapshots import fill, new_model, plain_items, query

from sluice.dynamodb_streams.record_batches import ARROW_SCHEMA

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "read.md"
BLOCKS: Final[list[str]] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def block_with(text: str) -> ast.Module:
    (found,) = [block for block in BLOCKS if text in block]
    tree: ast.Module = ast.parse(found)
    return tree


def merge_statement() -> str:
    (text,) = [
        ast.literal_eval(node.value)
        for node in block_with("MERGE INTO").body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    return str(text)


def test_merge_keeps_a_copy_of_the_table() -> None:
    """Batch by batch, and each batch twice. DuckDB knows the statement, and has the window of the recipe."""
    model = new_model(shards=2)
    fill(model, 60)
    runner = query(maxRecordsPerTrigger="20")
    database = duckdb.connect()
    database.execute("CREATE TABLE orders (keys VARCHAR, image VARCHAR)")
    empty = 0
    for turn in range(60):
        known = len(runner.offsets)
        rows = pa.Table.from_pylist(runner.run_batch(), schema=ARROW_SCHEMA)
        empty = 0 if len(runner.offsets) > known else empty + 1
        database.register("rows", rows)
        for _ in range(2):
            database.execute(
                """
                CREATE OR REPLACE TEMP VIEW changes AS SELECT keys, eventName, newImage FROM (
                    SELECT *, row_number() OVER (
                        PARTITION BY keys ORDER BY lpad(sequenceNumber, 40, '0') DESC NULLS LAST
                    ) AS place FROM rows
                ) WHERE place = 1
                """
            )
            database.execute(merge_statement())
        if turn < 20:
            for key in (turn, 2 * turn, 70 + turn // 2):
                model.write(
                    "orders", f"key-{key}", None if (turn + key) % 3 == 0 else {"v": {"N": str(turn)}}
                )
        model.clock.advance(3.0)
        if turn == 10:
            model.roll("orders")
        if turn >= 20 and empty > 6:
            break

    found = dict(database.execute("SELECT keys->>'id', image FROM orders").fetchall())
    wanted = {key: f'{{"id":"{key}","v":{item["v"]}}}' for key, item in plain_items(model).items()}
    assert found == wanted


def test_the_flow_of_a_pipeline_has_arguments_that_spark_knows() -> None:
    pipelines: Any = pytest.importorskip("pyspark.pipelines")
    if not hasattr(pipelines, "create_auto_cdc_flow"):
        pytest.skip("this Spark has no create_auto_cdc_flow")
    calls = [node for node in ast.walk(block_with("create_auto_cdc_flow")) if isinstance(node, ast.Call)]
    (call,) = [each for each in calls if ast.unparse(each.func).endswith("create_auto_cdc_flow")]
    given = {argument.arg: ast.literal_eval(argument.value) for argument in call.keywords if argument.arg}
    inspect.signature(pipelines.create_auto_cdc_flow).bind(**given)
    # Rows of the scan come before every change.
    database = duckdb.connect()
    places = database.execute(
        f"SELECT {given['sequence_by']} FROM (VALUES (NULL), ('99'), ('100')) AS rows(sequenceNumber)"  # noqa: S608
    ).fetchall()
    assert places == sorted(places)
