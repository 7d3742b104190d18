"""The operator's page of a server: `fedmc server start` serves it beside the gateway."""

from __future__ import annotations

import json
from typing import Any

from fedmc.federation.pages import metrics
from fedmc.federation.pages import token as tokens
from fedmc.federation.pages.document import document
from fedmc.federation.pages.feed import View
from fedmc.federation.pages.http import Limits
from fedmc.federation.pages.server import LIMITS, RUN, Pages, Site
from fedmc.federation.pages.snapshot import ServerLook, Snapshot
from fedmc.federation.presence import Presence
from fedmc.federation.setup.layout import ServerConfig


def operator_pages(config: ServerConfig, port: int, presence: Presence, limits: Limits = LIMITS) -> Pages:
    """The page of this server, on loopback; `presence` says which nodes the gateway sees."""
    token = tokens.make_or_load(config.folder)
    look = ServerLook(config, presence)

    def view() -> View:
        found = look()
        return View(json.dumps(as_json(found, token)).encode(), lambda: metrics.text(metrics.ServerMetrics(found)))

    return Pages(Site(document("fedmc server", "operator"), view, token, look.report), port, limits=limits)


def as_json(found: Snapshot, token: str) -> dict[str, Any]:
    """The snapshot for the page's script. A report's link carries a ticket, since it cannot carry the token."""
    run = None
    if found.run is not None:
        curves = [one._asdict() for one in found.run.curves]
        run = found.run._asdict() | {"curves": curves, "errors": [one._asdict() for one in found.run.errors]}
    runs = [one._asdict() | {"report": _link(one.name, token) if one.report else ""} for one in found.runs]
    return {
        "organisations": [one._asdict() for one in found.organisations], "run": run, "runs": runs,
        "certificate": found.certificate,
    }  # fmt: skip


def _link(run: str, token: str) -> str:
    address = f"/runs/{run}/report.html"
    return f"{address}?ticket={tokens.ticket(token, run)}" if RUN.fullmatch(address) else ""
