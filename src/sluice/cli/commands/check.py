"""``sluice check``: whether a query could start, without starting Spark."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sluice.cli.checks.dynamodb_streams import check_dynamodb_streams
from sluice.cli.checks.findings import Finding, Findings
from sluice.cli.checks.identity import Identity, find_identity
from sluice.cli.checks.sink import check_sink
from sluice.cli.checks.source import check_source
from sluice.cli.options import add_options, given_options, has_options, read_connection
from sluice.cli.report import Report, UsageError
from sluice.destinations.registry import read_sink
from sluice.dynamodb_streams.source import DynamoDbStreamsSource
from sluice.errors import OptionError
from sluice.kinesis.options.config import source_config_from_options

HELP = "check credentials, endpoint, streams or tables, permissions, consumers and destination of a query"
EXAMPLE = "sluice check --region eu-west-1 --option streamName=orders --option recordPublisher=polling"

_MARKS: Final = {"ok": "ok", "failed": "FAILED", "warning": "warning", "unknown": "unknown"}


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.description = (
        "Checks whether a query could start. Nothing is written, no consumer is registered, and a record of "
        "each stream is read. IAM's simulator is asked for what would write; without it that is unknown."
    )
    add_options(parser, "an option of the source, as the query has it")
    add_options(parser, "an option of the sink, as the query has it", name="sink-option")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Report:
    """Checks a source, a sink, or both."""
    source = given_options(arguments) if has_options(arguments) else {}
    sink = given_options(arguments, name="sink-option") if has_options(arguments, name="sink-option") else {}
    if not source and not sink:
        raise UsageError(
            "give --option or --options for a source, --sink-option or --sink-options for a sink"
        )
    found = [
        *(_of_source(source) if source else ()),
        *(_of_sink(sink) if sink else ()),
    ]
    has_failed = any(each.status == "failed" for _, each in found)
    value = {
        "findings": [{"of": of, **each.to_json()} for of, each in found],
        "missingActions": sorted({each.action or "" for _, each in found if each.is_missing}),
    }
    return Report(value, _text(found), has_problem=has_failed)


def _of_source(options: Mapping[str, str]) -> list[tuple[str, Finding]]:
    given = {key.lower(): value for key, value in options.items()}
    check: Callable[[Findings, Identity], None]
    try:
        if "tablename" in given or ":dynamodb:" in given.get("streamarn", ""):
            tables = DynamoDbStreamsSource.configured(options, streaming=True).config
            findings = Findings(tables.connection)
            check = functools.partial(check_dynamodb_streams, config=tables)
        else:
            streams = source_config_from_options(options, streaming=True)
            findings = Findings(streams.connection)
            check = functools.partial(check_source, config=streams)
    except OptionError as error:
        return [("source", Finding("options", "failed", str(error)))]
    findings.add("options", "ok", f"{len(options)} options")
    identity = find_identity(findings)
    if identity is not None:
        check(findings, identity)
    return [("source", each) for each in findings.found]


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
