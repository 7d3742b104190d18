"""`fedmc node start`"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.logs import log_to_stderr
from fedmc.cli.node import Folder, Reread, open_ratings
from fedmc.federation.flower.fleet import Place
from fedmc.federation.flower.node_client import serve
from fedmc.federation.node.organisation import make_node
from fedmc.federation.node.store import Store
from fedmc.federation.setup.layout import load_node


def start(
    folder: Folder = Path(),
    reread: Reread = False,
    hold: Annotated[float, typer.Option(help="Seconds that the server may hold a request for work.")] = 20,
) -> None:
    """Take part in training runs until told to stop (Ctrl-C or SIGTERM).

    Ratings are read once, into the folder's `shard`, so that a run uses the same ones after a restart. What the server
    sends is data: none of it is ever run as code. Exit code 2 means that trying again would not help.
    """
    config = load_node(folder)
    log_to_stderr(config.log_format)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with Store(config.path("state")) as store:
        opened = open_ratings(config, reread)
        place = Place(config.server, config.path("ca.crt"), opened.keys, config.path("state") / "node-id")
        answer = make_node(config, opened, store).answer_bytes
        serve(answer, place, hold=hold, on_online=lambda: logging.getLogger("fedmc.node").info("online"))
