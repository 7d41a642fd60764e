"""DynamoDB: rows become items of a table, in batches, through ``BatchWriteItem``.

Rows that update items or have a condition go through ``TransactWriteItems``: no other batch operation of the
API has updates that create missing items.

Limits: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_BatchWriteItem.html,
https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_TransactWriteItems.html
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire.request_bodies import PreparedParameter
from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.destinations.common.counters import Counters
from sluice.destinations.common.entries import BYTES, wrong_entry
from sluice.destinations.common.parted_requests import AwsDestination
from sluice.destinations.dynamodb.converter import DynamoDbRowConverter, DynamoDbWrite
from sluice.destinations.dynamodb.items_in_use import items_in_use
from sluice.destinations.dynamodb.values import canonical
from sluice.errors import ServiceError
from sluice.options import TEXT, Kind, Option, OptionValues, choice, matching
from sluice.sink import SinkLimits, SubmitResult

__all__ = ["DynamoDbDestination"]

_KB: Final = 1000
_UNPROCESSED: Final = Refusal("UnprocessedItem", "", "retry")
_STILL_WRITING: Final = Refusal("StillBeingWritten", "", "retry")
# Two writes of one key, and a key of other columns than the table's, which all deletions have alike.
_DUPLICATES: Final = "Provided list of item keys contains duplicates"
_NOT_FOR_AN_ITEM: Final = (_DUPLICATES, "The provided key element does not match the schema")
_PLACEHOLDER: Final[Any] = ({"DeleteRequest": {"Key": {}}},)
# From global tables with strong consistency, when two regions write an item at the same time.
_TRANSIENT: Final = frozenset({"ReplicatedWriteConflictException", "TransactionInProgressException"})
_PLACED: Final[Any] = ({"Delete": {"TableName": "", "Key": {}}},)
_REASONS: Final = re.compile(r"\[([A-Za-z, ]+)\]")
_FAILED: Final = "ConditionalCheckFailed"
_NAME: Final = re.compile(r"#(\w+)")
_REFUSED: Final = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded", "DuplicateItem"})
"""Reasons for which an entry would be refused again."""
_LOAD: Final = {
    "ProvisionedThroughputExceeded": "ProvisionedThroughputExceededException",
    "ThrottlingError": "ThrottlingException",
}
"""Reasons to the error codes that other operations have for them."""
_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:dynamodb:(?P<region>[a-z0-9-]+):\d{12}:table/(?P<name>[a-zA-Z0-9_.-]+)"
)


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) < len(names):
        raise ValueError(text)
    return names


def _parse_keys(text: str) -> tuple[str, ...]:
    names = _parse_names(text)
    if len(names) > 2:
        raise ValueError(text)
    return names


TABLE_NAME = Option(
    "tableName",
    matching(
        "string",
        "3 to 255 letters, digits or any of _.-, or arn:aws:dynamodb:<region>:<account>:table/<name>",
        rf"[a-zA-Z0-9_.-]{{3,255}}|{_ARN.pattern}",
    ),
    None,
    "Name or ARN of the table. If `region` is not set, the ARN's region is used.",
    required=True,
)
OPERATION_COLUMN = Option(
    "operationColumn",
    TEXT,
    None,
    "Column with `PUT` or `DELETE`; it is not written, and needs `keyColumns`. Without it, every row is put.",
)
KEY_COLUMNS: Option[tuple[str, ...]] = Option(
    "keyColumns",
    Kind("names", "the one or two columns of the table's key, comma-separated", _parse_keys),
    None,
    "The table's key: one column, or two, comma-separated. The last of several rows with the same key "
    "wins. Without it, DynamoDB rejects requests with two such rows.",
)


SET_COLUMNS: Option[tuple[str, ...]] = Option(
    "setColumns",
    Kind("names", "names of columns, comma-separated, none twice", _parse_names),
    None,
    "Array columns to write as sets (`SS`, `NS`, `BS`), comma-separated. Empty sets are left out.",
)
WRITE_MODE = Option(
    "writeMode",
    choice("put", "update"),
    "put",
    "`put` replaces items. `update` sets the row's columns that are not null, keeps other attributes, and "
    "creates missing items; it needs `keyColumns`.",
)
CONDITION = Option(
    "condition",
    TEXT,
    None,
    "[Condition](https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
    "Expressions.ConditionExpressions.html) on the item that a row writes or deletes; needs `keyColumns`. "
    "If it is false, the row is skipped. `:name` is the row's value of a column, `#name` an attribute.",
)


class DynamoDbDestination(AwsDestination[DynamoDbWrite]):
    """Writes items to a table.

    Args:
        connection: how to reach the service.
        table: name or ARN of the table.
        key_columns: the table's key columns; empty if not known.
        operation_column: the column that holds ``PUT`` or ``DELETE``; None to put every row.
        set_columns: arrays that are written as sets.
        updates: whether rows that are not deleted set attributes, and leave others as they are.
        condition: on the item that a row writes; None: there is none.

    Attributes:
        ordering_key: the key of the written item: the next write to an item is sent when the one before it
            has been accepted. None if the key columns are not known.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (
        TABLE_NAME,
        OPERATION_COLUMN,
        KEY_COLUMNS,
        SET_COLUMNS,
        WRITE_MODE,
        CONDITION,
    )
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=25,
        max_batch_size_in_bytes=16_000 * _KB,
        max_record_size_in_bytes=400 * _KB,
    )

    def __init__(  # noqa: PLR0913 - one for each option
        self,
        connection: ConnectionConfig,
        table: str,
        *,
        key_columns: Sequence[str] = (),
        operation_column: str | None = None,
        set_columns: Sequence[str] = (),
        updates: bool = False,
        condition: str | None = None,
    ) -> None:
        arn = _ARN.fullmatch(table)
        if arn is not None and connection.region is None:
            connection = replace(connection, region=arn["region"])
        name = arn["name"] if arn else table
        self._table = table
        self._keys = tuple(key_columns)
        self._operation = operation_column
        self._sets = tuple(set_columns)
        self._updates = updates
        self._condition = condition
        self._is_transactional = updates or condition is not None
        self._counters = Counters()
        operation = "TransactWriteItems" if self._is_transactional else "BatchWriteItem"
        super().__init__(BatchCall(connection, "dynamodb", operation, name, transient=_TRANSIENT))
        self._place = (connection.endpoint_url, connection.region, name)
        self.name = f"dynamodb table '{name}'"
        self.ordering_key = _key if self._keys else None

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> DynamoDbDestination | None:
        """See `DestinationClass.from_options`."""
        table, keys = values.get(TABLE_NAME), values.get(KEY_COLUMNS) or ()
        operation = values.get(OPERATION_COLUMN)
        if operation is not None and not values.given(KEY_COLUMNS):
            values.reject(OPERATION_COLUMN.key, f"needs '{KEY_COLUMNS.key}': an item is deleted by its key")
        if operation is not None and operation.lower() in (key.lower() for key in keys):
            values.reject(
                OPERATION_COLUMN.key, f"is {operation!r}, which is one of '{KEY_COLUMNS.key}' as well"
            )
        sets, updates = values.get(SET_COLUMNS) or (), values.get(WRITE_MODE) == "update"
        if both := {*sets} & {*keys}:
            values.reject(SET_COLUMNS.key, f"has {min(both)!r}, which is one of '{KEY_COLUMNS.key}' as well")
        for option in (WRITE_MODE, CONDITION):
            if (option is CONDITION or updates) and values.given(option) and not values.given(KEY_COLUMNS):
                values.reject(option.key, f"needs '{KEY_COLUMNS.key}'")
        if table is None:
            return None
        return cls(
            connection,
            table,
            key_columns=keys,
            operation_column=operation,
            set_columns=sets,
            updates=updates,
            condition=values.get(CONDITION),
        )

    def create_converter(self) -> DynamoDbRowConverter:
        return DynamoDbRowConverter(
            key_columns=self._keys,
            operation_column=self._operation,
            set_columns=self._sets,
            updates=self._updates,
            condition=self._condition,
        )

    def figures(self) -> Mapping[str, float]:
        """Rows that were left out because the condition did not hold."""
        return self._counters.read()

    def size_in_bytes(self, entry: DynamoDbWrite) -> int:
        """The size of the names and values of the item, or of the key to delete.

        Raises:
            SluiceError: the entry is not a write, or holds text where bytes belong.
        """
        if not isinstance(entry, DynamoDbWrite):
            raise wrong_entry("dynamodb", "an entry", entry, "DynamoDbWrite")
        for value in entry.attributes.values():
            members = (value["B"],) if "B" in value else value.get("BS", ())
            if not all(isinstance(each, BYTES) for each in members):
                raise wrong_entry("dynamodb", "a binary attribute", next(iter(members)), "bytes, not base64")
        return entry.size

    def submit(self, entries: Sequence[DynamoDbWrite]) -> SubmitResult[DynamoDbWrite]:
        """Writes the items that no other request is writing. Raises as `send_in_parts`."""
        keys = items_in_use.acquire(self._place, {entry.key for entry in entries} - {None})
        try:
            sent = [entry for entry in entries if entry.key is None or entry.key in keys]
            answers = iter(self.send_in_parts(sent) if sent else ())
        finally:
            items_in_use.release(self._place, keys)
        is_sent = set(map(id, sent))
        return self.call.result(
            entries, [next(answers) if id(entry) in is_sent else _STILL_WRITING for entry in entries]
        )

    def send_part(self, entries: Sequence[DynamoDbWrite]) -> list[Refusal | None]:
        if self._is_transactional:
            return self._transact(entries)
        unprocessed = {id(entry) for entry in self._write(entries)}
        return [_UNPROCESSED if id(entry) in unprocessed else None for entry in entries]

    def _transact(self, entries: Sequence[DynamoDbWrite]) -> list[Refusal | None]:
        """Sends a transaction, again without those for which it was cancelled for good."""
        results: dict[int, Refusal | None] = {}
        while left := [place for place in range(len(entries)) if place not in results]:
            outcomes = self._send_transaction([entries[place] for place in left])
            results |= {left[index]: outcome for index, outcome in outcomes.items()}
        return [results[place] for place in range(len(entries))]

    def _send_transaction(self, entries: Sequence[DynamoDbWrite]) -> dict[int, Refusal | None]:
        """What became of the entries. If it was cancelled for some for good, of these alone."""
        ((name, fields),) = _PLACED[0].items()
        placeholder = ({name: {**fields, "TableName": self._table}},)
        try:
            self.call(TransactItems=PreparedParameter(list(map(self._action, entries)), placeholder))
        except ServiceError as error:
            found = _REASONS.search(error.sentence)
            reasons = found[1].split(", ") if found else []
            if error.code != "TransactionCanceledException" or len(reasons) != len(entries):
                raise
            failed = [place for place, reason in enumerate(reasons) if reason == _FAILED]
            self._counters.add(conditionFailed=len(failed))
            refused = {
                place: Refusal(reason, "the transaction was cancelled for it", "reject")
                for place, reason in enumerate(reasons)
                if reason in _REFUSED
            }
            if failed or refused:
                return {**dict.fromkeys(failed), **refused}
            code = next((_LOAD.get(each, each) for each in reasons if each != "None"), error.code)
            return dict.fromkeys(range(len(entries)), Refusal(code, error.sentence, "retry"))
        return dict.fromkeys(range(len(entries)))

    def _action(self, entry: DynamoDbWrite) -> dict[str, Any]:
        fields: dict[str, Any] = {"TableName": self._table}
        names, values = {}, dict(entry.values)
        if self._condition is not None:
            fields["ConditionExpression"] = self._condition
            names = {f"#{name}": name for name in _NAME.findall(self._condition)}
        if entry.operation == "PUT":
            fields["Item"] = entry.attributes
        else:
            key = {name: value for name, value in entry.attributes.items() if name in self._keys}
            fields["Key"] = key
        if entry.operation == "UPDATE":
            sets = []
            for number, (name, value) in enumerate(entry.attributes.items()):
                if name not in self._keys:
                    names[f"#sluice_{number}"], values[f":sluice_{number}"] = name, value
                    sets.append(f"#sluice_{number} = :sluice_{number}")
            fields["UpdateExpression"] = f"SET {', '.join(sets)}"
        if names:
            fields["ExpressionAttributeNames"] = names
        if values:
            fields["ExpressionAttributeValues"] = values
        return {entry.operation.capitalize(): fields}

    def _write(self, entries: Sequence[DynamoDbWrite]) -> list[DynamoDbWrite]:
        """Sends one request; returns the writes that the answer calls unprocessed."""
        try:
            # The placeholder names the table, because the SDK may choose the endpoint by the table.
            items = PreparedParameter(
                {self._table: list(map(_as_request, entries))}, {self._table: _PLACEHOLDER}
            )
            answer = self.call(RequestItems=items)
        except ServiceError as error:
            if error.sentence in _NOT_FOR_AN_ITEM:
                error.missing = True  # no part of it would be accepted
            if error.sentence == _DUPLICATES and not self._keys:
                error.args = (f"{error} (option 'keyColumns' makes the last of several rows of a key win)",)
            raise
        # DynamoDB always says what is left. A proxy in front of it that answers by itself does not.
        by_table = answer.get("UnprocessedItems")
        if by_table is None:
            raise self.call.damaged_answer("the answer has no UnprocessedItems")
        # One table, under its name or its ARN.
        left = [write for writes in by_table.values() for write in writes]
        if not left:
            return []
        by_content: dict[Hashable, list[DynamoDbWrite]] = defaultdict(list)
        for entry in reversed(entries):
            by_content[_content(_as_request(entry))].append(entry)
        unprocessed = []
        for write in left:
            try:
                candidates = by_content.get(_content(write))
            except (ArithmeticError, AttributeError, TypeError, ValueError):  # it is not an item
                candidates = None
            if not candidates:
                raise self.call.damaged_answer("an unprocessed item that was not in the request")
            unprocessed.append(candidates.pop())
        return unprocessed


def _key(entry: DynamoDbWrite) -> Hashable:
    return entry.key


def _as_request(entry: DynamoDbWrite) -> dict[str, Any]:
    if entry.operation == "DELETE":
        return {"DeleteRequest": {"Key": entry.attributes}}
    return {"PutRequest": {"Item": entry.attributes}}


def _content(request: Mapping[str, Any]) -> Hashable:
    """A hashable form of a write, the same for our request and for the service's copy of it."""
    ((operation, parameters),) = ((name, value) for name, value in request.items() if value)
    ((_, attributes),) = parameters.items()
    return operation, canonical({"M": attributes})
