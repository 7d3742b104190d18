"""A federation in process under secure aggregation, of any size: nodes with stores on disk, and a wire that loses and
changes what it is told to."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.node.trust import Trust
from fedmc.federation.server import secagg_record
from fedmc.federation.server.engine import FederatedEngine
from fedmc.federation.server.members import Members
from fedmc.federation.server.secagg_record import SecAggRecord
from fedmc.federation.setup.identities import Identity
from fedmc.federation.setup.policy import DEFAULT
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted
from tests.world import CATALOGUE, ITEMS, RUN, SERVER, SIGNER, name_of, sealed, task_of

POLICY = replace(DEFAULT, runs_per_day=1000)


class SecureWorld:
    """`lose(stage, client, count)` says whether the count-th answer of a client to a stage is lost on the way."""

    def __init__(self, folder: Path, clients=6, min_cohort=3, alone=(), lose=lambda stage, client, count: False):
        folder.mkdir(exist_ok=True, parents=True)
        self.folder, self.clients, self.min_cohort, self.alone, self.lose = folder, clients, min_cohort, alone, lose
        self.keys = [Ed25519PrivateKey.generate() for _ in range(clients)]
        self.pinned = {k: key.public_key() for k, key in enumerate(self.keys)}
        self.shards = make_shards(planted(), np.arange(40) % clients, "float64")
        self.stores, self.nodes, self.seen, self.counts = {}, {}, [], {}
        self.exchanges = []  # what was asked in each
        self.change = lambda stage, client, reply: reply
        for client in range(clients):
            self.revive(client)

    def revive(self, client):
        if client in self.stores:
            self.stores[client].close()
        self.stores[client] = Store(self.folder / f"node-{client}")
        identity = Identity(client, self.keys[client], self.pinned, self.min_cohort)
        policy = replace(POLICY, alone_visible=client in self.alone)
        trust = Trust(name_of(client), SERVER.public_key(), identity)
        self.nodes[client] = Node(self.shards[client], CATALOGUE, self.stores[client], policy=policy, trust=trust)

    def exchange(self, contents, max_bytes, needed):
        answers = {}
        self.exchanges.append({task_of(content) for content in contents.values()})
        for client, content in contents.items():
            stage = task_of(content)
            count = self.counts[stage, client] = self.counts.get((stage, client), 0) + 1
            reply = self.change(stage, client, self.nodes[client].answer_bytes(content))
            self.seen.append((stage, client, content, reply))
            if not self.lose(stage, client, count):
                answers[client] = reply
        return answers

    def ask(self, client, content):
        return self.nodes[client].answer_bytes(sealed(client, content))

    def engine(self, quorum=1, run=RUN, durable=False):
        members = Members(self.clients, ITEMS, CATALOGUE, quorum, self.pinned)
        record = SecAggRecord.load(self.folder / secagg_record.FILE) if durable else None
        return FederatedEngine(self, run, members, SIGNER, record=record)

    def settings(self, **more):
        given = {"rank": 3, "active": self.clients, "privacy": "secagg", "min_cohort": self.min_cohort} | more
        return Settings.preset("fast", **given)

    def train(self, number=2, engine=None, states=None, **more):
        """The records of the rounds up to `number`, whose measurements ride along; from the last of `states`."""
        states = [] if states is None else states
        last = states[-1] if states else None
        running = rounds(
            engine or self.engine(), self.settings(**more), last=number, checkpoint=last, on_checkpoint=states.append
        )
        return list(itertools.islice(running, number + 1 - (0 if last is None else last.number)))

    def simulated(self, number=2, **more):
        return list(itertools.islice(rounds(LocalEngine(self.shards), self.settings(**more)), number + 1))
