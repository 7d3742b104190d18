"""Plain numpy twins of the kernels, one row at a time: slow, readable, and what the kernels are held to.

They take the arguments of their namesakes in `kernels.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _row(
    row: int, indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array
) -> tuple[Array, Array]:
    """The factors f_k (one a line) and the scaled ratings m_k of a row."""
    here = slice(indptr[row], indptr[row + 1])
    return F[indices[here]], (ratings[here] - shift) * inv


def prox_steps(
    indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array, rho: Array, anchor: Array,
    l1: Array, l2: Array, lo: Array, hi: Array, L: Any, N: int,
) -> Array:  # fmt: skip
    out = X.copy()
    for row, x in enumerate(out):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        weight, target = (rho[row], anchor[row]) if len(rho) else (0, 0)
        for _ in range(N):
            z = x - f.T @ (f @ x - m) / L + weight * target / L
            shrunk = np.sign(z) * np.maximum(np.abs(z) - l1 / L, 0) / (1 + (l2 + weight) / L)
            x[:] = np.clip(shrunk, lo, hi)
    return out


def exact_rows(
    indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array, rho: Array, anchor: Array,
    l2: Array, free: Array,
) -> Array:  # fmt: skip
    out = X.copy()
    fixed = np.setdiff1d(np.arange(X.shape[1]), free)
    for row, x in enumerate(out):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        weight, target = (rho[row], anchor[row]) if len(rho) else (np.zeros_like(x), np.zeros_like(x))
        A = f.T @ f + np.diag(l2 + weight)
        b = f.T @ m + weight * target - A[:, fixed] @ x[fixed]
        x[free] = np.linalg.solve(A[np.ix_(free, free)], b[free])
    return out


def gradient_rows(indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array) -> Array:
    out = np.empty_like(X)
    for row, x in enumerate(X):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        out[row] = f.T @ (f @ x - m)
    return out


def squared_errors(indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array) -> Array:
    out = np.empty(len(X))
    for row, x in enumerate(X):
        f, m = _row(row, indptr, indices, ratings, shift, inv, F)
        out[row] = np.square(f @ x - m, dtype=np.float64).sum()
    return out
