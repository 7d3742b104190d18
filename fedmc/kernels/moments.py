"""Compiled loops of the Bayesian model: sums of packed second moments, and the Gaussian posteriors they imply.

The moments of a Gaussian factor row (x, bias) with q = rank + 1 coordinates are one packed line of q (q + 3) / 2
numbers, [lower triangle of E[w w'], -E[w bias]] with w = (x, 1). Its last q numbers before the second part are E[w].
For a row of ratings m_k whose columns have the lines T_k, everything that its own posterior depends on is

    [G, b] = sum_k T_k + m_k [0, E[w_k]]

in the same layout as the packed Gram matrices of `solves`. The posterior of the row is then

    covariance = (precision + alpha G)^-1          mean = covariance (pull + alpha b)

`reference.py` holds the numpy twins. Lines are padded to whole packs, with one pack to spare (`padded_line`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.gram import whole_packs
from fedmc.kernels.simd import fma, lanes, load, padded, plus, splat, static_length, store, times
from fedmc.types import Array, DType, Scalar

TILE = 8  # packs of a line that stay in registers while the lines of a row are summed


def line_length(size: int) -> int:
    """Numbers in the packed line of a Gaussian with `size` coordinates."""
    return size * (size + 3) // 2


def padded_line(size: int, dtype: DType) -> int:
    """Numbers to allocate for a line: whole packs, and one more, so that packs may start anywhere in the line."""
    return padded(line_length(size), dtype) + padded(1, dtype)


@inlined
def _sum_tile(T: Array, indices: Array, start: int, stop: int, c: int, out: Array) -> None:
    """out[c:] = the sum of TILE packs of the lines, from number `c` on."""
    step = lanes(T)
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = splat(T.dtype.type(0))
    for k in range(start, stop):
        j = indices[k]
        a0, a1 = plus(a0, load(T, (j, c))), plus(a1, load(T, (j, c + step)))
        a2, a3 = plus(a2, load(T, (j, c + 2 * step))), plus(a3, load(T, (j, c + 3 * step)))
        a4, a5 = plus(a4, load(T, (j, c + 4 * step))), plus(a5, load(T, (j, c + 5 * step)))
        a6, a7 = plus(a6, load(T, (j, c + 6 * step))), plus(a7, load(T, (j, c + 7 * step)))
    store(out, c, a0)
    store(out, c + step, a1)
    store(out, c + 2 * step, a2)
    store(out, c + 3 * step, a3)
    store(out, c + 4 * step, a4)
    store(out, c + 5 * step, a5)
    store(out, c + 6 * step, a6)
    store(out, c + 7 * step, a7)


@inlined
def _sum_pack(T: Array, indices: Array, start: int, stop: int, c: int, out: Array) -> None:
    """out[c:] = the sum of one pack of the lines."""
    total = splat(T.dtype.type(0))
    for k in range(start, stop):
        total = plus(total, load(T, (indices[k], c)))
    store(out, c, total)


@inlined
def _sum_rated(
    T: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, start: int, stop: int, c: int, d: int,
    out: Array,
) -> None:  # fmt: skip
    """out[c:] = the sum of rating times the pack of the lines that starts at `d`."""
    total = splat(T.dtype.type(0))
    for k in range(start, stop):
        m = splat(T.dtype.type((ratings[k] - shift) * inv))
        total = fma(m, load(T, (indices[k], d)), total)
    store(out, c, total)


@njit(cache=True, nogil=True)
def _sum_rows(
    first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, T: Array,
    size: int, out: Array,
) -> None:  # fmt: skip
    step, length = lanes(T), size * (size + 3) // 2
    packs = whole_packs(length, step)
    tail, means = length - size, length - 2 * size  # where b and E[w] begin
    line = np.zeros(packs + step, T.dtype)
    rated = np.zeros(whole_packs(size, step), T.dtype)
    for row in range(first, last):
        start, stop = indptr[row], indptr[row + 1]
        c = 0
        while c + TILE * step <= packs:
            _sum_tile(T, indices, start, stop, c, line)
            c += TILE * step
        while c < packs:
            _sum_pack(T, indices, start, stop, c, line)
            c += step
        for c in range(0, rated.size, step):
            _sum_rated(T, indices, ratings, shift, inv, start, stop, c, means + c, rated)
        target = out[row]
        for c in range(tail):
            target[c] = line[c]
        for c in range(size):
            target[tail + c] = line[tail + c] + rated[c]


def sum_moments(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, T: Array, size: int
) -> Array:
    """[G, b] of each row: the sum over its ratings of the packed lines T (padded), ratings times means added to b."""
    out = np.empty((len(indptr) - 1, line_length(size)), T.dtype)
    effort = len(indices) * T.shape[1] + 2.0 * out.size
    threads.over_rows(_sum_rows, indptr, effort, indptr, indices, ratings, shift, inv, T, size, out)
    return out


@inlined
def _add_line(A: Array, source: int, target: int, weight: Scalar, width: int) -> None:
    """A[target] += weight A[source]"""
    step, factor = lanes(A), splat(weight)
    for c in range(0, width, step):
        store(A, (target, c), fma(factor, load(A, (source, c)), load(A, (target, c))))


@inlined
def _invert(A: Array, size: int, width: int) -> float:
    """Replace [A, b] with [A^-1, A^-1 b] by sweeping each pivot; returns log det A. A is positive definite."""
    step, log_det = lanes(A), 0.0
    for c in range(size):
        pivot = A[c, c]
        log_det += np.log(pivot)
        A[c, c] = 1
        inverse = splat(1 / pivot)
        for k in range(0, width, step):
            store(A, (c, k), times(inverse, load(A, (c, k))))
        for a in range(size):
            if a != c:
                weight = -A[a, c]
                A[a, c] = 0
                _add_line(A, c, a, weight, width)
    return log_det


@lru_cache
def _posterior_rows(line: int) -> Callable[..., None]:
    """The loop compiled for lines of this length; 0 means any length."""

    @njit(cache=True, nogil=True)
    def loop(
        first: int, last: int, S: Array, alpha: float, precision: Array, pull: Array, means: Array, covariances: Array,
        log_dets: Array,
    ) -> None:  # fmt: skip
        size = means.shape[1]
        width = line if line > 0 else whole_packs(size + 1, 4)
        A = np.zeros((size, width))
        for row in range(first, last):
            place = 0
            for a in range(size):
                for c in range(a + 1):
                    A[a, c] = A[c, a] = precision[a, c] + alpha * S[row, place]
                    place += 1
            for a in range(size):
                A[a, size] = pull[a] + alpha * S[row, place + a]
            log_dets[row] = -_invert(A, size, width)
            place = 0
            for a in range(size):
                means[row, a] = A[a, size]
                for c in range(a + 1):
                    covariances[row, place] = A[a, c]
                    place += 1

    return loop


def posteriors(
    S: Array, alpha: float, precision: Array, pull: Array, dtype: DType | None = None
) -> tuple[Array, Array, Array]:
    """(means, packed covariances, log determinants of the covariances) of the rows with these packed sums [G, b].

    Computed in float64; means and covariances are returned as `dtype`, by default that of S.
    """
    rows, size = len(S), len(pull)
    kind = S.dtype if dtype is None else dtype
    means, covariances = np.empty((rows, size), kind), np.empty((rows, size * (size + 1) // 2), kind)
    log_dets = np.empty(rows)
    width = padded(size + 1, np.dtype(np.float64))
    loop = _posterior_rows(static_length(width, np.dtype(np.float64)))
    arguments = S, alpha, precision, pull, means, covariances, log_dets
    threads.over_rows(loop, np.arange(rows + 1), rows * (size + 2.0) ** 3, *arguments)
    return means, covariances, log_dets


@njit(cache=True, nogil=True)
def _moment_rows(first: int, last: int, means: Array, covariances: Array, out: Array) -> None:
    size = means.shape[1]
    r = size - 1
    for row in range(first, last):
        x, cov, target = means[row], covariances[row], out[row]
        place = 0
        for a in range(r):
            for c in range(a + 1):
                target[place] = x[a] * x[c] + cov[place]
                place += 1
        tail = place + size
        for c in range(r):
            target[place + c] = x[c]
            target[tail + c] = -(x[c] * x[r] + cov[place + c])
        target[place + r] = 1
        target[tail + r] = -x[r]
        for c in range(tail + size, target.size):
            target[c] = 0


def moment_lines(means: Array, covariances: Array) -> Array:
    """The padded lines of Gaussians with these means (x, bias) and packed covariances."""
    rows, size = means.shape
    out = np.empty((rows, padded_line(size, means.dtype)), means.dtype)
    threads.over_rows(_moment_rows, np.arange(rows + 1), out.size, means, covariances, out)
    return out


@njit(cache=True, nogil=True)
def _quadratic_rows(
    first: int, last: int, rows: Array, columns: Array, X: Array, CX: Array, Y: Array, CY: Array, out: Array
) -> None:
    r = X.shape[1] - 1
    for k in range(first, last):
        i, j = rows[k], columns[k]
        place = 0
        of_x = of_y = of_both = 0.0
        for a in range(r):
            for c in range(a + 1):
                twice = 1.0 if a == c else 2.0
                of_x += twice * CX[i, place] * Y[j, a] * Y[j, c]
                of_y += twice * CY[j, place] * X[i, a] * X[i, c]
                of_both += twice * CX[i, place] * CY[j, place]
                place += 1
        for c in range(r):
            of_x += 2 * CX[i, place + c] * Y[j, c]
            of_y += 2 * CY[j, place + c] * X[i, c]
        out[k, 0] = of_x + CX[i, place + r]
        out[k, 1] = of_y + CY[j, place + r]
        out[k, 2] = of_both


def prediction_variances(rows: Array, columns: Array, X: Array, CX: Array, Y: Array, CY: Array) -> Array:
    """Variances of x'y + bias_x + bias_y for pairs of Gaussian rows: due to x, due to y, and due to both.

    X and Y are means (factors, bias), CX and CY packed covariances. The variance of a prediction is the sum of the
    three columns.
    """
    out = np.empty((len(rows), 3))
    effort = len(rows) * X.shape[1] ** 2 * 2.0
    threads.over_rows(_quadratic_rows, np.arange(len(rows) + 1), effort, rows, columns, X, CX, Y, CY, out)
    return out
