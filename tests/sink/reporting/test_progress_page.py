"""docs/operate.md has every figure of the sink, with its unit and how tasks are summed."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from sluice.sink import SinkProgress

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operate.md").read_text()


def test_the_table_has_every_figure() -> None:
    """Each of them once, and numbers with a unit and a rule for tasks."""
    table = PAGE.split("| figure | unit | | tasks |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]

    assert sorted(named) == sorted(field.name for field in fields(SinkProgress))
    known = {"`{record}`", "`{request}`", "`{entry}`", "`{task}`", "`{entry}/s`", "`By`", "`s`"}
    about_spark = ("outcome", "destination`", "query_id", "tasks", "destination_figures")
    for row in rows:
        assert row[1] in known or row[0].startswith(tuple(f"`{name}" for name in about_spark)), row
        assert row[3] or row[0].startswith(tuple(f"`{name}" for name in about_spark)), row


def test_the_line_of_the_page_has_the_figures_in_their_order() -> None:
    """As the log has them."""
    (line,) = re.findall(r"^committed .*$", PAGE, re.MULTILINE)
    shown = re.findall(r" ([a-z_0-9]+)(?:\.\w+)?=", line)
    order = [field.name for field in fields(SinkProgress)]

    assert shown == [name for name in order if name in shown]
    assert set(order) - set(shown) == {"outcome", "destination_figures"}
