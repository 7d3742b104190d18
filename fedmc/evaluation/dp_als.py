"""Private alternating least squares (DPALS, Chien et al. 2021) on pooled ratings: user-level differential privacy.

Ratings are centred by their public range and clipped to MOST. A user counts with at most KEPT ratings, drawn at random.
A round, of ROUNDS:

    users   u_i <- ridge on the user's kept ratings given V, cut to norm 1; they stay with the user
    items   A_j <- sum u u' + N(0, KEPT sigma^2)  (symmetric)      b_j <- sum x u + N(0, KEPT MOST^2 sigma^2)
            v_j <- ( the positive part of A_j + lambda I )^-1 b_j

Without one user, all A together change by at most sqrt(KEPT) and all b by sqrt(KEPT) MOST. So a round is two Gaussian
releases of noise multiplier sigma, and sigma is calibrated for 2 ROUNDS of them by the accounting of `privacy="dp"`.
Predictions use u_i fitted to the last V with all of the user's ratings.

The paper starts V by noisy power iterations or at random, here at random, and has a variant that keeps more ratings of
rare items. The server is trusted to add the noise, which is drawn from the seed: a simulation, not for release.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.privacy.dp import mechanism
from fedmc.problem.rng import server_rng
from fedmc.types import Array

ROUNDS, KEPT, MOST = 2, 50, 1.0  # chosen on validation ratings of MovieLens 1M, at epsilon 10


class Sums(NamedTuple):
    """A_j and b_j of all items."""

    A: Array
    b: Array


def factors(table: sparse.csr_array, rank: int, weight: float, epsilon: float, delta: float, seed: int) -> Array:
    """V after the last round: (epsilon, delta)-differentially private for each user of the table."""
    rng, sigma = server_rng(seed), mechanism.calibrate(epsilon, delta, 2 * ROUNDS)
    kept = sampled(table, rng)
    V = rng.normal(size=(table.shape[1], rank)) / np.sqrt(rank)
    for _ in range(ROUNDS):
        U = users(kept, V, weight)
        noisy = noised(item_sums(kept, U / np.maximum(np.linalg.norm(U, axis=1), 1)[:, None]), sigma, rng)
        V = items(noisy, weight)
    return np.asarray(V)


def sampled(table: sparse.csr_array, rng: np.random.Generator) -> sparse.csr_array:
    """At most KEPT ratings of each user, without replacement, clipped to MOST."""
    order = rng.random(table.nnz)
    rows = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))
    by_row = np.lexsort((order, rows))
    places = np.arange(table.nnz) - table.indptr[rows]  # of the entry in its row, in random order
    kept = by_row[places < KEPT]
    values = np.clip(table.data[kept].astype(np.float64), -MOST, MOST)
    return sparse.csr_array((values, (rows[kept], table.indices[kept])), shape=table.shape)


def users(table: sparse.csr_array, V: Array, weight: float) -> Array:
    """Ridge regression of each user's ratings on V."""
    sums = item_sums(sparse.csr_array(table.T.tocsr()), V)
    return _solved(sums.A, sums.b, weight)


def item_sums(table: sparse.csr_array, U: Array) -> Sums:
    """sum u u' and sum x u over the raters of each item."""
    outer = (U[:, :, None] * U[:, None, :]).reshape(len(U), -1)
    pattern = sparse.csr_array((np.ones(table.nnz), table.indices, table.indptr), shape=table.shape)
    A = np.asarray(pattern.T @ outer).reshape(table.shape[1], U.shape[1], U.shape[1])
    return Sums(A, np.asarray(table.T @ U))


def noised(sums: Sums, sigma: float, rng: np.random.Generator) -> Sums:
    """The two releases of a round: noise on the upper triangles of A, mirrored, and on b."""
    drawn = np.triu(rng.normal(size=sums.A.shape))
    mirrored = drawn + np.triu(drawn, 1).transpose(0, 2, 1)
    scale = sigma * np.sqrt(KEPT)
    return Sums(sums.A + scale * mirrored, sums.b + scale * MOST * rng.normal(size=sums.b.shape))


def items(sums: Sums, weight: float) -> Array:
    """V from the noisy sums, whose A are projected onto the positive semi-definite matrices."""
    values, vectors = np.linalg.eigh(sums.A)
    positive = (vectors * np.maximum(values, 0)[:, None, :]) @ vectors.transpose(0, 2, 1)
    return _solved(positive, sums.b, weight)


def _solved(A: Array, b: Array, weight: float) -> Array:
    return np.asarray(np.linalg.solve(A + weight * np.eye(A.shape[1]), b[:, :, None])[:, :, 0])
