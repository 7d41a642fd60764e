"""A model of Kinesis Data Streams that is as strict as its documents say the service is.

Used in process, as the log behind the source's tests (`ModelLog`), and behind a socket, for unmodified
clients (``integration.model.server``). `Laws` has all rules, each with its page; ``Laws.kind()`` has none of
them.
"""

from integration.model.clock import SECOND, Clock, ManualClock, RealClock
from integration.model.errors import LOST_ANSWER, ModelError
from integration.model.faults import FaultPlan
from integration.model.laws import KIB, MIB, Laws
from integration.model.log import BACKOFFS, NO_RETRIES, ModelLog
from integration.model.oracle import Accepted, Oracle
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
    "Oracle",
    "RealClock",
    "StoredRecord",
    "Subscription",
]
