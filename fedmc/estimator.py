"""FedMC: the method in scikit-learn's conventions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.data.builder import Duplicates
from fedmc.data.loading import as_ratings
from fedmc.data.partition import Federation, assign_users, make_shards, owners_from_names
from fedmc.data.ratings import Ratings
from fedmc.data.splits import at_random as split
from fedmc.errors import DataError, InputError, require
from fedmc.model import Model
from fedmc.training.simulation import train
from fedmc.training.stopping import Stop
from fedmc.types import Array


class FedMC:
    """Federated matrix completion: the users of a table spread over clients that share item factors only.

    Settings left at None take the preset's value: `fast` (the default) or `paper` (FedMC-ADMM as published).
    Measured are as many rounds as cost little, unless `measure_every` says otherwise.
    `privacy` says what the server would see: "plain", "secagg", "dp" (with `epsilon`, `delta` and the public range of
    ratings) or "dp+secagg"; `clip` bounds what one client can do in "plain". docs/privacy.md says what each may claim.
    `penalty_users="auto"` chooses the l2 weight first, on a tenth of each client's ratings.
    After `fit`: `model_` (a `Model`), `history_` (a `Round` each), `n_rounds_`, `client_of_user_`, `trials_`.
    """

    def __init__(
        self,
        rank: int = 10,
        *,
        preset: str = "fast",
        clients: int = 10,
        active: int | None = None,
        rounds: int = 50,
        method: Any = None,
        loss: Any = None,
        penalty_users: Any = None,
        penalty_items: Any = None,
        beta: Any = None,
        inner_steps: int | None = None,
        update: str | None = None,
        sampler: Any = None,
        normalise: str | None = None,
        biases: bool | None = None,
        privacy: str = "plain",
        min_cohort: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        ratings_from: float | None = None,
        ratings_to: float | None = None,
        clip: float | None = None,
        dtype: str = "float64",
        validation: float = 0.0,
        patience: int | None = None,
        tolerance: float | None = None,
        seconds: float | None = None,
        duplicates: Duplicates = "refuse",
        full_diagnostics: bool = False,
        measure_every: int | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in list(locals().items()):
            if name != "self":
                setattr(self, name, value)

    def fit(self, X: Any, y: Any = None, *, clients: Any = None) -> FedMC:
        """Train on a Ratings, a DataFrame, a scipy sparse matrix, three arrays, or (user, item) pairs and y.

        `clients` says which client each user belongs to: a mapping from user id to client, an array with one client per
        user (in the order of the sorted ids), or the name of a DataFrame column. Without it users are spread at random.
        """
        params = self.get_params()
        ratings = self._ratings(X, y)
        owner = self._owners(ratings, X, clients)
        validation = None
        if params["validation"]:
            ratings, validation = split(ratings, params["validation"], params["seed"])
            require(
                len(validation) > 0, f"a validation share of {params['validation']} leaves no rating to validate on"
            )
        settings = self.settings(int(owner.max()) + 1)
        stop = Stop(params["rounds"], params["tolerance"], params["seconds"], params["patience"])
        require(
            stop.patience is None or validation is not None,
            "patience needs validation ratings: set validation=0.1",
        )
        shards = make_shards(ratings, owner, settings.dtype, validation=validation)
        federation = Federation(shards, ratings.users, ratings.items)
        measured = {"measure_every": params["measure_every"], "full": params["full_diagnostics"]}
        run = train(federation, settings, stop, **measured)
        self.model_, self.history_, self.trials_ = run.model, run.history, run.trials
        self.n_rounds_, self.client_of_user_ = run.history[-1].number, owner
        self.n_features_in_ = len(ratings.items)
        if run.diverged is not None:  # the last finite model stays in model_
            raise run.diverged
        return self

    def settings(self, clients: int) -> Settings:
        """The settings of a run over that many clients."""
        params = self.get_params()
        private = str(params["privacy"]).startswith("dp")
        usual = clients if private else min(clients, 10)
        active = usual if params["active"] is None else params["active"]
        names = [
            "rank",
            "method",
            "loss",
            "penalty_users",
            "penalty_items",
            "beta",
            "inner_steps",
            "update",
            "sampler",
            "normalise",
            "biases",
            "privacy",
            "min_cohort",
            "epsilon",
            "delta",
            "ratings_from",
            "ratings_to",
            "clip",
            "dtype",
            "seed",
        ]
        more = {"dp_rounds": params["rounds"]} if private else {}
        return Settings.preset(params["preset"], active=active, **{name: params[name] for name in names}, **more)

    def predict(self, users: Any, items: Any) -> Array:
        """Predicted ratings of (user, item) pairs."""
        return self._model().predict(users, items)

    def recommend(self, users: Any, n: int = 10, *, exclude_seen: bool = True) -> tuple[Array, Array]:
        """The n best items of each user: (ids, scores)."""
        return self._model().recommend(users, n, exclude_seen=exclude_seen)

    def fold_in(self, X: Any, y: Any = None) -> Model:
        """A model for users nobody has seen, from their ratings: it predicts and recommends for them."""
        return self._model().fold_in(self._ratings(X, y))

    def transform(self, X: Any) -> Array:
        """X with its missing entries filled in, for known and new users alike: users x all items."""
        return self._model().transform(self._ratings(X, None))

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        return self.fit(X, y).transform(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the RMSE on these ratings: higher is better."""
        ratings = self._ratings(X, y)
        entries = ratings.matrix.tocoo()
        predicted = self.predict(ratings.users[entries.row], ratings.items[entries.col])
        return -float(np.sqrt(np.mean(np.square(predicted - entries.data))))

    def save(self, path: str) -> None:
        self._model().save(path)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> FedMC:
        known = self.get_params()
        for name, value in params.items():
            require(name in known, f"unknown parameter {name!r}: choose from {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name]]
        return f"FedMC({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(sparse=True, allow_nan=True)
        return Tags(estimator_type="regressor", target_tags=TargetTags(required=False), input_tags=inputs)

    def _model(self) -> Model:
        if not hasattr(self, "model_"):
            raise InputError("this FedMC is not fitted yet: call fit first")
        return self.model_

    def _ratings(self, X: Any, y: Any) -> Ratings:
        if y is None:
            return as_ratings(X, duplicates=self.get_params()["duplicates"])
        pairs = np.asarray(X)
        require(
            pairs.ndim == 2 and pairs.shape[1] == 2,
            f"with y, X must be (user, item) pairs, got {pairs.shape}",
            DataError,
        )
        return as_ratings((pairs[:, 0], pairs[:, 1], y), duplicates=self.get_params()["duplicates"])

    def _owners(self, ratings: Ratings, X: Any, clients: Any) -> Array:
        count = len(ratings.users)
        if clients is None:
            return assign_users(count, self.get_params()["clients"], self.get_params()["seed"])
        if isinstance(clients, str):
            require(
                hasattr(X, "__arrow_c_stream__"), f"clients={clients!r} names a column: pass a DataFrame", DataError
            )
            clients = _clients_of_users(X, clients)
        if isinstance(clients, Mapping):
            missing = [user for user in ratings.users.tolist() if user not in clients]
            require(
                not missing,
                lambda: f"no client is given for user {missing[0]} ({len(missing)} users)",
                DataError,
            )
            clients = [clients[user] for user in ratings.users.tolist()]
        return owners_from_names(clients, count)


def _clients_of_users(X: Any, column: str) -> Array:
    """From a column of a DataFrame, which client each user belongs to."""
    from fedmc.data.readers import from_arrow

    groups = Ratings.from_batches(from_arrow(X, column), duplicates="last").groups
    assert groups is not None
    return groups[0][groups[1]]
