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
def _add_line(source: Array, line: int, target: Array, to: int, weight: Scalar, start: int, stop: int) -> None:
    """target[to] += weight source[line], in the packs that hold the columns from `start` to `stop`."""
    step, factor = lanes(target), splat(weight)
    for c in range(start // step * step, stop, step):
        store(target, (to, c), fma(factor, load(source, (line, c)), load(target, (to, c))))


@inlined
def _scale_line(A: Array, line: int, weight: Scalar, start: int, stop: int) -> None:
    """A[line] *= weight, in the packs that hold the columns from `start` to `stop`."""
    step, factor = lanes(A), splat(weight)
    for c in range(start // step * step, stop, step):
        store(A, (line, c), times(factor, load(A, (line, c))))


@inlined
def _eliminate(A: Array, R: Array, size: int, floor: float) -> float:
    """Cholesky's factorisation P = L L' of [P, b], on and right of the diagonal; returns log det P.

    A becomes [L', L^-1 b], and R becomes L^-1. No pivot is below `floor`: with sums that are absurdly large, rounding
    would make it negative.
    """
    log_det = 0.0
    R[:, :] = 0
    for c in range(size):
        R[c, c] = 1
    for c in range(size):
        pivot = A[c, c] if not A[c, c] < floor else floor  # NaN stays NaN
        log_det += np.log(pivot)
        scale = 1 / np.sqrt(pivot)
        _scale_line(A, c, scale, c, size + 1)
        _scale_line(R, c, scale, 0, c + 1)
        for a in range(c + 1, size):
            weight = -A[c, a]
            _add_line(A, c, A, a, weight, a, size + 1)
            _add_line(R, c, R, a, weight, 0, c + 1)
    return log_det


@inlined
def _multiply(R: Array, size: int, C: Array) -> None:
    """The lower triangle of C = R'R for a lower triangular R."""
    C[:, :] = 0
    for k in range(size):
        for a in range(k + 1):
            _add_line(R, k, C, a, R[k, a], 0, a + 1)


@inlined
def _pack(C: Array, size: int, line: Array) -> None:
    """The lower triangle of C, line by line."""
    place = 0
    for a in range(size):
        for c in range(a + 1):
            line[place] = C[a, c]
            place += 1


@lru_cache
def _posterior_rows(line: int) -> Callable[..., None]:
    """The loop compiled for lines of this length; 0 means any length."""

    @njit(cache=True, nogil=True)
    def loop(
        first: int, last: int, S: Array, alpha: float, precision: Array, pulls: Array, means: Array, covariances: Array,
        log_dets: Array, roots: Array, floor: float,
    ) -> None:  # fmt: skip
        size = means.shape[1]
        width = line if line > 0 else whole_packs(size + 1, lanes(precision))
        A, R, C = np.zeros((size, width)), np.zeros((size, width)), np.zeros((size, width))
        mean = np.zeros((1, width))
        for row in range(first, last):
            place = 0
            for a in range(size):
                for c in range(a + 1):
                    A[c, a] = precision[a, c] + alpha * S[row, place]
                    place += 1
            for a in range(size):
                A[a, size] = pulls[row, a] + alpha * S[row, place + a]
            log_dets[row] = -_eliminate(A, R, size, floor)
            mean[0] = 0
            for k in range(size):
                _add_line(R, k, mean, 0, A[k, size], 0, k + 1)
            for a in range(size):
                means[row, a] = mean[0, a]
            if covariances.shape[0] > 0:
                _multiply(R, size, C)
                _pack(C, size, covariances[row])
            if roots.shape[0] > 0:
                _pack(R, size, roots[row])

    return loop


def posteriors(
    S: Array, alpha: float, precision: Array, pull: Array, dtype: DType | None = None
) -> tuple[Array, Array, Array]:
    """(means, packed covariances, log determinants of the covariances) of the rows with these packed sums [G, b].

    `pull` is one for all rows, or a matrix with one for each row. Computed in float64; means and covariances are
    returned as `dtype`, by default that of S.
    """
    kind, size = S.dtype if dtype is None else dtype, len(precision)
    covariances = np.empty((len(S), size * (size + 1) // 2), kind)
    means, log_dets = _posteriors(S, alpha, precision, pull, covariances, np.empty((0, 0), kind))
    return means, covariances, log_dets


def posterior_roots(S: Array, alpha: float, precision: Array, pull: Array) -> tuple[Array, Array]:
    """(means, packed roots R) of these rows' posteriors: R is lower triangular, and R'R the covariance."""
    roots = np.empty((len(S), len(precision) * (len(precision) + 1) // 2))
    means, _ = _posteriors(S, alpha, precision, pull, np.empty((0, 0)), roots)
    return means, roots


def _posteriors(
    S: Array, alpha: float, precision: Array, pull: Array, covariances: Array, roots: Array
) -> tuple[Array, Array]:
    rows, size = len(S), len(precision)
    pulls = np.ascontiguousarray(np.broadcast_to(pull, (rows, size)), np.float64)
    means, log_dets = np.empty((rows, size), covariances.dtype), np.empty(rows)
    width = padded(size + 1, np.dtype(np.float64))
    loop = _posterior_rows(static_length(width, np.dtype(np.float64)))
    floor = float(np.linalg.eigvalsh(precision)[0]) / 2  # G is positive semi-definite: true pivots are above this
    arguments = S, alpha, np.ascontiguousarray(precision), pulls, means, covariances, log_dets, roots, floor
    threads.over_rows(loop, np.arange(rows + 1), rows * (size + 2.0) ** 3, *arguments)
    return means, log_dets


@njit(cache=True, nogil=True)
def _covariance_rows(first: int, last: int, size: int, roots: Array, out: Array) -> None:
    width = whole_packs(size, 4)
    R, C = np.zeros((size, width)), np.zeros((size, width))
    for row in range(first, last):
        place = 0
        for a in range(size):
            for c in range(a + 1):
                R[a, c] = roots[row, place]
                place += 1
        _multiply(R, size, C)
        _pack(C, size, out[row])


def covariances_of(roots: Array, size: int) -> Array:
    """The packed covariances R'R of packed roots R, computed in float64: whatever R is, they are covariances."""
    out = np.empty_like(roots)
    threads.over_rows(_covariance_rows, np.arange(len(roots) + 1), len(roots) * size**3 / 4, size, roots, out)
    return out


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
