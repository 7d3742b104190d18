"""Losses: gradients, curvature, and a loss of one's own through the whole system."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmc import FedMC, split
from fedmc.algorithms import exact
from fedmc.algorithms.settings import Settings
from fedmc.data.datasets import demo
from fedmc.errors import InputError
from fedmc.problem import losses
from fedmc.problem.losses import Huber, Logistic, Loss, Square
from fedmc.training.rounds import rounds
from tests.conftest import examples, local_engine, planted


@dataclass(frozen=True)
class PlainSquare:
    """The square loss, but not recognised as such: it takes the general path."""

    curvature: float = 1.0

    def value(self, x, m):
        return np.square(x - m) / 2

    def gradient(self, x, m):
        return x - m

    def link(self, x):
        return x


every = pytest.mark.parametrize(
    "loss", [Square(), Huber(0.7), Logistic(), PlainSquare()], ids=lambda x: type(x).__name__
)


@every
@given(x=st.floats(-6, 6), y=st.floats(-6, 6), m=st.sampled_from([0.0, 0.3, 1.0]))
@examples(60)
def test_gradient_and_curvature(loss, x, y, m):
    x, y, m = np.array([x]), np.array([y]), np.array([m])
    h = 1e-5
    numeric = (loss.value(x + h, m) - loss.value(x - h, m)) / (2 * h)
    np.testing.assert_allclose(loss.gradient(x, m), numeric, atol=1e-4)
    assert np.abs(loss.gradient(x, m) - loss.gradient(y, m)) <= loss.curvature * np.abs(x - y) + 1e-12
    assert isinstance(loss, Loss)


def run_with(loss, **changes):
    engine = local_engine(planted(), 4)
    settings = Settings.preset("paper", rank=3, active=2, beta=0.5, loss=loss, **changes)
    return list(itertools.islice(rounds(engine, settings, full=True), 20))


@pytest.mark.parametrize("penalty", ["l2:0.1", "l1:0.1", "non-negative", "group-l2:0.2"])
def test_general_path_gives_the_iterates_of_the_fast_one(penalty):
    fast, general = (run_with(loss, penalty_users=penalty) for loss in (Square(), PlainSquare()))
    for a, b in zip(fast, general, strict=True):
        np.testing.assert_allclose(a.V, b.V, rtol=1e-9)
        assert a.diagnostics.objective == pytest.approx(b.diagnostics.objective, rel=1e-9)


@pytest.mark.parametrize("loss", ["huber:0.5", "logistic"])
def test_other_losses_go_down(loss):
    ratings = planted()
    if loss == "logistic":
        ratings.matrix.data[:] = ratings.matrix.data > 3
    engine = local_engine(ratings, 4)
    settings = Settings.preset("paper", rank=3, active=4, beta=0.5, loss=loss)
    seen = [round.diagnostics.objective for round in itertools.islice(rounds(engine, settings), 40)]
    assert seen[-1] < 0.5 * seen[0]


def test_fast_preset_takes_other_losses_too():
    engine = local_engine(planted(), 4)
    settings = Settings.preset("fast", rank=3, active=2, loss="huber:0.5", penalty_users="l2:0.1")
    seen = [round.diagnostics.objective for round in itertools.islice(rounds(engine, settings), 30)]
    assert seen[-1] < 0.5 * seen[0]
    for state in engine.states:
        assert (state.U[:, 3] == 1).all()
        assert (state.W[:, 4] == 1).all()


def test_words():
    assert losses.parse("square") == Square()
    assert losses.parse("huber:0.5") == Huber(0.5)
    assert losses.parse(str(Huber(0.5))) == Huber(0.5)
    assert losses.parse(str(Logistic())) == Logistic()
    for words, message in (
        ("cubic", "unknown loss"),
        ("huber:x", "not a number"),
        ("square:1", "no number"),
        ("huber:0", "from 1e-12 to"),
    ):
        with pytest.raises(InputError, match=message):
            losses.parse(words)


def test_exact_update_needs_the_square_loss():
    with pytest.raises(InputError, match="needs the square loss"):
        Settings.preset("paper", loss="logistic", update="exact")


@pytest.mark.parametrize("own", [False, True], ids=["huber", "own"])
def test_a_loss_comes_back_at_demo_size(own, monkeypatch):
    """The default preset, 10 of 20 clients in 20 rounds: both halves of a rating, 10 times, in few passes over it."""
    train, test = split(demo(), 0.1, 0)
    bound, count, plain = 15 * 20 * train.matrix.nnz, [0], Huber.gradient

    def counted(self, x, m):
        count[0] += x.size
        assert count[0] <= bound, f"more than {bound} derivatives"
        return plain(self, x, m)

    monkeypatch.setattr(Huber, "gradient", counted)
    model = FedMC(clients=20, rounds=20, loss=OwnHuber(0.5) if own else "huber:0.5").fit(train)
    assert count[0] > 20 * train.matrix.nnz / 2
    assert -model.score(test) < 0.92


@pytest.mark.slow
def test_rounds_of_a_loss_end_where_tight_solves_end(monkeypatch):
    """With a tolerance ten times as large, the rounds diverge."""
    train, test = split(demo(), 0.1, 0)
    scores = []
    for tolerance in (exact.ROUND_TOLERANCE, 1e-7):
        monkeypatch.setattr(exact, "ROUND_TOLERANCE", tolerance)
        model = FedMC(clients=20, rounds=60, loss="huber", measure_every=60).fit(train)
        scores.append((model.rounds_[-1].diagnostics.objective, -model.score(test)))
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-3)


@dataclass(frozen=True)
class OwnHuber:
    """Huber's loss as one of one's own."""

    delta: float
    curvature: float = 1.0

    def value(self, x, m):
        return Huber(self.delta).value(x, m)

    def gradient(self, x, m):
        return Huber(self.delta).gradient(x, m)

    def link(self, x):
        return x
