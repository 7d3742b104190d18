"""Majorise-minimise: any smooth loss through the exact solves of the square loss.

The second derivative of a loss is at most its `curvature` c. So around predictions x the quadratic

    c/2 (z - t)^2,     t = x - gradient(x, m) / c

lies above the loss and touches it at x, up to a constant. To minimise it over a row is a problem with the square loss,
the targets t for ratings and the penalty divided by c, which the compiled kernels solve exactly. Repeated, this is
proximal gradient descent in the metric of the row's own Gram matrix. Its rate does not depend on how the item factors
are scaled or correlated, only on how far the loss is from its quadratic; Nesterov's momentum, started again wherever
it overshoots, takes the square root of that. The square loss is its own quadratic: one step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse

from fedmc.problem.losses import Loss
from fedmc.types import Array

MAX_STEPS = 1000
Solve = Callable[[sparse.csr_array, Array, Array], Array]
"""(targets, which rows, their start) -> the minimiser of 1/2 sum (z - t)^2 + penalty / c of these rows."""


def minimise(
    matrix: sparse.csr_array, loss: Loss, F: Array, X: Array, solve: Solve, tolerance: float, *, coupled: bool = False
) -> Array:
    """The minimiser over the rows X of loss(X F', matrix) + penalty, down to a relative step of `tolerance`.

    Rows end on their own, unless they are `coupled` by the penalty.
    """
    out = X.copy()
    if coupled:
        return _descend(matrix, loss, F, out, np.arange(len(X)), solve, tolerance)[0]
    rows, left = np.arange(len(X)), MAX_STEPS
    while len(rows) and left > 0:  # with the rows that have not ended yet, as soon as half of them have
        found, moving, taken = _descend(matrix[rows], loss, F, out[rows], rows, solve, tolerance, steps=left)
        out[rows] = found
        rows, left = rows[moving], left - taken
    return out


def _descend(
    matrix: sparse.csr_array, loss: Loss, F: Array, X: Array, rows: Array, solve: Solve, tolerance: float, *,
    steps: int | None = None,
) -> tuple[Array, Array, int]:  # fmt: skip
    """Steps until half of the rows have ended, or all without `steps`: (X, which still move, how many steps)."""
    coupled, taken = steps is None, 0
    of_row = np.repeat(np.arange(len(X)), np.diff(matrix.indptr))
    features, Y, curvature = F[matrix.indices], X, loss.curvature
    at_X = at_Y = np.einsum("kr,kr->k", X[of_row], features)
    momentum, moving = np.ones(len(X)), np.ones(len(X), bool)
    while taken < (MAX_STEPS if steps is None else steps):
        taken += 1
        targets = (at_Y - loss.gradient(at_Y, matrix.data) / curvature).astype(X.dtype, copy=False)
        fitted = sparse.csr_array((targets, matrix.indices, matrix.indptr), shape=matrix.shape)
        new = np.asarray(solve(fitted, rows, Y), X.dtype)
        at_new = np.einsum("kr,kr->k", new[of_row], features)
        overshot = np.bincount(of_row, (at_Y - at_new) * (at_new - at_X), minlength=len(X))
        move, size = np.square(new - X).sum(axis=1), np.square(new).sum(axis=1)
        if coupled:
            overshot[:], move[:], size[:] = overshot.sum(), move.sum(), size.sum()
        moving = move > tolerance**2 * np.maximum(size, 1e-24)  # a NaN has ended
        momentum[overshot > 0] = 1
        after = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        further, momentum = ((momentum - 1) / after).astype(X.dtype), after
        Y = new + further[:, None] * (new - X)
        at_Y = at_new + further[of_row] * (at_new - at_X)
        X, at_X = new, at_new
        if not moving.any() or (not coupled and 2 * np.count_nonzero(moving) <= len(X)):
            break
    return X, moving, taken
