"""The life of a federation over a real Flower: processes, TLS, commands, and kills at random moments.

Three organisations train; a fourth joins, at first without its consent; two get new ratings and one a new item; keys
and the certificate are renewed; one leaves and takes its part out. Nobody restarts whom it does not concern.
"""

from __future__ import annotations

import random
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fedmc.data import catalogue as catalogues
from fedmc.data import datasets
from fedmc.data.ratings import Ratings
from fedmc.data.readers.writing import write_table
from fedmc.federation.node.organisation import open_folder
from fedmc.federation.server import checkpoint
from fedmc.federation.setup import layout, members
from tests.living import Simulated
from tests.loopback import NAMES, Loopback
from tests.test_flower_warm import NEW_ITEM, add_ratings

pytestmark = pytest.mark.slow  # real processes
FOUR = (*NAMES, "west")
RANK, FIRST, MORE, OFTEN = 3, 12, 4, 10


class Reaper(threading.Thread):
    """Kills a process now and then, and starts it again as a supervisor would. A node's lease may still be held."""

    def __init__(self, made, seed, kills):
        super().__init__(daemon=True)
        self.made, self.dice, self.left, self.struck = made, random.Random(seed), kills, []
        self.going, self.paused = True, threading.Event()
        self.paused.set()

    def run(self):
        while self.going and self.left:
            time.sleep(self.dice.uniform(0.5, 4))
            if not self.paused.is_set() and self.going:
                self.left -= 1
                victims = [name for name in (*self.made.names, *self.made.names, "server") if self.made.alive(name)]
                self._strike(self.dice.choice(victims))

    def _strike(self, victim):
        self.made.kill(victim)
        self.struck.append(victim)
        if victim == "server":
            self.made.start_server()
        else:
            self.made.start_node(victim, ready=None)

    def __enter__(self):
        self.paused.clear()

    def __exit__(self, *error):
        self.paused.set()


class Life:
    def __init__(self, made, reaper):
        self.made, self.reaper, self.simulation = made, reaper, Simulated()
        self.server = made.folder / "server"

    def train(self, run, names, rounds, *options, start_from=""):
        """A run, resumed as often as it takes; the bits of the simulation."""
        words = "--rank", RANK, "--rounds", rounds, "--run", run, "--patience", 90, *options
        words = (*words, "--from", start_from) if start_from else words
        done = self.made.fedmc("federation", "train", self.server, *words, timeout=300)
        for _ in range(30):
            if done.returncode == 0:
                break
            assert "not-hidden" not in done.stderr, done.stderr
            self.made.start_missing()
            begun = (self.made.run(run).path / "plan.json").exists()
            again = ("resume", self.server, "--run", run) if begun else ("train", self.server, *words)
            done = self.made.fedmc("federation", *again, timeout=300)
        assert done.returncode == 0, done.stderr + self.made.log("server")
        self.check(run, names, rounds, warm=bool(start_from))

    def check(self, run, names, rounds, warm):
        plan, found = self.made.run(run).plan(), checkpoint.load(self.made.run(run).saved).checkpoint
        assert plan.organisations == list(names)
        shards = self.shards(names)
        items = catalogues.load(self.made.run(run).path / "catalogue.json").items
        expected = self.simulation.train(shards, items, plan.settings, rounds, warm)
        assert found.broadcast.V.tobytes() == expected.broadcast.V.tobytes()

    def shards(self, names):
        opened = [open_folder(layout.load_node(self.made.folder / name)).prepared for name in names]
        return [replace(one.shards[0], client=k) for k, one in enumerate(opened)]

    def command(self, *words, tries=1):
        for _ in range(tries):
            done = self.made.fedmc(*words)
            if done.returncode == 0:
                return done
            self.made.start_missing()
        raise AssertionError(done.stderr)


def table_of(users, items=None, first=0):
    """Ratings of some users of the demo set, of the items that often occur among them or of the given ones."""
    found = datasets.demo().with_users(users)
    counts = np.bincount(found.matrix.indices, minlength=len(found.items))
    keep = counts >= OFTEN if items is None else np.isin(found.items, items)
    table = found.matrix[:, np.flatnonzero(keep)].tocoo()
    rows, columns = table.coords
    return Ratings.from_arrays(found.users[rows] + first, found.items[keep][columns], table.data)


@pytest.fixture
def living(tmp_path, request):
    kills, seed = request.param
    made = Loopback(tmp_path, ratings=table_of(np.arange(0, 671, 2)))
    reaper = Reaper(made, seed, kills)
    try:
        made.start_all()
        reaper.start()
        yield Life(made, reaper)
    finally:
        reaper.going = False
        reaper.paused.set()
        reaper.join(100)
        made.end()


LONG = [pytest.mark.nightly, pytest.mark.timeout(1800)]  # a lease of a killed node takes up to a minute to end
CASES = [
    pytest.param((kills, seed), id=f"{kills} kills, seed {seed}", marks=LONG)
    for kills, seed in ((0, 1), (20, 2), (20, 3))
]
FAST = "--preset", "fast"


@pytest.mark.parametrize("living", CASES, indirect=True)
def test_a_life(living):
    """The whole of it; at its end the model is as good as one from scratch, in a third of the rounds."""
    made, reaper, folder = living.made, living.reaper, living.made.folder
    pids = {name: made.processes[name].pid for name in NAMES}
    with reaper:
        living.train("january", NAMES, FIRST)
    untouched = [name for name in NAMES if name not in reaper.struck]
    joins(living)
    assert all(made.processes[name].pid == pids[name] for name in untouched)
    with reaper:
        living.train("february", FOUR, MORE, start_from="january")
    next_month(living)
    renewed(living)
    with reaper:
        living.train("march", FOUR, MORE, start_from="february")
    leaves(living)
    with reaper:
        living.train("april", NAMES, MORE, start_from="march")
    as_good_as_from_scratch(living)
    assert bool(reaper.struck) == (reaper.left + len(reaper.struck) > 0)
    assert members.load(folder / "north").names == list(NAMES)


@pytest.mark.parametrize("living", [pytest.param((0, 0), id="no kill")], indirect=True)
def test_a_short_life(living):
    """One joins, and leaves with its part; what is between is in the long one, at night."""
    living.train("january", NAMES, 4, *FAST)
    joins(living, *FAST)
    living.train("march", FOUR, 2, *FAST, start_from="january")
    leaves(living)
    living.train("april", NAMES, 2, *FAST, start_from="march")


def joins(living, *options):
    """The fourth: three commands, but for the refusal."""
    made, folder = living.made, living.made.folder
    items = catalogues.load(living.server / "catalogue.json").items
    write_table(table_of(np.arange(1, 81, 2), items, first=100_000), folder / "west.csv")
    done = living.command("federation", "add", "west", folder)
    assert "alone it goes on only with `fedmc node start --alone-visible`" in done.stdout
    made.names = FOUR
    start = "west", [*made_command(made), "--source", folder / "west.csv"]
    made.start(*start, r"\bonline\b")
    words = "--rank", RANK, "--patience", 20, *options
    refused = made.fedmc("federation", "train", living.server, "--from", "january", *words)
    assert refused.returncode == 2
    assert "without its consent" in refused.stderr
    made.stop("west")
    made.start("west", [*made_command(made), "--alone-visible"], r"\bonline\b")
    check = made.fedmc("node", "check", folder / "west")
    assert re.search("accepts since .* that secure sums show its own part", check.stdout)


def made_command(made):
    from tests.loopback import FEDMC

    return [*FEDMC, "node", "start", made.folder / "west"]


def next_month(living):
    """A new item, known to nodes that run; then new ratings at two organisations, which restart."""
    made, folder = living.made, living.made.folder
    (folder / "new.csv").write_text(f"user,item,rating\n1,{NEW_ITEM},4\n")
    authority = "--authority", folder / "authority"
    living.command("catalogue", "grow", living.server / "catalogue.json", folder / "new.csv", *authority)
    told = living.command("federation", "announce", living.server, tries=3)
    assert told.stdout.count(": told") == len(FOUR), told.stdout
    items = catalogues.load(folder / "west" / "catalogue.json").items
    for name, item in zip(NAMES[:2], (NEW_ITEM, int(items[0])), strict=True):
        made.stop(name)
        add_ratings(folder / name / layout.load_node(folder / name).source, item)
        living.command("node", "refresh", folder / name)
        made.start_node(name)


def renewed(living):
    """The certificate and the keys of a member: processes go on."""
    made, folder = living.made, living.made.folder
    pids = {name: made.processes[name].pid for name in ("server", *FOUR)}
    began = len(made.log("server"))
    living.command("federation", "renew", folder / "authority", living.server, "--days", 90)
    living.command("node", "keys", folder / "east")
    done = living.command(
        "federation", "renew", folder / "authority", living.server, "--keys", folder / "east" / "keys.json"
    )
    assert "version 3 of the list of members" in done.stdout
    until = time.monotonic() + 90
    while "in use" not in made.log("east")[-2000:] or "new certificate is in use" not in made.log("server"):
        assert time.monotonic() < until, made.log("east") + made.log("server")[began:]
        made.fedmc("federation", "announce", living.server)
        time.sleep(1)
    assert pids == {name: made.processes[name].pid for name in ("server", *FOUR)}
    assert all(made.alive(name) for name in ("server", *FOUR))


def leaves(living):
    made, folder = living.made, living.made.folder
    living.command("node", "leave", folder / "west", "--take-out", "--alone-visible")
    done = living.command("federation", "remove", "west", folder, tries=3)
    assert "the part of west is out of the sum of run march, exactly" in done.stdout
    expected = living.simulation.take_out(3)
    found = checkpoint.load(made.run("march").saved).checkpoint
    assert found.broadcast.V.tobytes() == expected.broadcast.V.tobytes()
    assert found.server.S.tobytes() == expected.server.S.tobytes()
    assert made.processes["west"].wait(60) == 0  # it ends by itself
    made.names = NAMES


def as_good_as_from_scratch(living):
    """On the data of now, in at most a third of the rounds."""
    settings = living.made.run("april").plan().settings
    scratch = Simulated()
    scratch.train(living.shards(NAMES), living.simulation.items, settings, 3 * MORE)
    now, then = living.simulation.round.diagnostics, scratch.round.diagnostics
    assert now.test_rmse <= 1.005 * then.test_rmse
