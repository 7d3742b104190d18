"""The organisation's page of a node: `fedmc node start` serves it beside the node."""

from __future__ import annotations

import json
from typing import Any

from fedmc.errors import printable
from fedmc.federation.node.journal import Refusal
from fedmc.federation.node.tally import Asked
from fedmc.federation.pages import metrics
from fedmc.federation.pages import token as tokens
from fedmc.federation.pages.document import document
from fedmc.federation.pages.feed import View
from fedmc.federation.pages.http import Limits
from fedmc.federation.pages.node_snapshot import NodeLook, NodeSnapshot
from fedmc.federation.pages.server import LIMITS, Pages, Site
from fedmc.federation.statuses import STATUS


def node_pages(look: NodeLook, port: int, limits: Limits = LIMITS) -> Pages:
    """The page of this node, on loopback."""

    def view() -> View:
        found = look()
        return View(json.dumps(as_json(found)).encode(), lambda: metrics.text(metrics.NodeMetrics(found)))

    token = tokens.make_or_load(look.config.folder)
    return Pages(Site(document("fedmc node", "node"), view, token), port, limits=limits)


def as_json(found: NodeSnapshot) -> dict[str, Any]:
    """The snapshot for the page's script, with the statuses in words."""
    plain = found._asdict()
    return plain | {
        "data": found.data._asdict(), "models": [one._asdict() for one in found.models],
        "budget": None if found.budget is None else found.budget._asdict(),
        "runs": [one._asdict() | {"why": printable(one.why)} for one in found.runs],
        "refusals": [_refusal(one) for one in found.refusals],
        "sent": {
            "since": found.sent.since, "totals": [one._asdict() for one in found.sent.totals],
            "last": [_asked(one) for one in found.sent.last],
        },
    }  # fmt: skip


def _refusal(one: Refusal) -> dict[str, Any]:
    texts = {name: printable(getattr(one, name)) for name in ("what", "status", "reason", "cure")}
    return {"last": one.last, "times": one.times} | texts


def _asked(one: Asked) -> dict[str, Any]:
    """The status in words as the server knows it."""
    return one._asdict() | {"words": STATUS[one.status]}
