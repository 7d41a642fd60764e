"""No message shows a secret: neither an option's value nor a URL's user, password or query."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.calling.connection import CONNECTION_OPTIONS, ConnectionConfig
from sluice.aws.errors import redact
from sluice.destinations.dynamodb import DynamoDbDestination
from sluice.destinations.files import FilesDestination, S3Destination
from sluice.destinations.firehose import FirehoseDestination
from sluice.destinations.http import HttpDestination
from sluice.destinations.kinesis import KinesisStreamsDestination
from sluice.destinations.registry import read_sink
from sluice.destinations.sqs import SqsDestination
from sluice.errors import CommitError, DataLossError, OptionError, ServiceError, SluiceError
from sluice.kinesis.options.config import SOURCE_OPTIONS, source_config_from_options
from sluice.options import Option, OptionValues, read_options
from sluice.sink.options import SINK_OPTIONS

DESTINATIONS = (
    KinesisStreamsDestination,
    FirehoseDestination,
    DynamoDbDestination,
    SqsDestination,
    HttpDestination,
    FilesDestination,
    S3Destination,
)
EVERY_OPTION: list[Option[Any]] = [
    *SOURCE_OPTIONS,
    *CONNECTION_OPTIONS,
    *SINK_OPTIONS,
    *(option for destination in DESTINATIONS for option in destination.OPTIONS),
]
URLS = [
    "https://user:hunter2@host",
    "https://hunter2@host:4566/path",
    "https://host/path?key=hunter2",
    "https://host?key=hunter2&more=1#hunter2",
    "https://user:hun/hunter2@host",
    "https://user:a@hunter2@host",
    "https://user:hunter2#?@host",
    "https://user:hunter2 more@host",
    "https://user:'hunter2\"@host/",
    "ftp://user:hunter2@host",
    "HTTPS://user:hunter2@host",
    "s3://hunter2:x@bucket/prefix",
    "https://user:hunter2@host,https://host",
]
SPARKS_REDACTION = r"(?i)secret|password|token|access[.]?key"  # the default of spark.redaction.regex


def problems(option: Option[Any], text: str) -> str:
    """The messages about a value, including a value that is refused only later."""
    values = read_options("test", [option], {option.key.replace("*", "clicks"): text})
    values.reject_value(option, "does not fit")
    with pytest.raises(OptionError) as refused:
        values.check()
    return str(refused.value)


@pytest.mark.parametrize("url", URLS)
def test_no_option_shows_what_a_url_hides(url: str) -> None:
    """Whichever option a URL is given for, by mistake as well."""
    for option in EVERY_OPTION:
        assert "hunter2" not in problems(option, url), option.key
        assert "hunter2" not in problems(option, f" {url}\n"), option.key


@pytest.mark.parametrize("key", ["endpointUrl", "stsEndpointUrl"])
@pytest.mark.parametrize(
    "text", ["user:hunter2@host", "//user:hunter2@host", "host?key=hunter2", "hunter2@h"]
)
def test_a_url_without_its_scheme_is_one(key: str, text: str) -> None:
    """Options that take URLs know what they were given."""
    (option,) = (option for option in CONNECTION_OPTIONS if option.key == key)
    assert "hunter2" not in problems(option, text)


def test_the_rest_of_a_url_is_shown() -> None:
    """It shows the mistake."""
    with pytest.raises(OptionError) as refused:
        source_config_from_options(
            {"streamName": "s", "endpointUrl": "https://user:hunter2@kinesis.internal"}
        )
    assert "option 'endpointUrl' is 'https://***@kinesis.internal': allowed is a URL" in str(refused.value)
    with pytest.raises(OptionError) as refused:
        source_config_from_options(
            {"streamName": "s", "endpointUrl": "https://kinesis.internal/?key=hunter2"}
        )
    assert "option 'endpointUrl' is 'https://kinesis.internal/?***': allowed is a URL" in str(refused.value)


@pytest.mark.parametrize("url", URLS)
def test_the_sink_shows_nothing_either(url: str) -> None:
    """Through all of its options at once."""
    with pytest.raises(OptionError) as refused:
        read_sink({"destination": "sqs", "queueUrl": url, "endpointUrl": url, "profile": url})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("option", [option for option in EVERY_OPTION if option.secret], ids=lambda o: o.key)
def test_a_secret_is_one_for_spark_as_well(option: Option[Any]) -> None:
    """Spark shows the options of a source in plans and in its UI, but for those that its setting matches."""
    assert re.search(SPARKS_REDACTION, option.key)
    assert "hunter2" not in problems(option, "hunter2\nhunter2")


def test_no_representation_of_a_sink_shows_a_secret() -> None:
    """Tools that show the variables of a traceback print it."""
    options = {
        "destination": "http",
        "url": "https://orders.test/?key=s3cr3t-key",
        "bearerToken": "s3cr3t-token",
    }
    setup = read_sink(options)

    assert "s3cr3t" not in repr(setup) + repr(setup.destination)


def test_an_external_id_is_no_secret() -> None:
    """AWS does not treat it as one, and Spark shows it: an error that hides it only puzzles.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_create_for-user_externalid.html
    """
    (option,) = (option for option in CONNECTION_OPTIONS if option.key == "roleExternalId")
    assert "option 'roleExternalId' is 'a b': allowed is 2 to 1224 letters" in problems(option, "a b")
    assert "ext-1" in repr(ConnectionConfig(role_external_id="ext-1"))


URL_PARTS = st.text(st.characters(exclude_characters="'\"@/?#", exclude_categories=["C", "Z"]), min_size=1)


@given(user=URL_PARTS, password=URL_PARTS, query=URL_PARTS)
def test_errors_show_no_userinfo_and_no_query(user: str, password: str, query: str) -> None:
    """However an error came to hold a URL; what surrounds the URL stays, also after a pickle."""
    text = (
        f"cannot reach 'https://u{user}:p{password}@host:1/path?q{query}#f{query}' or http://h/a/b: refused"
    )
    expected = "cannot reach 'https://***@host:1/path?***' or http://h/a/b: refused"
    for kind in (SluiceError, OptionError, ServiceError, CommitError, DataLossError):
        error = kind(text)
        assert str(error) == expected
        assert str(pickle.loads(pickle.dumps(error))) == expected
    assert redact(text) == expected
    values = OptionValues("test")
    values.reject("key", text)
    with pytest.raises(OptionError, match=re.escape(expected)):
        values.check()


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/at@home/part-0.parquet",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
        "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
        "what? a//b #1, c@d",
        'startingPosition {"shardId-0": {"AT_SEQUENCE_NUMBER": "1"}}',
    ],
)
def test_other_text_stays(text: str) -> None:
    """Paths, ARNs and plain words are no secrets."""
    assert str(SluiceError(text)) == text
    assert redact(text) == text
