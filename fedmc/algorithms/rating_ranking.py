"""How a model of ratings ranks what was held out, as sums over users, if the settings ask for it (`ranking`).

All items that a user has not rated are ranked, and held-out ratings are relevant. Popularity is not measured beside it:
the server of a model of ratings is not told how many users rated an item, and this is no reason to tell it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.algorithms import ranking_sums
from fedmc.algorithms.messages import Schema, Sums
from fedmc.data.partition import Shard
from fedmc.kernels.ranking import top_items
from fedmc.problem import ranking
from fedmc.problem.ranking import CUTOFFS, METRICS, Popularity
from fedmc.types import Array

USERS = "ranked"  # the number of users with held-out ratings
NAMES = tuple(f"{metric}_{K}" for K in CUTOFFS for metric in METRICS if metric != "novelty")  # which needs popularity


def schema() -> Schema:
    """The parts that a measurement has more."""
    return ranking_sums.schema((USERS, *NAMES))


def client(shard: Shard, U: Array, V: Array) -> dict[str, ArrayLike]:
    """One client's sums, given the factors U of its users."""

    def ranked(some: Array, seen: sparse.csr_array, held_out: sparse.csr_array) -> dict[str, float]:
        rows = U[some].astype(V.dtype, copy=False)  # a client whose state has another type must not fail
        top, _ = top_items(rows, V, seen.indptr, seen.indices, min(max(CUTOFFS), len(V)))
        nobody = Popularity(np.zeros(len(V)), 1)
        sums = ranking.sums_of(top, (held_out.indptr, held_out.indices), nobody)
        return {USERS: float(len(some))} | {name: float(sums[name]) for name in NAMES}

    return ranking_sums.client(shard, (USERS, *NAMES), ranked)


def server(sums: Sums) -> dict[str, float]:
    """The metrics by name, such as "test_ndcg_20", as means over users."""
    return ranking_sums.server(sums, USERS, NAMES)
