"""What a client can say about a run, as numbers that add up over clients.

The basic ones: loss, penalty and squared errors at the global V. With `full`, what the theory speaks of: the augmented
Lagrangian, the primal residual, the two norms that bound dist(0, dPhi) and the Lipschitz constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

if TYPE_CHECKING:
    from fedmc.algorithms.client import ClientState


POWER = 16  # a maximum that travels as a sum: (sum x^16)^(1/16) exceeds max x by at most p^(1/16)


def measure(shard: Shard, U: Array, state: ClientState | None, cast: Broadcast) -> Sums:
    """Loss, penalty, squared errors and non-zeros at the global V; with `cast.full` also what the theory needs."""
    problem = Problem(shard.by_user, cast.settings.make_loss(), cast.scaling)
    penalty, _ = cast.settings.penalties(cast.clients)
    factors = U[:, : cast.settings.rank]
    loss, error = subproblem.misfit(problem, cast.V, U)
    parts: dict[str, Any] = {
        "loss": loss,
        "train_count": shard.by_user.nnz,
        "train_error": error,
        "penalty": penalty.value(U),
        "nonzeros": np.count_nonzero(factors),
        "entries": factors.size,
    }
    for name, held_out in (("test", shard.test), ("validation", shard.validation)):
        count = 0 if held_out is None else held_out.nnz
        parts[f"{name}_count"] = count
        parts[f"{name}_error"] = (
            subproblem.squared_error(problem._replace(matrix=held_out), cast.V, U) if count else 0.0
        )
    if cast.full:
        parts |= _theory(shard, state, cast, problem, U)
    return Sums.of(**parts)


def _theory(shard: Shard, state: Any, cast: Broadcast, problem: Problem, U: Array) -> dict[str, Any]:
    """What the paper's theorems speak of; with curvature, which has no duals, at V itself and no Lagrangian."""
    V, beta, p = cast.V, cast.beta, cast.clients
    tied = cast.settings.update != "curvature"
    W = V
    if tied and state is not None:
        U, W = state.U, state.W
    gap = ((W if tied or state is None else state.V) - V).astype(np.float64)
    penalty, _ = cast.settings.penalties(p)
    slope = subproblem.gradient(problem, W, U)
    L_W = subproblem.lipschitz(W, problem.loss)
    L_U = subproblem.lipschitz(U, problem.loss)
    U_bar = np.asarray(penalty.prox(U - slope / L_W, 1 / L_W), U.dtype)
    zeta = -slope - L_W * (U_bar - U)
    stationarity_U = (subproblem.gradient(problem, V, U_bar) + zeta) / p
    by_item = problem._replace(matrix=shard.by_item)
    parts = {
        "gap": np.square(gap).sum(),
        "stationarity_U": np.square(stationarity_U, dtype=np.float64).sum(),
        "gradient_V": subproblem.gradient(by_item, U_bar, V) / p,
    }
    with np.errstate(over="ignore", under="ignore"):
        parts |= {
            "L_U_high": np.float64(L_U) ** POWER,
            "L_U_low": np.float64(L_U) ** -POWER,
            "L_V_low": np.float64(L_W) ** -POWER,
            "L_high": np.float64(_cross_lipschitz(problem, U, W)) ** POWER,
        }
    if tied:
        Y = getattr(state, "Y", np.zeros_like(V))
        parts["lagrangian"] = (subproblem.loss_value(problem, W, U) + penalty.value(U)) / p + float(
            np.sum(Y * gap) + np.sum(beta / 2 * np.square(gap))
        )
    return parts


def _cross_lipschitz(problem: Problem, U: Array, W: Array) -> float:
    """A constant of grad_V f(., W) near U: curvature ||U|| ||W|| + ||P(UW - M)||, Frobenius norms."""
    scores, ratings = subproblem._scores(problem, W, U)
    pulls = problem.loss.gradient(scores, ratings)
    return float(problem.loss.curvature * np.linalg.norm(U) * np.linalg.norm(W) + np.linalg.norm(pulls))
