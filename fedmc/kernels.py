"""The compiled inner loops; `reference.py` holds a plain numpy twin of each, which is its oracle.

Rows of U are independent given W, and rows of W given U, so one kernel serves both halves. Row x with ratings
m_k of the columns k needs of the other side's factors F only

    G = sum_k f_k f_k'        b = sum_k m_k f_k        gradient = G x - b

after which a step costs r^2 instead of a pass over the ratings. `rho` and `anchor` hold the coupling
rho/2 (x - anchor)^2 of the W-half, one row each; the U-half passes them empty (no rows). Ratings are
read as (m - shift) * inv, so that centring and scaling need no copy of the data.

A row's arithmetic never depends on how rows are shared among threads: same seed, same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit as _njit
from numba import prange
from numpy.typing import NDArray

Array = NDArray[Any]

njit: Callable[..., Any] = _njit  # its own type hints describe another class

CHUNKS = 64  # pieces of about equal work that threads take from; buffers are made once for each


@njit(cache=True)
def _bounds(indptr: Array, chunks: int) -> Array:
    """Row bounds of chunks with about equal work, a row counting as its ratings and one more."""
    rows = indptr.size - 1
    bounds = np.empty(chunks + 1, np.int64)
    row = 0
    total = np.int64(indptr[rows]) + rows
    for chunk in range(chunks):
        while row < rows and (np.int64(indptr[row]) + row) * chunks < total * chunk:
            row += 1
        bounds[chunk] = row
    bounds[chunks] = rows
    return bounds


@njit(cache=True)
def _gram(
    start: int, stop: int, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, G: Array, b: Array
) -> None:
    """G = sum f f' (both triangles), b = sum m f over one row's ratings."""
    width = b.size
    G[:] = 0
    b[:] = 0
    for k in range(start, stop):
        f = F[indices[k]]
        m = (ratings[k] - shift) * inv
        for a in range(width):
            b[a] += m * f[a]
            for c in range(a, width):
                G[a, c] += f[a] * f[c]
    for a in range(width):
        for c in range(a):
            G[a, c] = G[c, a]


@njit(cache=True)
def _residual_gradient(
    start: int, stop: int, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, x: Array, g: Array
) -> None:
    """g = sum (x'f - m) f, one pass over the row's ratings."""
    g[:] = 0
    for k in range(start, stop):
        f = F[indices[k]]
        e = -(ratings[k] - shift) * inv
        for a in range(x.size):
            e += x[a] * f[a]
        for a in range(x.size):
            g[a] += e * f[a]


@njit(cache=True)
def _prox(z: Any, step: Any, l1: Any, l2: Any, lo: Any, hi: Any, rho: Any, anchor: Any) -> Any:
    """clip( soft(z + step rho anchor, step l1) / (1 + step (l2 + rho)), lo, hi ); not-a-number stays so."""
    z = z + step * rho * anchor
    t = step * l1
    if z > t:
        z = z - t
    elif z < -t:
        z = z + t
    else:
        z = z * 0
    z = z / (1 + step * (l2 + rho))
    if z < lo:
        z = lo
    if z > hi:
        z = hi
    return z


@njit(cache=True)
def _unrated(x: Array, rho: Array, anchor: Array, L: Any, N: int) -> None:
    """N steps of a row without ratings, coupled and otherwise free: x = c^N x + (1 - c^N) anchor, c = L/(L + rho)."""
    for a in range(x.size):
        c = (L / (L + rho[a])) ** N
        x[a] = c * x[a] + (1 - c) * anchor[a]


@njit(cache=True, parallel=True, nogil=True)
def prox_steps(
    indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array, rho: Array, anchor: Array,
    l1: Array, l2: Array, lo: Array, hi: Array, L: Any, N: int, passes: bool,
) -> Array:  # fmt: skip
    """N times  x <- prox_{R/L}( x - (G x - b)/L )  for each row x of X; returns the new rows.

    `passes`: never by the Gram, but with a pass over the ratings for each step.
    """
    rows, width = X.shape
    coupled = rho.shape[0] > 0
    free = coupled and not (np.any(l1 != 0) or np.any(l2 != 0) or np.any(lo != -np.inf) or np.any(hi != np.inf))
    out = X.copy()
    step = 1 / L
    chunks = min(rows, CHUNKS)
    bounds = _bounds(indptr, chunks)
    for chunk in prange(chunks):
        G = np.empty((width, width), X.dtype)
        b = np.empty(width, X.dtype)
        g = np.empty(width, X.dtype)
        zero = np.zeros(width, X.dtype)
        for row in range(bounds[chunk], bounds[chunk + 1]):
            start, stop = indptr[row], indptr[row + 1]
            x = out[row]
            weight = rho[row] if coupled else zero
            target = anchor[row] if coupled else zero
            if start == stop and free:
                _unrated(x, weight, target, L, N)
                continue
            ratings_here = stop - start
            by_gram = not passes and ratings_here * (width + 1) // 2 + N * width < 2 * N * ratings_here
            if by_gram:
                _gram(start, stop, indices, ratings, shift, inv, F, G, b)
            for _ in range(N):
                if by_gram:
                    for a in range(width):
                        g[a] = -b[a]
                    for c in range(width):
                        for a in range(width):
                            g[a] += G[c, a] * x[c]
                else:
                    _residual_gradient(start, stop, indices, ratings, shift, inv, F, x, g)
                for a in range(width):
                    x[a] = _prox(x[a] - step * g[a], step, l1[a], l2[a], lo[a], hi[a], weight[a], target[a])
    return out


@njit(cache=True, parallel=True, nogil=True)
def gradient_rows(indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array) -> Array:
    """G x - b for each row x of X, in residual form."""
    out = np.empty_like(X)
    for row in prange(X.shape[0]):
        _residual_gradient(indptr[row], indptr[row + 1], indices, ratings, shift, inv, F, X[row], out[row])
    return out


@njit(cache=True, parallel=True, nogil=True)
def squared_errors(indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array) -> Array:
    """sum_k (x'f_k - m_k)^2 for each row x of X, in float64."""
    out = np.zeros(X.shape[0], np.float64)
    for row in prange(X.shape[0]):
        for k in range(indptr[row], indptr[row + 1]):
            e = -(ratings[k] - shift) * inv
            for a in range(X.shape[1]):
                e += X[row, a] * F[indices[k], a]
            out[row] += np.float64(e) * np.float64(e)
    return out


def warm_up(dtype: Any) -> None:
    """Compile (or load from the disk cache) the kernels of this file, so that no round pays for it."""
    number = np.dtype(dtype).type
    ratings = np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, dtype), number(0), number(1)
    F = X = np.zeros((0, 1), dtype)
    zeros = [np.zeros(1, dtype)] * 4
    prox_steps(*ratings, F, X, F, F, *zeros, number(1), 1, False)
    gradient_rows(*ratings, F, X)
    squared_errors(*ratings, F, X)
