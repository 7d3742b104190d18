"""One harness for all methods of a comparison: the same split and clients, and the same ranking metrics.

All items that a user has no training rating or event with are ranked; those held out are relevant. Popularity is
measured beside each method, as in training.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.event_measures import POPULAR
from fedmc.algorithms.messages import Broadcast
from fedmc.data.ratings import Ratings
from fedmc.kernels.ranking import NONE, top_items
from fedmc.problem.ranking import CUTOFFS, METRICS, Popularity, popularity_top, sums_of
from fedmc.training.local import LocalEngine
from fedmc.types import Array

DEPTH = max(CUTOFFS)
NAMES = (
    *(f"test_{metric}_{K}" for K in CUTOFFS for metric in METRICS),
    *(f"test_popular_{metric}_{K}" for K in CUTOFFS for metric in POPULAR),
)
Measured = dict[str, float]  # measures by their names in a measured round: "test_rmse", "test_ndcg_20", ...


class Parts(NamedTuple):
    """The split and the clients of one seed, the same for every case."""

    train: Ratings
    test: Ratings
    owner: Array


class Scored(NamedTuple):
    """The factors of some users, whose inner products are scores, and what these users have seen."""

    users: Array  # their numbers
    U: Array
    V: Array
    seen: sparse.csr_array


def ranking_of(top: Array, parts: Parts) -> Measured:
    """The metrics of rankings, a row for each user, best first, with -1 in places that are missing."""
    train, test = parts.train.matrix, parts.test.matrix
    if not test.nnz:
        return {}
    popularity = Popularity(np.bincount(train.indices, minlength=train.shape[1]), train.shape[0])
    popular = popularity_top(popularity.counts, (train.indptr, train.indices), min(DEPTH, train.shape[1]))
    own, others = (sums_of(one, (test.indptr, test.indices), popularity) for one in (top, popular))
    users = float(own["users"])
    found = {f"test_{metric}_{K}": float(own[f"{metric}_{K}"]) / users for K in CUTOFFS for metric in METRICS}
    beside = {f"{metric}_{K}": float(others[f"{metric}_{K}"]) / users for K in CUTOFFS for metric in POPULAR}
    return found | {f"test_popular_{name}": value for name, value in beside.items()}


def top_of(scored: Iterable[Scored], users: int) -> Array:
    """The best items of each user that the user has not seen, by the inner products of factors."""
    top = np.full((users, DEPTH), NONE, np.int32)
    for one in scored:
        seen, k = one.seen, min(DEPTH, len(one.V))
        factors = np.ascontiguousarray(one.U), np.ascontiguousarray(one.V)
        found, _ = top_items(*factors, seen.indptr, seen.indices, k)
        top[one.users, :k] = found
    return top


def ranking_at(engine: LocalEngine, broadcast: Broadcast, parts: Parts) -> Measured:
    """The metrics of a federation's model at the broadcast's V."""
    algorithm, states = broadcast.settings.make_algorithm(), zip(engine.shards, engine.states, strict=True)
    asked = ((shard, state, engine.told(shard.client, broadcast)) for shard, state in states)
    fitted = ((shard, algorithm.users_at(shard, state, own), own) for shard, state, own in asked)
    scored = (
        Scored(shard.users, algorithm.prediction_users(shard, U, own), broadcast.V, shard.by_user)
        for shard, U, own in fitted
    )
    return ranking_of(top_of(scored, len(parts.train.users)), parts)
