"""A federation that lives, in one process: organisations with folders of their own, which join, leave and are killed.

The nodes are those of `fedmc node start`, and the server's part is what its ServerApp does; only Flower is missing.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.data.catalogue import Catalogue
from fedmc.federation.node import withdrawing
from fedmc.federation.node.live import LiveNode
from fedmc.federation.node.organisation import open_folder
from fedmc.federation.node.store import Store
from fedmc.federation.server import announcing, checkpoint, taking_out, warm
from fedmc.federation.server.announcing import Announcement
from fedmc.federation.server.run_folder import RunFolder, RunPlan
from fedmc.federation.server.running import conduct
from fedmc.federation.server.signing import Signer
from fedmc.federation.setup import founding, identities, joining, layout, members, request_key, statements
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.warm import previous_run
from fedmc.training.withdrawal import without


class KilledError(BaseException):
    """The server, as if by kill -9."""


def write_ratings(folder, rows):
    (folder / "ratings.csv").write_text("user,item,rating\n" + "".join(f"{u},{i},{r}\n" for u, i, r in rows))
    layout.enter_source(folder, "ratings.csv")
    config = folder / "config.toml"
    config.write_text(re.sub("^min_cohort = [0-9]+", "min_cohort = 3", config.read_text(), flags=re.MULTILINE))


class Living:
    """`rows` are each organisation's ratings; `deaths` is the probability of a kill at each message."""

    def __init__(self, root, rows, deaths=0.0, seed=0):
        self.root, self.names, self.dice, self.deaths = root, list(rows), random.Random(seed), deaths
        items = sorted({item for table in rows.values() for _, item, _ in table})
        Catalogue.of(items).save(root / "catalogue.json")
        made = root / "made"
        founding.init(made, self.names, founding.Address("localhost"), items=root / "catalogue.json", accept=["secagg"])
        self.authority, self.server = made / "authority", made / "server"
        self.made, self.nodes, self.stores, self.killed = made, {}, {}, 0
        for name, table in rows.items():
            write_ratings(made / name, table)
            self.start(name)

    @property
    def federation(self):
        return joining.open_(self.authority, self.server)

    # --- nodes

    def start(self, name, reread=False):
        config = layout.load_node(self.made / name)
        self.stores[name] = Store(config.path("state"))
        self.nodes[name] = LiveNode(config, open_folder(config, reread), self.stores[name])

    def stop(self, name):
        self.stores.pop(name).close()
        del self.nodes[name]

    def restart(self, name, reread=False):
        self.stop(name)
        self.start(name, reread)

    def refresh(self, name, table):
        write_ratings(self.made / name, table)
        self.restart(name, reread=True)

    def close(self):
        for name in list(self.nodes):
            self.stop(name)

    def wire(self, names):
        return Wire(self, names)

    # --- members

    def add(self, name, table, alone=False):
        listed = joining.add(self.federation, name, self.made / name)
        joining.put_into_use(self.federation.server, listed)
        write_ratings(self.made / name, table)
        self.names.append(name)
        self.start(name)

    def announce(self, listed=None, names=None):
        folder = self.server / "announcements" / f"{len(list(self.server.glob('announcements/*')))}"
        listed, names = listed or members.load(self.server), names or list(self.nodes)
        announcing.write(
            folder, Announcement(names, list(range(len(names)))), listed, self.federation.server.catalogue()
        )
        while True:
            with suppress(KilledError):
                return announcing.announce(folder, announcing.load(folder), self.wire(names), self.signer)

    def leave(self, name, take_out=False, visible=False):
        folder = self.made / name
        left = statements.leaves(name, identities.load_key(folder), take_out, visible)
        withdrawing.save(folder, name, left)
        return left

    def remove(self, **leaving):
        listed = joining.remove(self.federation, leaving)
        answers = self.announce(listed)
        joining.put_into_use(self.federation.server, listed)
        return answers

    # --- runs

    @property
    def signer(self):
        return Signer(request_key.load(self.server))

    def plan(self, name, settings, number, start_from=""):
        config, listed = layout.load_server(self.server), members.load(self.server)
        items, p = config.catalogue(), len(listed.active)
        settings = settings.replace(active=p)
        folder = RunFolder(self.server / "runs" / name)
        folder.write_plan(
            RunPlan(
                f"{name}-run", settings, listed.names, list(range(p)), items.hash, len(items), number, number, 5.0, p,
                tuple(listed.identities), 2, start_from, listed.hash,
            )
        )  # fmt: skip
        members.save(folder.path, listed)
        warm.keep(folder.path, items, self.server / "runs" / start_from if start_from else None)
        return folder

    def conduct(self, folder):
        """As often as it takes."""
        while True:
            try:
                plan = folder.plan()
                wire = self.wire(plan.organisations)
                if taking_out.asked(folder.path):
                    taking_out.take_out(folder, plan, wire, self.signer)
                else:
                    conduct(folder, wire, self.signer, self.server / "catalogue.json")
                return checkpoint.load(folder.saved)
            except KilledError:
                continue

    def train(self, name, settings, number, start_from=""):
        return self.conduct(self.plan(name, settings, number, start_from))

    def take_out(self, run, *names):
        folder = RunFolder(self.server / "runs" / run)
        taking_out.ask(folder, names)
        return self.conduct(folder)

    def shards(self, names):
        """What the nodes train on, numbered as in a run of these organisations."""
        opened = [open_folder(layout.load_node(self.made / name)).prepared for name in names]
        return [replace(one.shards[0], client=k) for k, one in enumerate(opened)]


class Wire:
    """Carries messages; nodes and server are killed at random moments, and start again."""

    def __init__(self, living, names):
        self.living, self.names = living, names

    def exchange(self, contents, max_bytes, needed):
        answers = {}
        for client, content in contents.items():
            name = self.names[client]
            if name not in self.living.nodes:
                continue
            while client not in answers:
                self._kill_server()
                if self._dies(name):
                    continue
                answer = self.living.nodes[name].answer_bytes(content)
                if self._dies(name):  # before its answer leaves
                    continue
                answers[client] = answer
        self._kill_server()
        return answers

    def _dies(self, name):
        dies = self.living.dice.random() < self.living.deaths and not self.living.nodes[name].has_left
        if dies:
            self.living.killed += 1
            self.living.restart(name)
        return dies

    def _kill_server(self):
        if self.living.dice.random() < self.living.deaths / 2:
            self.living.killed += 1
            raise KilledError


class Simulated:
    """The simulation with the same history."""

    def __init__(self):
        self.last, self.engine, self.items = None, None, None

    def train(self, shards, items, settings, number, warm=False):
        settings = settings.replace(active=len(shards))
        previous = previous_run(self.last.broadcast, self.items, items, settings) if warm else None
        self.engine, states = LocalEngine(shards), []
        found = rounds(self.engine, settings, measure_every=number, on_checkpoint=states.append, previous=previous)
        *_, self.round = islice(found, number + 1)
        self.last, self.items = states[-1], items
        return self.last

    def take_out(self, client):
        self.last = without(self.engine, self.last, (client,))
        return self.last


def settings_of(kind, **more):
    update = {"exact": {"update": "exact"}, "bayes": {}, "curvature": {"update": "curvature"}}[kind]
    preset = "bayes" if kind == "bayes" else "fast"
    return Settings.preset(preset, rank=2, active=3, privacy="secagg", min_cohort=3, **update, **more)


def tables(number, users=12, items=14, seed=1):
    """Ratings of several organisations with planted factors: organisation k has the users from k * 100 on."""
    dice = np.random.default_rng(seed)
    U, V = dice.normal(size=(number * users, 2)), dice.normal(size=(items, 2))
    found = []
    for k in range(number):
        rows = []
        for user in range(users):
            for item in dice.choice(items, 7, replace=False).tolist():
                rating = 3 + U[k * users + user] @ V[item] / 2 + 0.1 * dice.normal()
                rows.append((k * 100 + user, item, round(float(rating), 3)))
        found.append(rows)
    return found
