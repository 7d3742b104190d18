"""The paper's Algorithm 1 and everything that a run reports, with dense matrices, straight from the paper's formulas.

Nothing of fedmc is used. Orientation as in the paper: U_i is m_i x r, V and W_i are r x n. Losses, penalties and
constraint sets may differ by client: f_i sums phi_i(u_t' w_j, m_tj) over the client's ratings, and R_i holds the
constraint U_i in its set. Equation names are those of the paper's LaTeX source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal

import numpy as np

POWER = 32  # a largest constant is reported as (sum_i x_i^32)^(1/32), a sum over clients


@dataclass(frozen=True)
class Loss:
    value: Callable  # phi(x, m)
    slope: Callable  # its derivative in x
    curvature: float  # the largest second derivative
    link: Callable = lambda x: x  # from predictions to ratings


SQUARE = Loss(lambda x, m: (x - m) ** 2 / 2, lambda x, m: x - m, 1.0)
LOGISTIC = Loss(
    lambda x, m: np.log(1 + np.exp(x)) - m * x,
    lambda x, m: 1 / (1 + np.exp(-x)) - m,
    0.25,
    lambda x: 1 / (1 + np.exp(-x)),
)


def huber(delta):
    def value(x, m):
        e = np.abs(x - m)
        return np.where(e <= delta, e**2 / 2, delta * e - delta**2 / 2)

    return Loss(value, lambda x, m: np.maximum(-delta, np.minimum(delta, x - m)), 1.0)


@dataclass(frozen=True)
class Penalty:
    """R, and prox(Z, s) = argmin_X s R(X) + 1/2 ||X - Z||^2."""

    value: Callable
    prox: Callable


NONE = Penalty(lambda X: 0.0, lambda Z, s: Z)


def l2(w):
    return Penalty(lambda X: w / 2 * np.sum(X**2), lambda Z, s: Z / (1 + s * w))


def elastic_net(a, b):
    """a ||X||_1 + b/2 ||X||^2: the paper's soft-thresholding S(Z, s a), then shrinking."""
    return Penalty(
        lambda X: a * np.sum(np.abs(X)) + b / 2 * np.sum(X**2),
        lambda Z, s: np.maximum(np.abs(Z) - s * a, 0) * np.sign(Z) / (1 + s * b),
    )


def box(lo, hi):
    return Penalty(lambda X: 0.0 if lo <= X.min() and X.max() <= hi else np.inf, lambda Z, s: np.clip(Z, lo, hi))


def group(w, axis):
    """w times the sum of the norms along this axis: 1 for the rows of U, 0 for the columns of V."""

    def prox(Z, s):
        norms = np.sqrt(np.sum(Z**2, axis=axis, keepdims=True))
        return np.where(norms > s * w, 1 - s * w / np.where(norms > 0, norms, 1), 0) * Z

    return Penalty(lambda X: w * np.sum(np.sqrt(np.sum(X**2, axis=axis))), prox)


@dataclass
class Client:
    """M has the ratings where P is 1, T the held-out ones where Q is 1."""

    M: np.ndarray
    P: np.ndarray
    T: np.ndarray
    Q: np.ndarray
    loss: Loss
    R: Penalty
    U: np.ndarray
    W: np.ndarray
    p: int
    Y: np.ndarray = field(init=False)

    def __post_init__(self):
        self.Y = -self.grad_V(self.U, self.W) / self.p

    def f(self, U, W):
        return np.sum(self.loss.value(U @ W, self.M)[self.P == 1])

    def pulls(self, U, W):
        return np.where(self.P == 1, self.loss.slope(U @ W, self.M), 0)

    def grad_U(self, U, W):
        return self.pulls(U, W) @ W.T

    def grad_V(self, U, W):
        return U.T @ self.pulls(U, W)

    def L_U(self):
        """The Lipschitz constant of grad_V f_i(U, .)."""
        return self.loss.curvature * np.sqrt(np.sum((self.U.T @ self.U) ** 2))

    def L_W(self):
        """The Lipschitz constant of grad_U f_i(., W)."""
        return self.loss.curvature * np.sqrt(np.sum((self.W @ self.W.T) ** 2))

    def local_update(self, V, beta, N, update):
        p, L = self.p, self.L_W()
        for _ in range(N):  # (u:update)
            self.U = self.R.prox(self.U - self.grad_U(self.U, self.W) / L, 1 / L)
        L = self.L_U()
        if update == "linearised":
            for _ in range(N):  # (v:update)
                top = L / p * self.W + beta * V - self.grad_V(self.U, self.W) / p - self.Y
                self.W = top / (L / p + beta)
        elif update == "explicit":  # the remark, linearised at the old W
            self.W = V - (self.grad_V(self.U, self.W) / p + self.Y) / beta
        else:  # the remark: 0 = grad_V f(U, W)/p + Y + beta (W - V), for the square loss, column by column
            right = self.U.T @ (self.P * self.M) / p + beta * V - self.Y
            columns = [(self.U.T * self.P[:, j]) @ self.U / p + beta * np.eye(len(V)) for j in range(V.shape[1])]
            self.W = np.stack([np.linalg.solve(A, b) for A, b in zip(columns, right.T, strict=True)], axis=1)
        self.Y = self.Y + beta * (self.W - V)

    def errors(self, V, mask, ratings):
        return (self.loss.link(self.U @ V) - ratings)[mask == 1]

    def lagrangian(self, V, beta):
        """(def:AL)"""
        gap = self.W - V
        value = (self.f(self.U, self.W) + self.R.value(self.U)) / self.p
        return value + np.sum(self.Y * gap) + beta / 2 * np.sum(gap**2)

    def stationary_point(self):
        """U_bar of (1122g), and zeta of (1127b)."""
        L, slope = self.L_W(), self.grad_U(self.U, self.W)
        U_bar = self.R.prox(self.U - slope / L, 1 / L)
        return U_bar, -slope - L * (U_bar - self.U)

    def constants_at(self, V):
        """Of grad_V f(., V) from U to U_bar, and of grad_U f(U_bar, .) from W to V."""
        U_bar, _ = self.stationary_point()
        pulls, c = np.linalg.norm(self.pulls(U_bar, V)), self.loss.curvature
        L_bar = pulls + c * np.linalg.norm(self.U) * np.linalg.norm(V)
        return L_bar, pulls + c * np.linalg.norm(U_bar) * np.linalg.norm(self.W)


class Run:
    """Algorithm 1 with the clients and the server; `certifies` says whether the theorem covers the run."""

    def __init__(self, clients, V, R, beta, N, update, chances, certifies):
        self.clients, self.V, self.R, self.beta, self.N, self.update = clients, V, R, beta, N, update
        self.p_min, self.certifies, self.before = min(chances), certifies, None
        self.largest: dict[str, float] = {}
        self.L_0, self.distances = None, []

    @property
    def p(self):
        return len(self.clients)

    def round(self, S_k):
        for i in S_k:
            self.clients[i].local_update(self.V, self.beta, self.N, self.update)
        total = sum(self.beta * c.W + c.Y for c in self.clients)  # (s:update), over all clients, whoever took part
        self.before, self.V = self.V, self.R.prox(total / (self.p * self.beta), 1 / (self.p * self.beta))

    def report(self):
        """Every diagnostic of a round, after its server step."""
        V, p, clients = self.V, self.p, self.clients
        needed = self.threshold()
        users = np.concatenate([c.U.ravel() for c in clients])
        found = {
            "objective": sum(c.f(c.U, V) + c.R.value(c.U) for c in clients) / p + self.R.value(V),
            "train_rmse": rmse([c.errors(V, c.P, c.M) for c in clients]),
            "test_rmse": rmse([c.errors(V, c.Q, c.T) for c in clients]),
            "nonzeros_users": np.mean(users != 0),
            "nonzeros_items": np.mean(V != 0),
            "lagrangian": sum(c.lagrangian(V, self.beta) for c in clients) + self.R.value(V),
            "primal_residual": np.sqrt(sum(np.sum((c.W - V) ** 2) for c in clients)),
            "beta_needed": needed,
            "certified": self.certifies and self.beta > needed,
        }
        if self.certifies:
            found["beta_suggested"] = float(Context(2, ROUND_CEILING).create_decimal(Decimal(2 * needed)))
        if self.before is None:
            self.L_0 = found["lagrangian"]
            return found
        moved = np.sqrt(p) * self.beta * np.sqrt(np.sum((V - self.before) ** 2))
        self.distances.append(self.stationarity())
        return found | {"dual_residual": moved, "stationarity": self.distances[-1]} | self.rate(found["certified"])

    def rate(self, certified):
        """The smallest dist^2 so far; C (L^0 - alpha) / K of (100724a), alpha 0; and the slope over the last decade."""
        K, so_far = len(self.distances), np.minimum.accumulate(np.square(self.distances))
        found = {"min_dist2": so_far[-1]}
        if certified and np.isfinite(self.L_0):
            found["dist2_bound"] = self.C() * self.L_0 / K
        if K >= 10:
            numbers = np.arange(1, K + 1)
            last = numbers >= K / 10
            found["dist2_slope"] = np.polyfit(np.log(numbers[last]), np.log(so_far[last]), 1)[0]
        return found

    def C(self):
        """C of the second theorem as printed, but with L_U + p beta where it has L_U^2 + p beta.

        (1128b) has L_U + p beta, and the next display lost it. L^2 in the middle term comes from (1128b) too, where it
        is the constant from U to U_bar at V.
        """
        s, N, p, p_min, b = self.largest, self.N, self.p, self.p_min, self.beta
        L, L_bar, kappa = s["U"] * s["W"] + s["pulls"], s["L_bar"], s["kappa"]
        U, U_low, V, V_low = s["L_U"], 1 / s["1/L_U"], s["L_V"], 1 / s["1/L_V"]
        top = 4 * (N * b**2 * p**2 + 4 * (8 + N) * U**2) * (3 * (U + p * b) ** 2 * p + 2 * kappa**2)
        first = (top + 24 * p_min * p**3 * b**2 * U**2) / (p_min * p * b * U_low - 8 * (8 + N) * U**2)
        top = 6 * (8 * N * (U + p * b) ** 2 * L**2 + p**2 * b**2 * L_bar**2) * p
        second = (top + 32 * N * L**2 * kappa**2 + 16 * p**2 * b**2 * V**2) / (p * b * V_low - 8 * N * L**2)
        return (first + second) / (p_min * p**2 * b)

    def stationarity(self):
        """The root of the right-hand side of (122d), with nu of (1127a)."""
        V, p = self.V, self.p
        items = sum(c.Y + self.beta * (c.W - V) for c in self.clients)
        users = 0.0
        for c in self.clients:
            U_bar, zeta = c.stationary_point()
            items = items + c.grad_V(U_bar, V) / p
            users += np.sum(((c.grad_U(U_bar, V) + zeta) / p) ** 2)
        return np.sqrt(np.sum(items**2) + users)

    def threshold(self):
        """max{ 8 N L^2 / (p L_V), 8 (8 + N) L_U'^2 / (p_min p L_U) }, from the constants of all rounds so far."""
        for name, per_client in {
            "L_U": [c.L_U() for c in self.clients],
            "1/L_U": [1 / c.L_U() for c in self.clients],
            "L_V": [c.L_W() for c in self.clients],
            "1/L_V": [1 / c.L_W() for c in self.clients],
            "L_bar": [c.constants_at(self.V)[0] for c in self.clients],
            "kappa": [c.constants_at(self.V)[1] for c in self.clients],
            "U": [np.sqrt(c.loss.curvature) * np.linalg.norm(c.U) for c in self.clients],
            "W": [np.sqrt(c.loss.curvature) * np.linalg.norm(c.W) for c in self.clients],
            "pulls": [np.linalg.norm(c.pulls(c.U, c.W)) for c in self.clients],
        }.items():
            power_mean = np.max(per_client) * np.sum((per_client / np.max(per_client)) ** POWER) ** (1 / POWER)
            self.largest[name] = max(self.largest.get(name, 0.0), power_mean)
        seen, N, p = self.largest, self.N, self.p
        L = seen["U"] * seen["W"] + seen["pulls"]
        users = 8 * N * L**2 * seen["1/L_V"] / p
        items = 8 * (8 + N) * seen["L_U"] ** 2 * seen["1/L_U"] / (self.p_min * p)
        return max(users, items)


def rmse(errors):
    return np.sqrt(np.mean(np.concatenate(errors) ** 2))
