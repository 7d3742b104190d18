"""The sub-problem of one half: fit rows X to a sparse matrix M of ratings, with the other side's factors F fixed.

    f(X) = sum over the ratings of loss(x_row' f_column, m)        (+ a penalty, + a coupling to V)

Square loss with a separable penalty runs in the compiled kernels, everything else in numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.kernels import passes, solves, steps
from fedmc.kernels.gram import ScaledRatings
from fedmc.problem import majorise
from fedmc.problem.losses import Loss, Square
from fedmc.problem.penalties import Coefficients, Coupling, Penalty, Step, coefficients
from fedmc.problem.scaling import Scaling
from fedmc.types import Array, DType


class Problem(NamedTuple):
    """Ratings, their scaling, and the loss."""

    matrix: sparse.csr_array
    loss: Loss
    scaling: Scaling


def raw(problem: Problem) -> ScaledRatings:
    """The ratings as the kernels take them."""
    matrix, (mean, scale) = problem.matrix, problem.scaling
    number = matrix.data.dtype.type
    return matrix.indptr, matrix.indices, matrix.data, number(mean), number(1 / scale)


def scores(problem: Problem, F: Array, X: Array) -> tuple[Array, Array]:
    """Predictions and scaled ratings of all stored entries."""
    matrix, (mean, scale) = problem.matrix, problem.scaling
    return passes.predictions(matrix.indptr, matrix.indices, F, X), (matrix.data - mean) / scale


def scores_at(problem: Problem, F: Array, X: Array, rows: Array, chosen: slice) -> tuple[Array, Array]:
    """Predictions and scaled ratings of some stored entries, which are in these rows."""
    matrix, (mean, scale) = problem.matrix, problem.scaling
    return np.einsum("kr,kr->k", X[rows], F[matrix.indices[chosen]]), (matrix.data[chosen] - mean) / scale


def misfit(problem: Problem, F: Array, X: Array) -> tuple[float, float]:
    """f(X), and sum (prediction - rating)^2 on the rating scale."""
    squared_scale = problem.scaling.scale**2
    if isinstance(problem.loss, Square):
        total = float(steps.squared_errors(*raw(problem), F, X).sum())
        return total / 2, total * squared_scale
    x, m = scores(problem, F, X)
    errors = np.square(problem.loss.link(x) - m).sum(dtype=np.float64)
    return float(problem.loss.value(x, m).sum(dtype=np.float64)), float(errors) * squared_scale


def loss_value(problem: Problem, F: Array, X: Array) -> float:
    """f(X)"""
    return misfit(problem, F, X)[0]


def squared_error(problem: Problem, F: Array, X: Array) -> float:
    """sum (prediction - rating)^2 on the rating scale."""
    return misfit(problem, F, X)[1]


def gradient(problem: Problem, F: Array, X: Array) -> Array:
    """grad f(X)"""
    if isinstance(problem.loss, Square):
        return steps.gradient_rows(*raw(problem), F, X)
    pulls = problem.loss.gradient(*scores(problem, F, X)).astype(X.dtype, copy=False)
    matrix = problem.matrix
    return passes.pulled(matrix.indptr, matrix.indices, pulls, F)


def lipschitz(F: Array, loss: Loss) -> float:
    """L = curvature ||F'F||_F, kept above 0 if F is 0 (where any constant is valid)."""
    return max(float(steps.frobenius(F)) * loss.curvature, 1e-12)


def prox_steps(
    problem: Problem,
    F: Array,
    X: Array,
    penalty: Penalty,
    N: int,
    coupling: Coupling | None = None,
    passes: bool = False,
) -> Array:
    """N proximal gradient steps of 1/L from X; `passes` avoids the Gram matrix (same steps, at the paper's cost)."""
    L = lipschitz(F, problem.loss)
    numbers = coefficients(penalty, X.shape[1])
    if isinstance(problem.loss, Square) and numbers is not None:
        rho, anchor = _coupling(coupling, X)
        return steps.steps(raw(problem), F, X, rho, anchor, _lines(numbers, X.dtype), X.dtype.type(L), N, passes)
    for _ in range(N):
        Z = X - gradient(problem, F, X) / L
        # The penalty of a coupled half only fixes columns, which a prox with step 0 also does.
        X = penalty.prox(Z, 1 / L) if coupling is None else penalty.prox(coupling.prox(Z, 1 / L), 0.0)
        X = np.asarray(X, F.dtype)
    return X


class ItemHalf(NamedTuple):
    """How the W half of a round is solved."""

    clients: int
    penalty: Penalty  # on W: fixed columns only
    steps: int
    passes: bool  # a pass over the ratings for each step, without the Gram matrix
    dual_step: float


def item_round(
    problem: Problem, U: Array, old: tuple[Array, Array], V: Array, beta: Step, half: ItemHalf
) -> tuple[Array, Array, Array, bool]:
    """The W half and the dual step from (W, Y): new W and Y, the change of beta W + Y, and whether it is finite."""
    clients, penalty, N, passes, dual = half
    (W, Y), numbers = old, coefficients(penalty, V.shape[1])
    if isinstance(problem.loss, Square) and numbers is not None:
        L, weight = W.dtype.type(lipschitz(U, problem.loss)), np.asarray(beta, W.dtype)
        weight = weight if weight.ndim else np.full((1, W.shape[1]), weight)
        lines = _lines(numbers, W.dtype)
        return steps.item_steps(raw(problem), U, W, V, Y, weight, clients, lines, L, N, passes, dual)
    coupling = Coupling(clients * beta, steps.anchors(V, Y, beta))
    W_new = prox_steps(problem, U, W, penalty, N, coupling, passes)
    return W_new, *steps.dual_step(V, W, Y, W_new, beta, dual)


def _lines(numbers: Coefficients, dtype: DType) -> steps.Lines:
    if dtype not in numbers.lines:
        numbers.lines[dtype] = steps.Lines.of(*(number.astype(dtype) for number in numbers))
    return numbers.lines[dtype]


def exact(problem: Problem, F: Array, X: Array, numbers: Coefficients, coupling: Coupling | None = None) -> Array:
    """The minimiser over the free coordinates (square loss, separable penalty); iterative solves start from X."""
    out = X.copy()
    for column in numbers.columns:
        out[:, column] = numbers.lo[column]
    l1, l2, lo, hi = numbers.of_free(X.dtype)
    rho, anchor = _coupling(coupling, X)
    return solves.solve_rows(*raw(problem), F, out, rho, anchor, l1, l2, lo, hi, numbers.free, numbers.closed)


def minimise(
    problem: Problem, F: Array, X: Array, penalty: Penalty, tolerance: float = 1e-8, coupling: Coupling | None = None
) -> Array:
    """The minimiser, started from X: exact if the kernels can solve it, else by steps down to a relative tolerance.

    A coupling needs a separable penalty.
    """
    numbers = coefficients(penalty, X.shape[1])
    if numbers is None:
        return _accelerated(problem, F, X, penalty, tolerance)
    if isinstance(problem.loss, Square):
        return exact(problem, F, X, numbers, coupling)
    matrix, (mean, scale) = problem.matrix, problem.scaling
    scaled = sparse.csr_array(((matrix.data - mean) / scale, matrix.indices, matrix.indptr), shape=matrix.shape)
    return majorise.minimise(scaled, problem.loss, F, X, numbers, coupling, tolerance)


def _accelerated(problem: Problem, F: Array, X: Array, penalty: Penalty, tolerance: float) -> Array:
    """Accelerated proximal gradient, restarted whenever it overshoots; the square loss needs Gram matrices only."""
    width, square = X.shape[1], isinstance(problem.loss, Square)
    G, b = unpacked(solves.packed_grams(*raw(problem), F, np.zeros(width, F.dtype), np.arange(width)))
    if not np.isfinite(G).all():
        return np.full_like(X, np.nan)
    step = 1 / max(float(np.linalg.eigvalsh(G)[:, -1].max()) * problem.loss.curvature, 1e-12)
    Y, momentum = X, 1.0
    for _ in range(5000):
        slope = np.einsum("tab,tb->ta", G, Y) - b if square else gradient(problem, F, Y)
        new = np.asarray(penalty.prox(Y - step * slope, step), X.dtype)
        move = new - X
        if np.vdot(Y - new, move) > 0:
            momentum = 1.0
        after = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        X, Y, momentum = new, new + (momentum - 1) / after * move, after
        if np.linalg.norm(move) <= tolerance / 10 * max(float(np.linalg.norm(X)), 1e-12):
            break
    return X


def unpacked(S: Array) -> tuple[Array, Array]:
    """(G, b) of each row, from the packed lower triangle of G and b."""
    size = (int(np.sqrt(8 * S.shape[1] + 9)) - 3) // 2
    G = np.zeros((len(S), size, size), S.dtype)
    rows, columns = np.tril_indices(size)
    G[:, rows, columns] = G[:, columns, rows] = S[:, :-size]
    return G, S[:, -size:]


def solvable(loss: Loss, penalty: Penalty, width: int) -> Coefficients | None:
    """The penalty's numbers if the kernels can solve the sub-problem exactly: square loss, separable penalty."""
    return coefficients(penalty, width) if isinstance(loss, Square) else None


def _coupling(coupling: Coupling | None, X: Array) -> tuple[Array, Array]:
    if coupling is None:
        nothing = np.empty((0, X.shape[1]), X.dtype)
        return nothing, nothing
    rho = np.asarray(coupling.rho, X.dtype)
    if rho.ndim < 2:  # one row for all
        rho = np.array(np.broadcast_to(rho, (1, X.shape[1])))
    return rho, np.ascontiguousarray(coupling.anchor, X.dtype)
