"""Shared by the methods that FedMC is compared with: local gradient steps on U, then steps on the item factors.

FedMAvg and FedMGS are those of the paper's Section 5 and its reference [wang2022federated], written for two blocks.
Federated averaging, FedProx and SCAFFOLD have one block of shared parameters. Here that block is V, and U is local: a
client first takes its user steps at the V it received, and then the method runs on the item factors with U held fixed.

All of them start like the paper's method (U and V uniform in [0, 1] with `start="uniform"`) and take
N = `settings.inner_steps` steps on U and on W. Symbols as in `admm`; lambda_max is a largest eigenvalue.
"""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part
from fedmc.algorithms.protocol import Algorithm
from fedmc.algorithms.state import LocalState, State
from fedmc.algorithms.users import by_user, start_users
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.penalties import Penalty, coefficients
from fedmc.problem.subproblem import Problem
from fedmc.types import Array


class Baseline(Algorithm):
    """An algorithm of gradient steps: the settings of FedMC have no meaning for it."""

    state_types: tuple[type[State], ...] = (LocalState,)
    unused_settings = frozenset(
        {"beta", "beta_scale", "dual_step", "extrapolation", "entry_penalty", "fit_users_to", "passes"}
    )


def largest_eigenvalue(F: Array) -> float:
    """lambda_max(F'F), kept above 0 if F is 0; NaN if F is not finite."""
    columns = np.ascontiguousarray(F.T, np.float64)
    G = np.einsum("at,bt->ab", columns, columns)  # avoids BLAS, whose threads compete with the kernels
    return max(float(np.linalg.eigvalsh(G)[-1]), 1e-12) if np.isfinite(G).all() else np.nan


def lipschitz(problem: Problem, U: Array) -> float:
    """A Lipschitz constant of the gradient in the item factors, U held fixed."""
    return problem.loss.curvature * largest_eigenvalue(U)


def descend(X: Array, slope: Array, penalty: Penalty, step: float) -> Array:
    """A step on f + R: along -(slope + grad R) if R is l2 squared, else a proximal gradient step."""
    numbers = coefficients(penalty, X.shape[1])
    if numbers is not None and numbers.closed and not numbers.fixed.any():
        return np.asarray(X - step * (slope + numbers.l2 * X), X.dtype)
    return np.asarray(penalty.prox(X - step * slope, step), X.dtype)


def user_steps(shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
    """N times  U <- U - ( grad_U f(U, V) + grad R_i(U) ) / c,   c = lambda_max(V'V) times the loss's curvature."""
    settings, V = broadcast.settings, broadcast.V
    penalty, _ = settings.penalties(broadcast.clients)
    problem = by_user(shard, broadcast)
    U = start_users(shard, broadcast) if state is None else state.U
    c = lipschitz(problem, V)
    for _ in range(settings.inner_steps):
        U = descend(U, subproblem.gradient(problem, V, U), penalty, 1 / c)
    return U


def items_penalty(broadcast: Broadcast) -> Penalty:
    return broadcast.settings.penalties(broadcast.clients)[1]


def factors_part(broadcast: Broadcast, items: int) -> Part:
    """A part of the shape of V."""
    return Part((items, broadcast.settings.width), SUM_BITS)
