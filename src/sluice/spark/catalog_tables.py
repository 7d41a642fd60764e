"""Tables of Spark's catalog, made by ``CREATE TABLE ... USING``.

Spark keeps the options and properties of such a table, but does not pass them on when the table is read
or written (``PythonTable`` of Spark 4.0 to 4.3). So statements have to give them, and a table that was
created with options could not be read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sluice.errors import OptionError

__all__ = ["WRITE_TABLE", "explain_if_of_table", "is_create_table", "read_table"]

WRITE_TABLE: Final = "INSERT INTO <table> WITH (destination = '...', ...) SELECT ..."

# Properties of a table, as Spark passes them when it asks for the columns. It always passes `provider`.
_PROVIDER = "provider"
_OPTION = "option."


def read_table(options: str) -> str:
    """Returns the statement that reads a table; `options` are the usual ones (``key = '...'``)."""
    return f"SELECT ... FROM <table> WITH ({options}, ...)"  # noqa: S608 - shown, and not run


def is_create_table(what: str, given: Mapping[str, str], keys: Collection[str], options: str) -> bool:
    """Whether Spark asks for the columns because a table is created.

    Args:
        what: the format.
        given: what Spark passes: options of a reader, or properties of a table.
        keys: of the format's options.
        options: see `read_table`.

    Raises:
        OptionError: the table is created with options of the format, which would do nothing.
    """
    names = {name.lower() for name in given}
    if _PROVIDER not in names:
        return False
    ours = {key.lower() for key in keys}
    if any(name.startswith(_OPTION) or name in ours for name in names):
        raise OptionError(
            f"{what}: Spark does not pass on options that are stored with a table: leave them out, and read "
            f"it by {read_table(options)}; or write CREATE TEMPORARY VIEW <view> USING `{what}` OPTIONS (...)"
        )
    return True


def explain_if_of_table(error: OptionError, given: Mapping[str, str], statement: str) -> OptionError:
    """Adds the right statement to the error if a table may be read or written.

    Args:
        error: reports a missing option.
        given: the options of the read or write; none for a table.
        statement: has a place for options.
    """
    if given:
        return error
    return OptionError(
        f"{error}; options that are stored with a table are not passed on by Spark: write {statement}"
    )
