"""The options that every source has, and how a source is made of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.errors import OptionError
from sluice.options import TEXT, Option, OptionValues
from sluice.source import Limits, Source, SourceSettings
from sluice.source.model.offsets import AtHorizon, AtTime
from sluice.source.model.splits import Split, SplitId
from sluice.source.settings import MAX_RECORDS
from sluice.testing import MemoryLog, MemorySource, QueryRunner

HOST = Option("host", TEXT, None, "Where to connect.", required=True)
FAIL = Option("failOnDataLoss", TEXT, "maybe", "An option of its own under a common name.")


@dataclass(frozen=True)
class Frozen(Source):
    """A source that is a frozen dataclass, and redefines a common option."""

    name = "frozen"
    OPTIONS = (HOST, FAIL)

    host: str
    fail: str

    @classmethod
    def from_options(cls, values: OptionValues) -> Frozen:
        return cls(values.require(HOST), values.require(FAIL))

    def schema(self) -> pa.Schema:
        return pa.schema([("at", pa.timestamp("us", tz="UTC"))])


def configured(streaming: bool | None = True, **options: str) -> SourceSettings:
    return MemorySource.configured(options, streaming=streaming).settings


def test_the_defaults() -> None:
    """A streaming read starts at the latest, a batch read at the earliest."""
    assert configured() == SourceSettings()
    assert configured(streaming=False).starting == "EARLIEST"


def test_all_options() -> None:
    """Durations are seconds, instants microseconds."""
    given = configured(
        maxRecordsPerTrigger="5",
        maxbytespertrigger="1KiB",
        maxTimeSpanPerTrigger="2s",
        maxDrift="3s",
        splitDiscoveryInterval="4s",
        splitsPerTask="6",
        failOnDataLoss="false",
        startingPosition="at_timestamp",
        startingTimestamp="1700000000",
    )
    assert given == SourceSettings(
        Limits(5, 1024, 2_000_000), 3.0, 4.0, 6, False, "AT_TIMESTAMP", 1_700_000_000_000_000
    )
    assert given.starting_text == "AT_TIMESTAMP 1700000000.000"


@pytest.mark.parametrize(
    ("streaming", "options", "problem"),
    [
        (True, "splitPerTask=1", "'splitPerTask' is not known: did you mean 'splitsPerTask'"),
        (True, "splitsPerTask=0", "'splitsPerTask' is '0': allowed is a whole number"),
        (True, "endingTimestamp=1700000000", "'endingTimestamp' is for batch reads only"),
        (False, "maxDrift=2s", "'maxDrift' is for streaming reads only"),
        (True, "startingPosition=AT_TIMESTAMP", "'startingTimestamp' is required"),
        (True, "startingTimestamp=1700000000", "'startingTimestamp' needs 'startingPosition' AT_TIMESTAMP"),
        (False, "endingTimestamp=20260131", "is '20260131': allowed is ISO-8601 such as 2026-01-31"),
        (False, "endingTimestamp=2026", "'endingTimestamp' is '2026': allowed is ISO-8601"),
        (False, "startingTimestamp=0001-01-01T00:00+14:00", "is '0001-.*': allowed is ISO-8601"),
        (False, "endingTimestamp=9999-12-31T23:59-12:00", "is '9999-.*': allowed is ISO-8601"),
    ],
)
def test_what_cannot_work_is_refused(streaming: bool, options: str, problem: str) -> None:
    """Before anything runs."""
    with pytest.raises(OptionError, match=f"memory: .*{problem}"):
        configured(streaming, **dict([options.split("=")]))


def test_a_source_takes_over_a_common_option() -> None:
    """It then means what the source says."""
    made = Frozen.configured({"HOST": "a", "failondataloss": "never", "splitsPerTask": "2"}, streaming=True)
    assert (made.host, made.fail, made.settings.splits_per_task) == ("a", "never", 2)
    assert made.settings.fail_on_data_loss


def test_common_options_that_a_source_does_not_read_are_refused() -> None:
    """An ignored option would promise something that nothing fulfils. Those of `Source.deal` and `read_task`
    are read.
    """
    given = dict.fromkeys(("splitsPerTask", "maxRecordsPerTrigger"), "5") | {"host": "a", "maxDrift": "5s"}
    with pytest.raises(OptionError) as caught:
        Frozen.configured(given)
    assert str(caught.value) == (
        "frozen: option 'maxRecordsPerTrigger' does nothing here: this source does not read it; "
        "option 'maxDrift' does nothing here: this source does not read it"
    )

    class Limited(Frozen):
        COMMON_OPTIONS = (*Source.COMMON_OPTIONS, MAX_RECORDS)

    made = Limited.configured({"host": "a", "maxRecordsPerTrigger": "5"}, streaming=True)
    assert made.limits == Limits(records=5)
    with pytest.raises(OptionError, match="'maxRecordsPerTrigger' is for streaming reads only"):
        Limited.configured({"host": "a", "maxRecordsPerTrigger": "5"}, streaming=False)


def test_a_source_without_an_end_is_refused_where_there_has_to_be_one() -> None:
    class Endless(Frozen):
        boundedness = "continuous"

    query = QueryRunner(Endless, {"host": "a"})
    for read in (query.read_all, query.run_available):
        with pytest.raises(OptionError, match=r"^frozen: this source never ends, so only a streaming query"):
            read()


def test_all_problems_are_in_one_error() -> None:
    """Those of the source's own options, too."""
    with pytest.raises(OptionError, match=r"frozen: option 'splitsPerTask' .*; option 'host' is required"):
        Frozen.configured({"splitsPerTask": "x"})


@pytest.mark.parametrize(
    ("options", "position"),
    [
        ({"startingPosition": "TRIM_HORIZON"}, AtHorizon(pinned=9)),
        ({"startingPosition": "LATEST"}, AtTime(9, pinned=9)),
        ({"startingPosition": "AT_TIMESTAMP", "startingTimestamp": "1700000000"}, AtTime(9, pinned=9)),
    ],
)
def test_starting_positions(options: dict[str, str], position: Any) -> None:
    """A time that has not come is now."""
    MemorySource.of(MemoryLog())
    split = Split(SplitId("s", "0"))
    made = MemorySource.configured(options, streaming=True).initial_positions([split], 9)
    assert made == {split.id: position}


def test_the_class_for_spark_needs_a_name() -> None:
    """That of the format."""

    class Nameless(Frozen):
        name = ""

    with pytest.raises(OptionError, match=r"data_source\(Nameless\): the class needs a name"):
        sluice.data_source(Nameless)
    with pytest.raises(OptionError, match=r"'package\.module:Name', and needs the name of its format"):
        sluice.data_source("somewhere:Frozen")
    assert sluice.data_source(Frozen).name() == "frozen"


def test_spark_gets_the_schema_of_the_source() -> None:
    """And refuses another one, also for a table."""
    made: Any = sluice.data_source(Frozen)({"host": "a"})
    assert made.schema().simpleString() == "struct<at:timestamp>"
    with pytest.raises(OptionError, match="frozen: the schema can't be chosen; it is always: at timestamp"):
        made.streamReader(type(made.schema())())
    table: Any = sluice.data_source(Frozen)({"provider": "frozen"})
    with pytest.raises(OptionError, match="its columns depend on options"):
        table.schema()
