"""Central baselines of implicit feedback: pooled iALS, clients alone, popularity and nearest items.

Rankings are arrays of item numbers, a row for each user, best first, of the items that the user has not seen:
`problem.ranking.sums_of` measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from fedmc.algorithms.event_sums import NOISE, default_weights, turned
from fedmc.algorithms.ials import IALS, SPREAD
from fedmc.data.matrices import narrow
from fedmc.errors import require
from fedmc.kernels import conjugate, weighted
from fedmc.kernels.ranking import NONE, top_items
from fedmc.problem.ranking import popularity_top
from fedmc.problem.rng import server_rng
from fedmc.types import Array

Factors = tuple[Array, Array]  # U, V
Fit = Callable[[sparse.csr_array, Array], Factors]  # of a client's events, and the rows that they come from
TOLERANCES = 0.3, 0.1, 0.03  # of the first quick sweeps: of a row's residual, relative to its right hand side
NEIGHBOURS, SHRINKAGE = 100, 10.0  # of nearest items
BLOCK = 1 << 25  # bytes of dense scores at a time


def defaults_for(users: int, items: int, events: int, negatives: float | None = None, noise: float = NOISE) -> IALS:
    """iALS with the weights that a federation chooses for data of this size."""
    return IALS(*default_weights(users, items, events, negatives, noise))


def first_items(items: int, rank: int, seed: int = 0, dtype: DTypeLike = np.float32) -> Array:
    """V at the start of a federation that trains iALS with this seed."""
    V = server_rng(seed).normal(0, 0.3, (items, rank)).astype(dtype)
    return np.asarray(V * np.asarray(SPREAD / (0.3 * np.sqrt(rank)), dtype))


def sweeps_of(algorithm: IALS, events: sparse.csr_array, V: Array) -> Iterator[Factors]:
    """(U, V) after each sweep, without end: U is fitted to V, and then V to U, as in a round with all clients."""
    by_user, by_item = narrow(events), narrow(sparse.csr_array(events.T.tocsr()))
    while True:
        U = fitted(algorithm, by_user, V)
        V = fitted(algorithm, by_item, U)
        yield U, V


def quick_sweeps(algorithm: IALS, events: sparse.csr_array, V: Array) -> Iterator[Factors]:
    """The same in less time: the first sweeps, which are far from the end anyway, are solved to TOLERANCES.

    All sweeps after these are exact, so the objective ends where that of `sweeps_of` ends. Factors have other axes
    after each sweep; their inner products are what counts.
    """
    by_user, by_item = narrow(events), narrow(sparse.csr_array(events.T.tocsr()))
    for tolerance in chain(TOLERANCES, repeat(0.0)):
        V, U = turned_and_fitted(algorithm, by_user, V, tolerance)
        U, V = turned_and_fitted(algorithm, by_item, U, tolerance)
        yield U, V


def turned_and_fitted(algorithm: IALS, events: sparse.csr_array, F: Array, tolerance: float = 0.0) -> Factors:
    """F with axes in which F'F is diagonal, and the factors of the rows of events, given F, with the same axes."""
    basis, roots = turned(F), np.sqrt(events.data.astype(F.dtype, copy=False))
    ridge = algorithm.ridges(np.diff(events.indptr), len(F))
    system = events.indptr, events.indices, roots, basis.V, algorithm.alpha0 * basis.squares, ridge
    found = conjugate.descend_events(*system, tolerance) if tolerance else weighted.solve_events(*system)
    return basis.V, found


def fitted(algorithm: IALS, events: sparse.csr_array, F: Array) -> Array:
    """The factors of the rows of events that minimise the objective, given those of the columns."""
    basis, roots = turned(F), np.sqrt(events.data.astype(F.dtype, copy=False))
    ridge = algorithm.ridges(np.diff(events.indptr), len(F))
    shift = algorithm.alpha0 * basis.squares
    found = weighted.solve_events(events.indptr, events.indices, roots, basis.V, shift, ridge)
    return weighted.times(found, np.ascontiguousarray(basis.Q.T))


def pooled_ials(
    events: sparse.csr_array,
    rank: int,
    alpha0: float,
    weight: float,
    exponent: float = 1.0,
    *,
    sweeps: int = 10,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Factors:
    """(U, V) of iALS on all events in one place, whose values are confidences; U is fitted to the last V.

    A federation in which all take part ends at the same objective: iterates differ, as the first sweeps here are
    approximate (`quick_sweeps`). No sums are stored, so large ranks are fast.
    """
    require(sweeps >= 1, f"sweeps must be at least 1, got {sweeps}")
    algorithm = IALS(alpha0, weight, exponent)
    start = first_items(events.shape[1], rank, seed, dtype)
    _, V = next(islice(quick_sweeps(algorithm, events, start), sweeps - 1, None))
    return fitted(algorithm, narrow(events), V), V


def model_top(factors: Factors, seen: sparse.csr_array, k: int) -> Array:
    """The k best items of each user by their inner products."""
    items, _ = top_items(*factors, seen.indptr, seen.indices, k)
    return items


def top_of_clients(events: sparse.csr_array, owner: Array, k: int, fit: Fit) -> Array:
    """The k best items of each user by a model that is fitted to the events of its client alone."""
    top = np.full((events.shape[0], k), NONE, np.int32)
    for own in np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1]):
        mine = sparse.csr_array(events[own])
        top[own] = model_top(fit(mine, own), mine, k)
    return top


def popular_top(events: sparse.csr_array, k: int) -> Array:
    """The k items that most users have."""
    counts = np.bincount(events.indices, minlength=events.shape[1])
    return popularity_top(counts, (events.indptr, events.indices), k)


def nearest_top(events: sparse.csr_array, k: int, neighbours: int = NEIGHBOURS, shrinkage: float = SHRINKAGE) -> Array:
    """The k items most similar to those that a user has: the sum of similarities, over the nearest items of each.

    Items i and j, which n_i and n_j users have, and n_ij both, have the similarity n_ij / (sqrt(n_i n_j) + shrinkage).
    """
    pattern = sparse.csr_array((np.ones(events.nnz, np.float32), events.indices, events.indptr), shape=events.shape)
    similar = _similarities(pattern, neighbours, shrinkage)
    top = np.full((events.shape[0], k), NONE, np.int32)
    for some in _blocks(*events.shape):
        scores = (pattern[some] @ similar).toarray()
        scores[pattern[some].nonzero()] = -np.inf
        best, values = _largest(scores, k)
        top[some, : best.shape[1]] = np.where(values > 0, best, NONE)
    return top


def _similarities(pattern: sparse.csr_array, neighbours: int, shrinkage: float) -> sparse.csr_array:
    """By item, in each row, the similarities of its nearest items."""
    items = pattern.shape[1]
    by_item, parts = sparse.csr_array(pattern.T.tocsr()), []
    counts = np.diff(by_item.indptr)
    for some in _blocks(items, items):
        found = (by_item[some] @ pattern).toarray()
        rows = np.arange(some.start, some.start + len(found))
        found /= np.sqrt(np.outer(counts[rows], counts)).astype(np.float32) + np.float32(max(shrinkage, 1e-9))
        found[rows - some.start, rows] = 0
        best, values = _largest(found, neighbours)
        columns = best.ravel(), np.arange(0, best.size + 1, best.shape[1])
        parts.append(sparse.csr_array((values.ravel(), *columns), shape=found.shape))
    whole = sparse.csr_array(sparse.vstack(parts, "csr"))
    whole.eliminate_zeros()
    return whole


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    height = max(1, BLOCK // (4 * max(columns, 1)))
    return (slice(start, start + height) for start in range(0, rows, height))


def _largest(scores: Array, k: int) -> Factors:
    """The places of the k largest numbers of each row, and the numbers, largest first."""
    k = min(k, scores.shape[1])
    some = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    values = np.take_along_axis(scores, some, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1), np.take_along_axis(values, order, axis=1)
