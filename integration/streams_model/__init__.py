"""A model of DynamoDB Streams that is as strict as the service's documents. Tables are there to be scanned.

In process, as the service behind the source's own client::

    model = StreamsModel(Laws(), ManualClock(), seed=7)
    log = DynamoDbStreamsLog(ModelCalls(model), [TableRef("orders")])
    model.enable("orders"); model.put("orders", "key", {"id": {"S": "key"}})

Behind a socket, for unmodified clients::

    with integration.streams_model.server.serving(model) as endpoint: ...
"""

from integration.streams_model.calls import ModelCalls
from integration.streams_model.laws import Laws
from integration.streams_model.model import Stored, StreamsModel

__all__ = ["Laws", "ModelCalls", "Stored", "StreamsModel"]
