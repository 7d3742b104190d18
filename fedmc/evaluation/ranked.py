"""Ranking metrics of a fitted model on held-out pairs, beside those of popularity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.errors import DataError, require
from fedmc.kernels.ranking import NONE
from fedmc.model import Model, find_ids
from fedmc.problem.ranking import CUTOFFS, Popularity, Ranking, means_of, popularity_top, sampled_top, sums_of
from fedmc.types import Array

BLOCK = 8192  # users that are ranked at a time
SAMPLED = (
    "these metrics rank each user's held-out items among {} random ones only: they are not comparable with those of a "
    "full ranking, and can put methods in another order (Krichene and Rendle, KDD 2020); use them only to compare "
    "with papers that report them"
)


class Ranked(NamedTuple):
    """Ranking metrics by cutoff, of the model and of popularity."""

    users: int  # with held-out items
    pairs: int
    model: dict[int, Ranking]
    popularity: dict[int, Ranking]


def popularity_of(model: Model) -> Popularity:
    """How many of the model's users have each item; of a model as it was trained, that is popularity in training."""
    return Popularity(np.bincount(model.seen.indices, minlength=len(model.items)), len(model.users))


def ranked(
    model: Model, users: Array, items: Array, sampled: int | None = None, popularity: Popularity | None = None
) -> Ranked:
    """The metrics on held-out (user, item) pairs of known users and items.

    All items that a user has not seen in training are ranked; with `sampled`, only so many random ones of these and
    the held-out items, which is for comparisons with papers. A model of folded-in users knows their events only: give
    it the `popularity` of the trained one.
    """
    wanted = _pattern(model, users, items)
    some = np.flatnonzero(np.diff(wanted.indptr))
    require(len(some) > 0, "there is no held-out pair to rank", DataError)
    popularity = popularity_of(model) if popularity is None else popularity
    counts = popularity.counts
    sums: list[dict[str, Array]] = [{}, {}]
    for start in range(0, len(some), BLOCK):
        rows = some[start : start + BLOCK]
        held_out = wanted[rows]
        pattern = held_out.indptr, held_out.indices
        both = _tops(model, rows, counts) if sampled is None else _sampled(model, rows, counts, pattern, sampled)
        for total, top in zip(sums, both, strict=True):
            found = sums_of(top, pattern, popularity)
            total.update({name: total.get(name, 0) + value for name, value in found.items()})
    return Ranked(len(some), int(wanted.nnz), *map(means_of, sums))


def _pattern(model: Model, users: Array, items: Array) -> sparse.csr_array:
    rows, columns = find_ids(model.users, users, "user"), find_ids(model.items, items, "item")
    shape = len(model.users), len(model.items)
    found = sparse.csr_array(sparse.coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=shape))
    found.sum_duplicates()
    return found


def _tops(model: Model, rows: Array, counts: Array) -> tuple[Array, Array]:
    """The best items of these users, by the model and by popularity."""
    ids, scores = model.recommend(model.users[rows], max(CUTOFFS))
    top = np.full(ids.shape, NONE, np.int32)
    there = ~np.isnan(scores)
    top[there] = find_ids(model.items, ids[there], "item")
    seen = model.seen[rows]
    return top, popularity_top(counts, (seen.indptr, seen.indices), min(max(CUTOFFS), len(counts)))


def _sampled(
    model: Model, rows: Array, counts: Array, pattern: tuple[Array, Array], negatives: int
) -> tuple[Array, Array]:
    """The same among the held-out items and so many others of each user."""
    require(negatives >= 1, f"sampled must be at least 1, got {negatives}")
    seen, popular = model.seen[rows], (np.ones((len(rows), 1)), counts.astype(np.float64)[:, None])
    given = (seen.indptr, seen.indices), pattern, rows, max(CUTOFFS), negatives
    return sampled_top((model.U[rows], model.V), *given), sampled_top(popular, *given)
