"""FCF and FedRecon on events: their formulas, and that they descend on the objective of iALS."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.event_measures import COUNTS, USERS
from fedmc.algorithms.fcf import FCF
from fedmc.algorithms.fedrecon import FedRecon
from fedmc.algorithms.ials import IALS
from fedmc.algorithms.messages import Shared, add_up
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import LocalState
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.training.fixed_point import taken_apart
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds

PEOPLE, ITEMS, CLIENTS, RANK = 80, 20, 8, 3
ALPHA0, WEIGHT, EXPONENT = 0.2, 0.05, 0.7
NUMBERS = f"{ALPHA0},{WEIGHT},{EXPONENT}"
MODES = {
    "plain": {"active": CLIENTS},
    "partial": {"active": 2},
    "secagg": {"active": CLIENTS, "privacy": "secagg", "min_cohort": 3},
    "partial secagg": {"active": 4, "privacy": "secagg", "min_cohort": 3},
}


def engine_of(clients=CLIENTS, dtype="float64") -> LocalEngine:
    """Events with confidences, of users with planted tastes."""
    rng = np.random.default_rng(0)
    taste = rng.normal(size=(PEOPLE, 2)) @ rng.normal(size=(2, ITEMS)) + rng.normal(size=ITEMS) - 1
    drawn = rng.random(taste.shape) < 1 / (1 + np.exp(-2 * taste))
    drawn[np.arange(PEOPLE), rng.integers(ITEMS, size=PEOPLE)] = True
    ids = np.arange(PEOPLE), np.arange(ITEMS)
    train = Ratings(*ids, sparse.csr_array(drawn * rng.integers(1, 4, taste.shape).astype(float)))
    return LocalEngine(make_shards(train, np.arange(PEOPLE) % clients, dtype))


def settings_of(algorithm: str, **given) -> Settings:
    return Settings.preset("implicit", rank=RANK, algorithm=algorithm, **given)


def history_of(settings: Settings, number: int, engine: LocalEngine | None = None):
    return list(islice(rounds(engine or engine_of(), settings), number + 1))


def pooled(engine: LocalEngine) -> np.ndarray:
    return np.concatenate([shard.by_user.toarray() for shard in engine.shards])


def objective(C, U, V) -> float:
    """The objective as `ials` writes it, on dense arrays."""
    seen = C > 0
    users = (seen.sum(axis=1) + ALPHA0 * len(V)) ** EXPONENT
    items = (seen.sum(axis=0) + ALPHA0 * len(U)) ** EXPONENT
    penalty = users @ np.square(U).sum(axis=1) + items @ np.square(V).sum(axis=1)
    return float((C * np.square(1 - U @ V.T)).sum() + ALPHA0 * np.square(U @ V.T).sum() + WEIGHT * penalty)


def best_users(C, V) -> np.ndarray:
    found = []
    for c in C:
        ridge = WEIGHT * ((c > 0).sum() + ALPHA0 * len(V)) ** EXPONENT
        found.append(np.linalg.solve(ALPHA0 * V.T @ V + V.T * c @ V + ridge * np.eye(V.shape[1]), V.T @ c))
    return np.array(found)


# --- FCF


def test_the_gradient_of_fcf_is_that_of_the_pooled_objective():
    """The objective at the best U, as a function of V: its slope is the partial one at that U."""
    engine, algorithm = engine_of(), FCF(ALPHA0, WEIGHT, EXPONENT)
    broadcast = next(rounds(engine, settings_of(str(algorithm), active=CLIENTS))).broadcast
    V = np.random.default_rng(1).normal(0, 0.4, broadcast.V.shape)
    broadcast = broadcast._replace(V=V, task="round", round=1, shared=Shared(broadcast.shared.arrays))
    total = add_up(algorithm.client_update(shard, None, broadcast)[1] for shard in engine.shards)
    S = np.zeros((ITEMS + 1, 1 + 2 * RANK))
    S[:-1, 0], S[-1, 0] = total["counts"], total.number("users")
    found, C = algorithm.gradient(total, S, V), pooled(engine)
    expected = np.empty_like(V)
    for place in np.ndindex(*V.shape):
        move = np.zeros_like(V)
        move[place] = 1e-5
        ends = [objective(C, best_users(C, V + sign * move), V + sign * move) for sign in (1, -1)]
        expected[place] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_parts_add_up():
    """The mean over disjoint sets of clients, weighted by their users, is the gradient of all."""
    engine, algorithm = engine_of(), FCF(ALPHA0, WEIGHT, EXPONENT)
    broadcast = history_of(settings_of(str(algorithm), active=CLIENTS), 1, engine)[-1].broadcast._replace(task="round")
    replies = [algorithm.client_update(shard, None, broadcast)[1] for shard in engine.shards]
    S = np.zeros((ITEMS + 1, 1 + 2 * RANK))
    S[:-1, 0], S[-1, 0] = broadcast.shared.arrays[COUNTS], broadcast.shared.arrays[USERS][0]
    whole, *parts = (algorithm.gradient(add_up(some), S, broadcast.V) for some in (replies, replies[:2], replies[2:]))
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-12, atol=1e-12)


def test_the_server_of_fcf_is_adam():
    settings = settings_of(f"fcf:{NUMBERS},0.03", active=CLIENTS)
    history, C = history_of(settings, 4), pooled(engine_of())
    V, mean, square = history[0].V, np.zeros((ITEMS, RANK)), np.zeros((ITEMS, RANK))
    seen = C > 0
    ridge = WEIGHT * (seen.sum(axis=0) + ALPHA0 * PEOPLE) ** EXPONENT
    for number, round in enumerate(history[1:], 1):
        U = best_users(C, V)
        slope = (C * (U @ V.T - 1)).T @ U + ALPHA0 * V @ (U.T @ U) + ridge[:, None] * V
        slope *= 2 / PEOPLE
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        V = V - 0.03 * mean / (1 - 0.9**number) / (np.sqrt(square / (1 - 0.999**number)) + 1e-8)
        np.testing.assert_allclose(round.V, V, rtol=1e-7, atol=1e-9)


# --- FedRecon


def dense_steps(C, X, F, ridge, number) -> np.ndarray:
    """Gradient steps on sum c (1 - x'f)^2 + alpha0 sum (x'f)^2 + ridge |x|^2, row by row."""
    top = np.linalg.eigvalsh(F.T @ F).max()
    L = ALPHA0 * max(top, 1e-12) + C @ np.square(F).sum(axis=1) + ridge
    for _ in range(number):
        X = X - ((C * (X @ F.T - 1)) @ F + ALPHA0 * X @ (F.T @ F) + ridge[:, None] * X) / L[:, None]
    return X


@pytest.mark.parametrize("steps", [1, 4])
def test_rounds_of_fedrecon_are_their_formulas(steps):
    engine = engine_of()
    history = history_of(settings_of(f"fedrecon:{NUMBERS}", active=CLIENTS, inner_steps=steps), 3, engine)
    tables = [shard.by_user.toarray() for shard in engine.shards]
    V, known = history[0].V, np.zeros(ITEMS)
    for round in history[1:]:
        change, weight = np.zeros_like(V), 0
        for C in tables:
            ridge = WEIGHT * ((C > 0).sum(axis=1) + ALPHA0 * ITEMS) ** EXPONENT
            U = dense_steps(C, np.zeros((len(C), RANK)), V, ridge, steps)
            own = (C > 0).sum(axis=0) + ALPHA0 * len(C)
            whole = known if round.number > 1 else own  # all clients are new at first
            W = dense_steps(C.T, V, U, WEIGHT * own * whole ** (EXPONENT - 1), steps)
            change, weight = change + (C > 0).sum() * (W - V), weight + (C > 0).sum()
        V = V + change / weight
        known = (pooled(engine) > 0).sum(axis=0) + ALPHA0 * PEOPLE
        np.testing.assert_allclose(round.V, V, rtol=1e-9, atol=1e-12)


def test_shares_of_the_items_penalty_add_up_to_it():
    engine, algorithm = engine_of(), FedRecon(ALPHA0, WEIGHT, EXPONENT)
    last = history_of(settings_of(str(algorithm), active=CLIENTS), 1, engine)[-1].broadcast
    shares = [algorithm.own_ridges(shard, taken_apart(state)[0], last) for shard, state in parts_of(engine)]
    arrays = last.shared.arrays
    np.testing.assert_allclose(sum(shares), algorithm.ridges(arrays[COUNTS], arrays[USERS][0]), rtol=1e-12)


def parts_of(engine: LocalEngine):
    return zip(engine.shards, engine.states, strict=True)


def test_fedrecon_begins_anew():
    """A client's last U has no influence."""
    engine = engine_of()
    last = history_of(settings_of("fedrecon", active=CLIENTS), 2, engine)[-1].broadcast._replace(task="round", round=3)
    algorithm = last.settings.make_algorithm()
    for shard, state in parts_of(engine):
        replies = [algorithm.client_update(shard, known, last)[1] for known in (state, LocalState(state.U + 1))]
        assert replies[0]["change"].tobytes() == replies[1]["change"].tobytes()


# --- both


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fcf", "fedrecon"])
class TestBoth:
    def test_the_objective_falls(self, name, mode):
        engine = engine_of()
        history = history_of(settings_of(f"{name}:{NUMBERS}", **MODES[mode]), 30, engine)
        assert len(engine.joined) == CLIENTS
        measured = [one.diagnostics.objective for one in history]
        C, V = pooled(engine), history[-1].V
        assert measured[-1] == pytest.approx(objective(C, best_users(C, V), V), rel=1e-7)
        assert min(measured[20:]) < measured[3] < measured[0]
        best = history_of(settings_of(f"ials:{NUMBERS}", active=CLIENTS), 30)[-1].diagnostics.objective
        assert best < measured[-1] < 1.2 * best

    def test_popularity_is_counted_once(self, name, mode):
        engine = engine_of()
        arrays = history_of(settings_of(name, **MODES[mode]), 8, engine)[-1].broadcast.shared.arrays
        assert arrays[COUNTS].tolist() == (pooled(engine) > 0).sum(axis=0).tolist()
        assert arrays[USERS].tolist() == [PEOPLE]

    def test_in_float32(self, name, mode):
        settings = settings_of(name, **MODES[mode])
        single = settings.replace(dtype="float32")
        one, other = history_of(settings, 5), history_of(single, 5, engine_of(dtype="float32"))
        assert other[-1].V.dtype == np.float32
        np.testing.assert_allclose(one[-1].V, other[-1].V, atol=1e-3)


@pytest.mark.parametrize("name", ["fcf", "fedrecon"])
def test_a_secure_sum_is_the_plain_one_up_to_its_steps(name):
    plain, secure = (history_of(settings_of(name, **MODES[mode]), 5)[-1] for mode in ("plain", "secagg"))
    np.testing.assert_allclose(plain.V, secure.V, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["fcf", "fedrecon"])
def test_users_are_those_of_ials(name):
    engine = engine_of()
    last = history_of(settings_of(f"{name}:{NUMBERS}", active=CLIENTS), 3, engine)[-1].broadcast
    algorithm, ials = last.settings.make_algorithm(), IALS(ALPHA0, WEIGHT, EXPONENT)
    for shard, state in parts_of(engine):
        assert np.array_equal(algorithm.users_at(shard, state, last), ials.users_at(shard, None, last))


@pytest.mark.parametrize("spec", [f"fcf:{NUMBERS},0.03", f"fedrecon:{NUMBERS}"])
def test_their_specs(spec):
    settings = settings_of(spec, active=CLIENTS)
    assert str(settings.make_algorithm()) == spec
    assert Settings.from_dict(settings.to_dict()).make_algorithm() is settings.make_algorithm()


def test_what_they_refuse():
    with pytest.raises(InputError, match="learning rate of fcf"):
        FCF(rate=0.0)
    with pytest.raises(InputError, match="inner_steps has no meaning"):
        settings_of("fcf", inner_steps=3)
    with pytest.raises(InputError, match="clip needs"):
        settings_of("fedrecon", clip=1.0)
