"""The ClientApp for a stock SuperNode, which runs what the server's bundle names: this file, where nobody cheats.

`--node-config 'organisation="a" shard="FOLDER" state="FOLDER"'`. An organisation that trusts only what it installed
starts `fleet.serve` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmc.engines.flower.records import pack, unpack
from fedmc.engines.flower.transport import hello
from fedmc.federation.node import Node
from fedmc.federation.store import Store
from fedmc.prepared import open_prepared

log = logging.getLogger("fedmc.node")

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Every message of ours is a query: state is kept by the node's own store, never by Flower."""
    place = context.node_config
    return Message(pack(_answer(unpack(message.content), place)), reply_to=message)


def _answer(content: bytes, place: Mapping[str, object]) -> bytes:
    try:
        said = hello(content, str(place["organisation"]))
        if said is not None:
            return said
        prepared = open_prepared(str(place["shard"]))
        with Store(str(place["state"])) as store:
            return Node(prepared.shards[0], prepared.catalogue.hash, store).answer_bytes(content)
    except Exception:  # the text of an error would go to the server
        log.exception("this message is not answered")
        return b"failed"
