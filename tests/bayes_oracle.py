"""The Bayesian model from its definition, dense and slow: what `fedmc.algorithms.bayes` is tested against.

    m_ij = u_i'v_j + b_i + c_j + noise of precision alpha        of the ratings minus their mean, over their spread
    (u_i, b_i) ~ N(mu_U, Lambda_U^-1)                            (v_j, c_j) ~ N(mu_V, Lambda_V^-1)

Nothing here is shared with the package: no packed triangles, no running sums, no kernels. Every client's posteriors are
kept, and whatever the server needs is summed from scratch in every round. Constants are typed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Gauss(NamedTuple):
    """The posterior of one row (factors, bias)."""

    mean: np.ndarray
    cov: np.ndarray


class Prior(NamedTuple):
    mean: np.ndarray
    precision: np.ndarray


class Hyper(NamedTuple):
    """The noise's precision, and both priors."""

    noise: float
    users: Prior
    items: Prior


class Bound(NamedTuple):
    """The evidence bound by the terms that a test may want apart."""

    clients: dict[int, list[float]]  # of each counted client: expected log likelihoods and divergences of its users
    items: list[float]
    hyper: list[float]

    def terms(self, clients: Iterable[int] | None = None) -> list[float]:
        chosen = self.clients if clients is None else clients
        return [*(term for client in chosen for term in self.clients[client]), *self.items, *self.hyper]

    def total(self, clients: Iterable[int] | None = None) -> float:
        return math.fsum(self.terms(clients))

    def size(self) -> float:
        """The sum of the absolute values: what rounding is relative to."""
        return math.fsum(abs(term) for term in self.terms())


def other_side(row: Gauss) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E[w], E[w w'] and E[w bias] with w = (factors, 1), for the row's neighbours."""
    x, bias = row.mean[:-1], row.mean[-1]
    w = np.append(x, 1.0)
    second = np.outer(w, w)
    second[:-1, :-1] += row.cov[:-1, :-1]
    with_bias = w * bias
    with_bias[:-1] += row.cov[:-1, -1]
    return w, second, with_bias


def posterior(prior: Prior, noise: float, rated: Sequence[tuple[float, Gauss]]) -> Gauss:
    """The posterior of a row with these ratings and neighbours."""
    A, h = prior.precision.copy(), prior.precision @ prior.mean
    for m, neighbour in rated:
        w, second, with_bias = other_side(neighbour)
        A = A + noise * second
        h = h + noise * (m * w - with_bias)
    covariance = np.linalg.inv(A)
    return Gauss(covariance @ h, covariance)


def squared_error(m: float, user: Gauss, item: Gauss) -> float:
    """E[(m - u'v - b - c)^2]"""
    x, y = user.mean[:-1], item.mean[:-1]
    error = m - x @ y - user.mean[-1] - item.mean[-1]
    one_x, one_y = np.append(x, 1.0), np.append(y, 1.0)
    variance = one_y @ user.cov @ one_y + one_x @ item.cov @ one_x + np.sum(user.cov[:-1, :-1] * item.cov[:-1, :-1])
    return float(error**2 + variance)


def divergence(row: Gauss, prior: Prior) -> list[float]:
    """The terms of KL(q || prior)."""
    away = row.mean - prior.mean
    log_dets = np.linalg.slogdet(row.cov)[1] + np.linalg.slogdet(prior.precision)[1]
    spread = np.trace(prior.precision @ row.cov) + away @ prior.precision @ away
    return [float(spread) / 2, -len(away) / 2, -float(log_dets) / 2]


class Oracle:
    """A federation: M is users x items with NaN where there is no rating; `owner` names each user's client."""

    def __init__(self, M: np.ndarray, owner: np.ndarray, V: np.ndarray, active: int, extrapolation: float = 0.0):
        known = M[~np.isnan(M)]
        self.mean, self.scale = known.mean(), known.std() if known.std() > 0 else 1.0
        self.M, self.owner, self.extrapolation = (M - self.mean) / self.scale, owner, extrapolation
        self.clients = int(owner.max()) + 1
        self.size = V.shape[1] - 1
        self.warm_rounds = 2 * math.ceil(self.clients / min(active, self.clients))
        q = self.size
        self.items = [Gauss(row[:q].copy(), np.zeros((q, q))) for row in V]
        warm = Prior(np.zeros(q), 5.0 * np.eye(q))
        self.hyper = Hyper(1.2, warm, warm)
        self.means: dict[int, np.ndarray] = {}  # of each joined user, without extrapolation
        self.users: dict[int, Gauss] = {}  # q of each joined user: what the sums are made of
        self.joined: set[int] = set()

    # --- a round

    def round(self, number: int, participants: Iterable[int]) -> None:
        participants = list(participants)
        if not participants:
            return
        for client in participants:
            self._client(client)
        self._fit_items()
        if number > self.warm_rounds and any(len(self.rated_by(i)) for i in self.users):
            self.hyper = self._learned()
            self._fit_items()

    def _client(self, client: int) -> None:
        for i in np.flatnonzero(self.owner == client):
            rated = [(self.M[i, j], self.items[j]) for j in self.rated_by(i)]
            fitted = posterior(self.hyper.users, self.hyper.noise, rated)
            beyond = self.extrapolation * (fitted.mean - self.means[i]) if i in self.means else 0.0
            self.means[i], self.users[i] = fitted.mean, Gauss(fitted.mean + beyond, fitted.cov)
        self.joined.add(client)

    def _fit_items(self) -> None:
        for j in range(len(self.items)):
            rated = [(self.M[i, j], self.users[i]) for i in self.raters(j)]
            self.items[j] = posterior(self.hyper.items, self.hyper.noise, rated)

    def _learned(self) -> Hyper:
        """Noise and priors that maximise the bound."""
        pairs = [(i, j) for i in self.users for j in self.rated_by(i)]
        error = math.fsum(squared_error(self.M[i, j], self.users[i], self.items[j]) for i, j in pairs)
        noise = (len(pairs) + 2) / (error + 2 * 0.5)
        guess = self.guess(self.joined)
        rated = [item for j, item in enumerate(self.items) if len(self.raters(j))]
        return Hyper(noise, learned_prior(list(self.users.values()), guess), learned_prior(rated, guess))

    def rated_by(self, i: int) -> np.ndarray:
        return np.flatnonzero(~np.isnan(self.M[i]))

    def raters(self, j: int, joined: Iterable[int] | None = None) -> np.ndarray:
        """The users of joined clients who rated an item."""
        counted = np.isin(self.owner, list(self.joined if joined is None else joined))
        return np.flatnonzero(~np.isnan(self.M[:, j]) & counted)

    def guess(self, joined: Iterable[int]) -> np.ndarray:
        """The hyperprior's guess of variances, from the ratings of the joined clients."""
        joined = list(joined)
        users = np.isin(self.owner, joined).sum()
        raters = np.array([len(self.raters(j, joined)) for j in range(len(self.items))])
        typical = raters.sum() / max(users, 1) * (raters**2).sum() / max(raters.sum(), 1)
        found = np.full(self.size, 0.95 * max(typical, 1.0) ** -0.3)
        found[-1] = 0.1
        return found

    # --- the bound

    def bound(self) -> Bound:
        return self.bound_of(self.joined, self.users, self.items, self.hyper)

    def bound_of(self, joined: Iterable[int], users: dict[int, Gauss], items: Sequence[Gauss], hyper: Hyper) -> Bound:
        """The bound over the joined clients at any posteriors, noise and priors; hyperpriors count the joined too."""
        joined, clients = set(joined), {}
        for client in joined:
            terms = []
            for i in np.flatnonzero(self.owner == client):
                terms += [-term for term in divergence(users[i], hyper.users)]
                for j in self.rated_by(i):
                    error = squared_error(self.M[i, j], users[i], items[j])
                    terms += [math.log(hyper.noise) / 2, -math.log(2 * math.pi) / 2, -hyper.noise / 2 * error]
            clients[client] = terms
        rated = [item for j, item in enumerate(items) if len(self.raters(j, joined))]
        of_items = [-term for item in rated for term in divergence(item, hyper.items)]
        of_hyper, guess = [math.log(hyper.noise), -0.5 * hyper.noise], self.guess(joined)
        for prior, rows in ((hyper.users, np.isin(self.owner, list(joined)).sum()), (hyper.items, len(rated))):
            weight = 0.4 * float(rows)
            of_hyper.append(weight / 2 * float(np.linalg.slogdet(prior.precision)[1]))
            of_hyper.append(-weight / 2 * float(np.trace(np.diag(guess) @ prior.precision)))
            of_hyper.append(-float(prior.mean @ prior.precision @ prior.mean) / 2)
        return Bound(clients, of_items, of_hyper)


def learned_prior(rows: Sequence[Gauss], guess: np.ndarray) -> Prior:
    """argmax of sum_k -KL(q_k || prior) - mean'Lambda mean / 2 + weight/2 (log det Lambda - tr(diag(guess) Lambda))."""
    weight = 0.4 * len(rows)
    mean = sum(row.mean for row in rows) / (len(rows) + 1)
    spread = weight * np.diag(guess) + np.outer(mean, mean)
    for row in rows:
        away = row.mean - mean
        spread = spread + np.outer(away, away) + row.cov
    return Prior(mean, np.linalg.inv(spread / (len(rows) + weight)))
