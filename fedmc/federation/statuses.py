"""The statuses of a node: one word in each reply. The server sees nothing else; the node's own log gives the reason.

`docs/reference/messages.md` lists them with what each organisation can do.
"""

from __future__ import annotations

OK = "ok"
DIVERGED = "diverged"
WRONG_VERSION = "wrong-version"
STATUS = {
    OK: "counted",
    "not-signed": "the message was not signed for this node by the key in its server.pub: hand it the right one",
    "replayed": "the node has acted on a newer message: an old one came again, or the server's clock was set back",
    "malformed": "the node could not read the request: the server runs another version, or the message was damaged",
    WRONG_VERSION: "the node speaks another protocol than the server: install a newer fedmc where it is older",
    "wrong-catalogue": "the node has another catalogue of items: agree on one and prepare the shard again",
    "wrong-settings": "the settings do not match their hash or those the run began with, or the node cannot run them",
    "missing-plugin": "the run names a plug-in that the node has not installed: install its package there",
    "wrong-round": "the node has already committed this round or a later one, or the request came late",
    "lost-state": "the node's state is not of the round that the server counted: restore it, or start a new run",
    "wrong-privacy": "the node does not answer this task in this privacy mode: its config.toml says what it accepts",
    "over-budget": "the node's organisation has no privacy budget left for this: its own log says by how much",
    "wrong-member": "the node is not known by this number, or knows no identities: compare identities.json",
    "no-session": "the node was restarted within a session of secure aggregation, or the session was replaced",
    "not-hidden": "the session would not hide the node: its own log says why",
    "changed-ratings": "the node's ratings are not those it began the run with: put them back, or start a new run",
    DIVERGED: "numbers sent or computed are not finite or too large: raise the penalties or beta",
    "failed": "the node could not compute its reply: its own log says why",
}


def explain(status: str) -> str:
    """The status and what it means, for the server's operator."""
    return f"{status}: {STATUS[status]}" if status in STATUS else "an unknown status"
