"""The methods FedMC is compared with, each a client's turn and what the server makes of the sums.

FedMAvg and FedMGS are those of the paper's Section 5 and its reference [wang2022federated], written for two blocks.
Federated averaging, FedProx and SCAFFOLD know one block of shared parameters; here it is V, and U is local: a client
first takes its user steps at the V it received, and then the method runs on the item factors with U held fixed.

All of them start like the paper's method (U and V uniform in [0, 1] with `start="uniform"`) and take
N = `settings.inner_steps` steps on U and on W. Symbols as in `client.py`; lambda_max is a largest eigenvalue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms.client import start_users
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.penalties import Penalty, coefficients
from fedmc.problem.subproblem import Problem
from fedmc.types import Array


class Local(NamedTuple):
    """What a client of these methods remembers: its users, and SCAFFOLD's control."""

    U: Array
    control: Array | None = None


def largest_eigenvalue(F: Array) -> float:
    """lambda_max(F'F), above 0 also where F vanished."""
    G = np.einsum("ta,tb->ab", F, F, dtype=np.float64)  # without the threads of BLAS, which get in the kernels' way
    return max(float(np.linalg.eigvalsh(G)[-1]), 1e-12)


def descend(X: Array, slope: Array, penalty: Penalty, weight: float, step: float) -> Array:
    """A step on f + weight R: along -(slope + weight grad R) where R is l2 squared, else a proximal gradient step."""
    numbers = coefficients(penalty, X.shape[1])
    if numbers is not None and numbers.closed and not numbers.fixed.any():
        return np.asarray(X - step * (slope + weight * numbers.l2 * X), X.dtype)
    return np.asarray(penalty.prox(X - step * slope, step * weight), X.dtype)


def user_steps(shard: Shard, state: Local | None, cast: Broadcast) -> Array:
    """Q1 times  U <- U - ( grad_U f(U, V) + grad R_i(U) ) / c,   c = lambda_max(V'V)."""
    settings, V = cast.settings, cast.V
    penalty, _ = settings.penalties(cast.clients)
    problem = Problem(shard.by_user, settings.make_loss(), cast.scaling)
    U = start_users(shard, cast) if state is None else state.U
    c = problem.loss.curvature * largest_eigenvalue(V)
    for _ in range(settings.inner_steps):
        U = descend(U, subproblem.gradient(problem, V, U), penalty, 1.0, 1 / c)
    return U


@dataclass(frozen=True)
class FedMAvg:
    """Q2 times  W <- W - ( grad_V f(U, W)/p + grad R(W) ) / d  from W = V,   d = 5 lambda_max(U'U)/p;   V <- mean of W.

    The paper prints d without the 1/p of the gradient it divides, which makes its steps p times too small; here both
    have it, unless the steps are wanted `as_printed`.
    """

    as_printed: bool = False

    def turn(self, shard: Shard, state: Local | None, cast: Broadcast) -> tuple[Local, Sums]:
        U = user_steps(shard, state, cast)
        problem, p = _by_item(shard, cast), cast.clients
        _, penalty = cast.settings.penalties(p)
        W, d = cast.V, 5 * problem.loss.curvature * largest_eigenvalue(U) / (1 if self.as_printed else p)
        for _ in range(cast.settings.inner_steps):
            W = descend(W, subproblem.gradient(problem, U, W) / p, penalty, 1.0, 1 / d)
        return Local(U), Sums.of(W=W)

    def gather(self, memory: Any, reply: Sums, cast: Broadcast, participants: int) -> tuple[None, Array]:
        return None, reply["W"] / participants


@dataclass(frozen=True)
class FedMGS:
    """Clients send grad_V f(U, V)/p, the server takes the step; its length from lambda_max(U'U), which travels along.

    V <- V - ( p/s sum grad + grad R(V) ) / d,   d = mean of lambda_max(U'U) over the s participants.
    """

    def turn(self, shard: Shard, state: Local | None, cast: Broadcast) -> tuple[Local, Sums]:
        U = user_steps(shard, state, cast)
        problem = _by_item(shard, cast)
        L = problem.loss.curvature * largest_eigenvalue(U)
        return Local(U), Sums.of(gradient=subproblem.gradient(problem, U, cast.V) / cast.clients, L=L)

    def gather(self, memory: Any, reply: Sums, cast: Broadcast, participants: int) -> tuple[None, Array]:
        _, penalty = cast.settings.penalties(cast.clients)
        slope = reply["gradient"] * (cast.clients / participants)
        d = reply.number("L") / participants
        return None, descend(cast.V, slope.astype(cast.V.dtype), penalty, 1.0, 1 / d)


@dataclass(frozen=True)
class FedAvg:
    """N gradient steps on f(U, W) + R(W) + mu/2 ||W - V||^2 of length 1/(L + mu) from W = V,   L = lambda_max(U'U).

    Then V is the mean of W, each weighing as much as its client has ratings. mu = 0 is federated averaging, else it is
    FedProx, with mu as a share of L.
    """

    mu: float = 0.0

    def turn(self, shard: Shard, state: Local | None, cast: Broadcast) -> tuple[Local, Sums]:
        U = user_steps(shard, state, cast)
        problem = _by_item(shard, cast)
        _, penalty = cast.settings.penalties(cast.clients)
        W, L = cast.V, problem.loss.curvature * largest_eigenvalue(U)
        mu = self.mu * L
        for _ in range(cast.settings.inner_steps):
            W = descend(W, subproblem.gradient(problem, U, W) + mu * (W - cast.V), penalty, 1.0, 1 / (L + mu))
        weight = shard.by_user.nnz
        return Local(U), Sums.of(W=weight * W, weight=weight)

    def gather(self, memory: Any, reply: Sums, cast: Broadcast, participants: int) -> tuple[None, Array]:
        return None, reply["W"] / reply.number("weight")


@dataclass(frozen=True)
class Scaffold:
    """N times  W <- W - ( grad_V f(U, W) + grad R(W) - c_i + c ) / L  from W = V;   c_i+ = c_i - c + L (V - W)/N.

    Server:  V <- V + mean (W - V),   c <- c + 1/p sum (c_i+ - c_i).   c is the server's memory and travels down with V.
    """

    def turn(self, shard: Shard, state: Local | None, cast: Broadcast) -> tuple[Local, Sums]:
        U = user_steps(shard, state, cast)
        problem, N = _by_item(shard, cast), cast.settings.inner_steps
        _, penalty = cast.settings.penalties(cast.clients)
        W, L = cast.V, problem.loss.curvature * largest_eigenvalue(U)
        nothing = np.zeros_like(cast.V)
        c = nothing if cast.memory is None else cast.memory
        own = nothing if state is None or state.control is None else state.control
        for _ in range(N):
            W = descend(W, subproblem.gradient(problem, U, W) - own + c, penalty, 1.0, 1 / L)
        new = (own - c + L / N * (cast.V - W)).astype(W.dtype, copy=False)
        return Local(U, new), Sums.of(W=W - cast.V, control=new - own)

    def gather(
        self, memory: Array | None, reply: Sums, cast: Broadcast, participants: int
    ) -> tuple[Array | None, Array]:
        before = np.zeros_like(cast.V) if memory is None else memory
        c = (before + reply["control"] / cast.clients).astype(cast.V.dtype)
        return c, cast.V + reply["W"] / participants


def _by_item(shard: Shard, cast: Broadcast) -> Problem:
    return Problem(shard.by_item, cast.settings.make_loss(), cast.scaling)
