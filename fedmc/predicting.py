"""What an estimator does with its model once it is fitted: predict, recommend, explain, fold in, complete, score."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from fedmc.data.features import Source
from fedmc.data.feedback import EventOptions
from fedmc.data.given import scaled
from fedmc.data.ratings import Ratings, batch_of
from fedmc.data.readers.columnar import collected
from fedmc.data.rows import Columns, rows_given, values_given
from fedmc.exporting import export
from fedmc.history import in_words
from fedmc.model import Model, anyone
from fedmc.model.describing import html_of
from fedmc.model.explain import Effect, Id
from fedmc.model.given import explain_from
from fedmc.model.ids import Unknown
from fedmc.model.model import Interval
from fedmc.parameters import UNUSED, Parameters, UnfittedError
from fedmc.training.rounds import Round
from fedmc.types import Array


class Predicting(Parameters):
    """Inherit from this class and define how tables are read (`_table`, `_events`); `fit` sets the attributes."""

    columns: Columns | None
    model_: Model
    rounds_: list[Round]
    confidence_: str | None
    # X under another name, and not metadata in scikit-learn's sense
    __metadata_request__predict = {"users": UNUSED, "items": UNUSED}  # noqa: RUF012

    def _table(self, X: object, y: ArrayLike | None = None) -> Ratings:
        raise NotImplementedError

    def _events(self) -> EventOptions | None:
        raise NotImplementedError

    @overload
    def predict(
        self, users: object, items: ArrayLike | None = None, *, return_std: Literal[False] = False,
        unknown: Unknown | None = None,
    ) -> Array: ...  # fmt: skip
    @overload
    def predict(
        self, users: object, items: ArrayLike | None = None, *, return_std: Literal[True],
        unknown: Unknown | None = None,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    def predict(
        self, users: object, items: ArrayLike | None = None, *, return_std: bool = False,
        unknown: Unknown | None = None,
    ) -> Array | tuple[Array, Array]:  # fmt: skip
        """Predicted ratings of (user, item) rows, `predict(X)`, or of two arrays of ids, `predict(users, items)`.

        With `return_std` also the standard deviation of each rating; Bayesian models. Of rows, an unknown user or item
        is predicted as well as the model can: by the prior of a Bayesian model, else as the average user or item; in a
        model of events with the score 0. Of two arrays, an unknown id is an error. `unknown` is "refuse" or, with a
        Bayesian model, "prior".
        """
        model = self._model()
        if items is None:
            users = collected(users)
            self._note_columns(users)
            users, items = rows_given(users, self.columns)
            if unknown is None and not return_std:
                return anyone.predict(model, users, items)
            unknown = unknown or "prior"
        if return_std:
            return model.predict(users, items, return_std=True, unknown=unknown or "refuse")
        return model.predict(users, items, unknown=unknown or "refuse")

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

    def similar(self, items: ArrayLike, n: int = 10) -> tuple[Array, Array]:
        """The n items that are most similar to each of these: (ids, cosines of the factors), one row per item."""
        return self._model().similar(items, n)

    def find(self, text: str, n: int = 10) -> tuple[Array, Array]:
        """At most n items whose titles hold all words of the text, the best match first: (ids, titles)."""
        return self._model().find(text, n)

    def explain(self, user: Id, item: Id, X: object = None, **side: Source | None) -> list[Effect]:
        """What moved a prediction, as effects that add up to it; X and side information are those given to `fit`."""
        return explain_from(self._model(), user, item, None if X is None else self._table(X), **side)

    def fold_in(self, X: object, y: ArrayLike | None = None) -> Model:
        """A model that predicts and recommends for new users, given their ratings."""
        model = self._model()
        return model.fold_in(scaled(self._table(X, y), self.confidence_))

    @property
    def transform(self) -> Callable[[object], Array]:
        """`transform(X)`: a table with its missing entries filled in, for known and new users: users x all items.

        An estimator that was fitted to (user, item) rows has no `transform`: it would not give a row for each row.
        """
        model = self._model()
        if hasattr(self, "n_features_in_"):
            raise AttributeError("transform completes tables, and this FedMC was fitted to rows: fit it without y")
        return lambda X: model.transform(self._table(X))

    def score(self, X: object, y: ArrayLike | None = None) -> float:
        """The negative RMSE of these ratings, or NDCG@20 of these events: higher is better.

        X is a table as for `fit`, or (user, item) rows with y. Ratings of unknown users and items count as `predict`
        predicts them; events of unknown ones do not count.
        """
        model = self._model()
        if self._events() is not None:
            return model.ranking(anyone.known(model, self._table(X, y)))[20].ndcg
        if y is None:
            table = self._table(X).columns()
            users, items, y = table["user"], table["item"], table["rating"]
        else:
            X = collected(X)
            self._note_columns(X, y)
            (users, items), y = rows_given(X, self.columns), values_given(y)
        errors = anyone.predict(model, users, items) - batch_of(users, items, y).ratings
        return -float(np.sqrt(np.mean(np.square(errors))))

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

    def _repr_html_(self) -> str:
        """What a notebook shows: the model and how its training ended."""
        if not hasattr(self, "model_"):
            return f"<pre>{escape(repr(self))}</pre>"
        return html_of(self.model_, repr(self), in_words(self.rounds_))

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        """Before `fit`, scikit-learn's table of the parameters, if it is installed."""
        above = getattr(super(), "_repr_mimebundle_", None)
        if hasattr(self, "model_") or above is None:
            return {"text/plain": repr(self), "text/html": self._repr_html_()}
        return dict(above(**kwargs))

    def _model(self) -> Model:
        if not hasattr(self, "model_"):
            raise UnfittedError("this FedMC is not fitted yet: call fit first")
        return self.model_
