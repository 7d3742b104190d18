"""The quantities of the paper's theorems, as sums over clients: augmented Lagrangian, residuals and stationarity.

clients  gap, the parts of the bound on dist(0, dPhi), and the Lipschitz constants at the current point
server   primal and dual residual, and the bound on dist(0, dPhi) after the paper's (122d)
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from fedmc.algorithms.beta import beta_of
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import ServerState, State
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

POWER = 32  # sends a maximum as a sum: (sum x^32)^(1/32) exceeds max x by at most a factor of p^(1/32)
LIPSCHITZ = ("L_U_high", "L_U_low", "L_V_high", "L_V_low", "U_high", "W_high", "pulls_high", "L_bar", "kappa")


class Convergence(NamedTuple):
    """The server's report of a round's full diagnostics."""

    lagrangian: float | None  # None if the algorithm has no duals
    primal_residual: float  # sqrt( sum_i ||W_i - V||^2 )
    dual_residual: float | None  # sqrt(p) ||beta (V - V_before)||, with beta 1 if there is none
    stationarity: float | None  # an upper bound on dist(0, dPhi)


class Theory(Protocol):
    """What full diagnostics need from an algorithm."""

    def covers(self, settings: Settings) -> bool:
        """Whether the paper's theorem covers these settings."""
        ...

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        """The parts that `client` adds to a measurement."""
        ...

    def client(self, shard: Shard, state: State | None, broadcast: Broadcast, U: Array) -> dict[str, Array | float]:
        """A client's part of the theory's sums at the global V."""
        ...

    def server(self, sums: Sums, server: ServerState, broadcast: Broadcast, before: Array | None) -> Convergence:
        """The report computed from the sums; `before` is the V of the previous round."""
        ...


class Point(NamedTuple):
    """A client's current point."""

    U: Array
    W: Array
    gap: Array  # W - V; without W, the client's last V minus V


def common_schema(items: int, width: int) -> Schema:
    numbers = dict.fromkeys(("gap", "stationarity_U", *LIPSCHITZ), Part())
    return numbers | {"gradient_V": Part((items, width))}


def problem_of(shard: Shard, broadcast: Broadcast) -> Problem:
    return Problem(shard.by_user, broadcast.settings.make_loss(), broadcast.scaling)


def common_parts(shard: Shard, broadcast: Broadcast, point: Point) -> dict[str, Array | float]:
    """The parts that every algorithm with a theory reports."""
    problem, V, p = problem_of(shard, broadcast), broadcast.V, broadcast.clients
    U, W, gap = point
    penalty, _ = broadcast.settings.penalties(p)
    slope = subproblem.gradient(problem, W, U)
    L_W = subproblem.lipschitz(W, problem.loss)
    L_U = subproblem.lipschitz(U, problem.loss)
    U_bar = np.asarray(penalty.prox(U - slope / L_W, 1 / L_W), U.dtype)
    zeta = -slope - L_W * (U_bar - U)
    stationarity_U = (subproblem.gradient(problem, V, U_bar) + zeta) / p
    by_item = problem._replace(matrix=shard.by_item)
    sizes = _sizes(problem, U, W) | _sizes_at(problem, point, U_bar, V)
    with np.errstate(over="ignore", under="ignore"):
        return {
            "gap": np.square(gap).sum(),
            "stationarity_U": np.square(stationarity_U, dtype=np.float64).sum(),
            "gradient_V": subproblem.gradient(by_item, U_bar, V) / p,
            "L_U_high": np.float64(L_U) ** POWER,
            "L_U_low": np.float64(L_U) ** -POWER,
            "L_V_high": np.float64(L_W) ** POWER,
            "L_V_low": np.float64(L_W) ** -POWER,
            **{name: np.float64(size) ** POWER for name, size in sizes.items()},
        }


def convergence(
    sums: Sums, broadcast: Broadcast, before: Array | None, lagrangian: float | None, residual: Array
) -> Convergence:
    """The server's report; `residual` is the gradient in V plus a subgradient of R at V."""
    p, V = broadcast.clients, broadcast.V
    primal = float(np.sqrt(sums.number("gap")))
    if before is None:
        return Convergence(lagrangian, primal, None, None)
    dual = float(np.sqrt(p) * np.linalg.norm(beta_of(broadcast) * (V - before)))
    stationarity = float(np.sqrt(np.square(residual).sum() + sums.number("stationarity_U")))
    return Convergence(lagrangian, primal, dual, stationarity)


def _sizes(problem: Problem, U: Array, W: Array) -> dict[str, float]:
    """The Frobenius norms of which `cross_lipschitz` makes L; U and W each with the root of the loss's curvature."""
    scores, ratings = subproblem.scores(problem, W, U)
    root, pulls = np.sqrt(problem.loss.curvature), problem.loss.gradient(scores, ratings)
    return {
        "U_high": float(root * np.linalg.norm(U)),
        "W_high": float(root * np.linalg.norm(W)),
        "pulls_high": float(np.linalg.norm(pulls)),
    }


def _sizes_at(problem: Problem, point: Point, U_bar: Array, V: Array) -> dict[str, float]:
    """Two constants of the rate's bound: of grad_V f(., V) from U to U_bar, and of grad_U f(U_bar, .) from W to V.

    Both as in `cross_lipschitz`, with all norms of one client and round.
    """
    scores, ratings = subproblem.scores(problem, V, U_bar)
    pulls, c = np.linalg.norm(problem.loss.gradient(scores, ratings)), problem.loss.curvature
    U, W, at_U_bar = (float(np.linalg.norm(factors)) for factors in (point.U, point.W, U_bar))
    return {
        "L_bar": float(pulls + c * U * np.linalg.norm(V)),
        "kappa": float(pulls + c * at_U_bar * W),
    }


def cross_lipschitz(U: float, W: float, pulls: float) -> float:
    """The L of the theorem, from norms that are largest over all clients and rounds: ||U|| ||W|| + ||pulls||.

    With g the loss's derivative (the pulls) and c its curvature, for any U, X and W

        || grad_V f(U, W) - grad_V f(X, W) ||  =  || (U - X)' g(UW) + X' (g(UW) - g(XW)) ||
                                              <=  ( ||g(UW)|| + c ||X|| ||W|| ) ||U - X||

    The proof needs it for U = U^{k+1}, X = U^k and W = W^{k+1}: norms of different rounds, so each has its own maximum.
    """
    return U * W + pulls
