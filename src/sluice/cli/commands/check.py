"""``sluice check``: whether a query could start, without starting Spark."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.cli.checks.dynamodb_streams import check_dynamodb_streams
from sluice.cli.checks.findings import Finding, Findings
from sluice.cli.checks.identity import Identity, find_identity
from sluice.cli.checks.sink import check_sink
from sluice.cli.checks.source import check_source
from sluice.cli.options import add_options, given_options, has_options, read_connection
from sluice.cli.report import Report, UsageError
from sluice.destinations.registry import read_sink
from sluice.dynamodb_streams.source import FORMAT as DYNAMODB_STREAMS
from sluice.dynamodb_streams.source import DynamoDbStreamsSource
from sluice.errors import OptionError
from sluice.kinesis.options.config import source_config_from_options

HELP = "check credentials, endpoint, streams or tables, permissions, consumers and destination of a query"
EXAMPLE = "sluice check --region eu-west-1 --option streamName=orders --option recordPublisher=polling"

_KINESIS: Final = "kinesis-efo"
_MARKS: Final = {"ok": "ok", "failed": "FAILED", "warning": "warning", "unknown": "unknown"}


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.description = (
        "Checks whether a query could start. Nothing is written, no consumer is registered, and a record of "
        "each stream is read. IAM's simulator is asked for what would write; without it that is unknown."
    )
    parser.add_argument(
        "--format",
        choices=(_KINESIS, DYNAMODB_STREAMS),
        default=_KINESIS,
        help="the format of the source (default: %(default)s)",
    )
    add_options(parser, "an option of the source, as the query has it")
    add_options(parser, "an option of the sink, as the query has it", prefix="sink")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Checks a source, a sink, or both."""
    source = given_options(arguments) if has_options(arguments) else {}
    sink = given_options(arguments, prefix="sink") if has_options(arguments, prefix="sink") else {}
    if not source and not sink:
        raise UsageError(
            "give --option or --options for a source, --sink-option or --sink-options for a sink"
        )
    found = [
        *(_of_source(arguments.format, source) if source else ()),
        *(_of_sink(sink) if sink else ()),
    ]
    has_failed = any(each.status == "failed" for _, each in found)
    value = {
        "findings": [{"of": of, **each.to_json()} for of, each in found],
        "missingActions": sorted({each.action or "" for _, each in found if each.is_missing}),
    }
    return Report(value, _text(found), has_problem=has_failed)


def _of_source(source_format: str, options: Mapping[str, str]) -> list[tuple[str, Finding]]:
    try:
        check, connection = _read_source(source_format, options)
    except OptionError as error:
        return [("source", Finding("options", "failed", f"{error}{_hint(source_format, options)}"))]
    findings = Findings(connection)
    findings.add("options", "ok", f"{len(options)} options")
    identity = find_identity(findings)
    if identity is not None:
        check(findings, identity)
    return [("source", each) for each in findings.found]


def _hint(source_format: str, options: Mapping[str, str]) -> str:
    """What to tell users who have left out the format, which is not an option."""
    given = {key.lower(): value for key, value in options.items()}
    is_table = "tablename" in given or ":dynamodb:" in given.get("streamarn", "")
    if source_format == _KINESIS and is_table:
        return f"; a source of DynamoDB Streams is checked with --format {DYNAMODB_STREAMS}"
    return ""


def _read_source(
    source_format: str, options: Mapping[str, str]
) -> tuple[Callable[[Findings, Identity], None], ConnectionConfig]:
    """What checks a source of these options, and how services are reached.

    Raises:
        OptionError: an option cannot work.
    """
    if source_format == DYNAMODB_STREAMS:
        streams = DynamoDbStreamsSource.configured(options, streaming=True).config
        return functools.partial(check_dynamodb_streams, config=streams), streams.connection
    config = source_config_from_options(options, streaming=True)
    return functools.partial(check_source, config=config), config.connection


def _of_sink(options: Mapping[str, str]) -> list[tuple[str, Finding]]:
    try:
        setup = read_sink(options)
        if setup.load_listener is not None:
            setup.load_listener()
    except OptionError as error:
        return [("sink", Finding("options", "failed", str(error)))]
    findings = Findings(read_connection(options, only=True))
    findings.add("options", "ok", f"{len(options)} options")
    check_sink(findings, options)
    return [("sink", each) for each in findings.found]


def _text(found: Sequence[tuple[str, Finding]]) -> str:
    lines = []
    part = ""
    for of, each in found:
        if of != part:
            lines += [*([""] if part else []), of]
            part = of
        lines.append(f"  {_MARKS[each.status]:<8} {each.what}: {each.text}")
    counts = {status: sum(each.status == status for _, each in found) for status in _MARKS}
    summary = ", ".join(f"{count} {_MARKS[status]}" for status, count in counts.items() if count)
    return "\n".join([*lines, "", summary])
