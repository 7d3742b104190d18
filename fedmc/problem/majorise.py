"""Majorise-minimise: any smooth loss through quadratic problems that the compiled kernels solve.

The second derivative of a loss is at most its `curvature` c. So around predictions x the quadratic

    c/2 (z - t)^2,     t = x - gradient(x, m) / c

lies above the loss and touches it at x, up to a constant. To minimise it over a row is a problem with the square loss,
the targets t for ratings and the penalty divided by c. Repeated, this is proximal gradient descent in the metric of the
row's own Gram matrix. Its rate does not depend on how the item factors are scaled or correlated, only on how far the
loss is from its quadratic; Nesterov's momentum, started again wherever it overshoots, takes the square root of that.
The square loss is its own quadratic: one step.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedmc.kernels import majorise, passes
from fedmc.kernels.majorise import Iterates, Quadratics
from fedmc.problem.losses import Loss
from fedmc.problem.penalties import Coefficients, Coupling
from fedmc.types import Array

MAX_STEPS = 1000
BYTES = 2**22  # of the Gram matrices that are kept between steps


def minimise(
    matrix: sparse.csr_array, loss: Loss, F: Array, X: Array, numbers: Coefficients, coupling: Coupling | None,
    tolerance: float,
) -> Array:  # fmt: skip
    """The minimiser over the rows X of loss(X F', matrix) + penalty, each down to a relative step of `tolerance`."""
    out, free = X.copy(), numbers.free
    out[:, numbers.fixed] = numbers.values[numbers.fixed]
    quadratics = _quadratics(F, numbers, coupling, loss.curvature, len(X))
    together = max(1, BYTES // (quadratics.F.shape[1] ** 2 * F.itemsize))
    for first in range(0, len(X), together):
        block = slice(first, first + together)
        D, q = quadratics.D, quadratics.q
        part = quadratics._replace(q=q[block], D=D[block] if len(D) > 1 else D)
        out[block, free] = _fit(matrix[block], loss, F, out[block], free, part, tolerance)[:, : len(free)]
    return out


def _quadratics(F: Array, numbers: Coefficients, coupling: Coupling | None, c: float, rows: int) -> Quadratics:
    """Penalty and coupling, divided by the curvature."""
    free, dtype = numbers.free, F.dtype
    l1, l2, lo, hi = numbers.of_free(dtype)
    D, q = np.zeros((1, len(free))) + l2 / c, np.zeros((0, len(free)))
    if coupling is not None:
        rho = np.broadcast_to(coupling.rho, (rows if np.ndim(coupling.rho) == 2 else 1, F.shape[1]))[:, free] / c
        D, q = D + rho, rho * np.asarray(coupling.anchor)[:, free]
    few = len(free) // 2 if numbers.closed and D.size and D.min() > 0 else -1
    D, q = (passes.lines(np.asarray(one, dtype)) for one in (D, q))
    A, l1 = np.empty((0, 0, 0), dtype), (l1 / c).astype(dtype)
    return Quadratics(passes.lines(F, free), D, q, l1, lo, hi, len(free), few, numbers.closed, A)


def _fit(
    matrix: sparse.csr_array, loss: Loss, F: Array, X: Array, free: Array, quadratics: Quadratics, tolerance: float
) -> Array:
    """Steps until all rows have ended; those that have are left out as soon as they are half of the rest."""
    indptr, indices, m, c = matrix.indptr, matrix.indices, matrix.data, loss.curvature
    quadratics = majorise.factorised(indptr, indices, quadratics)
    at_X, start = passes.predictions(indptr, indices, F, X), passes.lines(X, free)
    at_Y = at_X.copy()
    iterates = Iterates(start, start.copy(), np.ones(len(X)), np.ones(len(X), np.bool_))
    rows = np.arange(len(X))
    for _ in range(MAX_STEPS):
        pulls = np.asarray(loss.gradient(at_Y, m) / c, X.dtype)
        majorise.step(rows, indptr, indices, pulls, at_X, at_Y, quadratics, iterates, tolerance)
        moving = iterates.moving[rows]
        if not moving.any():
            break
        if 2 * np.count_nonzero(moving) <= len(rows):
            lengths = np.diff(indptr)
            kept = np.repeat(moving, lengths)
            indices, m, at_X, at_Y = indices[kept], m[kept], at_X[kept], at_Y[kept]
            rows = rows[moving]
            indptr = np.concatenate([[0], np.cumsum(lengths[moving])]).astype(indptr.dtype)
    return iterates.X
