"""The rules of DynamoDB Streams, each a number with the page that documents it.

``API_`` in a comment is a page of the API reference,
``https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_….html``; ``dev/`` one of the developer
guide, ``https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/….html``. Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Laws:
    """See the module's docstring. A number that limits something is off at None."""

    retention: float | None = 24 * 3600.0
    """dev/Streams: "All data in DynamoDB Streams is subject to a 24-hour lifetime." A closed shard is listed
    until its last record could have expired."""
    shard_life: float | None = 4 * 3600.0
    """An open shard is closed after about this time, and a child takes its place. No page has the number; the
    vendor's local server rolls shards over every four hours."""
    page_records: int = 1_000
    """API_streams_GetRecords: "1 MB of data or 1000 stream records, whichever comes first"."""
    page_bytes: int = 2**20
    iterator_life: float | None = 900.0
    """API_streams_GetShardIterator: "A shard iterator expires 15 minutes after it is returned"."""
    read_calls: float | None = 10
    """GetRecords a second and shard. dev/Streams: "No more than two processes at most should be reading from
    the same stream's shard at the same time. Having more than two readers per shard can result in
    throttling." No page has a number of calls."""
    describe_calls: float | None = 10
    """API_streams_DescribeStream: "at a maximum rate of 10 times per second"."""
    listing_page: int = 100
    """API_streams_DescribeStream: Limit, "The upper limit is 100"."""
    listing_delay: float = 2.0
    """For up to this long a listing may miss a new shard, and show a closed one as open. No page has it;
    readers that others have written expect such listings."""
    empty_pages: int = 7
    """API_streams_GetRecords: "it might take multiple calls to get to a portion of the shard that contains
    stream records". The longest run of empty pages before a portion; half of the runs are 0. No page has the
    number."""
    empty_tail: int = 3
    """The same before the end of a closed shard."""
    portion: int = 400
    """Records of a portion, about."""
    scan_bytes: int = 2**20
    """API_Scan: "a single Scan operation first reads up to 1 MB of data"."""
    stale_reads: float = 2.0
    """How old what an eventually consistent read gives may be. dev/HowItWorks.ReadConsistency: it "might not
    reflect the results of a recently completed write operation". No page has a number."""
    whole_seconds: bool = True
    """API_streams_StreamRecord: the time of a record is "rounded down to the closest second"."""
