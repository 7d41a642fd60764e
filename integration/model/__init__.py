"""A model of Kinesis Data Streams that is as strict as the service's documents.

`Laws` has all rules, each with its page, and all are on by default; ``Laws.kind()`` has them off.

In process, as the log behind the source's tests. Time stands still until somebody sleeps::

    model = KinesisModel(Laws(), ManualClock(), seed=7)
    log = ModelLog(model)  # a sluice.source.logs.stream_log.StreamLog
    model.create("s", shards=2); model.put("s", "key", b"data"); model.oracle.records("s")

Behind a socket, for unmodified clients, in a thread::

    with integration.model.server.serving(Laws(), seed=7) as server:
        client = boto3.client("kinesis", endpoint_url=server.endpoint, region_name="us-east-1", ...)
"""

from integration.model.clock import SECOND, Clock, ManualClock, RealClock
from integration.model.errors import LOST_ANSWER, ModelError
from integration.model.faults import FaultPlan
from integration.model.laws import KIB, MIB, Laws
from integration.model.log import BACKOFFS, NO_RETRIES, ModelLog
from integration.model.oracle import Accepted, Oracle
from integration.model.payloads import ModelPayloads, ModelSubscribing
from integration.model.service import KinesisModel
from integration.model.shards import StoredRecord
from integration.model.subscriptions import Subscription

__all__ = [
    "BACKOFFS",
    "KIB",
    "LOST_ANSWER",
    "MIB",
    "NO_RETRIES",
    "SECOND",
    "Accepted",
    "Clock",
    "FaultPlan",
    "KinesisModel",
    "Laws",
    "ManualClock",
    "ModelError",
    "ModelLog",
    "ModelPayloads",
    "ModelSubscribing",
    "Oracle",
    "RealClock",
    "StoredRecord",
    "Subscription",
]
