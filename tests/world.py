"""A federation in process for tests: nodes with stores on disk, a server with a checkpoint, and a wire between them
that kills, loses or changes what it is told to."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.federation import envelope
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.node.trust import Trust
from fedmc.federation.protocol import Served
from fedmc.federation.server import checkpoint, secagg_record
from fedmc.federation.server.checkpoint import SavedRun
from fedmc.federation.server.engine import FederatedEngine
from fedmc.federation.server.members import Members
from fedmc.federation.server.secagg_record import SecAggRecord
from fedmc.federation.server.signing import Signer
from fedmc.federation.setup.identities import Identity
from fedmc.federation.setup.policy import DEFAULT
from fedmc.federation.wire import Invitation, decode, decode_reply, encode, from_bytes, to_bytes
from fedmc.privacy.dp.ledger import Ledger
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.session import Invited, PublicKeys, signed_keys
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from tests.conftest import planted

NODES, ITEMS, ROUNDS, RUN, CATALOGUE = 4, 15, 5, "a-run", "a-hash"
KINDS = {
    "paper": Settings.preset("paper", rank=3, beta=0.5, active=2),
    "exact": Settings.preset("fast", rank=3, update="exact", active=2),
    "curvature": Settings.preset("fast", rank=3, active=2),
    "bayes": Settings.preset("bayes", rank=3, active=2),
    "secagg-bayes": Settings.preset("bayes", rank=3, active=NODES, privacy="secagg", min_cohort=3),
    "clipped-bayes": Settings.preset("bayes", rank=3, active=3, clip=1.0),
    "secagg": Settings.preset("fast", rank=3, active=3, privacy="secagg", min_cohort=3),
    "secagg-exact": Settings.preset("fast", rank=3, update="exact", active=NODES, privacy="secagg", min_cohort=3),
    "dp": Settings.preset("fast", rank=2, active=NODES, privacy="dp", epsilon=5, dp_rounds=3),
    "dp+secagg": Settings.preset(
        "fast", rank=2, active=NODES, privacy="dp+secagg", epsilon=5, dp_rounds=3, min_cohort=3
    ),
    "clipped": Settings.preset("fast", rank=3, active=3, clip=1.0),
}
SERVED = Served()
KEYS = [Ed25519PrivateKey.generate() for _ in range(NODES)]
PINNED = {k: key.public_key() for k, key in enumerate(KEYS)}
IDENTITIES = [Identity(k, key, PINNED, 3) for k, key in enumerate(KEYS)]
SERVER = Ed25519PrivateKey.generate()
SIGNER = Signer(SERVER)


def name_of(client):
    """The organisation that a message to this node is addressed to."""
    return f"node {client}"


def trust_of(client, **changes):
    return Trust(name_of(client), SERVER.public_key(), IDENTITIES[client])._replace(**changes)


def sealed(client, content):
    """A message to a node, as the server would sign it now."""
    return SIGNER.seal(content, name_of(client))


def unsealed(content):
    """What the server signed, whether or not the signature is valid."""
    return content[: -envelope.SIZE]


def read(content):
    """Arrays and header of a message to a node."""
    return from_bytes(unsealed(content))


def task_of(content):
    words = read(content)[1]
    return words.get("stage") or words["task"]


class KilledError(Exception):
    """kill -9, as seen from outside."""


class Snapshot(NamedTuple):
    """What lay on all disks between two rounds, and how many boundaries had been passed by then."""

    boundaries: int
    folder: Path


class World:
    """Nodes with stores on disk, a server with a checkpoint, and a killer that strikes at one of the boundaries."""

    def __init__(self, folder, kill_at=None, quorum=1, budget=(5.0, 1e-6), start=None, policy=DEFAULT):
        if start is None:
            folder.mkdir(exist_ok=True)
        else:
            shutil.copytree(start.folder, folder)
        self.quorum, self.budget, self.policy, self.previous = quorum, budget, policy, None
        ratings = planted()
        self.shards = make_shards(ratings, np.arange(40) % NODES, "float64")
        self.folder, self.kill_at, self.killed = folder, kill_at, None
        self.boundaries, self.measure_every = 0 if start is None else start.boundaries, 1
        self.stores = {k: Store(folder / f"node-{k}") for k in range(NODES)}
        self.path = folder / "server.npz"
        self.nodes = {k: self.node(k) for k in range(NODES)}

    def tick(self, where):
        """A boundary: whoever is named can be killed here."""
        self.boundaries += 1
        if self.boundaries - 1 == self.kill_at:
            self.killed = where
            raise KilledError(where)

    def between_rounds(self):
        """Called when a round is over and measured."""

    def close(self):
        for store in self.stores.values():
            store.close()

    def node(self, client):
        ledger = Ledger(self.folder / f"ledger-{client}", *self.budget)
        return Node(
            self.shards[client], CATALOGUE, self.stores[client], trust=trust_of(client), policy=self.policy,
            ledger=ledger,
        )  # fmt: skip

    def ask(self, client, content):
        """The answer to a message that the server signs."""
        return self.nodes[client].answer_bytes(sealed(client, content))

    def revive(self, client):
        self.stores[client].close()
        self.stores[client] = Store(self.folder / f"node-{client}")
        self.nodes[client] = self.node(client)

    def exchange(self, contents, max_bytes, needed):
        """Like Flower: a message waits until its node picks it up; a node that died comes back and is asked again."""
        answers = {}
        for client, content in contents.items():
            what = task_of(content)
            while client not in answers:
                try:
                    self.tick(f"node {client} before it computes {what}")
                    reply = self.nodes[client].answer_bytes(content)
                    self.tick(f"node {client} after it stored {what}, before its reply leaves")
                except KilledError:
                    self.revive(client)
                    continue
                assert len(reply) <= max_bytes
                answers[client] = reply
            self.tick(f"the server after node {client} replied to {what}")
        return answers

    def serve(self, settings, number):
        """One process of the server: from the checkpoint if there is one."""
        engine = engine_on(self, self.quorum, record=SecAggRecord.load(self.folder / secagg_record.FILE))
        last = None
        if self.path.exists():
            found = checkpoint.load(self.path)
            engine.restore(found.counted, found.factors, found.measured)
            last = found.checkpoint
            if last.number >= number:
                return last

        def on_checkpoint(now):
            nonlocal last
            self.tick("the server before its checkpoint")
            saved = SavedRun(RUN, now, engine.counted, CATALOGUE, engine.factors, engine.measured)
            checkpoint.save(self.path, saved)
            last = now
            self.tick("the server after its checkpoint")

        more = {"checkpoint": last, "on_checkpoint": on_checkpoint, "measure_every": self.measure_every, "last": number}
        more["previous"] = self.previous
        for round in rounds(engine, settings, **more):
            self.between_rounds()
            if round.number == number:
                return last
        raise AssertionError

    def finish(self, settings, number=ROUNDS):
        """As often as it takes."""
        while True:
            try:
                return self.serve(settings, number)
            except KilledError:
                pass


class RecordedWorld(World):
    """A run without kills that copies all disks between its rounds: a killed run can begin at any of the copies."""

    def __init__(self, folder, quorum=1, measure_every=1):
        super().__init__(folder / "run", quorum=quorum)
        self.measure_every = measure_every
        self.copies, self.places, self.snapshots = folder / "copies", [], []
        self.between_rounds()

    def tick(self, where):
        self.places.append(where)
        super().tick(where)

    def between_rounds(self):
        copy = self.copies / str(len(self.snapshots))
        for client in range(NODES):
            (copy / f"node-{client}").mkdir(parents=True)
            backup(self.folder, copy, f"node-{client}/state.sqlite")
            backup(self.folder, copy, f"ledger-{client}")
        for path in (self.path, self.folder / secagg_record.FILE):
            if path.exists():
                shutil.copy(path, copy)
        self.snapshots.append(Snapshot(self.boundaries, copy))

    def killed_at(self, boundary, folder, from_the_start=False):
        """A world that will be killed there: it begins at the last snapshot before, or where the run began."""
        before = [found for found in self.snapshots if found.boundaries <= boundary]
        world = World(folder, boundary, self.quorum, start=before[0 if from_the_start else -1])
        world.measure_every = self.measure_every
        return world


class RelentlessWorld(World):
    """Kills at every boundary of every round once, all of them in one run."""

    def __init__(self, folder):
        super().__init__(folder)
        self.struck = set()

    def tick(self, where):
        stands = checkpoint.load(self.path).checkpoint.number if self.path.exists() else None
        if (stands, where) not in self.struck:
            self.struck.add((stands, where))
            raise KilledError(where)


def backup(source, target, name):
    """Copy an open SQLite file."""
    with closing(sqlite3.connect(source / name)) as found, closing(sqlite3.connect(target / name)) as copy:
        found.backup(copy)


def local(settings, number=ROUNDS, previous=None):
    engine = LocalEngine(make_shards(planted(), np.arange(40) % NODES, "float64"))
    states = []
    for round in rounds(engine, settings, on_checkpoint=states.append, previous=previous):
        if round.number == number:
            return engine, states[-1]
    raise AssertionError


def request_of(contents):
    return decode(*read(next(iter(contents.values()))))


class Between:
    """The wire: everything that goes through it is kept, and some of it is lost or changed on the way."""

    def __init__(self, world, change=lambda stage, client, reply: reply):
        self.world, self.change, self.seen = world, change, []

    def exchange(self, contents, max_bytes, needed):
        answers = {}
        for client, reply in self.world.exchange(contents, max_bytes, needed).items():
            stage = task_of(contents[client])
            self.seen.append((stage, client, contents[client], reply))
            changed = self.change(stage, client, reply)
            if changed is not None:
                answers[client] = changed
        return answers


def engine_on(wire, quorum=NODES, run=RUN, served=SERVED, record=None):
    members = Members(NODES, ITEMS, CATALOGUE, quorum, PINNED, (), served)
    return FederatedEngine(
        wire, run, members, SIGNER, item_features=getattr(wire, "item_features", None), record=record
    )


def refused(world, asked, client=0, **changes):
    request = engine_on(None).asking.request(client, asked, invitation())
    return decode_reply(*from_bytes(world.ask(client, to_bytes(*encode(request._replace(**changes))))))


def invitation(cohort=tuple(range(NODES)), number=1, run=RUN, known=None, **given):
    """An invitation to a first session; keys that are not known are signed by their members, but no node made them."""
    made = {k: PublicKeys(k, 1, crypto.new_pair()[1], crypto.new_pair()[1]) for k in cohort}
    keys = {k: signed_keys(KEYS[k], run, one) for k, one in made.items()} | (known or {})
    return Invitation(number, 1, tuple(Invited(keys[k]) for k in cohort), 1, **given)


HIDDEN = KINDS["secagg"].replace(active=NODES)


def run(wire, number=2, quorum=NODES, settings=HIDDEN):
    engine = engine_on(wire, quorum)
    return engine, list(itertools.islice(rounds(engine, settings), number + 1))


def broadcast_of(world):
    wire = Between(world)
    run(wire, 0)
    found = next(asked for stage, _, asked, _ in wire.seen if stage == "moments")
    return decode(*read(found)).broadcast._replace(task="round", round=1)
