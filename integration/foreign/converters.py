"""The element converter for the bulk API as docs/destinations.md prints it."""

from __future__ import annotations

import re

from integration.support.paths import ROOT

_PAGE = ROOT / "docs" / "destinations.md"
_BLOCKS = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
[_PRINTED] = [block for block in _BLOCKS if "class BulkConverter" in block]

exec(compile(_PRINTED, str(_PAGE), "exec"))  # noqa: S102
