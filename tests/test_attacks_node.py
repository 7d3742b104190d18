"""What a server that signs its requests can make a node store and do: all of it is bounded."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")
pytest.importorskip("dp_accounting", reason="needs the extra `dp`")

from fedmc.algorithms import beta
from fedmc.algorithms.messages import NOTHING, Broadcast, Shared
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.errors import DataError
from fedmc.federation.envelope import seal
from fedmc.federation.node import replays, sizes
from fedmc.federation.secagg_messages import keys_of, read_stage
from fedmc.federation.setup.policy import DEFAULT
from fedmc.federation.wire import Invitation, Request, decode, encode, from_bytes, to_bytes
from fedmc.privacy.dp import contents
from fedmc.privacy.dp.ledger import Ledger, LostReleaseError
from fedmc.problem.scaling import Scaling
from tests.world import (
    CATALOGUE,
    HIDDEN,
    ITEMS,
    KINDS,
    NODES,
    SERVER,
    Between,
    World,
    invitation,
    name_of,
    read,
    run,
)  # fmt: skip

EXACT = KINDS["exact"].replace(beta=0.5)
START = np.random.default_rng(0).normal(size=(ITEMS, EXACT.width))
MANY = Settings.preset("fast", rank=2, active=NODES, privacy="dp", epsilon=0.01, delta=1e-12, dp_rounds=1000)


def asked(name, broadcast, counted=-1, **more):
    return to_bytes(*encode(Request(name, 0, broadcast, counted, CATALOGUE, **more)))


def status(world, *request, **more):
    return from_bytes(world.ask(0, asked(*request, **more)))[1]["status"]


def exact_round(factor=1.0, shared=None, task="round", settings=EXACT):
    tie = beta.constant(0.5) if shared is None else shared
    return Broadcast(task, int(task == "round"), NODES, settings, START * factor, Scaling(), tie)


# --- what a row of the state holds


def hidden_round(world, made=True):
    """A request for a first secure sum, with keys that the node has made, or has not."""
    broadcast = Broadcast("round", 1, NODES, HIDDEN, np.ones((ITEMS, HIDDEN.width)), Scaling(3.0), NOTHING)
    known = {}
    if made:
        answer = world.ask(0, asked("r", broadcast, invitation=Invitation()))
        known = {0: keys_of(read_stage(answer).arrays)[0]}
    return asked("r", broadcast, invitation=invitation(run="r", known=known))


def test_a_state_that_cannot_be_stored_is_refused_before_any_work(tmp_path, monkeypatch, caplog):
    world = World(tmp_path)
    monkeypatch.setattr(sizes, "MAX_STORED", 2000, raising=False)
    assert from_bytes(world.ask(0, hidden_round(world, made=False)))[1]["status"] == "wrong-settings"
    assert "state and reply would have" in caplog.text
    assert "bytes, at most 2000: lower the rank" in caplog.text


def test_a_row_that_the_database_refuses_does_not_end_the_node(tmp_path, caplog):
    world = World(tmp_path)
    database, request = world.stores[0]._database, hidden_round(world)
    usual = database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
    assert from_bytes(world.ask(0, request))[1]["status"] == "wrong-settings"
    assert "state and reply of round 1 cannot be stored" in caplog.text
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, usual)
    assert read_stage(world.ask(0, request))[2::2] == ("masked", "ok")


def test_a_reply_and_a_contribution_as_large_fit_into_a_row():
    database = sqlite3.connect(":memory:")
    assert 2 * sizes.MAX_REPLY <= sizes.MAX_STORED < database.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    database.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("dp")])
def test_no_state_is_larger_than_was_said_before(kind, tmp_path):
    world = World(tmp_path)
    wire = Between(world)
    run(wire, 2, settings=KINDS[kind])
    broadcast = next(decode(*read(content)).broadcast for stage, _, content, _ in wire.seen if stage == "round")
    for client, store in world.stores.items():
        most = sizes._state_bytes(len(world.shards[client].users), broadcast, schema_of(broadcast, ITEMS))
        rows = store._database.execute("SELECT length(state) FROM states").fetchall()
        assert all(size <= most + 3000 for (size,) in rows)  # npz framing of up to six arrays
        assert rows or client > 1


# --- releases


def numbered(ledger, *numbers, size=10):
    for number in numbers:
        ledger.release(f"run/{number}", 1000.0, lambda number=number: bytes([number]) * size)


def test_only_the_last_releases_are_kept_as_bytes(tmp_path):
    path = tmp_path / "ledger"
    with Ledger(path, 5.0, 1e-6) as ledger:
        numbered(ledger, *range(120))
        head, spent = ledger.head(), ledger.spent()
    with Ledger(path, 5.0, 1e-6) as ledger:
        assert (ledger.head(), ledger.spent(), len(ledger.multipliers())) == (head, spent, 120)
        assert ledger._file.execute("SELECT count(*), min(number) FROM releases").fetchone() == (50, 71)
        assert ledger.missing(f"run/{number}" for number in range(120)) == []
        assert ledger.release("run/70", 1000.0, lambda: b"new noise") == bytes([70]) * 10
        with pytest.raises(LostReleaseError, match="only the last 50 releases are kept"):
            ledger.release("run/69", 1000.0, lambda: b"new noise")
        assert ledger.head() == head


def test_the_newest_release_is_kept_whatever_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MAX_BYTES", 1000)
    with Ledger(tmp_path / "ledger", 5.0, 1e-6) as ledger:
        numbered(ledger, 1, 2, 3, size=400)
        assert ledger._file.execute("SELECT number FROM releases").fetchall() == [(2,), (3,)]
        numbered(ledger, 4, size=5000)
        assert ledger._file.execute("SELECT number FROM releases").fetchall() == [(4,)]
        assert ledger.release("run/4", 1000.0, lambda: b"") == b"\x04" * 5000


@pytest.mark.parametrize("chained", [False, True], ids=["0.1", "0.2"])
def test_the_ledger_of_an_earlier_version_becomes_small(chained, tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    with monkeypatch.context() as patch:
        patch.setattr(contents, "trim", lambda file: None)
        with Ledger(path, 5.0, 1e-6) as ledger:
            numbered(ledger, *range(100), size=100_000)
            spent = ledger.spent()
    if not chained:
        with closing(sqlite3.connect(path)) as file:
            file.executescript("DROP TABLE chain; DROP TABLE about; DROP TABLE lost;")
    assert path.stat().st_size > 10_000_000
    for _ in range(2):
        with Ledger(path, 5.0, 1e-6) as ledger:
            assert (ledger.spent(), ledger.head().height) == (spent, 100)
            assert ledger.in_place()
            assert ledger.release("run/99", 1000.0, lambda: b"") == bytes([99]) * 100_000
            with pytest.raises(LostReleaseError):
                ledger.release("run/0", 1000.0, lambda: b"")
        assert path.stat().st_size < 6_000_000
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE chain SET multiplier = 2000 WHERE number = 3")
        file.commit()
    with pytest.raises(DataError, match="damaged at release 3"):
        Ledger(path, 5.0, 1e-6)


def test_a_round_makes_few_different_releases(tmp_path, caplog):
    world, scaling = World(tmp_path), MANY.make_algorithm().scaling(MANY)

    def ask(k, **more):
        V = np.full((ITEMS, MANY.width), 1.0 + k)
        return status(world, "r", Broadcast("round", 1, NODES, MANY, V, scaling, NOTHING), **more)

    assert Counter(map(ask, range(30))) == {"ok": 20, "wrong-round": 10}
    assert "round 1 was asked for with 21 different contents, at most 20 under differential privacy" in caplog.text
    assert ask(19) == "ok"  # the last one, again
    world.revive(0)
    assert (ask(19), ask(31)) == ("ok", "wrong-round")
    assert world.nodes[0].ledger.head().height == 20


# --- names of runs


def at(number, content):
    return seal(content, SERVER, name_of(0), number)


def answered(world, number, *request):
    return from_bytes(world.nodes[0].answer_bytes(at(number, asked(*request))))[1]["status"]


def rows(world, table):
    return world.stores[0]._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_names_of_runs_do_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(replays, "MAX_RUNS", 10, raising=False)
    world = World(tmp_path, policy=replace(DEFAULT, runs_per_day=1))
    begin, now = exact_round(task="start"), time.time_ns()
    assert answered(world, now, "honest", begin) == "ok"
    said = Counter(answered(world, now + 1 + k, f"x{k}", begin) for k in range(40))
    assert said == {"too-many-runs": 40}
    assert rows(world, "issued") <= 10
    for restarted in (False, True):
        assert answered(world, now, "honest", begin) == "replayed", restarted
        assert answered(world, now + 5, "x5", begin) == "replayed"
        assert answered(world, now + 5, "never-seen", begin) == "replayed"
        assert answered(world, now + 40, "x39", begin) == "too-many-runs"  # the newest: the same bytes again
        world.revive(0)
    assert answered(world, now + 100, "honest", begin) == "ok"  # the run goes on
    assert rows(world, "issued") <= 10


def test_the_end_of_a_run_stays_final_when_its_number_is_dropped(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(replays, "MAX_RUNS", 3, raising=False)
    world, now, written = World(tmp_path), time.time_ns(), []
    world.nodes[0].on_finish = lambda request, U, state: written.append(request.run)
    ends = [exact_round(task="finish", factor=factor) for factor in (1.0, 2.0)]
    begin = exact_round(task="moments", shared=NOTHING)
    assert answered(world, now, "slow", begin) == "ok"
    for k in range(6):
        assert answered(world, now + 10 + k, f"r{k}", ends[0]) == "ok"
    assert rows(world, "issued") <= 3
    assert rows(world, "finished") <= 3
    assert answered(world, now + 11, "slow", ends[0]) == "replayed"  # older than models that were written
    assert answered(world, now + 90, "r0", ends[1]) == "wrong-round"  # it has finished, with another model
    assert answered(world, now + 91, "r5", ends[0]) == "ok"  # as `resume` asks: nothing is written again
    assert answered(world, now + 92, "slow", ends[0]) == "ok"
    assert written == [*(f"r{k}" for k in range(6)), "slow"]


# --- beta


@pytest.mark.parametrize("kind", ["paper", "exact"])
@pytest.mark.parametrize("task", ["start", "round", "measure", "finish"])
def test_beta_is_the_one_of_the_settings(kind, task, tmp_path, caplog):
    world = World(tmp_path, policy=replace(DEFAULT, min_beta=0.1, max_beta=1.0))
    settings = KINDS[kind].replace(beta=0.3)
    V = START[:, : settings.width]
    factors = Shared({beta.ITEMS: np.ones(ITEMS), beta.COORDINATES: np.ones(settings.width)})
    for shared in (beta.constant(1e-9), beta.constant(1e9), beta.constant(0.3000001), factors):
        sent = Broadcast(task, int(task != "start"), NODES, settings, V, Scaling(), shared)
        assert status(world, "r", sent) == "wrong-settings"
    assert "beta is 0.3 in the settings, but the broadcast has another one" in caplog.text
    for shared in (beta.constant(0.3), Shared({beta.NUMBER: np.asarray(0.3, np.float32)})):
        sent = Broadcast(task, int(task != "start"), NODES, settings, V, Scaling(), shared)
        assert status(world, f"r{shared.arrays[beta.NUMBER].dtype}", sent) == "ok"


@pytest.mark.parametrize(
    ("items", "coordinates", "said"),
    [
        (1.0, 1e-9, "the smallest beta times clients^2 is 2e-09, this organisation accepts at least 1e-06: lower min"),
        (1e6, 1e6, "the largest beta is 1.25e+11, this organisation accepts at most 1e+06: raise max_beta"),
    ],
    ids=["small", "large"],
)
def test_an_automatic_beta_is_within_the_policy(items, coordinates, said, tmp_path, caplog):
    world, settings = World(tmp_path), KINDS["exact"]
    factors = Shared({beta.ITEMS: np.ones(ITEMS), beta.COORDINATES: np.ones(settings.width)})
    factors.arrays[beta.ITEMS][3], factors.arrays[beta.COORDINATES][1] = items, coordinates
    assert status(world, "r", exact_round(shared=factors, settings=settings)) == "wrong-policy"
    assert said in caplog.text
    assert status(world, "r", exact_round(settings=settings)) == "wrong-settings"
    assert "beta is 'auto' in the settings, but the broadcast has one number" in caplog.text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("chosen", [0.3, "auto"])
@pytest.mark.parametrize("update", ["exact", "linearised"])
def test_honest_betas_pass(dtype, chosen, update, tmp_path):
    settings = Settings.preset("fast", rank=3, update=update, active=NODES, dtype=dtype, beta=chosen)
    engine, found = run(World(tmp_path), 2, settings=settings)
    assert len(found) == 3
    assert engine.absent == []


# --- rounds


def test_a_run_asks_for_a_bounded_number_of_updates(tmp_path, caplog):
    world = World(tmp_path, policy=replace(DEFAULT, max_rounds=1))
    said = [status(world, "r", exact_round(1.0 + k)) for k in range(30)]
    assert said == ["ok"] * 12 + ["wrong-policy"] * 18
    assert "the run asked for 13 different updates, at most 12 with max_rounds=1" in caplog.text
    assert status(world, "r", exact_round(12.0)) == "ok"  # the last one, again
    world.revive(0)
    assert status(world, "r", exact_round(13.0)) == "wrong-policy"
    assert status(world, "another", exact_round()) == "ok"
