"""The best items of users by their factors: among all items, or some of them, and similar items."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.errors import InputError, require
from fedmc.kernels.ranking import NONE, Candidates, arranged, search
from fedmc.problem.ranking import Popularity, Ranking, means_of, sums_of
from fedmc.types import MAX_SEED, Array, whole


def best(
    U: Array, V: Array, seen: sparse.csr_array | None, n: int, allowed: Array | None = None,
    spread: Array | None = None, candidates: Candidates | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """(item numbers, scores) of the n best items of each row of U, best first; -1 and -inf where there are fewer.

    Items in `seen` are left out, and those that are not `allowed`. `spread` is subtracted from the scores.
    `candidates` are all items of V, if they are arranged already.
    """
    n = min(whole("n", n, 1, MAX_SEED), len(V))
    if seen is None:
        seen = sparse.csr_array((len(U), len(V)), dtype=np.int8)
    if spread is None:
        found = arranged(V, allowed) if candidates is None or allowed is not None else candidates
        return search(np.ascontiguousarray(U), found, seen.indptr, seen.indices, n)
    scores = (U @ V.T).astype(np.float64) - spread
    scores[np.repeat(np.arange(len(U)), np.diff(seen.indptr)), seen.indices] = -np.inf
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    items = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    best_scores = np.take_along_axis(scores, items, axis=1)
    return np.where(np.isneginf(best_scores), NONE, items), best_scores


def named(ids: Array, columns: Array) -> Array:
    """The ids of these items; where there is none (-1), the id is -1 or an empty string."""
    missing = columns == NONE
    found = ids[np.where(missing, 0, columns)]
    found[missing] = -1 if found.dtype.kind == "i" else ""
    return np.asarray(found)


def allowed(count: int, only: Array | None, exclude: Array | None) -> Array | None:
    """Which of so many items may be recommended: those in `only`, without those in `exclude`; None: all."""
    if only is None and exclude is None:
        return None
    found = np.ones(count, np.bool_) if only is None else np.zeros(count, np.bool_)
    if only is not None:
        found[only] = True
    if exclude is not None:
        found[exclude] = False
    require(bool(found.any()), "`only` and `exclude` leave no item to recommend")
    return found


def among(seen: sparse.csr_array, rows: Array, columns: Array) -> Array:
    """Which of these pairs are entries of the pattern; -1 is in none."""
    width = seen.shape[1]
    entries = np.repeat(np.arange(seen.shape[0]), np.diff(seen.indptr)) * width + seen.indices
    return np.isin(rows * width + columns, entries) & (rows >= 0) & (columns >= 0)


def ranking(
    factors: tuple[Array, Array],
    seen: sparse.csr_array,
    places: tuple[Array, Array],
    held_out: sparse.csr_array,
    cutoffs: tuple[int, ...],
) -> dict[int, Ranking]:
    """Ranking metrics of users with these factors; `places` are the rows and columns of `held_out` in the model."""
    rows, columns = places
    k = max(cutoffs)
    top, _ = best(*factors, seen[rows], k)
    top = np.pad(top, ((0, 0), (0, k - top.shape[1])), constant_values=NONE)
    counts = np.bincount(seen.indices, minlength=seen.shape[1])
    wanted = held_out.indptr, columns[held_out.indices]
    return means_of(sums_of(top, wanted, Popularity(counts, seen.shape[0]), cutoffs))


class Directions(NamedTuple):
    """Item factors of length 1, and those arranged for a search."""

    lengths: Array  # of the factors before
    unit: Array
    candidates: Candidates


def directions(V: Array) -> Directions:
    lengths = np.linalg.norm(V.astype(np.float64), axis=1)
    unit = np.ascontiguousarray(V / np.maximum(lengths, 1e-300)[:, None], V.dtype)
    return Directions(lengths, unit, arranged(unit))


def similar(items: Directions, columns: Array, n: int) -> tuple[Array, Array]:
    """(item numbers, cosines) of the n items whose factors point most nearly in the direction of each of these."""
    if bool((items.lengths[columns] == 0).any()):
        raise InputError("an item without ratings or events has no factors that others could be similar to")
    itself = sparse.csr_array(
        (np.ones(len(columns), np.int8), columns, np.arange(len(columns) + 1)), shape=(len(columns), len(items.unit))
    )
    return best(items.unit[columns], items.unit, itself, n, candidates=items.candidates)
