"""`fedmc server start`"""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedmc.cli.logs import log_to_stderr, notice
from fedmc.cli.pages import NoPage, PagePort, served
from fedmc.cli.request_keys import print_handover
from fedmc.federation.flower.gateway import server as gateway
from fedmc.federation.flower.superlink import Link
from fedmc.federation.pages.operator import operator_pages
from fedmc.federation.presence import Presence
from fedmc.federation.setup import request_key
from fedmc.federation.setup.keys import check_certificate
from fedmc.federation.setup.layout import load_server


def start(
    folder: Annotated[Path, typer.Argument(help="The server's folder.")] = Path(),
    page: PagePort = None,
    no_page: NoPage = False,
) -> None:
    """Run Flower's SuperLink, and the gateway that nodes connect to with TLS and keys, until told to stop.

    The gateway admits only nodes whose keys are in `nodes/`, and only to what nodes need: training runs are started on
    this machine. Telemetry, update checks and installations at run time are off. The operator's page shows rounds,
    organisations and errors in a browser on this machine, and has metrics for Prometheus.
    """
    config = load_server(folder)
    log_to_stderr(config.log_format)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    items = len(config.catalogue())
    if request_key.make_if_new(folder):
        print_handover(config)
    warning = check_certificate(config.path("server.pem"))
    if warning is not None:
        notice(warning, logging.WARNING)
    port = config.page_port if page is None else page
    link = Link(config)
    try:
        nodes = link.register()
        names = ", ".join(config.organisations)
        ready = f"ready: nodes of {names} connect to {config.host}:{config.port}; {items:,} items"
        presence = Presence()
        shown = nullcontext() if no_page else served(operator_pages(config, port, presence), folder)
        with shown:
            on_ready = partial(notice, ready)
            gateway.serve(
                config, nodes, link.port, link.process.wait, on_ready, presence=presence, register=link.register_members
            )
        if link.process.poll() is not None:
            notice(f"error: the SuperLink ended: see {config.path('superlink.log')}", logging.ERROR)
            raise typer.Exit(1)
    finally:
        link.end()
