"""Federated iALS from its definition, dense and slow: what `fedmc.algorithms.ials` is tested against.

    F(J; U, V) = sum_i [ sum_j c_ij (1 - u_i'v_j)^2 + alpha0 sum_j (u_i'v_j)^2 ]
                 + lambda [ sum_i (n_i + alpha0 items)^nu |u_i|^2 + sum_j (n_j + alpha0 m)^nu |v_j|^2 ]

over the users i of the clients J that have taken part; n_i and n_j are their numbers of events, m is their number. In a
round, each user of each participant minimises F, then each item does: from the round `first` on, if there are twice as
many users as factors or all clients have taken part; and an item without events only when all have.

Nothing here is shared with the package: no kernels, no eigenbasis, no packed triangles, no running sums. Whatever the
server needs is computed from the confidences and factors of all users in every round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Weights(NamedTuple):
    """The weight of all pairs, the weight of the penalty, and the exponent of its counts."""

    alpha0: float
    weight: float
    exponent: float

    def penalty(self, events: float, others: float) -> float:
        return self.weight * (events + self.alpha0 * others) ** self.exponent


def least_squares(confidences: np.ndarray, F: np.ndarray, alpha0: float, penalty: float) -> np.ndarray:
    """argmin_x sum_k c_k (1 - x'f_k)^2 + alpha0 sum_k (x'f_k)^2 + penalty |x|^2: a confidence of 0 is no event."""
    A, b = penalty * np.eye(F.shape[1]), np.zeros(F.shape[1])
    for c, f in zip(confidences, F, strict=True):
        A = A + (c + alpha0) * np.outer(f, f)
        b = b + c * f
    return np.linalg.solve(A, b)


class Oracle:
    """Users x items confidences (0: no event), the client of each user, and the factors of both."""

    def __init__(self, C: np.ndarray, owner: np.ndarray, V: np.ndarray, weights: Weights, first: int = 1) -> None:
        self.C, self.owner, self.weights, self.first, self.number = C, owner, weights, first, 0
        self.V = V.astype(np.float64)
        self.U = np.full((len(C), V.shape[1]), np.nan)  # of users who have not been counted
        self.joined: set[int] = set()

    def counted(self, joined: Iterable[int] | None = None) -> np.ndarray:
        """The users of these clients, else of those that have joined."""
        return np.flatnonzero(np.isin(self.owner, list(self.joined if joined is None else joined)))

    def fitted(self, user: int, V: np.ndarray) -> np.ndarray:
        penalty = self.weights.penalty(np.count_nonzero(self.C[user]), len(V))
        return least_squares(self.C[user], V, self.weights.alpha0, penalty)

    def round(self, participants: Iterable[int]) -> None:
        taking_part = set(participants)
        self.number += 1
        if not taking_part:
            return
        for user in self.counted(taking_part):
            self.U[user] = self.fitted(user, self.V)
        self.joined |= taking_part
        users, everybody = self.counted(), self.joined == set(self.owner.tolist())
        few = len(users) < 2 * self.V.shape[1] and not everybody
        if few or self.number < self.first:
            return
        V = self.V.copy()
        for item in range(len(V)):
            confidences = self.C[users, item]
            if not confidences.any() and not everybody:
                continue
            penalty = self.weights.penalty(np.count_nonzero(confidences), len(users))
            V[item] = least_squares(confidences, self.U[users], self.weights.alpha0, penalty)
        self.V = V

    def user_terms(self, user: int, u: np.ndarray, V: np.ndarray) -> float:
        """The part of the objective that belongs to one user."""
        c, scores = self.C[user], V @ u
        penalty = self.weights.penalty(np.count_nonzero(c), len(V)) * (u @ u)
        return float(np.sum(c * (1 - scores) ** 2) + self.weights.alpha0 * np.sum(scores**2) + penalty)

    def client_terms(self, client: int, U: np.ndarray, V: np.ndarray) -> float:
        return sum(self.user_terms(user, U[user], V) for user in self.counted([client]))

    def item_terms(self, joined: Iterable[int], V: np.ndarray) -> float:
        """The items' penalty, which depends on the numbers of events and users counted."""
        users = self.counted(joined)
        counts = [np.count_nonzero(self.C[users, item]) for item in range(len(V))]
        return sum(self.weights.penalty(n, len(users)) * float(v @ v) for n, v in zip(counts, V, strict=True))

    def objective(self, joined: Iterable[int], U: np.ndarray, V: np.ndarray) -> float:
        clients = list(joined)
        return sum(self.client_terms(client, U, V) for client in clients) + self.item_terms(clients, V)

    def best_objective(self, V: np.ndarray) -> float:
        """Over all clients, with all users fitted to V."""
        U = np.array([self.fitted(user, V) for user in range(len(self.C))])
        return self.objective(set(self.owner.tolist()), U, V)
