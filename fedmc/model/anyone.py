"""Predictions for any (user, item) pair: also of users and items that the model does not know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, require
from fedmc.model.ids import find_ids
from fedmc.model.model import Model
from fedmc.types import Array


def predict(model: Model, users: ArrayLike, items: ArrayLike) -> Array:
    """Predictions of which none is missing.

    An unknown user or item is predicted by the prior of a Bayesian model. In other models of ratings it is like the
    average one: the mean of their factors and biases. In a model of events it has no score yet: 0.
    """
    if model.posterior is not None:
        return model.predict(users, items, unknown="prior")
    rows, columns = find_ids(model.users, users, "user", "prior"), find_ids(model.items, items, "item", "prior")
    if model.settings.make_algorithm().of_events:
        known = (rows >= 0) & (columns >= 0)
        found = np.zeros(len(rows), model.V.dtype)
        found[known] = model.predict(model.users[rows[known]], model.items[columns[known]])
        return found
    wider = _with_averages(model)
    return wider.predict(wider.users[rows], wider.items[columns])  # -1 is the average


def known(model: Model, table: Ratings) -> Ratings:
    """The entries of a table whose users and items the model knows."""
    users, items = (find_ids(getattr(model, side), getattr(table, side), side, "prior") for side in ("users", "items"))
    kept = table.with_entries((users[table.rows()] >= 0) & (items[table.matrix.indices] >= 0))
    require(len(kept) > 0, f"none of {len(table):,} events is of a user and an item that the model knows", DataError)
    columns = kept.columns()
    return Ratings.from_arrays(columns["user"], columns["item"], columns["rating"], columns.get("timestamp"))


def _with_averages(model: Model) -> Model:
    """The model with an average user and an average item at its end, and numbers for ids."""
    U, V = (np.vstack([one, one.mean(axis=0, keepdims=True)]) for one in (model.U, model.V))
    seen = sparse.csr_array(
        (model.seen.data, model.seen.indices, np.append(model.seen.indptr, model.seen.indptr[-1])),
        shape=(len(U), len(V)),
    )
    return replace(model, users=np.arange(len(U)), items=np.arange(len(V)), U=U, V=V, seen=seen)
