"""A client: its ratings, U, W and Y stay here; it answers with sums for each item."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmc.algorithms.client import respond

from .task import from_record, keep, kept, reply_to_record, settings_of, shard_of

app = ClientApp()


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Which client this is, and how many items there are."""
    client = int(context.node_config["partition-id"])
    items = shard_of(context.run_config, client).by_user.shape[1]
    return Message(RecordDict({"hello": ConfigRecord({"client": client, "items": items})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Update U, W and Y at the V received (`fedmc/algorithms/admm.py`, `fedmavg.py`), or begin."""
    return _answered(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure loss and errors at the V received."""
    return _answered(message, context)


def _answered(message: Message, context: Context) -> Message:
    settings = settings_of(context.run_config)
    broadcast = from_record(message.content, settings)
    shard = shard_of(context.run_config, int(context.node_config["partition-id"]))
    state, sums = respond(shard, kept(context.state, settings), broadcast)
    keep(state, context.state)
    return Message(reply_to_record(sums, broadcast), reply_to=message)
