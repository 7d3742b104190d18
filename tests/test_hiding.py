"""What secure aggregation hides today, attacked: failures that tell, rounds asked for twice, groups, measurements."""

from __future__ import annotations

import contextlib
import itertools
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the extra `flower`")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmc.algorithms.beta import constant
from fedmc.algorithms.messages import NOTHING, SUM_BITS, Broadcast, Shared
from fedmc.algorithms.schema import schema_of
from fedmc.algorithms.settings import Settings
from fedmc.audit import group_testing
from fedmc.audit.audit import Clients, of_groups
from fedmc.audit.observer import watch
from fedmc.data.datasets import load_source
from fedmc.data.partition import assign_users, make_shards
from fedmc.data.ratings import Ratings
from fedmc.data.synthetic import Recipe, make_ratings
from fedmc.errors import InputError, TooFewError
from fedmc.federation.node import limits
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.node.trust import Trust
from fedmc.federation.secagg_messages import keys_of, masked_of, read_stage, session_of
from fedmc.federation.server.engine import FederatedEngine
from fedmc.federation.server.measurements import Measurements
from fedmc.federation.server.members import Members
from fedmc.federation.setup.identities import Identity
from fedmc.federation.setup.policy import DEFAULT
from fedmc.federation.wire import NEVER, Invitation, Request, decode, encode, from_bytes, to_bytes
from fedmc.privacy.secagg import crypto
from fedmc.privacy.secagg.fixed import from_fixed
from fedmc.privacy.secagg.session import NO_SUM, Certificate, Invited, PublicKeys, open_content, signed_keys
from fedmc.problem.scaling import Scaling
from fedmc.training.fixed_point import decoded, unflat
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.secure_sums import SecureSum
from tests.conftest import planted
from tests.secure_world import SecureWorld
from tests.world import (
    CATALOGUE,
    ITEMS,
    KEYS,
    NODES,
    RUN,
    SERVER,
    SIGNER,
    name_of,
    read,
    sealed,
    trust_of,
)  # fmt: skip

SEATED = "takes a seat"
LAX = replace(DEFAULT, min_penalty_users=0.0, min_beta=1e-12, max_beta=1e12, runs_per_day=100)  # other bounds matter


# --- failures that tell (the failure oracle)


def half_rated(dtype="float64"):
    """A shard whose users rated every other item, and which items these are."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero((rng.random((20, ITEMS)) < 0.6) & (np.arange(ITEMS) % 2 == 0))
    stars = rng.integers(1, 6, len(users)).astype(float)
    others = np.full(ITEMS, 99), np.arange(ITEMS), np.full(ITEMS, 3.0)  # another client, who rated everything
    whole = Ratings.from_arrays(*(np.concatenate(pair) for pair in zip((users, items, stars), others, strict=True)))
    shard = make_shards(whole, (whole.users == 99).astype(int), dtype)[0]
    return shard, np.isin(np.arange(ITEMS), shard.by_user.indices)


class Sessions:
    """Node 0 in the sessions of a run whose other members are only keys: each sum is certified once it has replied."""

    def __init__(self, node, run=RUN):
        self.node, self.run, self.last, self.base, self.seq = node, run, None, NO_SUM, 0

    def answer(self, broadcast, cohort=range(NODES)):
        keys = read_stage(self.send(broadcast, Invitation())) if self.last is None else None
        known = {} if keys is None else {0: keys_of(keys.arrays)[0]}
        known |= {} if self.last is None else {0: self.next}
        self.seq += 1
        others = {k: PublicKeys(k, self.seq, crypto.new_pair()[1], crypto.new_pair()[1]) for k in cohort if k}
        known |= {k: signed_keys(KEYS[k], self.run, one) for k, one in others.items()}
        invited = tuple(Invited(known[k], self.base) for k in cohort)
        previous = () if self.last is None else (self.last,)
        number = 1 if self.last is None else self.last.number + 1
        invitation = Invitation(number, 1, invited, 1, b"" if self.last is None else self.last.hash, b"", previous)
        return invitation, self.send(broadcast, invitation)

    def said(self, broadcast, cohort=range(NODES)):
        """The node's status, or that it took part."""
        invitation, answer = self.answer(broadcast, cohort)
        arrays, words = from_bytes(answer)
        if words.get("stage") != "masked":
            return words["status"]
        session = session_of(self.request(broadcast, invitation), ITEMS)
        signed = tuple((k, crypto.sign(KEYS[k], open_content(session.hash))) for k in cohort)
        self.last = Certificate(self.run, session.number, session.members, 1, session.kept, session.rest, signed)
        self.base, self.next = session.number if session.kept else self.base, masked_of(arrays, cohort).head.next
        return SEATED

    def request(self, broadcast, invitation):
        return Request(self.run, 0, broadcast, NEVER, CATALOGUE, invitation=invitation)

    def send(self, broadcast, invitation):
        return self.node.answer_bytes(sealed(0, to_bytes(*encode(self.request(broadcast, invitation)))))


def said(node, broadcast, run):
    """The node's status at the first session of a run, or that it took part."""
    sessions = Sessions(node, run)
    _, words = from_bytes(sessions.send(broadcast, Invitation()))
    return words["status"] if "stage" not in words else sessions.said(broadcast)


def hidden(preset="fast", **options):
    return Settings.preset(preset, rank=3, active=NODES, privacy="secagg", min_cohort=3, **options)


def shared_of(settings):
    if settings.make_algorithm().name == "fedadmm":
        return Shared({"rho": np.array(1e-9)})
    return constant(settings.beta) if settings.make_algorithm().name in ("linearised", "explicit", "exact") else NOTHING


def probes(tmp_path, settings, entry, scaling):
    """The node's word for each item, at a V that is zero but for that item; a new run for each of them."""
    shard, rated = half_rated()
    with Store(tmp_path / "node") as store:
        node, words = Node(shard, CATALOGUE, store, trust=trust_of(0), policy=LAX), []
        for item in range(ITEMS):
            V = np.zeros((ITEMS, settings.width))
            V[item] = entry
            broadcast = Broadcast("round", 1, NODES, settings, V, scaling, shared_of(settings))
            words.append(said(node, broadcast, f"probe-{item}"))
    return rated, words


@pytest.mark.parametrize(
    ("options", "entry", "scaling", "expected"),
    [
        ({"penalty_users": "l2:1e-12"}, 1e-6, Scaling(), "wrong-settings"),
        ({"penalty_users": "l2:1e-9"}, 3e-5, Scaling(), "wrong-settings"),
        ({"penalty_users": "none", "penalty_items": "none"}, 1e-6, Scaling(), "wrong-settings"),
        ({"penalty_users": "l2:1e-8"}, 1e-4, Scaling(3.0, 1e-4), SEATED),  # within the bounds: the numbers are cut
        ({}, 1.0, Scaling(3.0, 1e-5), SEATED),
        ({}, 1.0, Scaling(3.0, 1e-9), "diverged"),
    ],
)
def test_fifteen_probes_find_nothing(options, entry, scaling, expected, tmp_path):
    """V zero but for one item: whether the node fails must not depend on who rated it."""
    rated, words = probes(tmp_path, hidden(**options), entry, scaling)
    assert 5 <= rated.sum() <= 10
    assert set(words) == {expected}


EXTREMES = {
    "curvature": {},
    "exact": {"update": "exact", "beta": 1e-9},
    "exact, fitted to W": {"update": "exact", "beta": 1e6, "fit_users_to": "W", "dual_step": 1.99},
    "l1": {"penalty_users": "l1:1e-8", "penalty_items": "none"},
    "group": {"penalty_users": "group-l2:1e-8", "penalty_items": "none"},
    "box": {"penalty_users": "box:-1e6,1e6", "penalty_items": "none"},
    "huber": {"update": "exact", "loss": "huber:1e-6", "beta": 1.0},
    "linearised": {"update": "linearised", "beta": 1e-9, "dual_step": 1.99},
    "explicit": {"update": "explicit", "beta": 1e-9, "dual_step": 1.99},
    "explicit, paper": {"preset": "paper", "update": "explicit", "penalty_users": "l2:1e-8", "beta": 1e-9},
    "paper": {"preset": "paper", "penalty_users": "l2:1e-8"},
    "fedavg": {"method": "fedavg"},
    "fedmgs": {"method": "fedmgs"},
    "fedmavg": {"method": "fedmavg"},
    "scaffold": {"method": "scaffold"},
    "fedadmm": {"method": "fedadmm"},
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", EXTREMES)
def test_no_failure_at_the_edge_of_the_bounds(kind, dtype, tmp_path):
    """Within the bounds a node always takes its seat, whatever was rated: in rounds, measurements and start-up sums."""
    given = {"penalty_users": "l2:1e-8", "penalty_items": "l2:1e6"} | EXTREMES[kind]
    settings = hidden(**given, dtype=dtype)
    rng, (shard, _) = np.random.default_rng(1), half_rated(dtype)
    with Store(tmp_path / "node") as store:
        node = Node(shard, CATALOGUE, store, trust=trust_of(0), policy=LAX)
        sessions = Sessions(node)
        for number in range(1, 7):
            V = 10.0 ** rng.integers(-12, 7, (ITEMS, settings.width)) * (rng.random((ITEMS, settings.width)) < 0.5)
            scaling = Scaling(limits.LARGEST * (number % 2), limits.SCALE[number % 3 == 0])
            for task in ("round", "measure"):
                broadcast = Broadcast(task, number, NODES, settings, V.astype(dtype), scaling, shared_of(settings))
                assert sessions.said(broadcast._replace(measured=task == "round")) == SEATED
            broadcast = broadcast._replace(task="moments", round=0)
            assert said(node, broadcast, f"moments-{number}") == SEATED
        assert store.ended(RUN) is None  # nor did anything fail in silence


def test_presets_are_within_the_bounds():
    """The paper's penalty of 1e-6 as well; what is not is refused before a run, with the cure."""
    for settings in (hidden(), hidden(update="exact"), hidden("paper"), hidden("paper", loss="huber")):
        limits.check_settings(settings)
    with pytest.raises(InputError, match=r"must hold every factor, got 'l2:1e-10': add l2:1e-08 or more"):
        limits.check_settings(hidden(penalty_users="l2:1e-10"))
    with pytest.raises(InputError, match=r"entry_penalty must be at least 0.01"):
        limits.check_settings(hidden(entry_penalty=1e-6))
    with pytest.raises(InputError, match=r"Huber's delta must be 1e-06 to 1e\+06"):
        limits.check_settings(hidden(update="exact", loss="huber:1e-9"))


def test_beta_is_bounded(tmp_path):
    settings = hidden(update="exact")
    shard, _ = half_rated()
    with Store(tmp_path / "node") as store:
        policy = replace(LAX, min_beta=0.0)  # any policy looks at beta too
        node = Node(shard, CATALOGUE, store, trust=trust_of(0), policy=policy)
        for factor, expected in ((1.0, SEATED), (1e-15, "diverged"), (1e10, "diverged")):
            factors = {"beta_items": np.full(ITEMS, factor), "beta_coordinates": np.ones(settings.width)}
            broadcast = Broadcast(
                "round", 1, NODES, settings, np.ones((ITEMS, settings.width)), Scaling(), Shared(factors)
            )
            assert said(node, broadcast, f"beta-{factor:g}".replace(".", "").replace("+", "")) == expected


# --- what was opened is final


def test_two_sums_of_nearly_the_same_round_are_not_opened(tmp_path, caplog):
    """A server that opened round 2, hides its certificate and asks for nearly the same V without node 3."""
    world, states = SecureWorld(tmp_path), []
    engine = world.engine()
    world.train(1, engine, states)
    broadcast = states[-1].broadcast._replace(task="round", round=2)
    record = deepcopy(engine.asking.record)
    first = engine.ask(broadcast, range(6))
    for again in (
        broadcast._replace(V=broadcast.V * (1 + 1e-9)),
        broadcast._replace(V=broadcast.V * (1 + 1e-9), round=3),
        broadcast._replace(scaling=Scaling(broadcast.scaling.mean, broadcast.scaling.scale * 1.001)),
    ):
        forgetful = forgotten(world, record)
        for restart in (False, True):
            if restart:
                for client in range(6):
                    world.revive(client)
            with pytest.raises(TooFewError, match="it has opened another session"):
                forgetful.ask(again, (0, 1, 2, 4, 5))
    np.testing.assert_array_equal(engine.ask(broadcast, range(6))["S"], first["S"])  # the same sum again


def forgotten(world, record):
    """An engine whose server does not know of its last sum."""
    engine = world.engine()
    engine.asking.record = deepcopy(record)
    engine.asking.counted = dict.fromkeys(range(world.clients), 1)
    return engine


def test_a_subtraction_works_where_sums_are_not_final(tmp_path, monkeypatch):
    """So that the test above refuses something: without the check, the difference is what node 3 sent."""
    world, states = SecureWorld(tmp_path), []
    engine = world.engine()
    world.train(1, engine, states)
    broadcast = states[-1].broadcast._replace(task="round", round=2)
    record = deepcopy(engine.asking.record)
    first = engine.ask(broadcast, range(6))
    sent = world.stores[3].get(RUN, "pending", world.settings().make_algorithm())
    words = unflat(np.frombuffer(sent.reply, np.int64), schema_of(broadcast, ITEMS))
    for node in world.nodes.values():  # nodes that have forgotten what they opened
        state = node._member(node.trust.identity).store.load(RUN)
        node._member(node.trust.identity).store.save(RUN, replace(state, replied=None))
    monkeypatch.setattr("fedmc.federation.node.node.bind", lambda store, request: None)
    second = forgotten(world, record).ask(broadcast._replace(V=broadcast.V * (1 + 1e-9)), (0, 1, 2, 4, 5))
    assert second.clients == (0, 1, 2, 4, 5)
    found, theirs = first["S"] - second["S"], from_fixed(words["S"], SUM_BITS)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(found, theirs, atol=1e-6)


@pytest.mark.parametrize("name", [RUN, "another-run"])
def test_statistics_are_summed_over_the_same_members_only(name, tmp_path, caplog):
    """Item counts never change: another shift of the ratings, or another run, must not show them without node 3."""
    world = SecureWorld(tmp_path)
    world.train(1)
    first = decode(*read(world.seen[0][2])).broadcast
    assert first.task == "moments"
    engine = world.engine(run="another-run")
    shifted = first._replace(scaling=Scaling(1e-7))
    with pytest.raises(TooFewError):
        engine.ask(shifted._replace(clients=6), (0, 1, 2, 4, 5))
    assert "moments needs all members, not 5 of them" in caplog.text
    assert world.engine(run="a-third-run").ask(shifted, range(6)).number("count") > 0  # over all it tells nothing new


def test_first_contributions_are_summed_over_the_same_members_in_any_run(tmp_path, caplog):
    """Six join; a second run, at any V, in which five join, would show the sixth by subtraction."""
    world = SecureWorld(tmp_path)
    history = world.train(1)
    other = history[0].broadcast._replace(task="round", round=1, V=2 * history[0].V)
    with pytest.raises(TooFewError, match="not-hidden"):
        world.engine(run="another-run").ask(other, (0, 1, 2, 3, 4))
    assert "would show the sum of (5,) alone" in caplog.text
    assert world.engine(run="a-third-run").ask(other, range(6)).clients == tuple(range(6))


def test_a_refusal_does_not_tell_who_rated_an_item(tmp_path, monkeypatch):
    """Two runs at the same V, the second without node 3: every node answers alike, whatever it rated."""
    monkeypatch.setattr("tests.secure_world.planted", lambda: planted(density=0.0, seed=3))
    world = SecureWorld(tmp_path)
    rated = [{k: item in world.shards[k].by_user.indices for k in range(6)} for item in range(4)]
    assert {found for row in rated for found in row.values()} == {True, False}
    settings = world.settings()
    for item in range(4):
        V = np.zeros((ITEMS, settings.width))
        V[item, 0] = 1.0
        broadcast = Broadcast("round", 1, 6, settings, V, Scaling(0.0, 1.0))
        world.engine(run=f"a-{item}").ask(broadcast, range(6))
        before = len(world.seen)
        with pytest.raises(TooFewError):
            world.engine(run=f"b-{item}").ask(broadcast, (0, 1, 2, 4, 5))
        said = [from_bytes(reply)[1]["status"] for _, _, _, reply in world.seen[before:]]
        assert said == 5 * ["ok"] + 5 * ["not-hidden"]  # keys, and then


# --- measurements


def test_nobodys_counts_or_errors_by_subtraction(tmp_path):
    """Node 2 misses a round: totals keep its last measurement, and the sum of that round has no counts at all."""
    lose = lambda stage, client, count: (stage, client) == ("round", 2) and count == 3  # noqa: E731
    world = SecureWorld(tmp_path, lose=lose)
    totals, added = [], Measurements.added

    def noted(self, words, broadcast, schema):
        found = added(self, words, broadcast, schema)
        totals.append((decoded(words, schema, 0), decoded(found, schema, 0)))
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Measurements, "added", noted)
        history = world.train(4)
    assert [round.participants for round in history[3:]] == 2 * [(0, 1, 3, 4, 5)]
    assert all(round.diagnostics.train_rmse is not None for round in history)
    counts = [(sums[0], sums[1]) for sums in totals if "measured train_count" in sums[0].parts]
    ratings = sum(shard.by_user.nnz for shard in world.shards)
    assert [total.number("measured train_count") for _, total in counts] == len(counts) * [ratings]
    assert [change.number("measured train_count") for change, _ in counts] == [ratings] + (len(counts) - 1) * [0]


# --- groups


def reshuffled(self, turn, joined):
    """The cohorts of the first version: the clients drawn, filled up with others that change from round to round."""
    least, drawn = self.min_cohort, set(turn.drawn)
    waiting = set(range(turn.clients)) - joined
    new = drawn - joined if drawn - joined and len(waiting) >= least else set()
    new |= set(sorted(waiting - new)[: max(least - len(new), 0)]) if new else set()
    new |= waiting - new if len(waiting - new) < least and new else set()
    taking_part = (drawn & joined) | new
    others = sorted(joined - taking_part)
    first = turn.number % max(len(others), 1)
    taking_part |= set((others[first:] + others[:first])[: max(least - len(taking_part), 0)])
    return tuple(sorted(taking_part)) if len(taking_part) >= least else ()


def group_testing_on(shards, settings, number, absences=0):
    found = of_groups(Clients.of(shards), watch(shards, settings, (0,), number, absences))
    return found[0]


def test_what_silent_rows_prove_by_hand():
    """Three items over cohorts of four clients: 0 and 1 rated the first item, 2 the second, nobody the third."""
    truth = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]], bool)
    cohorts = [(0, 1), (2, 3), (1, 3), (0, 2)]
    silent = [~truth[list(cohort)].any(axis=0) for cohort in cohorts]
    rated, unrated = group_testing.prove(silent, cohorts, 4)
    np.testing.assert_array_equal(rated, truth)
    np.testing.assert_array_equal(unrated, ~truth)
    rated, unrated = group_testing.prove(silent[:2], cohorts[:2], 4)
    assert not rated.any()
    np.testing.assert_array_equal(unrated, [[0, 1, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1]])


@pytest.mark.parametrize("update", ["curvature", "exact"])
def test_group_testing_needs_other_groups_or_an_absence(update, monkeypatch):
    """12 clients, 3 a round: nobody is named over fixed groups, many are over reshuffled ones or after absences."""
    ratings = make_ratings(Recipe(48, 300, 1500, rank=3, scale=(1.0, 5.0, 1.0)))
    shards = make_shards(ratings, assign_users(48, 12, 0), "float64")
    settings = Settings.preset("fast", rank=3, active=3, update=update, privacy="secagg", min_cohort=3)
    fixed = group_testing_on(shards, settings, 16)
    assert fixed.attack == 0
    assert "of 0 of" in fixed.meaning
    assert "0 of these are wrong" in fixed.meaning
    absent = group_testing_on(shards, settings, 16, absences=1)
    assert absent.attack > 0.5
    assert "with 12 absences" in absent.sees
    assert "0 of these are wrong" in absent.meaning
    monkeypatch.setattr(SecureSum, "participants", reshuffled)
    shuffled = group_testing_on(shards, settings, 16)
    assert shuffled.attack > 0.5
    assert "0 of these are wrong" in shuffled.meaning


@pytest.mark.slow
@pytest.mark.realdata
def test_group_testing_on_movielens_100k(data_folder, monkeypatch, capsys):
    """40 clients, 10 a round, 40 rounds: no attribution, unless somebody is absent, or cohorts are reshuffled."""
    ratings = load_source(str(data_folder / "ml-100k" / "u.data"))
    shards = make_shards(ratings, assign_users(len(ratings.users), 40, 0), "float64")
    settings = Settings.preset("fast", rank=5, active=10, privacy="secagg", min_cohort=8)
    fixed, absent = group_testing_on(shards, settings, 40), group_testing_on(shards, settings, 44, absences=1)
    monkeypatch.setattr(SecureSum, "participants", reshuffled)
    shuffled = group_testing_on(shards, settings, 40)
    with capsys.disabled():
        for words in (
            "fixed groups: " + fixed.meaning,
            "absences: " + absent.meaning,
            "reshuffled: " + shuffled.meaning,
        ):
            print("\n" + words)
    assert fixed.attack == 0
    assert "of 0 of" in fixed.meaning
    assert shuffled.attack > 0.95
    assert absent.attack > 0.7
    for one in (fixed, absent, shuffled):
        assert "0 of these are wrong" in one.meaning


def test_a_federation_takes_the_groups_of_the_simulation(tmp_path):
    """Eight organisations in two groups: the same cohorts and the same bits, whatever the seed."""
    clients = 8
    keys = [Ed25519PrivateKey.generate() for _ in range(clients)]
    pinned = {k: key.public_key() for k, key in enumerate(keys)}
    shards = make_shards(planted(), np.arange(40) % clients, "float64")
    settings = Settings.preset("fast", rank=3, active=4, privacy="secagg", min_cohort=3, seed=5)
    with contextlib.ExitStack() as stores:
        nodes = [
            Node(
                shard,
                CATALOGUE,
                stores.enter_context(Store(tmp_path / str(k))),
                trust=Trust(name_of(k), SERVER.public_key(), Identity(k, keys[k], pinned, 3)),
            )
            for k, shard in enumerate(shards)
        ]
        wire = SimpleNamespace(
            exchange=lambda contents, *limits: {k: nodes[k].answer_bytes(content) for k, content in contents.items()}
        )
        engine = FederatedEngine(wire, RUN, Members(clients, ITEMS, CATALOGUE, clients, pinned), SIGNER)
        there = list(itertools.islice(rounds(engine, settings), 5))
    here = list(itertools.islice(rounds(LocalEngine(shards), settings), 5))
    assert [round.participants for round in there[1:]] == 2 * [(0, 1, 2, 3), (4, 5, 6, 7)]
    for one, other in zip(there, here, strict=True):
        assert one.participants == other.participants
        assert one.V.tobytes() == other.V.tobytes()
