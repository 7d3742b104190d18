"""`fedmc node start`"""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.logs import log_to_stderr
from fedmc.cli.node import Folder, Reread, open_ratings
from fedmc.cli.pages import NoPage, PagePort, served
from fedmc.federation.flower.fleet import Place
from fedmc.federation.flower.node_client import serve
from fedmc.federation.node.organisation import make_node
from fedmc.federation.node.store import Store
from fedmc.federation.node.tally import Tally
from fedmc.federation.pages.node_page import node_pages
from fedmc.federation.pages.node_snapshot import Connection, NodeLook
from fedmc.federation.setup.layout import load_node


def start(
    folder: Folder = Path(),
    reread: Reread = False,
    hold: Annotated[float, typer.Option(help="Seconds that the server may hold a request for work.")] = 20,
    page: PagePort = None,
    no_page: NoPage = False,
) -> None:
    """Take part in training runs until told to stop (Ctrl-C or SIGTERM).

    Ratings are read once, into the folder's `shard`, so that a run uses the same ones after a restart. What the server
    sends is data: none of it is ever run as code. The organisation's page shows data, models, budget and messages in a
    browser on this machine, and has metrics for Prometheus. Exit code 2 means that trying again would not help.
    """
    config = load_node(folder)
    log_to_stderr(config.log_format)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    connection = Connection()

    def on_online() -> None:
        connection.on_online()
        logging.getLogger("fedmc.node").info("online")

    with Store(config.path("state")) as store:
        opened = open_ratings(config, reread)
        place = Place(config.server, config.path("ca.crt"), opened.keys, config.path("state") / "node-id")
        node = make_node(config, opened, store)
        port = config.page_port if page is None else page
        look = NodeLook(config, opened.prepared, connection)
        shown = nullcontext() if no_page else served(node_pages(look, port), folder)
        with closing(Tally(config.path("state"), node.answer_bytes)) as tally, shown:
            serve(tally.answer_bytes, place, hold=hold, on_online=on_online, on_offline=connection.on_offline)
