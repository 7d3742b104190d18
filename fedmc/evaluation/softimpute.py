"""softImpute (Mazumder, Hastie and Tibshirani 2010): the nuclear norm as the penalty, on pooled ratings.

    minimise over Z   1/2 sum over the ratings (x - z)^2  +  lambda |Z|_*

Soft-Impute repeats Z <- S_lambda(the ratings, and Z where there are none), where S_lambda subtracts lambda from the
singular values and drops those below. It needs a singular value decomposition of the whole table in each step.
softImpute-ALS (Hastie, Mazumder, Lee and Zadeh 2015, Algorithm 3.1) has the same limit if the rank suffices, and needs
one pass over the ratings for each half of a sweep. Here Z = U diag(d) V', and X* is the table filled with Z:

    V, d  <- left singular vectors and singular values of X*'U diag(d / (d + lambda))      and U turns with them
    U, d  <- the same of X* V diag(d / (d + lambda))                                       and V turns with them
    last  U diag(s) R' = X* V,   d = max(s - lambda, 0),   V <- V R

At a smaller rank it minimises 1/2 sum (x - a'b)^2 + lambda/2 (|A|^2 + |B|^2), the objective of pooled ALS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.errors import require
from fedmc.kernels import passes
from fedmc.problem.rng import server_rng
from fedmc.types import Array

SWEEPS, TOLERANCE = 300, 1e-6  # until |Z - Z before|^2 is this small, relative to |Z|^2


class Decomposed(NamedTuple):
    """Z = U diag(d) V'; U and V have orthonormal columns."""

    U: Array
    d: Array
    V: Array

    def transposed(self) -> Decomposed:
        return Decomposed(self.V, self.d, self.U)

    def factors(self) -> tuple[Array, Array]:
        """A and B of Z = A B', of equal size."""
        root = np.sqrt(self.d)
        return self.U * root, self.V * root


def soft_impute(
    table: sparse.csr_array,
    rank: int,
    weight: float,
    *,
    sweeps: int = SWEEPS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Decomposed:
    """The minimiser for lambda = `weight` among those of at most this rank, up to the tolerance."""
    require(weight >= 0, f"lambda of softImpute must be at least 0, got {weight}")
    Z = first(table.shape, rank, seed)
    for sweep, after in enumerate(iterates(table, Z, weight), 1):
        size = inner(after, after)
        change, Z = size + inner(Z, Z) - 2 * inner(after, Z), after
        if sweep >= sweeps or change <= tolerance * size:
            break
    return last_step(table, Z, weight)


def first(shape: tuple[int, int], rank: int, seed: int) -> Decomposed:
    """Z = 0, with random U."""
    rank = min(rank, *shape)
    U = np.linalg.qr(server_rng(seed).normal(size=(shape[0], rank)))[0]
    return Decomposed(U, np.ones(rank), np.zeros((shape[1], rank)))


def iterates(table: sparse.csr_array, Z: Decomposed, weight: float) -> Iterator[Decomposed]:
    """Z after each sweep, without end."""
    by_item = sparse.csr_array(table.T.tocsr())
    while True:
        Z = _half(by_item, Z.transposed(), weight).transposed()
        Z = _half(table, Z, weight)
        yield Z


def last_step(table: sparse.csr_array, Z: Decomposed, weight: float) -> Decomposed:
    """The soft-thresholded Z, whose small singular values are exactly 0."""
    U, s, R = np.linalg.svd(_filled(table, Z), full_matrices=False)
    return Decomposed(U, np.maximum(s - weight, 0), Z.V @ R.T)


def inner(one: Decomposed, other: Decomposed) -> float:
    """The sum of the products of all entries of two tables."""
    return float(np.sum((one.U.T @ other.U) * (one.V.T @ other.V) * np.outer(one.d, other.d)))


def _half(table: sparse.csr_array, Z: Decomposed, weight: float) -> Decomposed:
    """The ridge solution for the rows of the table, decomposed."""
    U, d, R = np.linalg.svd(_filled(table, Z) * (Z.d / (Z.d + weight)), full_matrices=False)
    return Decomposed(U, d, Z.V @ R.T)


def _filled(table: sparse.csr_array, Z: Decomposed) -> Array:
    """X* V: of the ratings minus Z in their places, and of Z."""
    scores = passes.predictions(table.indptr, table.indices, np.ascontiguousarray(Z.V), np.ascontiguousarray(Z.U * Z.d))
    left = sparse.csr_array((table.data - scores, table.indices, table.indptr), shape=table.shape)
    return np.asarray(left @ Z.V + Z.U * Z.d)
