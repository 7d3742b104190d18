"""The statuses of a node: one word in each reply. The server sees nothing else; the node's own log gives the reason.

`docs/reference/messages.md` lists them with what each organisation can do.
"""

from __future__ import annotations

OK = "ok"
DIVERGED = "diverged"
AWAITING_APPROVAL = "awaiting-approval"
WRONG_VERSION = "wrong-version"
UNKNOWN_MEMBERS = "unknown-members"
WRONG_CATALOGUE = "wrong-catalogue"
STATUS = {
    OK: "counted",
    "not-signed": "the message was not signed for this node by the key in its server.pub: hand it the right one",
    "replayed": "the node has acted on a newer message: an old one came again, or the server's clock was set back",
    "malformed": "the node could not read the request: the server runs another version, or the message was damaged",
    WRONG_VERSION: "the node speaks another protocol than the server: install a newer fedmc where it is older",
    WRONG_CATALOGUE: "the node has another catalogue, or another table of items in it: put one file into all folders",
    "wrong-settings": "the settings do not match their hash or those the run began with, or the node cannot run them",
    "wrong-feedback": "the run learns from events and the node has ratings, or the other way round: see its own log",
    "missing-plugin": "the run names a plug-in that the node has not installed: install its package there",
    "wrong-round": "the node has committed this round or a later one, or was asked for it too often in other ways",
    "lost-state": "the node's state is not of the round that the server counted: restore it, or start a new run",
    "wrong-privacy": "the node does not answer this task in this privacy mode: its config.toml says what it accepts",
    "wrong-policy": "the run is outside of the organisation's policy: its own log says which bound and value",
    AWAITING_APPROVAL: "a person there has yet to allow the run: `fedmc node approve RUN FOLDER` there, then `resume`",
    "rejected": "the organisation decided against this run",
    "leaving": "the organisation leaves the federation: `fedmc federation remove`",
    "too-many-runs": "the organisation begins no more runs today (UTC): resume tomorrow, or ask it for a larger bound",
    "over-budget": "the node's organisation has no privacy budget left for this: its own log says by how much",
    "ledger-behind": "the node's ledger of releases was lost, or replaced by an older copy: its own log gives the cure",
    "wrong-member": "the node is not known by this number, or knows no identities: compare members.json; in a take-out "
    "also: its organisation has not said `fedmc node leave --take-out`",
    UNKNOWN_MEMBERS: "the node has another list of members, and did not take in the server's: compare members.json",
    "not-a-successor": "the list or catalogue does not follow the node's own, or the authority did not sign it",
    "no-session": "the node was restarted within a session of secure aggregation, or the session was replaced",
    "not-hidden": "the session would not hide the node, or one that joins or leaves alone without its consent "
    "(`fedmc node start --alone-visible` there): the node's own log says why",
    "changed-ratings": "ratings, features or events there are not those of the run: put them back, or start a new run",
    DIVERGED: "numbers sent or computed are not finite or too large: raise the penalties or beta",
    "failed": "the node could not compute its reply: its own log says why",
}

# For the organisation, as `fedmc node status` shows it where a refusal has no cure of its own.
CURES = {
    "not-signed": "compare server.pub with the server's operator, then `fedmc node trust FOLDER KEY --replace`",
    "replayed": "nothing; if it keeps happening, ask the server's operator whether its clock was set back",
    "malformed": "install the server's version of fedmc; if it repeats, ask the server's operator",
    WRONG_VERSION: "install the same version of fedmc as the server",
    WRONG_CATALOGUE: "put the server's catalogue.json here, then `fedmc node start --reread`",
    "wrong-settings": "install the server's version of fedmc, or ask for a new run",
    "wrong-feedback": "set feedback under [ratings] of config.toml and `fedmc node start --reread`, if that is wrong",
    "missing-plugin": "install the plug-in's package and restart the node",
    "wrong-round": "nothing, unless it keeps happening: then ask for a new run",
    "lost-state": "restore the state folder from a backup, or ask for a new run",
    "wrong-privacy": "if you agree, change `accept` in config.toml and restart (for dp: no `test`, and --reread)",
    "wrong-policy": "if you agree, change [policy] in config.toml and restart the node",
    AWAITING_APPROVAL: "`fedmc node approve RUN FOLDER` or `fedmc node reject RUN FOLDER`",
    "leaving": "`fedmc node leave --stay`, if you changed your mind",
    "rejected": "`fedmc node approve RUN FOLDER` if you changed your mind",
    "too-many-runs": "wait for tomorrow, or raise runs_per_day in [policy] of config.toml and restart the node",
    "over-budget": "set a larger epsilon in config.toml if you agree, or take no further part",
    "ledger-behind": "stop it; put the newest ledger.sqlite and state/ back, or use `fedmc node ledger --accept-loss`",
    "wrong-member": "compare members.json with the other organisations'",
    UNKNOWN_MEMBERS: "nothing: the server sends its list; if this repeats, compare members.json with the server's",
    "not-a-successor": "compare members.json and catalogue.json with those of the federation's coordinator",
    "no-session": "nothing: the server starts a new session",
    "not-hidden": "if one joins or leaves alone, it accepts that sums show its part (--alone-visible of `fedmc node "
    "start` or `leave` there); else compare min_cohort in config.toml and members.json with the other organisations'",
    "changed-ratings": "restore ratings, features and events and `fedmc node start --reread`, or ask for a new run",
    DIVERGED: "ask for a new run with larger penalties",
    "failed": "read the node's log",
}


def explain(status: str) -> str:
    """The status and what it means, for the server's operator."""
    return f"{status}: {STATUS[status]}" if status in STATUS else "an unknown status"
