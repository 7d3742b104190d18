"""What a model takes from its training ratings at home, besides factors: their range, and the width of intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.posterior import Posterior
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.types import Array


def rating_range(shards: Sequence[Shard]) -> tuple[float, float] | None:
    """The smallest and the largest training rating of these clients; None if they have no ratings."""
    data = [shard.by_user.data for shard in shards if shard.by_user.nnz]
    return (float(min(map(np.min, data))), float(max(map(np.max, data)))) if data else None


def calibrated(shards: Sequence[Shard], broadcast: Broadcast, U: Array) -> Posterior | None:
    """The posterior of these clients' users, U stacked in their order, with calibrated intervals."""
    known = broadcast.settings.make_algorithm().posterior(shards, broadcast)
    if known is None:
        return None
    matrix = shards[0].by_user if len(shards) == 1 else sparse.vstack([one.by_user for one in shards], format="csr")
    problem = Problem(matrix, broadcast.settings.make_loss(), broadcast.scaling)
    predicted, ratings = subproblem.scores(problem, broadcast.V, U)
    return known.calibrated(matrix, U, ratings - predicted)
