"""Plain numpy twins of the kernels, one row at a time: slow and readable, the oracle of the tests.

They take the same arguments as the functions of the same name in `steps.py` and `solves.py`.
"""

from __future__ import annotations

import numpy as np

from fedmc.types import Array, Scalar


def _row(
    row: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array
) -> tuple[Array, Array]:
    """The factors f_k (one per line) and the scaled ratings m_k of a row."""
    here = slice(indptr[row], indptr[row + 1])
    return F[indices[here]], (ratings[here] - shift) * inv


def prox_steps(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array, rho: Array,
    anchor: Array, l1: Array, l2: Array, lo: Array, hi: Array, L: Scalar, N: int, passes: bool = False,
) -> Array:  # fmt: skip
    out = X.copy()
    for row, x in enumerate(out):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        weight, target = (rho[row % len(rho)], anchor[row]) if len(rho) else (0, 0)
        for _ in range(N):
            z = x - f.T @ (f @ x - m) / L + weight * target / L
            shrunk = np.sign(z) * np.maximum(np.abs(z) - l1 / L, 0) / (1 + (l2 + weight) / L)
            x[:] = np.clip(shrunk, lo, hi)
    return out


def exact_rows(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array, rho: Array,
    anchor: Array, l1: Array, l2: Array, lo: Array, hi: Array, free: Array, closed: bool,
) -> Array:  # fmt: skip
    out = X.copy()
    fixed = np.setdiff1d(np.arange(X.shape[1]), free)
    for row, x in enumerate(out):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        weight, target = (rho[row % len(rho)], anchor[row]) if len(rho) else (np.zeros_like(x), np.zeros_like(x))
        A = f.T @ f + np.diag(weight)
        b = f.T @ m + weight * target - A[:, fixed] @ x[fixed]
        x[free] = minimise(A[np.ix_(free, free)], b[free], x[free], l1, l2, lo, hi, closed)
    return out


def minimise(A: Array, b: Array, x: Array, l1: Array, l2: Array, lo: Array, hi: Array, closed: bool) -> Array:
    """argmin 1/2 x'Ax - b'x + l1|x| + l2/2 x^2 within the bounds: by a solve, or by many proximal gradient steps."""
    if closed:
        return np.asarray(np.linalg.solve(A + np.diag(l2), b))
    step = 1 / max(float(np.linalg.norm(A, 2)), 1e-12)
    for _ in range(20_000):
        z = x - step * (A @ x - b)
        before, x = x, np.clip(np.sign(z) * np.maximum(np.abs(z) - step * l1, 0) / (1 + step * l2), lo, hi)
        if np.array_equal(x, before):
            break
    return x


def packed_grams(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, fixed: Array, free: Array
) -> Array:
    lines = []
    for row in range(len(indptr) - 1):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        z = f[:, free]
        G = z.T @ z
        lines.append(np.concatenate([G[np.tril_indices(len(free))], z.T @ (m - f @ fixed)]))
    return np.array(lines)


def solve_packed(S: Array, X: Array, l1: Array, l2: Array, lo: Array, hi: Array, closed: bool) -> Array:
    out = X.astype(np.float64)
    size = X.shape[1]
    for row, x in enumerate(out):
        G = np.zeros((size, size))
        G[np.tril_indices(size)] = S[row, :-size]
        G += np.tril(G, -1).T
        x[:] = minimise(G, S[row, -size:], x, l1, l2, lo, hi, closed)
    return out


def gradient_rows(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array
) -> Array:
    out = np.empty_like(X)
    for row, x in enumerate(X):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        out[row] = f.T @ (f @ x - m)
    return out


def squared_errors(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array
) -> Array:
    out = np.empty(len(X))
    for row, x in enumerate(X):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        out[row] = np.square(f @ x - m, dtype=np.float64).sum()
    return out
