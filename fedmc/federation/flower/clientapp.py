"""The ClientApp for a stock SuperNode. A SuperNode runs the code that the server's bundle names: an honest server's
bundle names this file.

`--node-config 'folder="FOLDER"'` names the organisation's folder. An organisation that wants to run only code that it
installed itself uses `fedmc node start` instead.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmc.federation.flower.records import pack, unpack
from fedmc.federation.node.organisation import make_node, open_folder
from fedmc.federation.node.store import Store
from fedmc.federation.setup.layout import load_node
from fedmc.federation.wire import NEVER, Reply, encode_reply, to_bytes

log = logging.getLogger("fedmc.node")

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Every fedmc message is a query: the node's own store keeps the state, never Flower."""
    return Message(pack(_answer(unpack(message.content), str(context.node_config["folder"]))), reply_to=message)


def _answer(content: bytes, folder: str) -> bytes:
    try:
        config = load_node(Path(folder))
        with Store(config.path("state")) as store:
            return make_node(config, open_folder(config), store).answer_bytes(content)
    except Exception:  # the text of an error would go to the server
        log.exception("this message is not answered")
        return to_bytes(*encode_reply(Reply("", NEVER, NEVER, "", "failed")))
