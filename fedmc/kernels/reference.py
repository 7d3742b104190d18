"""Plain numpy twins of the kernels, one row at a time: slow and readable, the oracle of the tests.

They take the same arguments as the functions of the same name in `steps.py` and `solves.py`.
"""

from __future__ import annotations

from itertools import pairwise

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


def sum_moments(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, T: Array, size: int
) -> Array:
    length = size * (size + 3) // 2
    out = np.zeros((len(indptr) - 1, length), T.dtype)
    for row in range(len(out)):
        lines, m = _row(row, indptr, indices, ratings, shift, inv, T)
        out[row] = lines[:, :length].sum(axis=0)
        out[row, -size:] += m @ lines[:, length - 2 * size : length - size]
    return out


def posteriors(S: Array, alpha: float, precision: Array, pull: Array) -> tuple[Array, Array, Array]:
    size = len(pull)
    means, covariances, log_dets = [], [], []
    for line in S.astype(np.float64):
        G = np.zeros((size, size))
        G[np.tril_indices(size)] = line[:-size]
        covariance = np.linalg.inv(precision + alpha * (G + np.tril(G, -1).T))
        means.append(covariance @ (pull + alpha * line[-size:]))
        covariances.append(covariance[np.tril_indices(size)])
        log_dets.append(np.linalg.slogdet(covariance)[1])
    shape = len(S), size * (size + 1) // 2
    return np.array(means).reshape(-1, size), np.array(covariances).reshape(shape), np.array(log_dets)


def posterior_roots(S: Array, alpha: float, precision: Array, pull: Array) -> tuple[Array, Array]:
    size = len(pull)
    means, covariances, _ = posteriors(S, alpha, precision, pull)
    roots = []
    for packed in covariances:
        C = np.zeros((size, size))
        C[np.tril_indices(size)] = packed
        L = np.linalg.cholesky(np.linalg.inv(C + np.tril(C, -1).T))
        roots.append(np.linalg.inv(L)[np.tril_indices(size)])
    return means, np.array(roots).reshape(covariances.shape)


def covariances_of(roots: Array, size: int) -> Array:
    out = np.empty_like(roots)
    for row, packed in enumerate(roots):
        R = np.zeros((size, size))
        R[np.tril_indices(size)] = packed
        out[row] = (R.T @ R)[np.tril_indices(size)]
    return out


def moment_lines(means: Array, covariances: Array) -> Array:
    """Without padding."""
    rows, size = means.shape
    lines = []
    for x, packed in zip(means, covariances, strict=True):
        second = np.zeros((size, size), means.dtype)
        second[np.tril_indices(size)] = packed
        second += np.tril(second, -1).T + np.outer(x, x)  # E of (factors, bias) times itself
        E = np.ones((size, size), means.dtype)  # of w w' with w = (factors, 1)
        E[:-1, :-1], E[-1, :-1] = second[:-1, :-1], x[:-1]
        lines.append(np.concatenate([E[np.tril_indices(size)], -second[-1, :-1], -x[-1:]]))
    return np.array(lines, means.dtype).reshape(rows, size * (size + 3) // 2)


def prediction_variances(rows: Array, columns: Array, X: Array, CX: Array, Y: Array, CY: Array) -> Array:
    size = X.shape[1]
    out = np.empty((len(rows), 3))
    for k, (i, j) in enumerate(zip(rows, columns, strict=True)):
        full = []
        for packed in (CX[i], CY[j]):
            C = np.zeros((size, size))
            C[np.tril_indices(size)] = packed
            full.append(C + np.tril(C, -1).T)
        of_x, of_y = full
        x, y = np.append(X[i, :-1], 1), np.append(Y[j, :-1], 1)
        out[k] = y @ of_x @ y, x @ of_y @ x, np.sum(of_x[:-1, :-1] * of_y[:-1, :-1])
    return out


def majorised_rows(
    indptr: Array, indices: Array, pulls: Array, F: Array, Y: Array, D: Array, q: Array, l1: Array, lo: Array,
    hi: Array, closed: bool,
) -> Array:  # fmt: skip
    """One step of `majorise` from Y, with the pulls at Y."""
    out = np.empty_like(Y)
    for row, y in enumerate(Y):
        here = slice(indptr[row], indptr[row + 1])
        f, diagonal = F[indices[here]], D[row % len(D)]
        G, pull = f.T @ f, q[row] if len(q) else np.zeros_like(y)
        out[row] = minimise(G + np.diag(diagonal), G @ y - f.T @ pulls[here] + pull, y, l1, 0 * l1, lo, hi, closed)
    return out


def predictions(indptr: Array, indices: Array, F: Array, X: Array) -> Array:
    return np.einsum("kr,kr->k", np.repeat(X, np.diff(indptr), axis=0), F[indices])


def pulled(indptr: Array, indices: Array, pulls: Array, F: Array) -> Array:
    lines = [slice(*pair) for pair in pairwise(indptr)]
    return np.array([pulls[here] @ F[indices[here]] for here in lines])
