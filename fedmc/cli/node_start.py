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
from fedmc.federation.node import consents
from fedmc.federation.node.live import LiveNode
from fedmc.federation.node.store import Store
from fedmc.federation.node.tally import Tally
from fedmc.federation.pages.node_page import node_pages
from fedmc.federation.pages.node_snapshot import Connection, NodeLook
from fedmc.federation.setup.keys import load_node_keys
from fedmc.federation.setup.layout import NodeConfig, enter_source, load_node
from fedmc.federation.setup.member_keys import NEXT, NODE, pending


def start(
    folder: Folder = Path(),
    reread: Reread = False,
    source: Annotated[
        str | None,
        typer.Option(help="Where the ratings are; written into config.toml. A relative path is from here."),
    ] = None,
    alone_visible: Annotated[
        bool | None,
        typer.Option(
            "--alone-visible/--no-alone-visible",
            help="Accept that secure sums show this organisation's own part, because it joins, leaves or comes back "
            "alone; recorded until it is withdrawn.",
            show_default="as recorded",
        ),
    ] = None,
    hold: Annotated[float, typer.Option(help="Seconds that the server may hold a request for work.")] = 20,
    page: PagePort = None,
    no_page: NoPage = False,
) -> None:
    """Take part in training runs until told to stop (Ctrl-C or SIGTERM).

    Ratings are read once, into the folder's `shard`, so that a run uses the same ones after a restart. What the server
    sends is data: none of it is ever run as code. The organisation's page shows data, models, budget and messages in a
    browser on this machine, and has metrics for Prometheus. Exit code 2 means that trying again would not help.
    """
    if source is not None:
        enter_source(folder, source)
    config = load_node(folder)
    log_to_stderr(config.log_format)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    if alone_visible is not None:
        consents.record(config, alone_visible)
    log, connection = logging.getLogger("fedmc.node"), Connection()

    def on_online() -> None:
        connection.on_online()
        log.info("online")

    with Store(config.path("state")) as store:
        opened = open_ratings(config, reread)
        node = LiveNode(config, opened, store)
        port = config.page_port if page is None else page
        look = NodeLook(config, opened.prepared, connection)
        shown = nullcontext() if no_page else served(node_pages(look, port), folder)
        with closing(Tally(config.path("state"), node.answer_bytes)) as tally, shown:
            serve(
                tally.answer_bytes, lambda: places(config), hold=hold, going_on=lambda: not node.has_left,
                on_online=on_online, on_offline=connection.on_offline,
            )  # fmt: skip
    if node.has_left:
        log.warning("%s is no member of the federation any more: the node ends", config.organisation)


def places(config: NodeConfig) -> list[Place]:
    """Where the node connects: with its keys and, if it has made new ones, also with these."""
    folders = [config.folder, *([config.path(NEXT)] if pending(config.folder) else [])]
    paths = [folder / NODE for folder in folders if (folder / NODE).exists()]
    about = config.server, config.path("ca.crt")
    return [Place(*about, load_node_keys(path), config.path("state") / "node-id") for path in paths]
