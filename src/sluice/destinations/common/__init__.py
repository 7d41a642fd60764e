"""What destinations of AWS share: calling an operation and judging what it says, checking columns."""

from sluice.destinations.common.batch_call import BatchCall, Refusal, Verdict
from sluice.destinations.common.columns import Column, check_columns, column_of, first_row, invalid_row
from sluice.destinations.common.kinds import matching

__all__ = [
    "BatchCall",
    "Column",
    "Refusal",
    "Verdict",
    "check_columns",
    "column_of",
    "first_row",
    "invalid_row",
    "matching",
]
