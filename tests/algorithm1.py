"""The paper's Algorithm 1, transcribed with dense matrices from its text: the oracle of `preset="paper"`.

Orientation as in the paper: U_i is m_i x r, V and W_i are r x n. Nothing of fedmc is used.
"""

from __future__ import annotations

import numpy as np


def prox_none(Z, step):
    return Z


def prox_l2(weight):
    return lambda Z, step: Z / (1 + step * weight)


def prox_l1(weight):
    return lambda Z, step: np.sign(Z) * np.maximum(np.abs(Z) - step * weight, 0)


def prox_non_negative(Z, step):
    return np.maximum(Z, 0)


class Client:
    """M is the dense matrix of ratings, P the 0/1 mask of the observed ones."""

    def __init__(self, M, P, U, V, p):
        self.M, self.P, self.p = M, P, p
        self.U, self.W = U.copy(), V.copy()
        self.Y = -self.grad_V(self.U, self.W) / p

    def residual(self, U, W):
        return self.P * (U @ W - self.M)

    def f(self, U, W):
        return 0.5 * np.sum(self.residual(U, W) ** 2)

    def grad_U(self, U, W):
        return self.residual(U, W) @ W.T

    def grad_V(self, U, W):
        return U.T @ self.residual(U, W)

    def update(self, V, beta, N, prox, update="linearised"):
        L_W = np.linalg.norm(self.W @ self.W.T)
        for _ in range(N):  # (u:update)
            self.U = prox(self.U - self.grad_U(self.U, self.W) / L_W, 1 / L_W)
        if update == "explicit":  # the remark: linearised at W^k, without the proximal term
            self.W = V - (self.grad_V(self.U, self.W) / self.p + self.Y) / beta
        elif update == "exact":  # the remark: n different r x r systems
            W = np.empty_like(self.W)
            for j in range(W.shape[1]):
                rated = self.U[self.P[:, j] > 0]
                A = rated.T @ rated / self.p + beta * np.eye(W.shape[0])
                b = (self.U.T @ (self.P * self.M))[:, j] / self.p + beta * V[:, j] - self.Y[:, j]
                W[:, j] = np.linalg.inv(A) @ b
            self.W = W
        else:  # (v:update)
            L_U = np.linalg.norm(self.U.T @ self.U)
            for _ in range(N):
                numerator = L_U / self.p * self.W + beta * V - self.grad_V(self.U, self.W) / self.p - self.Y
                self.W = numerator / (L_U / self.p + beta)
        self.Y = self.Y + beta * (self.W - V)


def server_update(clients, beta, prox):
    p = len(clients)
    total = sum(beta * c.W + c.Y for c in clients)
    return prox(total / (p * beta), 1 / (p * beta))


def lagrangian(clients, V, beta, R_users, R_items):
    """L(U, W, V, Y) as in (def:AugL) and (def:AL)."""
    total = R_items(V)
    for c in clients:
        gap = c.W - V
        total += (c.f(c.U, c.W) + R_users(c.U)) / c.p + np.sum(c.Y * gap) + beta / 2 * np.sum(gap**2)
    return total
