"""Compiled solves of the inner problem to its end; `reference.py` holds their numpy twins.

Row x with G = sum f f' and b = sum m f minimises

    1/2 x'G x - b'x + sum_a ( l1_a |x_a| + l2_a/2 x_a^2 + rho_a/2 (x_a - anchor_a)^2 ),     lo <= x <= hi

over its free coordinates: by one Cholesky where it is quadratic and unbounded, else by coordinate descent on the Gram
until no coordinate moves. What a client sends of an item with `update="curvature"` is its G and b, packed: the lower
triangle of G line by line, then b. Coordinates that are fixed are taken into b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from fedmc.kernels import CHUNKS, _bounds, _gram, njit

Array = NDArray[Any]

MOST_SWEEPS = 2000  # of coordinate descent; a handful is the rule


@njit(cache=True)
def _solve(A: Array, b: Array, tiny: Any) -> None:
    """b <- A^-1 b by Cholesky in place (lower triangle); a direction whose pivot vanishes stays 0."""
    size = b.size
    for c in range(size):
        pivot = A[c, c]
        for k in range(c):
            pivot -= A[c, k] * A[c, k]
        A[c, c] = np.sqrt(pivot) if pivot > tiny else 0
        for a in range(c + 1, size):
            total = A[a, c]
            for k in range(c):
                total -= A[a, k] * A[c, k]
            A[a, c] = total / A[c, c] if A[c, c] > 0 else 0
    for a in range(size):
        for k in range(a):
            b[a] -= A[a, k] * b[k]
        b[a] = b[a] / A[a, a] if A[a, a] > 0 else 0
    for a in range(size - 1, -1, -1):
        for k in range(a + 1, size):
            b[a] -= A[k, a] * b[k]
        b[a] = b[a] / A[a, a] if A[a, a] > 0 else 0


@njit(cache=True)
def _descend(A: Array, b: Array, x: Array, l1: Array, lo: Array, hi: Array, tolerance: Any) -> None:
    """x <- argmin 1/2 x'A x - b'x + l1|x| inside of the box, by coordinate descent from x; uses b as working space."""
    size = b.size
    for a in range(size):
        for c in range(size):
            b[a] -= A[a, c] * x[c]
    for _ in range(MOST_SWEEPS):
        moved = largest = b[0] * 0
        for a in range(size):
            z = b[a] + A[a, a] * x[a]
            if z > l1[a]:
                z -= l1[a]
            elif z < -l1[a]:
                z += l1[a]
            else:
                z *= 0  # not-a-number stays so
            z = min(max(z / A[a, a] if A[a, a] > 0 else z * 0, lo[a]), hi[a])
            change = z - x[a]
            for c in range(size):
                b[c] -= A[c, a] * change
            x[a] = z
            moved, largest = max(moved, abs(change)), max(largest, abs(z))
        if not moved > tolerance * max(largest, 1):
            break


@njit(cache=True)
def _move_fixed(G: Array, x: Array, free: Array, y: Array) -> None:
    """y -= G_fc x_c: what the fixed coordinates already explain."""
    position = 0
    for c in range(x.size):
        if position < free.size and free[position] == c:
            position += 1
            continue
        for a in range(free.size):
            y[a] -= G[free[a], c] * x[c]


@njit(cache=True, parallel=True, nogil=True)
def exact_rows(
    indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array, rho: Array, anchor: Array,
    l1: Array, l2: Array, lo: Array, hi: Array, free: Array, closed: bool,
) -> Array:  # fmt: skip
    """The minimiser of each row over its `free` coordinates; the others stay as X has them.

    Penalties come one per free coordinate. `closed`: there is neither l1 nor a bound, so one Cholesky does it.
    """
    rows, width = X.shape
    coupled = rho.shape[0] > 0
    out = X.copy()
    eps = np.finfo(X.dtype).eps
    tolerance = X.dtype.type(eps ** (2 / 3))
    chunks = min(rows, CHUNKS)
    bounds = _bounds(indptr, chunks)
    for chunk in prange(chunks):
        G = np.empty((width, width), X.dtype)
        b = np.empty(width, X.dtype)
        A = np.empty((free.size, free.size), X.dtype)
        y = np.empty(free.size, X.dtype)
        z = np.empty(free.size, X.dtype)
        for row in range(bounds[chunk], bounds[chunk + 1]):
            x = out[row]
            _gram(indptr[row], indptr[row + 1], indices, ratings, shift, inv, F, G, b)
            tiny = X.dtype.type(0)
            for a in range(free.size):
                i = free[a]
                y[a] = b[i]
                z[a] = x[i]
                for c in range(free.size):
                    A[a, c] = G[i, free[c]]
                A[a, a] += l2[a]
                if coupled:
                    A[a, a] += rho[row, i]
                    y[a] += rho[row, i] * anchor[row, i]
                tiny = max(tiny, A[a, a])
            _move_fixed(G, x, free, y)
            if closed:
                _solve(A, y, tiny * 8 * eps)
            else:
                _descend(A, y, z, l1, lo, hi, tolerance)
            for a in range(free.size):
                x[free[a]] = y[a] if closed else z[a]
    return out


@njit(cache=True, parallel=True, nogil=True)
def packed_grams(
    indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, fixed: Array, free: Array
) -> Array:
    """[lower triangle of G, b] of each row over the `free` coordinates; `fixed` holds the others' values (else 0)."""
    rows, size = indptr.size - 1, free.size
    out = np.zeros((rows, size * (size + 3) // 2), F.dtype)
    chunks = min(rows, CHUNKS)
    bounds = _bounds(indptr, chunks)
    for chunk in prange(chunks):
        z = np.empty(size, F.dtype)
        for row in range(bounds[chunk], bounds[chunk + 1]):
            packed = out[row]
            for k in range(indptr[row], indptr[row + 1]):
                f = F[indices[k]]
                m = (ratings[k] - shift) * inv
                for c in range(f.size):
                    m -= f[c] * fixed[c]
                place = 0
                for a in range(size):
                    z[a] = f[free[a]]
                    for c in range(a + 1):
                        packed[place] += z[a] * z[c]
                        place += 1
                for a in range(size):
                    packed[place + a] += m * z[a]
    return out


@njit(cache=True, parallel=True, nogil=True)
def solve_packed(S: Array, X: Array, l1: Array, l2: Array, lo: Array, hi: Array, closed: bool) -> Array:
    """The minimiser of each row from its packed sums, in float64, starting from X where it takes steps."""
    rows, size = X.shape
    out = X.astype(np.float64)
    chunks = min(rows, CHUNKS)
    for chunk in prange(chunks):
        A = np.empty((size, size))
        y = np.empty(size)
        for row in range(rows * chunk // chunks, rows * (chunk + 1) // chunks):
            place = 0
            tiny = 0.0
            for a in range(size):
                for c in range(a + 1):
                    A[a, c] = A[c, a] = S[row, place]
                    place += 1
                A[a, a] += l2[a]
                tiny = max(tiny, A[a, a])
            for a in range(size):
                y[a] = S[row, place + a]
            if closed:
                _solve(A, y, tiny * 1e-12)
                out[row] = y
            else:
                _descend(A, y, out[row], l1, lo, hi, 1e-11)
    return out


def warm_up(dtype: Any) -> None:
    """Compile (or load from the disk cache) the kernels of this file."""
    number = np.dtype(dtype).type
    ratings = np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, dtype), number(0), number(1)
    F = X = np.zeros((0, 1), dtype)
    zeros = [np.zeros(1, dtype)] * 4
    exact_rows(*ratings, F, X, F, F, *zeros, np.zeros(1, np.int64), True)
    packed_grams(*ratings, F, zeros[0], np.zeros(1, np.int64))
    solve_packed(np.zeros((0, 2)), np.zeros((0, 1)), *[np.zeros(1)] * 4, True)
