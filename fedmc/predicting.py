"""What an estimator does with its model once it is fitted: predict, recommend, explain, fold in, complete, score."""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from fedmc.data.features import Source
from fedmc.data.feedback import EventOptions
from fedmc.data.given import scaled
from fedmc.data.ratings import Ratings
from fedmc.errors import require
from fedmc.exporting import export
from fedmc.model import Model
from fedmc.model.explain import Effect, Id
from fedmc.model.given import explain_from
from fedmc.model.ids import Unknown
from fedmc.model.model import Interval
from fedmc.types import Array


class Predicting:
    """Inherit from this class and define how tables are read (`_table`, `_events`); `fit` sets the attributes."""

    model_: Model
    confidence_: str | None

    def _table(self, X: object, y: ArrayLike | None = None) -> Ratings:
        raise NotImplementedError

    def _events(self) -> EventOptions | None:
        raise NotImplementedError

    @overload
    def predict(
        self, users: ArrayLike, items: ArrayLike, *, return_std: Literal[False] = False, unknown: Unknown = "refuse"
    ) -> Array: ...
    @overload
    def predict(
        self, users: ArrayLike, items: ArrayLike, *, return_std: Literal[True], unknown: Unknown = "refuse"
    ) -> tuple[Array, Array]: ...

    def predict(
        self, users: ArrayLike, items: ArrayLike, *, return_std: bool = False, unknown: Unknown = "refuse"
    ) -> Array | tuple[Array, Array]:
        """Predicted ratings of (user, item) pairs; with `return_std` also the standard deviation of each rating.

        An unknown id is an error; with unknown="prior" it has no ratings. Both options need a Bayesian model.
        """
        if return_std:
            return self._model().predict(users, items, return_std=True, unknown=unknown)
        return self._model().predict(users, items, unknown=unknown)

    def interval(
        self, users: ArrayLike, items: ArrayLike, level: float = 0.9, *, unknown: Unknown = "refuse"
    ) -> Interval:
        """Predictions, and the ends of intervals that hold the ratings with probability `level`; Bayesian models."""
        return self._model().interval(users, items, level, unknown=unknown)

    def recommend(
        self, users: ArrayLike, n: int = 10, *, exclude_seen: bool = True, cautious: bool = False,
        only: ArrayLike | None = None, exclude: ArrayLike | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """The n best items of each user, among `only` these and without those to `exclude`: (ids, scores).

        If `cautious`, an item's score is what the expected rating exceeds with 90 % probability; Bayesian models.
        """
        return self._model().recommend(
            users, n, exclude_seen=exclude_seen, cautious=cautious, only=only, exclude=exclude
        )

    def explain(self, user: Id, item: Id, X: object = None, **side: Source | None) -> list[Effect]:
        """What moved a prediction, as effects that add up to it; X and side information are those given to `fit`."""
        return explain_from(self._model(), user, item, None if X is None else self._table(X), **side)

    def fold_in(self, X: object, y: ArrayLike | None = None) -> Model:
        """A model that predicts and recommends for new users, given their ratings."""
        model = self._model()
        return model.fold_in(scaled(self._table(X, y), self.confidence_))

    def transform(self, X: object) -> Array:
        """X with its missing entries filled in, for known and new users: users x all items."""
        return self._model().transform(self._table(X))

    def score(self, X: object, y: ArrayLike | None = None) -> float:
        """The negative RMSE on these ratings, or NDCG@20 on these events: higher is better."""
        ratings = self._table(X, y)
        if self._events() is not None:
            return self._model().ranking(ratings)[20].ndcg
        entries = ratings.matrix.tocoo()
        predicted = self.predict(ratings.users[entries.row], ratings.items[entries.col])
        return -float(np.sqrt(np.mean(np.square(predicted - entries.data))))

    def save(self, path: str) -> None:
        """Write the model as one .npz file without pickle, atomically."""
        self._model().save(path)

    def export(
        self, path: str, to: str, *, items_only: bool = False, posterior: bool = False, dtype: str | None = None,
        overwrite: bool = False,
    ) -> dict[str, str]:  # fmt: skip
        """Write the model for programs without fedmc: to npz, parquet, faiss, hnsw or onnx (`fedmc.exporting`)."""
        return export(
            self._model(), path, to, items_only=items_only, posterior=posterior, dtype=dtype, overwrite=overwrite
        )

    def _model(self) -> Model:
        require(hasattr(self, "model_"), "this FedMC is not fitted yet: call fit first")
        return self.model_
