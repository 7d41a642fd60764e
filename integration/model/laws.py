"""The rules of the service, each a switch or a number with the page that documents it.

Everything is on by default: a client that is right under `Laws()` is right against the service, as far as the
service's documents go. ``Laws.kind()`` has everything off, as emulators have. For one law at a time use
``dataclasses.replace(Laws.kind(), read_calls=5)``.

A number that limits something is off at None. Durations are seconds, sizes bytes, unless a name says
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

KIB: Final = 1024
MIB: Final = 1024 * KIB

Scope = Literal["account", "stream"]

# Calls a second, and of what. The page of each operation says so:
# https://docs.aws.amazon.com/kinesis/latest/APIReference/API_Operations.html
# and https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html
_CALL_RATES: Final[Mapping[str, tuple[float, Scope]]] = {
    "CreateStream": (5, "account"),
    "DecreaseStreamRetentionPeriod": (5, "stream"),
    "DeleteStream": (5, "account"),
    "DeregisterStreamConsumer": (5, "stream"),
    "DescribeStream": (10, "account"),
    "DescribeStreamConsumer": (20, "stream"),
    "DescribeStreamSummary": (20, "account"),
    "IncreaseStreamRetentionPeriod": (5, "stream"),
    "ListShards": (1000, "stream"),
    "ListStreamConsumers": (5, "stream"),
    "ListStreams": (5, "account"),
    "MergeShards": (5, "account"),
    "RegisterStreamConsumer": (5, "account"),
    "SplitShard": (5, "account"),
    "UpdateShardCount": (10, "account"),
}


@dataclass(frozen=True, kw_only=True)
class Laws:
    """See the module's docstring. ``API_`` in a comment is a page of the API reference,
    ``https://docs.aws.amazon.com/kinesis/latest/APIReference/API_….html``; ``dev/`` one of the developer
    guide, ``https://docs.aws.amazon.com/streams/latest/dev/….html``.
    """

    # --- reads: API_GetRecords, API_GetShardIterator, dev/service-sizes-and-limits ---

    read_calls: float | None = 5
    """GetRecords a second and shard, of all readers together."""
    read_bytes: float | None = 2 * MIB
    """Bytes a second and shard, of all readers together."""
    longest_refusal: float | None = 5.0
    """A page that is larger than `read_bytes` ends reads of its shard for size / `read_bytes` seconds, at
    most for these. "If a call returns this amount of data [10 MiB], subsequent calls made within the next 5
    seconds throw ProvisionedThroughputExceededException." None: a large page costs no more than a small one.
    """
    page_records: int = 10_000
    page_bytes: int | None = 10 * MIB
    iterator_calls: float | None = 5
    """GetShardIterator a second and shard."""
    iterator_life: float | None = 300.0
    """API_GetShardIterator: "A shard iterator expires 5 minutes after it is returned to the requester." """
    empty_pages: int = 60
    """API_GetRecords: "It might take multiple calls to get to a portion of the shard that contains records."
    The longest run of empty pages before a portion. Runs are drawn from the seed, and half of them are 0. The
    page names no number. 0: there are no such runs.
    """
    empty_runs_are_full: bool = False
    """Whether such a run comes before every portion, and has that length."""
    portion_records: int = 5_000
    """A portion of a shard that holds records has this many of them on average."""
    portion_gap: float = 60.0
    """A portion also ends before a pause of the producers that is longer than this (seconds)."""
    late_tip: float = 0.25
    """How often a page that has the last record still says MillisBehindLatest > 0, and the page behind it
    says 0; at a closed shard's end: still has a NextShardIterator. Both are allowed: API_GetRecords has 0 as
    "no new records to process at this moment" and null as "the shard has been closed".
    """
    late_end: float = 0.25
    """How often the page that has the last record of a closed shard says MillisBehindLatest=0, and still has
    a NextShardIterator. API_GetRecords allows it: null says that "the requested iterator does not return any
    more data", and 0 that a reader has caught up.
    """
    future_timestamps: bool = False
    """Whether AT_TIMESTAMP may be later than the service's clock. The service refuses it: "The
    timestampInMillis parameter cannot be greater than the currentTimestampInMillis"
    (https://github.com/awslabs/amazon-kinesis-connector-flink/issues/13).
    """
    foreign_numbers: bool = False
    """Whether GetShardIterator takes sequence numbers of another shard or stream. The service refuses them:
    "It encodes shardId-000000000007, while it was used in a call to shardId-000000000000"
    (https://github.com/boto/boto3/issues/1478).
    """
    foreign_iterators: bool = False
    """Whether an iterator that the service has not made starts at the horizon. It is an InvalidArgument."""
    arrival_disorder: float = 0.05
    """How often a record's arrival time is up to 20 ms before that of the record before it. API_GetRecords:
    "no guarantees about the time stamp accuracy, or that the time stamp is always increasing"."""
    arrival_milliseconds: bool = True
    """Whether arrival times have millisecond precision, as API_GetRecords says, or microseconds."""

    # --- open questions of reads: off is what the documents say ---

    tip_before_records: float = 0.0
    """How often the first page of an iterator at or after a sequence number is empty and says
    MillisBehindLatest=0 although records follow. No document says that it may; a reader that takes such a
    page for the tip would report lost records."""

    # --- writes: API_PutRecords, API_PutRecord, dev/large-records ---

    write_records: float | None = 1_000
    """Records a second and shard."""
    write_bytes: float | None = 1 * MIB
    """Bytes a second and shard, keys included. A large record may overdraw the available bytes."""
    request_records: int | None = 500
    request_bytes: int | None = 10 * MIB
    record_bytes: bool = True
    """Whether a record (data and partition key) may be no larger than its stream's MaxRecordSizeInKiB, which
    is 1 MiB unless it was raised, to 10 MiB at most (API_UpdateMaxRecordSize)."""
    partition_key_units: Literal["code points", "utf-16"] | None = "code points"
    """What the 256 of a partition key are. The page says "Unicode strings, with a maximum length limit of 256
    characters"; the service is written in Java, whose characters are UTF-16 units. Not known: both."""

    # --- the control plane ---

    call_rates: Mapping[str, tuple[float, Scope]] = field(
        default_factory=lambda: MappingProxyType(_CALL_RATES)
    )
    """Operation to calls a second; beyond them LimitExceededException."""
    listing_page: int = 1_000
    """API_ListShards: "If you specify a value greater than 1000, at most 1000 results are returned." """
    token_life: float | None = 300.0
    """API_ListShards: "Tokens expire after 300 seconds." """
    token_alone: bool = True
    """API_ListShards: "Don't specify StreamName or StreamCreationTimestamp if you specify NextToken"."""
    listing_delay: float = 2.0
    """For up to this long a listing may miss a new shard. Listings are eventually consistent: KCL looks for
    children that are not listed yet ("IncompleteLineage", awslabs/amazon-kinesis-client, ShardSyncer)."""
    listing_holes: bool = False
    """Whether a listing may have a new shard whose parent it misses. No document says that it may; a reader
    that takes such a parent for expired reads the child before it."""
    listing_gaps: float = 0.05
    """How often a closed shard whose records have all been read is missing from listings, for up to two
    seconds. One that never had a record is listed: its parents may be unread, and that were a
    `listing_holes`."""
    status_delay: tuple[float, float] = (0.2, 1.5)
    """How long a stream stays CREATING, UPDATING or DELETING. API_SplitShard: an asynchronous operation. The
    service takes some 30 s."""
    resharding_rules: bool = True
    """API_MergeShards, API_SplitShard, API_UpdateShardCount: no reshard but of an ACTIVE stream; at most
    twice and at least half of the shards; ten times in 24 hours."""
    shard_limit: int | None = 20_000
    """Open shards of an account: dev/service-sizes-and-limits, the largest default."""
    shards_expire: bool = True
    """dev/kinesis-using-sdk-java-after-resharding: a closed shard is EXPIRED, and not listed, when the
    retention has passed since it was closed."""
    retention: bool = True
    """Whether records expire at all."""

    # --- consumers and fan-out: API_RegisterStreamConsumer, API_SubscribeToShard, API_SubscribeToShardEvent
    # ---

    consumer_limit: int | None = 20
    """Consumers of a stream; 50 with on-demand advantage."""
    creating_limit: int | None = 5
    """Consumers that are CREATING at once."""
    consumer_delay: tuple[float, float] = (0.5, 3.0)
    """How long a consumer stays CREATING or DELETING. The service takes some 10 s."""
    resubscribe_after: float | None = 5.0
    """"If you call SubscribeToShard again with the same ConsumerARN and ShardId within 5 seconds of a
    successful call, you'll get a ResourceInUseException", closed or not. Later calls take over."""
    subscribe_calls: float | None = 1
    """Calls of SubscribeToShard a second, consumer and shard, refused ones included."""
    subscription_life: float | None = 300.0
    push_bytes: float | None = 2 * MIB
    """Bytes a second, consumer and shard."""
    event_interval: float = 0.07
    """Events come no faster than this. dev/enhanced-consumers: "typically an average of 70 ms"."""
    event_bytes: int = 1 * MIB
    heartbeat: float = 5.0
    """How often an event comes where there are no records, with a ContinuationSequenceNumber that moves
    on.
    """

    @classmethod
    def kind(cls) -> Laws:
        """Nothing is refused and nothing takes time, as with emulators; for comparison."""
        return cls(
            read_calls=None,
            read_bytes=None,
            longest_refusal=None,
            page_bytes=None,
            iterator_calls=None,
            iterator_life=None,
            empty_pages=0,
            late_tip=0.0,
            future_timestamps=True,
            foreign_numbers=True,
            foreign_iterators=True,
            arrival_disorder=0.0,
            arrival_milliseconds=False,
            write_records=None,
            write_bytes=None,
            request_records=None,
            request_bytes=None,
            record_bytes=False,
            partition_key_units=None,
            call_rates=MappingProxyType({}),
            token_life=None,
            token_alone=False,
            listing_delay=0.0,
            listing_gaps=0.0,
            status_delay=(0.0, 0.0),
            resharding_rules=False,
            shard_limit=None,
            shards_expire=False,
            retention=False,
            consumer_limit=None,
            creating_limit=None,
            consumer_delay=(0.0, 0.0),
            resubscribe_after=None,
            subscribe_calls=None,
            subscription_life=None,
            push_bytes=None,
            event_interval=0.0,
        )
