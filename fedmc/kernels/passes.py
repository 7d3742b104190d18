"""Compiled passes over the ratings for losses other than square; `reference.py` holds their numpy twins.

Between the two passes of a gradient, numpy computes the loss's derivative at each prediction.
"""

from __future__ import annotations

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.gram import dot
from fedmc.kernels.simd import fma, lanes, load, padded, splat, store
from fedmc.types import Array, Scalar


def lines(numbers: Array, columns: Array | slice = slice(None)) -> Array:
    """Some columns of an array, each row padded to whole packs."""
    chosen = numbers[:, columns]
    out = np.zeros((len(chosen), padded(chosen.shape[1], chosen.dtype)), chosen.dtype)
    out[:, : chosen.shape[1]] = chosen
    return out


@inlined
def add_weighted(weight: Scalar, F: Array, line: int, sums: Array) -> None:
    """sums += weight F[line]"""
    factor = splat(weight)
    for c in range(0, sums.size, lanes(F)):
        store(sums, c, fma(factor, load(F, (line, c)), load(sums, c)))


@inlined
def add_pulls(start: int, stop: int, indices: Array, pulls: Array, F: Array, sums: Array) -> None:
    """sums += sum pull f over some entries, two at a time."""
    step = lanes(F)
    for k in range(start, stop - 1, 2):
        i, j, p, q = indices[k], indices[k + 1], splat(pulls[k]), splat(pulls[k + 1])
        for c in range(0, sums.size, step):
            store(sums, c, fma(p, load(F, (i, c)), fma(q, load(F, (j, c)), load(sums, c))))
    if (stop - start) % 2:
        add_weighted(pulls[stop - 1], F, indices[stop - 1], sums)


@njit(cache=True, nogil=True)
def _predictions(first: int, last: int, indptr: Array, indices: Array, F: Array, X: Array, out: Array) -> None:
    for row in range(first, last):
        x = X[row]
        for k in range(indptr[row], indptr[row + 1]):
            out[k] = dot(F, indices[k], x)


def predictions(indptr: Array, indices: Array, F: Array, X: Array) -> Array:
    """x_row'f_column of every stored entry."""
    out = np.empty(len(indices), X.dtype)
    threads.over_rows(_predictions, indptr, len(indices) * F.shape[1], indptr, indices, lines(F), lines(X), out)
    return out


@njit(cache=True, nogil=True)
def _pulled(first: int, last: int, indptr: Array, indices: Array, pulls: Array, F: Array, out: Array) -> None:
    for row in range(first, last):
        add_pulls(indptr[row], indptr[row + 1], indices, pulls, F, out[row])


def pulled(indptr: Array, indices: Array, pulls: Array, F: Array) -> Array:
    """sum pull f over each row's entries."""
    factors = lines(F)
    out = np.zeros((len(indptr) - 1, factors.shape[1]), F.dtype)
    threads.over_rows(_pulled, indptr, len(indices) * F.shape[1], indptr, indices, pulls, factors, out)
    return np.ascontiguousarray(out[:, : F.shape[1]])
