"""Prior means from who rated what and from features: the bound, the singular vectors, the same bits, what travels.

That the iterates are those of the definition is in `test_bayes`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmc.algorithms import bayes_server, gaussians, home, incidence
from fedmc.algorithms.bayes import Bayes, BayesState
from fedmc.algorithms.client import respond
from fedmc.algorithms.messages import Broadcast, Shared, Sums, add_up, dense
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import start_items
from fedmc.data.partition import Federation, Shard, make_shards, narrow
from fedmc.errors import InputError, TooFewError
from fedmc.model import load
from fedmc.training import members
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Checkpoint, rounds
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from tests.bayes_oracle import Side, regressors_of
from tests.conftest import examples, planted
from tests.test_bayes import Problem, bits, near, problem, run, with_side
from tests.test_bayes_bound import check_run, problems

# --- the bound


@st.composite
def sided(draw) -> Problem:
    """Problems with 4 to 14 items, so with one to three directions, and with any side information."""
    drawn = draw(problems(least=4, most=14))
    rng, (users, items) = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), drawn.M.shape
    known = Side(
        implicit=draw(st.booleans()),
        also_seen=rng.random(drawn.M.shape) < 0.3 if draw(st.booleans()) else None,
        item_features=rng.normal(size=(items, draw(st.integers(1, 5)))) if draw(st.booleans()) else None,
        user_features=rng.normal(size=(users, draw(st.integers(1, 4)))) if draw(st.booleans()) else None,
        without_features=draw(st.sampled_from([(), (0,)])),
    )
    return drawn._replace(side=known)


@given(drawn=sided(), rank=st.integers(1, 4), active=st.integers(1, 5))
@examples(30)
def test_the_bound_never_falls(drawn, rank, active):
    check_run(drawn, rank, min(active, int(drawn.owner.max()) + 1))


@pytest.mark.parametrize("kinds", ["ietu", "iU"])
def test_the_bound_never_falls_in_a_longer_run(kinds):
    check_run(with_side(problem(20, items=18, number=30), kinds), 3, 5)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_the_bound_never_falls_in_longer_runs(seed):
    kinds = ("i", "ie", "ietu", "tu", "iU", "t")[seed % 6]
    found = with_side(problem(200 + seed, users=40, items=24, clients=6, number=60), kinds, seed)
    check_run(found, 1 + seed % 8, 1 + seed % 6)


def beyond(shard, own, unexplained, precision, honest=home.fitted):
    """Weights that go too far."""
    return honest(shard, own, 2.5 * unexplained, precision)


def wide_ridge(prior, covariance, groups, honest=gaussians.learned_ridge):
    return 3 * honest(prior, covariance, groups)


def wrong_coefficients(rows, prior, honest=gaussians.coefficients):
    B, covariance = honest(rows, prior)
    return np.concatenate([2.5 * B[:-1], B[-1:]]), covariance


WRONG = {
    "weights at home": (home, "fitted", beyond),
    "ridges": (gaussians, "learned_ridge", wide_ridge),
    "weights at the server": (gaussians, "coefficients", wrong_coefficients),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_updates_lower_it(name, monkeypatch):
    where, what, wrong = WRONG[name]
    monkeypatch.setattr(where, what, wrong)
    with pytest.raises(AssertionError, match="fell from"):
        check_run(with_side(problem(20, items=18, number=30), "ietu"), 3, 5)


# --- the end of long runs


def clear_problem() -> Problem:
    """Two strong factors: one optimum but for rotations. With less noise the end is the same, but much later."""
    rng, users, items = np.random.default_rng(3), 60, 24
    F = rng.normal(size=(users, 2))
    M = 3 + F @ rng.normal(size=(2, items)) + 0.5 * rng.normal(size=(users, 1)) + rng.normal(size=(users, items))
    M[rng.random(M.shape) > 0.4] = np.nan
    features = np.column_stack([F[:, 0] + rng.normal(size=users), rng.normal(size=users)])
    known = Side(implicit=True, item_features=rng.normal(size=(items, 2)), user_features=features)
    return Problem(M, np.arange(users) % 6, (), known)


def last_bound(turns, active: int) -> tuple[float, float]:
    """The bound at the end of a run, and by how much it rose in the last tenth of it."""
    given = clear_problem()._replace(turns=turns)
    settings, found = given.settings(2, active), []
    for round in islice(rounds(given.engine(), settings, measure_every=max(1, len(turns) // 10)), len(turns) + 1):
        found.append(round.diagnostics.bound)
    measured = [one for one in found if one is not None]
    return measured[-1], measured[-1] - measured[-2]


def test_the_end_does_not_depend_on_who_took_part_when():
    everybody = last_bound(150 * ((0, 1, 2, 3, 4, 5),), 6)
    rng = np.random.default_rng(5)
    turns = [tuple(sorted(rng.choice(6, size=rng.integers(1, 4), replace=False).tolist())) for _ in range(600)]
    some = last_bound(tuple(turns), 2)
    assert max(abs(everybody[1]), abs(some[1])) < 1e-7 * abs(everybody[0])  # both have settled
    assert some[0] == pytest.approx(everybody[0], rel=1e-6)


# --- singular vectors of who rated what


class Seen(NamedTuple):
    """Who rated or saw what, dense, and clients that know it."""

    F: np.ndarray
    shards: list[Shard]

    @property
    def normal(self) -> np.ndarray:
        """D_users^-1/2 F D_items^-1/2"""
        number, counts = self.F.sum(axis=1), self.F.sum(axis=0)
        return self.F / np.sqrt(np.maximum(number, 1))[:, None] / np.sqrt(np.maximum(counts, 1))


def seen_in_blocks(events: bool = False) -> Seen:
    """Four kinds of users rate four kinds of items, and little else: four large singular values, then a gap."""
    rng, users, items, clients = np.random.default_rng(0), 200, 60, 5
    same = rng.integers(4, size=users)[:, None] == np.arange(items) % 4
    F = rng.random((users, items)) < np.where(same, 0.8, 0.03)
    F[:, 7] = False  # nobody
    F[11] = False
    seen = F & (rng.random(F.shape) < 0.4) if events else np.zeros_like(F)
    owner, shards = np.arange(users) % clients, []
    for client in range(clients):
        mine = owner == client
        rated = sparse.csr_array(np.where(F[mine] & ~seen[mine], rng.integers(1, 6, size=F[mine].shape), 0.0))
        also = narrow(sparse.csr_array(seen[mine].astype(np.int8))) if events else None
        shards.append(Shard.of(client, np.flatnonzero(mine), narrow(rated), also_seen=also))
    return Seen(F.astype(float), shards)


def started(shards: list[Shard], **changes: object) -> Checkpoint:
    kept: list[Checkpoint] = []
    settings = Settings.preset("bayes", **{"rank": 3, "active": len(shards), "dtype": "float64"} | changes)
    next(rounds(LocalEngine(shards), settings, on_checkpoint=kept.append))
    return kept[-1]


def angles(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Sines of the principal angles between the spans of the columns."""
    P, Q = (np.linalg.qr(columns)[0] for columns in (one, other))
    return np.linalg.svd(Q - P @ (P.T @ Q), compute_uv=False)


@pytest.mark.parametrize("events", [False, True])
def test_the_regressors_are_the_leading_singular_vectors(events):
    known = seen_in_blocks(events)
    A, s, B = np.linalg.svd(known.normal, full_matrices=False)
    assert s[3] > 2 * s[4]
    last = started(known.shards)
    side = bayes_server.sums_of(last.server, last.broadcast.settings).side
    assert side.directions.shape == side.implicit.shape == (60, 59 // 4)
    assert angles(side.implicit[:, :4], B[:4].T).max() < 1e-4
    size = np.linalg.norm(side.implicit, axis=0) / np.sqrt(59)
    np.testing.assert_allclose(size[:4], s[:4] ** 2, rtol=1e-6)
    assert (side.implicit[7] == 0).all()
    assert (side.directions[7] == 0).all()
    # The first pair is known: roots of the numbers of ratings, and the singular value 1.
    first = np.sqrt(known.F.sum(axis=0) / known.F.sum()) * np.sqrt(59)
    np.testing.assert_allclose(np.abs(side.implicit[:, 0]), first, atol=1e-9)
    _, replies = zip(*(respond(shard, None, last.broadcast._replace(task="round", round=1)) for shard in known.shards),
                     strict=True)  # fmt: skip
    assert all(set(reply.parts) == {"S", "users", "joined"} for reply in replies)
    users = np.zeros((200, 14))
    for shard in known.shards:
        state, _ = Bayes().client_update(shard, None, last.broadcast._replace(task="round", round=1))
        users[shard.users] = state.regressors
    number, counts = known.F.sum(axis=1), known.F.sum(axis=0)
    np.testing.assert_allclose(users, known.F @ side.directions * (1 / np.sqrt(number + 20))[:, None], atol=1e-12)
    left = side.implicit[:, :4] / np.sqrt(59) / s[:4]  # s B
    lines = np.sqrt(199) * left / np.sqrt(np.maximum(counts, 1))[:, None]
    expected = np.where(counts[:, None] > 0, lines - counts @ lines / counts.sum(), 0)
    np.testing.assert_allclose(side.directions[:, :4], expected, atol=1e-6)
    uncentred = known.F @ lines / np.sqrt(np.maximum(number, 1))[:, None]
    assert angles(uncentred, A[:, :4]).max() < 1e-4
    assert np.abs(counts @ side.directions).max() < 1e-9 * counts.sum()
    assert (users[11] == 0).all()


@pytest.mark.parametrize("events", [False, True])
def test_replies_add_up_to_the_dense_product(events):
    known = seen_in_blocks(events)
    P = np.random.default_rng(1).normal(size=(60, 7))
    asked = started(known.shards).broadcast._replace(task="pattern", round=2, shared=Shared({"directions": P}))
    replies = [respond(shard, None, asked) for shard in known.shards]
    assert all(state is None for state, _ in replies)
    total = sum(dense(reply.parts["pattern"], P.shape) for _, reply in replies)
    number = known.F.sum(axis=1)
    expected = known.F.T @ ((known.F @ P) / np.maximum(number, 1)[:, None])
    near(total, expected, 1e-12, "pattern")
    assert sum(reply.number("users") for _, reply in replies) == 199
    near(LocalEngine(known.shards).ask(asked, range(5))["pattern"], expected, 1e-12, "pattern")
    one = asked._replace(round=1, shared=Shared({"directions": np.ones((60, 1))}))
    counts = LocalEngine(known.shards).ask(one, range(5))["pattern"][:, 0]
    assert (counts == known.F.sum(axis=0)).all()


@pytest.mark.parametrize(("items", "expected"), [(3, None), (4, 1), (15, 3), (300, 64)])
def test_the_number_of_directions(items, expected):
    last = started(make_shards(planted(items=items), np.arange(40) % 4, "float64"))
    found = last.broadcast.shared.arrays.get("directions")
    assert (None if found is None else found.shape[1]) == expected


def test_without_implicit_terms_nobody_is_asked():
    shards = make_shards(planted(), np.arange(40) % 4, "float64")
    tasks: list[str] = []

    class Listening(LocalEngine):
        def ask(self, broadcast, clients) -> Sums:
            tasks.append(broadcast.task)
            return super().ask(broadcast, clients)

    settings = Settings.preset("bayes", rank=3, active=4)
    next(rounds(Listening(shards), settings))
    assert tasks.count("pattern") == incidence.STEPS
    tasks.clear()
    first = next(rounds(Listening(shards), settings.replace(implicit=False)))
    assert "pattern" not in tasks
    assert "directions" not in first.broadcast.shared.arrays


def test_a_matrix_of_rank_one_gives_no_more_than_numbers_of_ratings():
    """Everybody rated everything: all singular values but the first are 0, and nothing is divided by them."""
    rng = np.random.default_rng(0)
    everything = Problem(rng.normal(size=(20, 12)), np.arange(20) % 4, (), Side(implicit=True))
    last = started(everything.shards())
    side = bayes_server.sums_of(last.server, last.broadcast.settings).side
    assert side.directions.shape == (12, 3)
    assert np.abs(side.directions).max() < 1e-9  # nobody's items differ from the average
    assert np.abs(side.implicit[:, 0]).min() > 0.1
    assert np.abs(side.implicit[:, 1:]).max() < 1e-9


# --- items with few raters

RARE, NOBODY = range(50, 54), 54  # with one to four raters, and none
BESIDE = range(55, 58)  # with five to nine, if there are any


def with_rare(few: bool = True) -> np.ndarray:
    """Users x items: 60 items of which all others have many raters."""
    F = seen_in_blocks().F
    for j, number in zip((*RARE, NOBODY, *BESIDE), (1, 2, 3, 4, 0, 5, 7, 9), strict=True):
        if few or j not in BESIDE:
            F[:, j] = 0
            F[np.random.default_rng(j).choice(200, number, replace=False), j] = 1
    assert ((F.sum(axis=0) >= 10) | np.isin(np.arange(60), (7, *RARE, NOBODY, *(BESIDE if few else ())))).all()
    return F


def exchange(F: np.ndarray) -> tuple[incidence.Implicit | None, dict[int, list[Sums]]]:
    """What the server finds, and what the clients reply at each step."""
    shards = [Shard.of(k, np.arange(200)[k::5], narrow(sparse.csr_array(F[k::5]))) for k in range(5)]
    settings, replies = Settings.preset("bayes", rank=2, active=5), {}

    def ask(broadcast, clients) -> Sums:
        replies[broadcast.round] = [respond(shards[client], None, broadcast)[1] for client in clients]
        return add_up(replies[broadcast.round])

    return incidence.find(ask, Broadcast("round", 0, 5, settings, start_items(F.shape[1], settings))), replies


def test_rare_items_are_counted_and_then_in_no_reply():
    F = with_rare()
    _, replies = exchange(F)
    assert sorted(replies) == [1, 2, 3, 4, 5]
    counts = sum(dense(reply.parts["pattern"], (60, 1))[:, 0] for reply in replies.pop(1))
    assert (counts == F.sum(axis=0)).all()
    for step in replies.values():
        for k, reply in enumerate(step):
            here = np.flatnonzero((F[k::5].sum(axis=0) > 0) & (F.sum(axis=0) >= 5))
            assert reply.parts["pattern"].rows.tolist() == here.tolist()


def test_later_replies_are_as_if_nobody_had_rated_rare_items():
    """Bit by bit, also of users who rated nothing else."""
    F = with_rare()
    F[11, RARE[2]] = 1  # the user without other items
    without = F.copy()
    without[:, RARE] = 0
    (one, replies), (other, others) = exchange(F), exchange(without)
    assert one.directions.tobytes() == other.directions.tobytes()
    for step in range(2, 6):
        for mine, theirs in zip(replies[step], others[step], strict=True):
            assert mine.parts["pattern"].values.tobytes() == theirs.parts["pattern"].values.tobytes()
            assert mine.number("users") == theirs.number("users")


@pytest.mark.parametrize("few", [True, False])
def test_own_regressors_of_rare_items_are_a_mean(few):
    """Of the items with 5 to 9 raters, or if there are none of all items with more."""
    F = with_rare(few)
    found, _ = exchange(F)
    beside = list(BESIDE) if few else np.flatnonzero(F.sum(axis=0) >= 5)
    np.testing.assert_allclose(found.items[RARE], np.tile(found.items[beside].mean(axis=0), (4, 1)), atol=1e-12)
    assert found.items[RARE].any()
    assert not found.items[[7, NOBODY]].any()
    assert not found.directions[[7, *RARE, NOBODY]].any()
    assert found.directions[BESIDE].any(axis=1).all()


@pytest.mark.parametrize("few", [True, False])
def test_regressors_beside_rare_items_are_those_of_the_definition(few):
    F = with_rare(few)
    found, _ = exchange(F)
    users, items = regressors_of(F, 0)
    signs = np.sign(np.sum(found.items * items, axis=0))
    number = F.sum(axis=1)
    near(found.items * signs, items, 1e-8, "items")
    near(F @ found.directions * (1 / np.sqrt(number + 20))[:, None] * signs, users, 1e-8, "users")


@pytest.mark.parametrize(("included", "expected"), [(0, None), (3, None), (4, 1), (30, 7)])
def test_only_items_with_enough_raters_allow_directions(included, expected):
    F = np.zeros((200, 60))
    for j in range(60):
        F[np.random.default_rng(j).choice(200, 5 if j < included else 4, replace=False), j] = 1
    found, replies = exchange(F)
    assert (None if found is None else found.directions.shape[1]) == expected
    assert sorted(replies) == ([1] if expected is None else [1, 2, 3, 4, 5])


# --- the same bits every way

FEATURES = 7  # of users: no array of any message has this length on any axis


def with_everything(dtype: str = "float64") -> list[Shard]:
    """Four clients with user features, one of them without, and with events; 15 items, so three directions."""
    rng = np.random.default_rng(8)
    events = narrow(sparse.csr_array((rng.random((40, 15)) < 0.1).astype(np.int8)))
    features = rng.normal(size=(40, FEATURES))
    shards = make_shards(planted(), np.arange(40) % 4, dtype, features=features, also_seen=events)
    return [*shards[:2], replace(shards[2], features=None), shards[3]]


PUBLIC = np.random.default_rng(9).normal(size=(15, 2))
MODES: dict[str, dict[str, object]] = {
    "plain": {"active": 2},
    "secagg": {"active": 4, "privacy": "secagg", "min_cohort": 3},
    "clipped": {"active": 3, "clip": 1.0},
}


def whole_engine(shards: list[Shard] | None = None) -> LocalEngine:
    return LocalEngine(with_everything() if shards is None else shards, item_features=PUBLIC)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_of_clients_change_no_bit(dtype, monkeypatch):
    settings, found = Settings.preset("bayes", rank=3, active=3, dtype=dtype), []
    for ratings in (0, 100, 10**6):
        monkeypatch.setattr(members, "BATCH", ratings)
        engine = whole_engine(with_everything(dtype))
        found.append(bits(engine, run(engine, settings, 8)))
    assert found[0] == found[1] == found[2]
    assert engine.states[0].home.any()
    assert engine.states[2].home.shape == (0, 4)


def side_world(folder, shards: list[Shard] | None = None):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from tests.world import World

    class SideWorld(World):
        item_features = PUBLIC

        def node(self, client):
            self.shards = with_everything() if shards is None else shards
            return super().node(client)

    return SideWorld(folder)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_bits_in_a_federation(mode, tmp_path):
    world = side_world(tmp_path)
    from tests.test_every_algorithm import check_same, check_same_state
    from tests.world import RUN

    settings = Settings.preset("bayes", rank=3, **MODES[mode])
    engine = whole_engine()
    expected = run(engine, settings, 6)
    arrays = expected.broadcast.shared.arrays
    assert arrays["directions"].shape == (15, 3)
    assert arrays["user_weights"].shape == (3, 4)
    assert arrays["user_weights"].any()
    check_same(world.finish(settings, 6), expected)
    for client, state in enumerate(engine.states):
        check_same_state(world.stores[client].get(RUN, "committed", Bayes()).state, state)
    world.close()


@pytest.mark.parametrize("kind", ["bayes", "secagg-bayes", "clipped-bayes"])
def test_the_kinds_of_all_federation_tests_have_directions(kind):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from tests import world

    last = world.local(world.KINDS[kind], 5)[1].broadcast
    assert last.shared.arrays["directions"].shape == (15, 3)
    assert last.shared.arrays["directions"].any(axis=0).tolist() == [False, True, True]  # centred, the first is 0


@pytest.mark.parametrize("stopped", [0, 1, 4, 6])
def test_a_run_resumed_from_a_checkpoint_gives_the_same_bits(stopped, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.federation.server import checkpoint
    from fedmc.federation.server.checkpoint import SavedRun

    settings = Settings.preset("bayes", rank=3, active=2)
    straight, engine = whole_engine(), whole_engine()
    expected = bits(straight, run(straight, settings, 9))
    checkpoint.save(tmp_path / "run", SavedRun("a-run", run(engine, settings, stopped), {}, "a-hash"))
    engine.item_features = None  # a checkpoint holds what the server needs of them
    assert bits(engine, run(engine, settings, 9, checkpoint.load(tmp_path / "run").checkpoint)) == expected


def test_states_on_disk_change_no_bit(tmp_path):
    settings = Settings.preset("bayes", rank=3, active=2)
    engines = whole_engine(), LocalEngine(with_everything(), tmp_path, PUBLIC)
    one, other = (bits(engine, run(engine, settings, 8)) for engine in engines)
    assert one == other


@pytest.mark.parametrize("mode", MODES)
def test_a_model_is_saved_with_directions_and_weights(mode, tmp_path):
    ratings, shards = planted(), with_everything()
    federation = Federation(shards, ratings.users, ratings.items, item_features=PUBLIC)
    model = train(federation, Settings.preset("bayes", rank=3, **MODES[mode]), Stop(8)).model
    model.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    one, other = model.posterior, again.posterior
    assert one.directions.shape == (15, 3)
    assert one.home.shape == (FEATURES, 4)
    assert one.home.any()
    for found, expected in (
        (other.directions, one.directions), (other.home, one.home), (other.item_weights, one.item_weights),
        (other.hyper.users.weights, one.hyper.users.weights), (again.U, model.U), (again.V, model.V),
    ):  # fmt: skip
        assert found.tobytes() == expected.tobytes()
    seen = narrow(sparse.csr_array(np.eye(15)[:4]))
    features = np.ones((4, FEATURES))
    assert other.prior_means(seen, features).tobytes() == one.prior_means(seen, features).tobytes()
    assert not np.allclose(one.prior_means(seen, features), one.prior_means(seen))
    assert not np.allclose(one.prior_means(seen)[0], one.prior_means(seen)[1])


# --- what travels

MOMENTS = {"count": (), "sum": (), "squares": (), "items": (15,)}
MEASURES = {"objective", "count", "squared", "absolute", "test_count", "test_squared", "test_absolute", "users"}
KNOWN = {
    "item_roots": (15, 10), "noise": (1,), "user_mean": (4,), "user_precision": (4, 4), "item_mean": (4,),
    "item_precision": (4, 4), "directions": (15, 3), "user_weights": (3, 4), "item_weights": (2, 4),
}  # fmt: skip
PATTERNS = {step: 1 if step == 1 else 3 for step in range(1, incidence.STEPS + 1)}


def table(task: str, number: int) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]] | None]:
    """What is sent to a client beside V, and what it replies: every message of a run. Measurements: see below."""
    if task == "moments":
        return {}, MOMENTS
    if task == "pattern":
        return {"directions": (15, PATTERNS[number])}, {"pattern": (15, PATTERNS[number]), "users": ()}
    replies = {"round": {"S": (15, 14), "users": (1, 39), "joined": ()}, "measure": None, "finish": {}}
    return KNOWN, replies[task]


class Message(NamedTuple):
    client: int
    broadcast: Broadcast
    reply: Sums


def messages_of(folder, number: int = 7, shards: list[Shard] | None = None) -> list[Message]:
    """Everything that goes over the wire in a run, decoded from its bytes."""
    world = side_world(folder, shards)
    from fedmc.federation.wire import decode, decode_reply, from_bytes
    from tests.world import Between, engine_on, read

    wire = Between(world)
    engine = engine_on(wire)
    engine.item_features = PUBLIC
    for _ in islice(rounds(engine, Settings.preset("bayes", rank=3, active=4)), number + 1):
        pass
    world.close()
    found = []
    for _, client, asked, answer in wire.seen:
        reply = decode_reply(*from_bytes(answer))
        assert reply.status == "ok"
        found.append(Message(client, decode(*read(asked)).broadcast, reply.sums))
    return found


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory) -> list[Message]:
    return messages_of(tmp_path_factory.mktemp("messages"))


def test_every_message_is_in_the_table(exchanged):
    tasks = set()
    for client, broadcast, reply in exchanged:
        tasks.add((broadcast.task, broadcast.round if broadcast.task == "pattern" else None))
        shared, parts = table(broadcast.task, broadcast.round)
        assert broadcast.V.shape == (15, 5)
        assert {name: array.shape for name, array in broadcast.shared.arrays.items()} == shared
        shapes = {name: value.shape for name, value in reply.parts.items()}
        if parts is None:
            assert all(shape == () for shape in shapes.values()), (client, shapes)
        else:
            assert shapes == parts
    assert {("pattern", step) for step in PATTERNS} | {("moments", None), ("round", None), ("measure", None)} == tasks


def arrays_of(message: Message) -> list[np.ndarray]:
    sent = [message.broadcast.V, *message.broadcast.shared.arrays.values()]
    return [np.asarray(array, float) for array in (*sent, *whole(message.reply).values())]


def whole(reply: Sums) -> dict[str, np.ndarray]:
    return {name: dense(value, value.shape) for name, value in reply.parts.items()}


def test_no_array_is_as_long_as_the_features_of_users(exchanged):
    for message in exchanged:
        assert all(FEATURES not in array.shape for array in arrays_of(message))


def test_regressors_features_and_their_weights_are_in_no_message(exchanged):
    """Not one of their numbers, of any client in any round, up to a part in 10^9 and up to the sign."""
    engine, secrets = whole_engine(), []
    for _ in islice(rounds(engine, Settings.preset("bayes", rank=3, active=4)), 8):
        for shard, state in zip(engine.shards, engine.states, strict=True):
            if isinstance(state, BayesState):
                secrets += [state.regressors, state.home, home.offsets(shard, home.Home(state.home, state.ridge))]
            secrets += [] if shard.features is None else [shard.features]
    own = np.abs(np.concatenate([secret.ravel() for secret in secrets]))
    own = np.unique(own[own > 0])
    assert len(own) > 1000
    for message in exchanged:
        sent = np.concatenate([array.ravel() for array in arrays_of(message)])
        sent = np.abs(sent[np.isfinite(sent) & (sent != 0)])
        place = np.searchsorted(own, sent)
        near_by = np.minimum(np.abs(own[np.minimum(place, len(own) - 1)] - sent), np.abs(own[place - 1] - sent))
        assert (near_by > 1e-9 * sent).all(), (message.broadcast.task, sent[near_by <= 1e-9 * sent])


def test_the_search_would_find_them(exchanged):
    """A reply with a user's regressors in it: the test above is not blind."""
    engine = whole_engine()
    run(engine, Settings.preset("bayes", rank=3, active=4), 1)
    leaked = exchanged[-1]._replace(reply=Sums.of(users=engine.states[0].regressors[:1]))
    with pytest.raises(AssertionError):
        test_regressors_features_and_their_weights_are_in_no_message([leaked])


def test_features_change_only_sums_over_users_and_over_ratings(exchanged):
    """Of one client, with all that it was sent and kept: everything else is the same, bit by bit."""
    shard = with_everything()[1]
    other = replace(shard, features=shard.features[:, ::-1] * 1.5)
    states: list = [None, None]
    changed: dict[str, set[str]] = {}
    for client, broadcast, _ in exchanged:
        if client != 1:
            continue
        replies = []
        for k, one in enumerate((shard, other)):
            states[k], reply = respond(one, states[k], broadcast)
            replies.append(reply)
        one, two = map(whole, replies)
        differ = {name for name in one if one[name].tobytes() != two[name].tobytes()}
        changed.setdefault(broadcast.task, set()).update(differ)
        if broadcast.task == "round":  # the numbers and sums of regressors, and the number of ratings, are the same
            mine, others = one["users"][0], two["users"][0]
            same = [*range(10), -1]
            assert mine[same].tobytes() == others[same].tobytes()
            if broadcast.round <= 2:  # in the first passes, all that differs is what stands for the weights' entropy
                differs = np.flatnonzero(np.abs(mine - others) > 1e-12)  # but for rounding
                assert differs.tolist() == ([len(mine) - 2] if broadcast.round == 1 else [])
    assert changed["moments"] == changed["pattern"] == set()
    assert changed["round"] == {"S", "users"}


# --- what a node accepts


@pytest.fixture(scope="module")
def learned() -> Broadcast:
    """A broadcast of the learned phase."""
    return run(whole_engine(), Settings.preset("bayes", rank=3, active=4), 6).broadcast._replace(task="round", round=7)


def pattern(broadcast: Broadcast, directions: np.ndarray, step: int = 2, **changes: object) -> Broadcast:
    settings = broadcast.settings.replace(**changes)
    shared = Shared({"directions": directions})
    return broadcast._replace(task="pattern", round=step, settings=settings, shared=shared)


def test_honest_broadcasts_are_accepted(exchanged, learned):
    for _, broadcast, _ in exchanged:
        Bayes().check_broadcast(broadcast)
    Bayes().check_broadcast(learned)


def filled(*shape: int, value: float = 0.5) -> np.ndarray:
    return np.full(shape, value)


BAD_PATTERNS = {
    "too many": (filled(15, 4), {}, "do not fit 15 items"),
    "none": (filled(15, 0), {}, "do not fit"),
    "fewer items": (filled(14, 3), {}, "do not fit"),
    "more items": (filled(16, 3), {}, "do not fit"),
    "one axis": (filled(15), {}, "do not fit"),
    "no axis": (filled(), {}, "do not fit"),
    "three axes": (filled(15, 3, 1), {}, "do not fit"),
    "huge": (filled(15, 3, value=-1e4), {}, "beyond 1000"),
    "not a number": (filled(15, 3, value=np.nan), {}, "beyond"),
    "infinite": (filled(15, 3, value=np.inf), {}, "beyond"),
    "step 0": (filled(15, 3), {"step": 0}, "step 0 of 5"),
    "step 6": (filled(15, 3), {"step": 6}, "step 6 of 5"),
    "more than counts": (filled(15, 3), {"step": 1}, "it has one direction"),
    "no implicit terms": (filled(15, 3), {"implicit": False}, "implicit=False"),
}


@pytest.mark.parametrize("name", BAD_PATTERNS)
def test_directions_that_no_honest_server_asks_with_are_refused(name, learned):
    directions, more, words = BAD_PATTERNS[name]
    with pytest.raises(InputError, match=words):
        Bayes().check_broadcast(pattern(learned, directions, **more))


def test_other_arrays_with_the_task_pattern_are_refused(learned):
    for arrays in ({}, {"directions": filled(15, 3), "noise": filled(1)}, {"others": filled(15, 3)}):
        with pytest.raises(InputError, match="with the task pattern"):
            Bayes().check_broadcast(pattern(learned, filled(15, 3))._replace(shared=Shared(arrays)))


BAD_ARRAYS = {
    "too many directions": ({"directions": filled(15, 300), "user_weights": filled(300, 4)}, "directions"),
    "no directions": ({"directions": filled(15, 0), "user_weights": filled(0, 4)}, "0 directions"),
    "directions of other items": ({"directions": filled(14, 3)}, "directions is missing or has another shape"),
    "directions with one axis": ({"directions": filled(15)}, "directions"),
    "directions without an axis": ({"directions": filled()}, "directions"),
    "huge directions": ({"directions": filled(15, 3, value=2e6)}, "directions has numbers beyond"),
    "infinite directions": ({"directions": filled(15, 3, value=np.inf)}, "directions has numbers that are not finite"),
    "no weights": ({"user_weights": None}, "user_weights is missing"),
    "other weights": ({"user_weights": filled(2, 4)}, "user_weights is missing or has another shape"),
    "huge weights": ({"user_weights": filled(3, 4, value=-2e6)}, "user_weights has numbers beyond"),
    "weights without a number": ({"user_weights": filled(3, 4, value=np.nan)}, "user_weights has numbers that are not"),
    "huge weights of features": ({"item_weights": filled(2, 4, value=2e6)}, "item_weights has numbers beyond"),
    "other weights of features": ({"item_weights": filled(2, 3)}, "item_weights is missing or has another shape"),
    "weights of features without an axis": ({"item_weights": filled()}, "weights of 0 features"),
    "something else": ({"regressors": filled(3)}, "regressors, which this algorithm does not know"),
    "weights without directions": ({"directions": None}, "sends 0 directions"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_prior_means_that_no_honest_server_sends_are_refused(name, learned):
    changes, words = BAD_ARRAYS[name]
    arrays = {name: array for name, array in (learned.shared.arrays | changes).items() if array is not None}
    for task in ("round", "measure", "finish"):
        with pytest.raises(InputError, match=words):
            Bayes().check_broadcast(learned._replace(task=task, shared=Shared(arrays)))


def test_directions_in_a_run_without_implicit_terms_are_refused(learned):
    with pytest.raises(InputError, match="which this algorithm does not know"):
        Bayes().check_broadcast(learned._replace(settings=learned.settings.replace(implicit=False)))


def test_no_posterior_fails_at_what_is_accepted(learned):
    """Refused, or harmless: users' posteriors are finite, whatever a server sends."""
    shard = with_everything()[0]
    wide = {"directions": filled(15, 3, value=1e6), "user_weights": filled(3, 4, value=1e6)}
    broadcast = learned._replace(shared=Shared(learned.shared.arrays | wide))
    Bayes().check_broadcast(broadcast)
    assert np.isfinite(Bayes().users_at(shard, None, broadcast)).all()
    state, _ = Bayes().client_update(shard, None, broadcast)
    assert np.isfinite(state.home).all()


def test_a_node_refuses_before_it_reads_a_rating(learned, tmp_path):
    nodes = side_world(tmp_path)
    from tests import world

    for asked in (
        pattern(learned, filled(15, 4)), pattern(learned, filled(15, 3), step=6),
        pattern(learned, filled(15, 3), implicit=False),
        learned._replace(shared=Shared(learned.shared.arrays | {"directions": filled()})),
        learned._replace(shared=Shared(learned.shared.arrays | {"directions": filled(15, 3, value=1e7)})),
    ):  # fmt: skip
        found = world.refused(nodes, asked._replace(task=asked.task, round=asked.round), invitation=None)
        assert (found.status, found.sums) == ("wrong-settings", None)
    assert world.refused(nodes, pattern(learned, filled(15, 3)), invitation=None).status == "ok"
    nodes.close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_who_rated_what_is_never_in_sums_over_two_sets_of_members(elsewhere, tmp_path, caplog):
    """Replies are linear in the directions: the difference of two sums would be one member's, to many digits."""
    pytest.importorskip("cryptography", reason="needs the extra `flower`")
    from fedmc.federation.server.secagg_session import SecureAsk
    from tests.secure_world import SecureWorld
    from tests.world import KINDS

    nodes = SecureWorld(tmp_path, 8)
    engine = nodes.engine()
    first = next(rounds(engine, KINDS["secagg-bayes"].replace(active=8))).broadcast
    if elsewhere:
        engine = nodes.engine(run="another-run")
    asked = pattern(first, np.random.default_rng(0).normal(size=(15, 3)), step=3)
    update = first._replace(task="round", round=1)
    refusals = {"pattern needs all members, not 7 of them": asked, "would show the sum of (7,) alone": update}
    for why, broadcast in refusals.items():
        caplog.clear()
        with pytest.raises(TooFewError, match="0 of 7 nodes take part"):
            SecureAsk(engine.asking, broadcast, list(range(7))).run()
        assert sum(why in record.getMessage() for record in caplog.records if record.name == "fedmc.node") == 7
    if elsewhere:
        again = SecureAsk(engine.asking, asked._replace(round=2), list(range(8))).run()  # the same members may
        assert again.clients == tuple(range(8))
