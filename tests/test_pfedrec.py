"""PFedRec: rounds against a dense transcription, private item tables, and what they are measured with."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy import sparse

from fedmc.algorithms.pfedrec import DECAY, PFedRec, drawn, pair_weights
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.problem.rng import client_rng, sample_rng
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds

USERS, ITEMS, RANK, STEPS = 24, 16, 3, 3
OWNER = np.repeat(np.arange(5), (10, 6, 4, 3, 1))  # clients of 10 to 1 users
RATE, ETA, NEGATIVES = 0.3, 2.0, 3


def tables():
    """Training and test events of users with planted tastes; nobody has the last two items."""
    rng = np.random.default_rng(1)
    taste = rng.normal(size=(USERS, 2)) @ rng.normal(size=(2, ITEMS))
    events = taste > np.quantile(taste, 0.6)
    events[np.arange(USERS), rng.integers(ITEMS - 2, size=USERS)] = True
    events[:, -2:] = False
    held_out = events & (rng.random(events.shape) < 0.2)
    held_out[events.sum(axis=1) - held_out.sum(axis=1) == 0] = False
    return events & ~held_out, held_out


def engine_of() -> LocalEngine:
    train, test = (
        Ratings(np.arange(USERS), np.arange(ITEMS), sparse.csr_array(part.astype(float))) for part in tables()
    )
    return LocalEngine(make_shards(train, OWNER, "float64", test, events=True))


def settings_of(spec=f"pfedrec:{RATE},{ETA},{NEGATIVES}", **given) -> Settings:
    options = {"rank": RANK, "active": 3, "inner_steps": STEPS} | given
    return Settings.preset("implicit", algorithm=spec, **options)


class Dense:
    """A client as the paper writes it: one user at a time, the mean cross-entropy of the user's pairs."""

    def __init__(self, number, events):
        self.number, self.events = number, events
        first = client_rng(0, number).uniform(-1, 1, (len(events), RANK + 1)) / np.sqrt(RANK)
        self.U, self.c = first[:, :-1], first[:, -1]

    def samples(self, round):
        rng, found = sample_rng(0, round, self.number), []
        for row in self.events:
            own, others = np.flatnonzero(row), np.flatnonzero(~row)
            found.append((own, others[rng.integers(len(others), size=NEGATIVES * len(own))]))
        return found

    def update(self, V, round):
        W, samples = V.copy(), self.samples(round)
        for _ in range(STEPS):
            U, c = self.U.copy(), self.c.copy()
            for i, (own, others) in enumerate(samples):
                gradient, intercept = DECAY * U[i], DECAY * c[i]
                for j, label in [*((j, 1) for j in own), *((j, 0) for j in others)]:
                    error = 1 / (1 + np.exp(-(W[j] @ self.U[i] + self.c[i]))) - label
                    gradient = gradient + error * W[j] / (len(own) + len(others))
                    intercept = intercept + error / (len(own) + len(others))
                U[i], c[i] = U[i] - RATE * gradient, c[i] - RATE * intercept
            self.U, self.c, slope = U, c, np.zeros_like(W)
            for i, (own, others) in enumerate(samples):
                for j, label in [*((j, 1) for j in own), *((j, 0) for j in others)]:
                    error = 1 / (1 + np.exp(-(W[j] @ U[i] + c[i]))) - label
                    slope[j] += error * U[i] / (len(own) + len(others)) / len(samples)
            W = W - RATE * ETA * len(V) * slope
        self.W = W
        return W


def test_rounds_are_those_of_the_formulas():
    engine, (train, _) = engine_of(), tables()
    clients = [Dense(k, train[k == OWNER]) for k in range(5)]
    history = islice(rounds(engine, settings_of()), 9)
    first = V = next(history).V
    for round in history:
        V = V + np.mean([clients[k].update(V, round.number) - V for k in round.participants], axis=0)
        np.testing.assert_allclose(round.V, V, rtol=1e-9, atol=1e-12)
        for k in round.participants:
            np.testing.assert_allclose(engine.states[k].U, clients[k].U, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(engine.states[k].W, clients[k].W, rtol=1e-9, atol=1e-12)
    assert np.array_equal(V[-2:] != first[-2:], np.ones((2, RANK), bool))  # drawn as negatives only


def test_clients_measure_with_their_own_tables():
    """The hit rate at 10 by hand, of each user by the table of its client."""
    engine, (train, test) = engine_of(), tables()
    *_, last = islice(rounds(engine, settings_of(active=5)), 12)
    hits = []
    for k, state in enumerate(engine.states):
        assert not np.allclose(state.W, last.V)
        for u, seen, wanted in zip(state.U, train[k == OWNER], test[k == OWNER], strict=True):
            scores = np.where(seen, -np.inf, state.W @ u)
            if wanted.any():
                hits.append(wanted[np.argsort(-scores, kind="stable")[:10]].any())
    assert last.diagnostics.ranking["test_hit_rate_10"] == pytest.approx(np.mean(hits), rel=1e-12)


def test_the_objective_is_the_expected_loss_and_falls():
    engine = engine_of()
    history = list(islice(rounds(engine, settings_of(active=5)), 40))
    found, expected = [one.diagnostics.objective for one in history], 0.0
    assert found[-1] < 0.6 * found[0]
    for k, state in enumerate(engine.states):
        for i, row in enumerate(tables()[0][k == OWNER]):
            scores = state.W @ state.U[i] + state.c[i]
            of_events, of_others = np.log1p(np.exp(-scores[row])), np.log1p(np.exp(scores[~row]))
            expected += (of_events.mean() + NEGATIVES * of_others.mean()) / (1 + NEGATIVES)
    assert found[-1] == pytest.approx(expected, rel=1e-9)


def test_negatives_have_no_training_event_and_are_uniform():
    events = np.zeros((3, 6), bool)
    events[0, [1, 4]], events[1, :], events[2, 5] = True, True, True
    table = sparse.csr_array(events.astype(float))
    pairs = drawn(table, 1000, np.random.default_rng(0))
    counts = np.array([np.bincount(pairs.items[pairs.users == i], minlength=6) for i in range(3)])
    assert np.array_equal(counts[events], np.ones(events.sum()))
    assert np.abs(counts[0][~events[0]] - 500).max() < 100
    assert counts[1].sum() == 6  # a user who has everything has no negatives
    weights = pair_weights(events, events.sum(axis=1)[:, None], 1000)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(np.bincount(pairs.users, pairs.weights), 1)


def test_newcomers_get_score_functions_at_the_shared_table():
    engine, (train, _) = engine_of(), tables()
    *_, last = islice(rounds(engine, settings_of(active=5)), 30)
    algorithm = last.broadcast.settings.make_algorithm()
    U = algorithm.new_users(sparse.csr_array(train.astype(float)), last.broadcast)
    scores = U @ last.V.T
    better = [scores[i][row].mean() > scores[i][~row].mean() for i, row in enumerate(train)]
    assert np.mean(better) == 1


def test_specs_and_what_is_refused():
    algorithm = settings_of().make_algorithm()
    assert str(algorithm) == "pfedrec:0.3,2,3"
    again = Settings.from_dict(settings_of().to_dict()).make_algorithm()
    assert vars(again) == vars(algorithm)
    assert (str(PFedRec()), PFedRec().with_weights(0.1, 0.2)) == ("pfedrec", None)
    for numbers, words in (((0.0,), "rate of pfedrec"), ((0.1, 80, 2.5), "negatives of pfedrec"), ((0.1, 80, 0), "1")):
        with pytest.raises(InputError, match=words):
            PFedRec(*numbers)
