"""EASE by sums is EASE on the pooled events: with any clients, any participation, and under secure aggregation."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms import ease
from fedmc.algorithms.client import respond, respond_together
from fedmc.algorithms.ease import EASE
from fedmc.algorithms.event_measures import COUNTS, USERS, EventMeasures
from fedmc.algorithms.messages import Shared, dense
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds

USERS_OF_ALL, ITEMS, CLIENTS, WEIGHT = 60, 21, 8, 3.0
PLAIN = {"active": CLIENTS}
SECAGG = {"active": CLIENTS, "privacy": "secagg", "min_cohort": 3}


def events(share=0.25, items=ITEMS, seed=0) -> tuple[Ratings, ...]:
    """Training, test and validation events, with confidences."""
    rng = np.random.default_rng(seed)
    drawn = rng.random((USERS_OF_ALL, items))
    drawn[np.arange(USERS_OF_ALL), rng.integers(items, size=USERS_OF_ALL)] = 0
    parts = (drawn < share), (drawn >= share) & (drawn < 1.2 * share), (drawn >= 1.2 * share) & (drawn < 1.4 * share)
    sizes = rng.integers(1, 5, drawn.shape).astype(float)
    ids = np.arange(USERS_OF_ALL), np.arange(items)
    return tuple(Ratings(*ids, sparse.csr_array(part * sizes)) for part in parts)


def engine_of(items=ITEMS, clients=CLIENTS, dtype="float64") -> LocalEngine:
    train, *held_out = events(items=items)
    return LocalEngine(make_shards(train, np.arange(USERS_OF_ALL) % clients, dtype, *held_out))


def settings_of(**given) -> Settings:
    return Settings.preset("implicit", **{"rank": 4, "algorithm": f"ease:{WEIGHT:g}"} | given)


def pooled(engine: LocalEngine, clients=None) -> np.ndarray:
    """EASE as the paper writes it, on the events of these clients."""
    shards = engine.shards if clients is None else [engine.shards[k] for k in clients]
    X = np.concatenate([shard.by_user.toarray() for shard in shards]) > 0
    P = np.linalg.inv(X.T.astype(float) @ X + WEIGHT * np.eye(X.shape[1]))
    B = np.eye(X.shape[1]) - P @ np.diag(1 / np.diag(P))
    np.fill_diagonal(B, 0)
    return B


def last_of(engine: LocalEngine, settings: Settings, number: int):
    *_, last = islice(rounds(engine, settings), number + 1)
    return last


@pytest.mark.parametrize("items", [1, 2, 3, 20, 21])
@pytest.mark.parametrize("given", [PLAIN, SECAGG], ids=["plain", "secagg"])
def test_one_round_with_everybody_is_the_pooled_model(items, given):
    engine = engine_of(items)
    last = last_of(engine, settings_of(**given), 1)
    assert last.participants == tuple(range(CLIENTS))
    np.testing.assert_allclose(last.V.T, pooled(engine), rtol=0, atol=1e-10)
    assert not last.V.diagonal().any()
    X = np.concatenate([shard.by_user.toarray() for shard in engine.shards]) > 0
    assert last.broadcast.shared.arrays[COUNTS].tolist() == X.sum(axis=0).tolist()
    assert last.broadcast.shared.arrays[USERS].tolist() == [USERS_OF_ALL]


@pytest.mark.parametrize(
    "given", [{"active": 2}, {"active": 4, "privacy": "secagg", "min_cohort": 3}], ids=["plain", "secagg"]
)
def test_each_client_is_counted_once_whenever_it_joins(given):
    engine = engine_of()
    sizes = []
    for round in islice(rounds(engine, settings_of(**given)), 7):
        joined = sorted(engine.joined)
        expected = pooled(engine, joined) if joined else np.zeros((ITEMS, ITEMS))
        np.testing.assert_allclose(round.V.T, expected, rtol=0, atol=1e-10)
        sizes.append(len(joined))
    assert sizes[0] == 0
    assert 0 < sizes[1] < CLIENTS
    assert sizes[-1] == CLIENTS


def test_secure_sums_of_counts_are_exact():
    plain, secure = (last_of(engine_of(), settings_of(**given), 2) for given in (PLAIN, SECAGG))
    assert plain.V.tobytes() == secure.V.tobytes()


def test_after_the_first_update_nothing_is_sent():
    history = list(islice(rounds(engine_of(), settings_of(**PLAIN)), 4))
    assert history[1].bytes_up > 1000
    assert [one.bytes_up for one in history[2:]] == [16 * CLIENTS] * 2  # two numbers each, both 0
    assert history[3].V is history[1].V  # a history of rounds holds it once


def test_in_float32():
    engine = engine_of(dtype="float32")
    last = last_of(engine, settings_of(dtype="float32", **PLAIN), 1)
    assert last.V.dtype == np.float32
    np.testing.assert_allclose(last.V.T, pooled(engine), rtol=0, atol=1e-6)


def test_the_objective_is_the_least_of_all_b_without_a_diagonal():
    engine = engine_of()
    last = last_of(engine, settings_of(**PLAIN), 1)
    X = (np.concatenate([shard.by_user.toarray() for shard in engine.shards]) > 0).astype(float)

    def objective(B):
        return np.square(X - X @ B).sum() + WEIGHT * np.square(B).sum()

    assert last.diagnostics.objective == pytest.approx(objective(last.V.T), rel=1e-12)
    for move in np.random.default_rng(1).normal(0, 1e-3, (20, ITEMS, ITEMS)):
        np.fill_diagonal(move, 0)
        assert objective(last.V.T + move) > last.diagnostics.objective


def test_clients_in_a_batch_reply_as_one_at_a_time():
    engine = engine_of(clients=6)
    broadcast = next(rounds(engine, settings_of(active=6))).broadcast._replace(task="round", round=1)
    states = [None if k % 2 else respond(engine.shards[k], None, broadcast)[0] for k in range(6)]
    together, whole = respond_together(engine.shards, states, broadcast)
    replies = [respond(shard, state, broadcast) for shard, state in zip(engine.shards, states, strict=True)]
    assert [state.U.shape for state in together] == [state.U.shape for state, _ in replies]
    for name, part in EASE().schema(broadcast, ITEMS).items():
        expected = sum(dense(reply.parts[name], part.shape) for _, reply in replies)
        assert np.array_equal(dense(whole.parts[name], part.shape), expected)
    assert whole.sent == sum(reply.sent for _, reply in replies)


@pytest.mark.parametrize("at_a_time", [7, 1000])
def test_measures_are_those_of_dense_rows(at_a_time, monkeypatch):
    monkeypatch.setattr(ease, "USERS_AT_A_TIME", at_a_time)
    engine = engine_of(clients=1)
    broadcast = last_of(engine, settings_of(active=1), 1).broadcast
    algorithm, (shard,) = broadcast.settings.make_algorithm(), engine.shards
    rows = algorithm.user_rows(algorithm.users_at(shard, None, broadcast), shard.by_user)
    assert np.array_equal(rows, shard.by_user.toarray() > 0)
    expected = EventMeasures(ease.terms, algorithm.item_terms).client(shard, rows, broadcast)
    found = algorithm.measures.client(shard, np.zeros((USERS_OF_ALL, 0)), broadcast)
    assert found.keys() == expected.keys()
    assert found["test_users"] > 10
    assert found["validation_ndcg_20"] > 0
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


def test_new_users_need_no_factors():
    last = last_of(engine_of(), settings_of(**PLAIN), 1)
    algorithm, matrix = EASE(WEIGHT), events(seed=3)[0].matrix
    U = algorithm.new_users(matrix, last.broadcast)
    assert (U.shape[1], last.V.shape[1]) == algorithm.columns(last.broadcast.settings, ITEMS) == (0, ITEMS)
    scores = algorithm.user_rows(U, matrix) @ last.V.T
    np.testing.assert_allclose(scores, (matrix.toarray() > 0) @ pooled(engine_of()), atol=1e-10)
    effects = algorithm.event_effects(matrix[[5]], 2, last.broadcast)
    assert len(effects) == matrix[[5]].nnz > 1
    assert effects.sum() == pytest.approx(scores[5, 2])


class Unasked(LocalEngine):
    def ask(self, broadcast, clients):
        raise AssertionError("a client was asked")


def test_too_many_items_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(ease, "MAX_ITEMS", ITEMS - 1)
    engine, said = engine_of(), r"at most 20 items, got 21: each client would send 231 numbers \(0\.0 GB\).*ials"
    with pytest.raises(InputError, match=said):
        next(rounds(Unasked(engine.shards), settings_of(**PLAIN)))
    with pytest.raises(InputError, match="at most 20 items"):  # memory estimates and nodes ask for it
        EASE().schema(None, ITEMS)
    assert EASE().schema(None, ITEMS - 1)["pairs"].shape == (20, 11)


def test_the_real_limit_is_told_with_its_size():
    with pytest.raises(InputError, match=r"10,000 items, got 41,000: .* 840,541,000 numbers \(6\.7 GB\)"):
        ease.check_items(41_000)


def test_broadcasts_of_another_shape_are_refused():
    broadcast = last_of(engine_of(), settings_of(**PLAIN), 1).broadcast
    EASE().check_broadcast(broadcast)
    for V in (broadcast.V[:, :4], np.full_like(broadcast.V, np.nan)):
        with pytest.raises(InputError, match=r"items by items|beyond"):
            EASE().check_broadcast(broadcast._replace(V=V))
    with pytest.raises(InputError, match="more than counts"):
        EASE().check_broadcast(broadcast._replace(shared=Shared(broadcast.shared.arrays | {"more": broadcast.V})))


def test_counts_that_no_events_have_give_no_model():
    pairs = np.zeros((4, 3))
    pairs[:, 1] = 100  # pairs of items that nobody has
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        ease.weights(pairs, 1.0)


def test_its_spec():
    assert str(settings_of(algorithm="ease", **PLAIN).make_algorithm()) == "ease:500"
    settings = settings_of(**PLAIN)
    assert Settings.from_dict(settings.to_dict()).make_algorithm() is settings.make_algorithm()
    with pytest.raises(InputError, match="lambda of ease"):
        EASE(0.0)
