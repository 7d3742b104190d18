"""Ledger, state and server as each other's witnesses: crashes, losses that are accepted, and what a person reads."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")
pytest.importorskip("dp_accounting", reason="needs the extra `dp`")

from fedmc.cli.federation_demo import set_up
from fedmc.errors import DataError, InputError
from fedmc.federation.node.guard import Guard, LedgerMismatchError
from fedmc.federation.node.store import Store
from fedmc.federation.server.witness import Witness
from fedmc.federation.wire import NAMED, Witnessed, decode, encode, from_bytes, to_bytes
from fedmc.privacy.dp.ledger import Ledger, LostReleaseError
from fedmc.training.rounds import rounds
from tests.command import fedmc
from tests.conftest import planted
from tests.world import KINDS, Between, KilledError, World, engine_on, read

DELTA = 1e-6


class Place:
    """A ledger and a state in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.open()

    def open(self):
        self.store, self.ledger = Store(self.folder / "state"), Ledger(self.folder / "ledger", 3.0, DELTA)
        self.guard = Guard(self.store, self.ledger)

    def again(self):
        self.close()
        self.open()

    def close(self):
        self.store.close()
        self.ledger.__exit__(None, None, None)

    def release(self, key, witnessed=None):
        return self.guard.release(key, 9.0, lambda: key.encode(), witnessed)


@pytest.fixture
def place(tmp_path):
    with closing(Place(tmp_path)) as made:
        made.guard.check()
        yield made


# --- crashes


@pytest.mark.parametrize("strikes", ["next", "seen"])
@pytest.mark.parametrize("written", [False, True])
def test_a_node_that_dies_in_a_release_goes_on_with_the_same_bytes(place, monkeypatch, strikes, written):
    """Killed before or after the state was written, on either side of the ledger's own transaction."""
    place.release("run/1")
    mark = Store.mark

    def dies(store, kind, found):
        if kind != strikes or written:
            mark(store, kind, found)
        if kind == strikes:
            raise KilledError

    monkeypatch.setattr(Store, "mark", dies)
    with pytest.raises(KilledError):
        place.release("run/2")
    monkeypatch.undo()
    place.again()
    place.guard.check()
    assert place.ledger.head().height == (1 if strikes == "next" else 2)
    assert place.guard.release("run/2", 9.0, lambda: b"new", None) == (b"new" if strikes == "next" else b"run/2")
    place.again()
    place.guard.check()
    assert place.ledger.head().height == 2


def test_a_ledger_that_was_never_used_may_go(place, tmp_path):
    place.close()
    (tmp_path / "ledger").unlink()
    place.open()
    place.guard.check()
    place.release("run/1")


def test_an_altered_chain_is_noticed(place, tmp_path):
    place.release("run/1")
    with sqlite3.connect(tmp_path / "ledger") as database:
        database.execute("UPDATE chain SET multiplier = 1000")
    database.close()
    with pytest.raises(DataError, match="damaged at release 1"):
        Ledger(tmp_path / "ledger", 3.0, DELTA)


# --- losses that are accepted


def test_a_loss_is_accepted_on_the_safe_side(place, tmp_path):
    """What is known to be spent cannot be lowered, the server's releases are no longer missed, and one goes on."""
    for number in range(5):
        place.release(f"run/{number}")
    known, seen = place.ledger.spent(), Witnessed(5, tuple(f"run/{number}" for number in range(5)))
    place.close()
    (tmp_path / "ledger").unlink()
    place.open()
    for witnessed in (None, seen):
        with pytest.raises(LedgerMismatchError, match=r"stands at release 0, the state has seen release 5 of another"):
            place.release("run/6", witnessed)
    with pytest.raises(InputError, match="is known to be spent on these ratings: accept at least that"):
        place.guard.accept_loss(0.5 * known)
    place.guard.accept_loss(2.0)
    assert place.ledger.spent() == pytest.approx(2.0, abs=1e-6)
    with pytest.raises(LedgerMismatchError, match="stands at release 5 and lacks 'run/0', the server has received 5"):
        place.release("run/6", seen)
    place.guard.accept_loss(2.0)
    assert place.ledger.spent() == pytest.approx(2.0, abs=1e-6)
    assert place.release("run/6", seen) == b"run/6"
    with pytest.raises(LostReleaseError):
        place.release("run/3", seen)
    place.again()
    place.guard.check()


def test_two_histories_are_added_up(place, tmp_path):
    """A ledger that is not the one that the state has seen: both were spent."""
    place.release("run/1")
    one = place.ledger.spent()
    place.close()
    (tmp_path / "ledger").unlink()
    with Ledger(tmp_path / "ledger", 3.0, DELTA) as other:
        other.release("run/2", 9.0, lambda: b"two")
    place.open()
    assert place.guard.known_spent() > 1.2 * one


# --- the server as a witness


def test_a_release_is_witnessed_once_and_the_last_ones_are_named(tmp_path):
    witness = Witness.of_run(tmp_path / "server" / "runs" / "a-run")
    (tmp_path / "server").mkdir()
    assert witness.seen("north") is None
    for number in range(30):
        witness.record({"north": f"run/{number}", "south": "run/0"})
    witness.record({"north": "run/7"})
    assert witness.seen("north") == (30, tuple(f"run/{number}" for number in range(29, 29 - NAMED, -1)))
    assert witness.seen("south") == (1, ("run/0",))
    assert (tmp_path / "server" / "releases.sqlite").stat().st_mode & 0o077 == 0
    witness.path.write_bytes(b"no database" * 500)
    with pytest.raises(DataError, match="restore it from a backup"):
        witness.seen("north")


def test_a_resumed_server_counts_a_release_once(tmp_path):
    """It asks again for what it had received: the same release, at the node and in its own record."""
    world, witness = World(tmp_path / "world"), Witness(tmp_path / "releases.sqlite")
    with closing(world):
        for _ in range(2):
            engine = engine_on(world)
            engine.asking.witness = witness
            list(itertools.islice(rounds(engine, KINDS["dp"]), 2))
        assert witness.seen("node 0").releases == 1 == world.nodes[0].ledger.head().height
        assert world.nodes[0].ledger.missing(witness.seen("node 0").last) == []


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The bytes of a request under differential privacy."""
    with closing(World(tmp_path_factory.mktemp("asked"))) as world:
        wire = Between(world)
        list(itertools.islice(rounds(engine_on(wire), KINDS["dp"]), 2))
        return wire.seen[0][2]


@pytest.mark.parametrize(
    "said", [[0, ["a"]], [-1, ["a"]], [2**70, ["a"]], [True, ["a"]], [1.5, ["a"]], [1, []], [1, "a"], [1, [2]], [1],
             [1, ["a"] * 1000], [1, ["a" * 10_000]], "x", 7, {"a": 1}],
)  # fmt: skip
def test_a_witness_of_another_form_is_malformed(asked, said):
    arrays, header = read(asked)
    with pytest.raises(DataError, match="not a request"):
        decode(arrays, header | {"witnessed": said})


def test_what_the_server_witnessed_is_no_part_of_what_is_asked(asked):
    """A repeated request is recognised, whatever the server has received since; members share one session."""
    request = decode(*read(asked))
    more = request._replace(witnessed=Witnessed(3, ("run/a", "run/b")))
    assert (more.key, more.common, more.release) == (request.key, request.common, request.release)
    assert more.hash() != request.hash()
    assert decode(*from_bytes(to_bytes(*encode(more)))).witnessed == more.witnessed


# --- what a person reads


@pytest.fixture
def north(tmp_path):
    set_up(tmp_path / "made", planted())
    folder = tmp_path / "made" / "north"
    config = folder / "config.toml"
    config.write_text("epsilon = 3.0\n" + config.read_text())
    return folder


def released(folder, number):
    with Store(folder / "state") as store, Ledger(folder / "ledger.sqlite", 3.0, DELTA) as ledger:
        Guard(store, ledger).release(f"run/{number}", 9.0, lambda: b"noised", None)


def test_check_says_what_is_spent_and_whether_all_agree(north):
    assert "epsilon 0 of 3 spent, delta 1e-06; no release yet" in fedmc("node", "check", north).stdout
    released(north, 1)
    done = fedmc("node", "check", north)
    assert done.returncode == 0, done.stderr
    assert "epsilon 0.4" in done.stdout
    assert "of 3 spent, delta 1e-06; 1 releases; ledger and state agree" in done.stdout
    with Store(north / "state"):  # a node at work
        assert "ledger and state agree" in fedmc("node", "ledger", north).stdout


def test_a_lost_ledger_stops_check_and_start_until_the_loss_is_accepted(north):
    released(north, 1)
    (north / "ledger.sqlite").unlink()
    for command in ("check", "start", "ledger", "check"):
        done = fedmc("node", command, north)
        assert done.returncode == 2
        assert "release 1" in done.stderr
        assert "fedmc node ledger FOLDER --accept-loss EPSILON" in done.stderr
    done = fedmc("node", "ledger", north, "--accept-loss", "0.1")
    assert done.returncode == 2
    assert "is known to be spent" in done.stderr
    for wrong in ("nan", "inf", "-1", "5000"):
        assert fedmc("node", "ledger", north, "--accept-loss", wrong).returncode == 2
    done = fedmc("node", "ledger", north, "--accept-loss", "1.5")
    assert done.returncode == 0, done.stderr
    assert "epsilon 1.5 of 3 spent" in done.stdout
    assert "ledger and state agree" in fedmc("node", "check", north).stdout


def test_a_budget_out_of_bounds_is_refused(north):
    config = north / "config.toml"
    rest = config.read_text().replace("epsilon = 3.0\n", "")
    for value in ("inf", "nan", "true", '"3"', "5000", "-1"):
        config.write_text(f"epsilon = {value}\n{rest}")
        done = fedmc("node", "check", north)
        assert done.returncode == 2
        assert "config.toml: epsilon must" in done.stderr
    config.write_text(f"delta = 0\n{rest}")
    assert "config.toml: delta must" in fedmc("node", "check", north).stderr


def test_a_federation_is_not_asked_to_train_without_noise(north):
    done = fedmc("federation", "train", north.parent / "server", "--privacy", "dp", "--epsilon", "inf")
    assert done.returncode == 2
    assert "for simulations only" in done.stderr
