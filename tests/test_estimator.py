"""FedMC as scikit-learn's users expect it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold

from fedmc import FedMC, Ratings
from fedmc.errors import DataError, Diverged, FedmcError, InputError
from tests.conftest import planted

SMALL = dict(rank=3, clients=4, rounds=5, penalty_users="l2:0.5")


def test_all_kinds_of_input_give_the_same_model():
    ratings = planted()
    entries = ratings.matrix.tocoo()
    table = ratings.users[entries.row], ratings.items[entries.col], entries.data
    shuffled = np.random.default_rng(0).permutation(len(ratings))
    inputs = [
        ratings,
        table,
        tuple(column[shuffled] for column in table),
        pd.DataFrame(dict(zip(("user", "item", "rating"), table, strict=True))),
        sparse.csr_matrix((entries.data, (entries.row, entries.col)), shape=entries.shape),
    ]
    models = [FedMC(**SMALL).fit(X).model_ for X in inputs]
    models.append(FedMC(**SMALL).fit(np.column_stack(table[:2]), table[2]).model_)
    for model in models[1:]:
        assert np.array_equal(model.U, models[0].U)
        assert np.array_equal(model.V, models[0].V)


@pytest.mark.parametrize("preset", ["paper", "fast", "bayes"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_seed_same_bits(preset, dtype):
    small = {name: value for name, value in SMALL.items() if name != "penalty_users" or preset != "bayes"}
    first, second, other = (FedMC(**small, preset=preset, dtype=dtype, seed=s).fit(planted()).model_ for s in (3, 3, 4))
    assert first.settings.preset_name == preset
    assert first.U.dtype == dtype
    assert first.U.tobytes() == second.U.tobytes()
    assert first.V.tobytes() == second.V.tobytes()
    assert first.V.tobytes() != other.V.tobytes()


def test_bits_do_not_depend_on_the_number_of_threads():
    import numba

    models = []
    for threads in {1, numba.config.NUMBA_NUM_THREADS}:
        numba.set_num_threads(threads)
        models.append(FedMC(**SMALL).fit(planted()).model_)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    assert {model.V.tobytes() for model in models} == {models[0].V.tobytes()}


def test_params_and_clone():
    estimator = FedMC(7, preset="paper", beta=0.2)
    assert estimator.get_params()["rank"] == 7
    twin = clone(estimator)
    assert twin is not estimator
    assert twin.get_params() == estimator.get_params()
    assert twin.set_params(beta=0.4) is twin
    assert twin.beta == 0.4
    assert estimator.beta == 0.2
    assert repr(estimator) == "FedMC(rank=7, preset='paper', beta=0.2)"
    with pytest.raises(InputError, match="unknown parameter 'betta'"):
        twin.set_params(betta=1)


def test_grid_search():
    ratings = planted(users=60, density=0.9)
    entries = ratings.matrix.tocoo()
    pairs = np.column_stack([entries.row, entries.col])
    everywhere = pd.DataFrame(pairs).groupby(1)[0].transform("size") > 10
    search = GridSearchCV(
        FedMC(**SMALL), {"rank": [1, 3]}, cv=KFold(2, shuffle=True, random_state=0), error_score="raise"
    )
    search.fit(pairs[everywhere], entries.data[everywhere])
    assert set(search.best_params_) == {"rank"}


def test_clients_by_mapping_array_and_column():
    ratings = planted()
    names = np.array(["north", "south", "east"])[np.arange(len(ratings.users)) % 3]
    entries = ratings.matrix.tocoo()
    frame = pd.DataFrame(
        {
            "user": ratings.users[entries.row],
            "item": ratings.items[entries.col],
            "rating": entries.data,
            "site": names[entries.row],
        }
    )
    by_mapping = FedMC(**SMALL).fit(ratings, clients=dict(zip(ratings.users.tolist(), names, strict=True)))
    by_array = FedMC(**SMALL).fit(ratings, clients=names)
    by_column = FedMC(**SMALL).fit(frame, clients="site")
    for fitted in (by_mapping, by_array, by_column):
        assert fitted.client_of_user_.tolist() == np.unique(names, return_inverse=True)[1].tolist()
        assert fitted.model_.clients == 3
    frame.loc[frame.index[frame["user"] == 0][0], "site"] = "west"
    with pytest.raises(DataError, match="user 0 to"):
        FedMC(**SMALL).fit(frame, clients="site")
    with pytest.raises(DataError, match="no client is given for user 1"):
        FedMC(**SMALL).fit(ratings, clients={0: "a"})
    with pytest.raises(FedmcError, match="no column 'place'"):
        FedMC(**SMALL).fit(frame, clients="place")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"clients": 1000}, r"more clients \(1000\) than users \(40\)"),
        ({"active": 9}, r"active must lie in 1\.\.4.*got 9"),
        ({"beta": 0}, "must be a number from 1e-12 to 1e.12, got 0"),
        ({"beta": "much"}, "beta, unless .auto., must be"),
        ({"preset": "slow"}, "unknown preset 'slow'"),
        ({"penalty_users": "l7:1"}, "unknown penalty"),
        ({"penalty_users": 3}, "needs the methods value and prox"),
        ({"penalty_items": "group-l2:1"}, "beta='auto' needs a separable penalty"),
        ({"inner_steps": 0}, "inner_steps must be at least 1"),
        ({"dtype": "float16"}, "unknown dtype 'float16': choose one of float32, float64"),
        ({"update": "both"}, "unknown update"),
        ({"update": "curvature", "loss": "huber:1"}, "needs the square loss, got huber"),
        ({"update": "curvature", "beta": 1.0}, "beta has no meaning with algorithm='curvature'"),
        ({"update": "curvature", "penalty_items": "group-l2:1"}, "needs a separable penalty"),
        ({"patience": 3}, "patience needs validation"),
        ({"validation": 0.1, "patience": 0}, "patience must be at least 1"),
        ({"rounds": -1}, "rounds must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_settings(params, message):
    with pytest.raises(FedmcError, match=message):
        FedMC(**(SMALL | params)).fit(planted())


def test_not_fitted():
    with pytest.raises(InputError, match="not fitted yet"):
        FedMC().predict(1, 2)


def test_stopping_rules():
    ratings = planted(users=100)
    by_rounds = FedMC(**SMALL).fit(ratings)
    assert by_rounds.n_rounds_ == 5
    assert [round.number for round in by_rounds.rounds_] == list(range(6))
    patient = FedMC(**(SMALL | {"rounds": 400, "penalty_users": "l2:0.01"}), validation=0.2, patience=5).fit(ratings)
    best = np.argmin([round.diagnostics.validation_rmse for round in patient.rounds_])
    assert patient.n_rounds_ == best + 5 < 400
    settled = FedMC(**(SMALL | {"rounds": 2000}), tolerance=1e-3).fit(ratings)
    assert 1 < settled.n_rounds_ < 2000
    last = settled.rounds_[-1]
    assert last.diagnostics.primal_residual <= 1e-3 * 2 * np.linalg.norm(last.V)
    brief = FedMC(**(SMALL | {"rounds": 10**6}), seconds=0.05).fit(ratings)
    assert sum(round.seconds for round in brief.rounds_[:-1]) < 0.05


def test_divergence_names_the_cure():
    with pytest.raises(Diverged, match="raise beta"):
        FedMC(3, preset="paper", clients=4, active=2, rounds=2000, beta=1e-9).fit(planted())


def test_divergence_keeps_the_last_finite_model():
    estimator = FedMC(3, preset="paper", clients=4, active=2, rounds=2000, beta=1e-9)
    with pytest.raises(Diverged):
        estimator.fit(planted())
    estimator.model_ = replace(estimator.model_, rating_range=None)  # predictions as training measures them
    assert -estimator.score(planted()) == pytest.approx(estimator.rounds_[-1].diagnostics.train_rmse, rel=1e-6)


def test_patience_counts_only_measured_rounds():
    from fedmc.data.partition import Federation, assign_users, make_shards
    from fedmc.data.splits import at_random as split
    from fedmc.training.simulation import train
    from fedmc.training.stopping import Stop

    rest, validation = split(planted(users=100), 0.2, 0)
    settings = FedMC(**SMALL).settings(4)
    shards = make_shards(rest, assign_users(100, 4, 0), "float64", validation=validation)
    run = train(Federation(shards, rest.users, rest.items), settings, Stop(60, patience=2), measure_every=3)
    assert run.history[-1].number > 3
    assert run.history[-1].diagnostics.validation_rmse is not None


@pytest.mark.parametrize(("loss", "penalty"), [("huber:1", "l2:0.5"), (None, "l1:0.3"), (None, "non-negative+l2:0.1")])
def test_fast_preset_without_a_closed_form_measures_fitted_users(loss, penalty):
    """The kept U minimises its own problem at V: a fold-in from scratch finds nothing better."""
    estimator = FedMC(3, clients=4, rounds=10, loss=loss, penalty_users=penalty).fit(planted())
    folded = estimator.fold_in(planted())
    np.testing.assert_allclose(estimator.model_.U, folded.U, atol=1e-2)


def test_logistic_takes_likes_as_they_are():
    ratings = planted(users=200, items=30, density=0.5, noise=0.05)
    ratings.matrix.data[:] = ratings.matrix.data > 3
    estimator = FedMC(3, clients=5, rounds=30, loss="logistic", penalty_users="l2:0.3").fit(ratings)
    assert estimator.model_.scaling == (0.0, 1.0)
    entries = ratings.matrix.tocoo()
    predicted = estimator.predict(entries.row, entries.col)
    assert predicted.min() >= 0
    assert predicted.max() <= 1
    assert -estimator.score(ratings) < 0.8 * entries.data.std()
    with pytest.raises(InputError, match="normalise must be 'none'"):
        FedMC(3, loss="logistic", normalise="mean").fit(ratings)


def test_a_tiny_spread_around_a_large_mean_is_seen():
    ratings = planted()
    ratings.matrix.data[:] += 1e9
    scaling = FedMC(**SMALL).fit(ratings).model_.scaling
    assert scaling.mean == pytest.approx(ratings.matrix.data.astype(float).mean())
    assert scaling.scale == pytest.approx(ratings.matrix.data.astype(float).std(), rel=1e-3)


def test_costly_diagnostics_only_when_asked_for():
    plain = FedMC(**SMALL).fit(planted()).rounds_[-1].diagnostics
    full = FedMC(**SMALL, full_diagnostics=True).fit(planted()).rounds_[-1].diagnostics
    assert plain.objective == full.objective
    assert plain.lagrangian is plain.stationarity is plain.primal_residual is None
    assert full.lagrangian is None  # no duals
    assert full.stationarity > 0
    assert full.primal_residual > 0
    assert full.certified is False
    tied = FedMC(**SMALL, update="exact", full_diagnostics=True).fit(planted()).rounds_[-1].diagnostics
    assert tied.lagrangian > 0
    assert tied.beta_needed > 0


def test_any_object_with_value_and_prox_is_a_penalty():
    class Half:
        def value(self, X):
            return 0.25 * float(np.sum(X**2))

        def prox(self, Z, step):
            return Z / (1 + 0.5 * step)

    own, named = (
        FedMC(3, preset="paper", clients=4, rounds=10, penalty_users=p).fit(planted()) for p in (Half(), "l2:0.5")
    )
    np.testing.assert_allclose(own.model_.V, named.model_.V, rtol=1e-9)


def test_bytes_are_counted():
    fitted = FedMC(**(SMALL | {"preset": "paper", "active": 2})).fit(planted())
    down = up = 15 * 3 * 8 + 8  # V and beta; the change of S and whether the client is new
    assert {(r.bytes_down, r.bytes_up) for r in fitted.rounds_[1:]} == {(2 * down, 2 * up)}
    assert (fitted.rounds_[0].bytes_down, fitted.rounds_[0].bytes_up) == (4 * down, 4 * up)
    measured = {r.bytes_measured for r in fitted.rounds_ if r.diagnostics.objective is not None}
    assert measured == {4 * (down + 10 * 8)}


def test_the_server_does_not_grow_with_the_clients():
    from fedmc.training.rounds import Traffic, start_up
    from tests.conftest import local_engine

    sizes = set()
    for clients in (2, 40):
        engine = local_engine(planted(), clients)
        broadcast, server = start_up(Traffic(engine), FedMC(3, preset="paper", active=1).settings(clients), (0,))
        sizes.add(sum(np.asarray(part).nbytes for part in server) + broadcast.nbytes)
    assert len(sizes) == 1


def test_ratings_is_exported():
    assert Ratings.from_arrays(["a"], ["b"], [1.0]).matrix.shape == (1, 1)
