"""Ranking metrics on a client's held-out pairs as sums over its users, and the means that the server makes of them.

Validation pairs are no candidates in the test. What is measured, and how users are ranked, is up to the caller: models
of events (`event_measures`) and of ratings (`rating_ranking`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.algorithms.messages import Part, Schema, Sums
from fedmc.data.matrices import narrow
from fedmc.data.partition import Shard
from fedmc.types import Array

PARTS = ("test", "validation")
Ranker = Callable[[Array, sparse.csr_array, sparse.csr_array], dict[str, float]]  # of rows: what was seen and held out


def schema(names: Sequence[str]) -> Schema:
    """The parts of a measurement: each name for the test and for the validation."""
    return {f"{part}_{name}": Part(nonnegative=True) for part in PARTS for name in names}


def client(shard: Shard, names: Sequence[str], ranked: Ranker) -> dict[str, ArrayLike]:
    """One client's sums over its users with held-out pairs, as `ranked` finds them; zeros if there are none."""
    found: dict[str, ArrayLike] = {}
    seen = shard.pattern()
    for part, held_out in (("validation", shard.validation), ("test", shard.test)):
        sums = dict.fromkeys(names, 0.0)
        if held_out is not None and held_out.nnz:
            some = np.flatnonzero(np.diff(held_out.indptr))
            sums |= ranked(some, seen[some], held_out[some])
            more = sparse.csr_array((np.ones(held_out.nnz, np.int8), held_out.indices, held_out.indptr), seen.shape)
            seen = narrow(sparse.csr_array(seen + more))
        found |= {f"{part}_{name}": sums[name] for name in names}
    return found


def server(sums: Sums, users: str, names: Sequence[str]) -> dict[str, float]:
    """The means over users by name, such as "test_ndcg_20"; `users` names their number."""
    found: dict[str, float] = {}
    for part in PARTS:
        number = sums.number(f"{part}_{users}")
        if number:
            found |= {f"{part}_{name}": sums.number(f"{part}_{name}") / number for name in names}
    return found
