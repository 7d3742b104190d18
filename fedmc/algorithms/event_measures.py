"""Measures of a model of events: its objective, and ranking metrics on held-out events, as sums over users.

All items that a user has no event with are ranked. Popularity is measured beside the model: a model that does not beat
it is of no use. Each number is a sum over a client's users; which items were recommended to whom is not told.
"""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.algorithms import ranking_sums
from fedmc.algorithms.measures import COUNT, Measures
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.data.partition import Shard
from fedmc.kernels.ranking import top_items
from fedmc.problem import ranking
from fedmc.problem.ranking import CUTOFFS, METRICS, Popularity
from fedmc.types import Array

COUNTS, USERS = "counts", "number_of_users"  # arrays of the broadcast: the popularity of items
POPULAR = ("recall", "ndcg")  # measured for popularity too
Terms = Callable[[Shard, Array, Broadcast], tuple[float, float]]  # (loss, penalty) of a client's users
ItemTerms = Callable[[Broadcast], float]  # the items' part of the objective
ForPredictions = Callable[[Shard, Array, Broadcast], Array]  # the factors that rank, given those of the objective


class EventMeasures(Measures):
    """Ranking metrics, and the objective of an algorithm that has one: of users as in training, not in predictions."""

    def __init__(
        self, terms: Terms, item_terms: ItemTerms, for_predictions: ForPredictions = lambda shard, U, broadcast: U
    ) -> None:
        self.terms, self.item_terms, self.for_predictions = terms, item_terms, for_predictions

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)  # algorithms with the same numbers are equal

    def __hash__(self) -> int:
        return hash(type(self))

    def schema(self) -> Schema:
        return {"loss": COUNT, "penalty": Part()} | ranking_sums.schema(("users", *_names()))

    def client(self, shard: Shard, U: Array, broadcast: Broadcast) -> dict[str, ArrayLike]:
        loss, penalty = self.terms(shard, U, broadcast)
        objective: dict[str, ArrayLike] = {"loss": loss, "penalty": penalty}
        held_out = shard.test is not None or shard.validation is not None
        predicting = self.for_predictions(shard, U, broadcast) if held_out else U

        def ranked(some: Array, seen: sparse.csr_array, held_out: sparse.csr_array) -> dict[str, float]:
            return _ranked(predicting[some], broadcast, seen, held_out)

        return objective | ranking_sums.client(shard, ("users", *_names()), ranked)

    def server(self, sums: Sums, broadcast: Broadcast) -> dict[str, object]:
        objective = sums.number("loss") + sums.number("penalty") + self.item_terms(broadcast)
        return {"objective": objective, "ranking": ranking_sums.server(sums, "users", _names())}


def popularity_of(broadcast: Broadcast) -> Popularity:
    """The server's counts of events and users."""
    arrays = broadcast.shared.arrays
    return Popularity(arrays[COUNTS], round(float(arrays[USERS][0])))


def _names() -> list[str]:
    """The names of the sums: each metric of the model at each cutoff, and some of popularity."""
    own = [f"{metric}_{K}" for K in CUTOFFS for metric in METRICS]
    return own + [f"popular_{metric}_{K}" for K in CUTOFFS for metric in POPULAR]


def _ranked(U: Array, broadcast: Broadcast, seen: sparse.csr_array, held_out: sparse.csr_array) -> dict[str, float]:
    """Sums over users with held-out events."""
    popularity, pattern, k = popularity_of(broadcast), (seen.indptr, seen.indices), min(max(CUTOFFS), len(broadcast.V))
    top, _ = top_items(U, broadcast.V, *pattern, k)
    popular = ranking.popularity_top(popularity.counts, pattern, k)
    both = [ranking.sums_of(one, (held_out.indptr, held_out.indices), popularity) for one in (top, popular)]
    sums = {name: float(both[0][name]) for name in ("users", *_names()) if name in both[0]}
    return sums | {f"popular_{metric}_{K}": float(both[1][f"{metric}_{K}"]) for K in CUTOFFS for metric in POPULAR}
