"""What a node's page shows to its own organisation: its data in numbers, models, budget, and what it answered.

The organisation may see all that it holds itself. Single users and items are not among it: only counts and means.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedmc.data.addresses import without_password
from fedmc.data.prepared import Prepared
from fedmc.federation.node import models, overview, tally
from fedmc.federation.node.journal import Refusal
from fedmc.federation.node.models import Version
from fedmc.federation.node.organisation import read_at, source_changes
from fedmc.federation.node.overview import RunAtNode
from fedmc.federation.node.tally import Sent
from fedmc.federation.setup.layout import NodeConfig
from fedmc.privacy.dp.ledger import epsilon_spent, multipliers_in

LISTED = 8  # runs, models and refusals


@dataclass
class Connection:
    """Whether the node is connected to its server. The node writes it, its page reads it."""

    online: bool = False
    since: float | None = None

    def on_online(self) -> None:
        self._now(True)

    def on_offline(self) -> None:
        self._now(False)

    def _now(self, online: bool) -> None:
        if online != self.online or self.since is None:
            self.online, self.since = online, time.time()


class Data(NamedTuple):
    """The organisation's data as they were read for runs."""

    source: str  # without passwords
    kind: str  # ratings or events
    users: int
    items: int  # with a rating
    catalogue: int  # items in all
    known: int  # ratings or events
    held_out: int


class Budget(NamedTuple):
    """What may be spent on each user, over all runs, and what is spent."""

    epsilon: float
    spent: float
    delta: float
    releases: int


class NodeSnapshot(NamedTuple):
    organisation: str
    server: str
    online: bool
    since: float | None
    data: Data
    read_at: float | None
    changed: list[str]  # files and entries, since then
    models: list[Version]  # the newest first
    budget: Budget | None  # without differential privacy, none
    accepts: list[str]  # the policy in words
    runs: list[RunAtNode]
    refusals: list[Refusal]
    sent: Sent


class NodeLook:
    """Looks at a node's folder while the node runs; writes nothing there."""

    def __init__(self, config: NodeConfig, prepared: Prepared, connection: Connection) -> None:
        self.config, self.connection = config, connection
        self.data, self.accepts = data_of(config, prepared), overview.policy_in_words(config)
        self._spent: tuple[int, float] = 0, 0.0  # releases, and their epsilon

    def __call__(self) -> NodeSnapshot:
        config = self.config
        return NodeSnapshot(
            config.organisation, config.server, self.connection.online, self.connection.since, self.data,
            read_at(config), source_changes(config), models.versions(config)[:LISTED], self._budget(), self.accepts,
            overview.runs(config)[:LISTED], overview.refusals(config)[:LISTED], tally.read(config.path("state")),
        )  # fmt: skip

    def _budget(self) -> Budget | None:
        config = self.config
        if not config.epsilon:
            return None
        multipliers = multipliers_in(config.path("ledger.sqlite"))
        if len(multipliers) != self._spent[0]:
            self._spent = len(multipliers), epsilon_spent(multipliers, config.delta)
        return Budget(config.epsilon, self._spent[1], config.delta, len(multipliers))


def data_of(config: NodeConfig, prepared: Prepared) -> Data:
    shard = prepared.shards[0]
    return Data(
        _shown(config.source), "events" if config.of_events else "ratings", len(shard.users), len(shard.rated),
        len(prepared.catalogue), int(shard.by_user.nnz), 0 if shard.test is None else int(shard.test.nnz),
    )  # fmt: skip


def _shown(source: str) -> str:
    """An address without its passwords; of a file only its name."""
    return without_password(source) if "://" in source else Path(source).name
