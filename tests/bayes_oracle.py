"""The Bayesian model from its definition, dense and slow: what `fedmc.algorithms.bayes` is tested against.

    m_ij = u_i'v_j + b_i + c_j + noise of precision alpha        of the ratings minus their mean, over their spread
    (u_i, b_i) ~ N(B_U'a_i + H_c'f_i, Lambda_U^-1)               (v_j, c_j) ~ N(B_V'a_j, Lambda_V^-1)
    vec B ~ N(0, (R x Lambda)^-1), vec H_c ~ N(0, (ridge_c I x Lambda_U)^-1)      x: Kronecker's product

a_i = (x_i, 1): regressors from who rated or saw what, and the prior mean; a_j = (x_j, y_j, 1) with the item's features;
f_i: the features of a user that only its client c knows. q(B) and q(H_c) are normal with the covariances C x Lambda^-1.

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
    """The expected B, in two parts: the weights of the regressors, and below them the mean."""

    mean: np.ndarray
    precision: np.ndarray
    weights: np.ndarray
    ridge: np.ndarray  # the diagonal of R without its last number, which is 1

    @property
    def B(self) -> np.ndarray:
        return np.vstack([self.weights, self.mean])

    @property
    def R(self) -> np.ndarray:
        return np.diag(np.append(self.ridge, 1.0))


class Home(NamedTuple):
    """The expected H of a client, and its ridge."""

    H: np.ndarray
    ridge: float


class Side(NamedTuple):
    """What is known besides ratings."""

    implicit: bool = False
    also_seen: np.ndarray | None = None  # users x items: True where there is an event without a rating
    item_features: np.ndarray | None = None
    user_features: np.ndarray | None = None
    without_features: tuple[int, ...] = ()  # clients whose users have none
    seed: int = 0


NOTHING = Side()


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


def posterior(mean: np.ndarray, precision: np.ndarray, noise: float, rated: Sequence[tuple[float, Gauss]]) -> Gauss:
    """The posterior of a row with this prior, these ratings and these neighbours."""
    A, h = precision.copy(), precision @ mean
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


def divergence(row: Gauss, mean: np.ndarray, precision: np.ndarray) -> list[float]:
    """The terms of KL(q || prior)."""
    away = row.mean - mean
    log_dets = np.linalg.slogdet(row.cov)[1] + np.linalg.slogdet(precision)[1]
    spread = np.trace(precision @ row.cov) + away @ precision @ away
    return [float(spread) / 2, -len(away) / 2, -float(log_dets) / 2]


def weights_divergence(B: np.ndarray, C: np.ndarray, R: np.ndarray, precision: np.ndarray) -> list[float]:
    """The terms of KL(q(B) || p(B)), of the vector of B's lines."""
    flat = Gauss(B.ravel(), np.kron(C, np.linalg.inv(precision)))
    return divergence(flat, np.zeros(B.size), np.kron(R, precision))


def ridge_density(ridge: float, guess: float, numbers: int) -> list[float]:
    """The log density of a ridge that so many numbers share, up to a constant."""
    return [0.1 * numbers / 2 * math.log(ridge), -0.1 * numbers / 2 * ridge / guess]


def learned_ridge(W: np.ndarray, C: np.ndarray, precision: np.ndarray, guess: float) -> float:
    """argmax of E[log p(W)] + log density of the ridge"""
    spread = np.trace(W @ precision @ W.T) + W.shape[1] * np.trace(C)
    return float(1.1 * W.size / (spread + 0.1 * W.size / guess))


def regressors_of(F: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Of users and of items: about A s^2, and B s^2, scaled, of the leading singular vectors of who rated what.

    Items with fewer than 5 raters are left out; their own regressors are the mean of those of 5 to 9 raters, or of all.
    """
    number, raters = F.sum(axis=1), F.sum(axis=0)
    kept = np.flatnonzero(raters >= 5)
    size = min(64, len(kept) // 4)
    if size == 0:
        return np.zeros((len(F), 0)), np.zeros((F.shape[1], 0))
    G = F[:, kept]
    mine, counts = G.sum(axis=1), G.sum(axis=0)
    N = G / np.sqrt(np.maximum(mine, 1))[:, None] / np.sqrt(counts)
    P = np.random.default_rng([seed, 6]).standard_normal((F.shape[1], size))[kept]
    P[:, 0] = np.sqrt(counts)
    P = np.linalg.qr(P)[0]
    for _ in range(3):
        P = np.linalg.qr(N.T @ (N @ P))[0]
    image = N.T @ (N @ P)
    squares, turn = np.linalg.eigh(P.T @ image)
    squares, found = squares[::-1], image @ turn[:, ::-1]
    lines = found / np.sqrt(np.where(squares > 1e-6, squares, np.inf)) / np.sqrt(counts)[:, None]
    lines = lines - counts @ lines / counts.sum()
    users = G @ lines * (1 / np.sqrt(number + 20))[:, None]
    items = np.zeros((F.shape[1], size))
    items[kept] = found
    rarest = found[counts < 10] if (counts < 10).any() else found
    items[(raters > 0) & (raters < 5)] = rarest.mean(axis=0)
    return np.sqrt((mine > 0).sum()) * users, np.sqrt(len(kept)) * items


class Oracle:
    """A federation: M is users x items with NaN where there is no rating; `owner` names each user's client."""

    def __init__(
        self, M: np.ndarray, owner: np.ndarray, V: np.ndarray, active: int, extrapolation: float = 0.0,
        side: Side = NOTHING,
    ):  # fmt: skip
        known = M[~np.isnan(M)]
        self.mean, self.scale = known.mean(), known.std() if known.std() > 0 else 1.0
        self.M, self.owner, self.extrapolation = (M - self.mean) / self.scale, owner, extrapolation
        self.clients = int(owner.max()) + 1
        self.size = V.shape[1] - 1
        self.warm_rounds = 2 * math.ceil(self.clients / min(active, self.clients))
        q = self.size
        self.items = [Gauss(row[:q].copy(), np.zeros((q, q))) for row in V]
        self._regressors(side)
        warm = [
            Prior(np.zeros(q), 5.0 * np.eye(q), np.zeros((a.shape[1] - 1, q)), np.concatenate([[], *groups]))
            for a, groups in ((self.a_users, self.user_groups), (self.a_items, self.item_groups))
        ]
        self.hyper = Hyper(1.2, *warm)
        self.means: dict[int, np.ndarray] = {}  # of each joined user, without extrapolation
        self.users: dict[int, Gauss] = {}  # q of each joined user: what the sums are made of
        self.homes: dict[int, Home] = {}  # of each joined client
        self.joined: set[int] = set()

    def _regressors(self, side: Side) -> None:
        """a_i, a_j and f_i, and the first ridges of each group of regressors."""
        users, items = self.M.shape
        x, y = np.zeros((users, 0)), np.zeros((items, 0))
        if side.implicit:
            seen = ~np.isnan(self.M)
            x, y = regressors_of(1.0 * (seen if side.also_seen is None else seen | side.also_seen), side.seed)
        public = np.zeros((items, 0)) if side.item_features is None else side.item_features
        self.public = public.shape[1]
        self.a_users = np.hstack([x, np.ones((users, 1))])
        self.a_items = np.hstack([y, public, np.ones((items, 1))])
        self.user_groups = [np.full(x.shape[1], 10.0)] if x.shape[1] else []
        self.item_groups = [np.full(y.shape[1], 10.0)] if y.shape[1] else []
        self.item_groups += [np.full(public.shape[1], 30.0)] if public.shape[1] else []
        own = np.zeros((users, 0)) if side.user_features is None else side.user_features
        self.features = {
            client: own[owned, :0] if client in side.without_features else own[owned]
            for client in range(self.clients)
            for owned in [self.owner == client]
        }

    def turn(self, found: np.ndarray) -> None:
        """Singular vectors have no sign: choose those of these regressors of the items."""
        count = self.a_users.shape[1] - 1
        signs = np.where((found[:, :count] * self.a_items[:, :count]).sum(axis=0) < 0, -1.0, 1.0)
        self.a_items[:, :count] *= signs
        self.a_users[:, :count] *= signs

    # --- a round

    def round(self, number: int, participants: Iterable[int]) -> None:
        participants = list(participants)
        if not participants:
            return
        for client in participants:
            self._client(client, number)
        self._fit_items()
        if number > self.warm_rounds and any(len(self.rated_by(i)) for i in self.users):
            self.hyper = self._learned()
            self._fit_items()

    def _client(self, client: int, number: int) -> None:
        prior, mine, X = self.hyper.users, np.flatnonzero(self.owner == client), self.features[client]
        home = self.homes.setdefault(client, Home(np.zeros((X.shape[1], self.size)), 30.0))
        for i, f in zip(mine, X, strict=True):
            rated = [(self.M[i, j], self.items[j]) for j in self.rated_by(i)]
            fitted = posterior(prior.B.T @ self.a_users[i] + home.H.T @ f, prior.precision, self.hyper.noise, rated)
            beyond = self.extrapolation * (fitted.mean - self.means[i]) if i in self.means else 0.0
            self.means[i], self.users[i] = fitted.mean, Gauss(fitted.mean + beyond, fitted.cov)
        if number > self.warm_rounds and X.size:
            left = np.array([self.users[i].mean - prior.B.T @ self.a_users[i] for i in mine])
            C = np.linalg.inv(X.T @ X + home.ridge * np.eye(X.shape[1]))
            H = C @ X.T @ left
            self.homes[client] = Home(H, learned_ridge(H, C, prior.precision, 30.0))
        self.joined.add(client)

    def _fit_items(self) -> None:
        prior = self.hyper.items
        for j in range(len(self.items)):
            rated = [(self.M[i, j], self.users[i]) for i in self.raters(j)]
            self.items[j] = posterior(prior.B.T @ self.a_items[j], prior.precision, self.hyper.noise, rated)
            if not rated:
                self.items[j] = self._unrated(j)

    def _unrated(self, j: int) -> Gauss:
        """An item without ratings: what its implicit regressors would add is guessed from its features.

        By a regression over the rated items, which count by their ratings; what it leaves widens the covariance.
        """
        prior, rated = self.hyper.items, self.rated_items(self.joined)
        implicit = self.a_items.shape[1] - 1 - self.public
        features = np.delete(self.a_items, np.arange(implicit), axis=1)  # and the one
        mean, covariance = prior.B[implicit:].T @ features[j], np.linalg.inv(prior.precision)
        if not implicit or not rated:
            return Gauss(mean, covariance)
        added = self.a_items[:, :implicit] @ prior.weights[:implicit]
        share = np.array([len(self.raters(k)) for k in rated], float)
        W, X = np.diag(share / share.sum()), features[rated]
        penalty = np.diag([*self.public * [10.0 / len(rated)], 0.0])
        C = np.linalg.solve(X.T @ W @ X + penalty, X.T @ W @ added[rated])
        left = added[rated] - X @ C
        return Gauss(mean + C.T @ features[j], covariance + left.T @ W @ left)

    def _learned(self) -> Hyper:
        """Noise and priors that maximise the bound."""
        pairs = [(i, j) for i in self.users for j in self.rated_by(i)]
        error = math.fsum(squared_error(self.M[i, j], self.users[i], self.items[j]) for i, j in pairs)
        noise = (len(pairs) + 2) / (error + 2 * 0.5)
        guess, offsets = self.guess(self.joined), self.offsets(self.homes)
        users = [Gauss(self.users[i].mean - offsets[i], self.users[i].cov) for i in sorted(self.users)]
        penalty = sum(home.ridge * home.H.T @ home.H for home in self.homes.values())
        rated = self.rated_items(self.joined)
        return Hyper(
            noise,
            learned_prior(users, self.a_users[sorted(self.users)], guess, self.hyper.users, self.user_groups, penalty),
            learned_prior([self.items[j] for j in rated], self.a_items[rated], guess, self.hyper.items,
                          self.item_groups),
        )  # fmt: skip

    def offsets(self, homes: dict[int, Home]) -> np.ndarray:
        """H'f of each user."""
        found = np.zeros((len(self.owner), self.size))
        for client, home in homes.items():
            found[self.owner == client] = self.features[client] @ home.H
        return found

    def rated_by(self, i: int) -> np.ndarray:
        return np.flatnonzero(~np.isnan(self.M[i]))

    def raters(self, j: int, joined: Iterable[int] | None = None) -> np.ndarray:
        """The users of joined clients who rated an item."""
        counted = np.isin(self.owner, list(self.joined if joined is None else joined))
        return np.flatnonzero(~np.isnan(self.M[:, j]) & counted)

    def rated_items(self, joined: Iterable[int]) -> list[int]:
        joined = list(joined)
        return [j for j in range(len(self.items)) if len(self.raters(j, joined))]

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
        return self.bound_of(self.joined, self.users, self.items, self.hyper, self.homes)

    def bound_of(
        self, joined: Iterable[int], users: dict[int, Gauss], items: Sequence[Gauss], hyper: Hyper,
        homes: dict[int, Home],
    ) -> Bound:  # fmt: skip
        """The bound over the joined clients at any posteriors, noise and priors; hyperpriors count the joined too."""
        joined, clients, q = set(joined), {}, self.size
        counted, rated = np.isin(self.owner, list(joined)), self.rated_items(joined)
        C_users, C_items = (
            np.linalg.inv(a.T @ a + prior.R)
            for a, prior in ((self.a_users[counted], hyper.users), (self.a_items[rated], hyper.items))
        )
        for client in joined:
            terms, X, (H, ridge) = [], self.features[client], homes[client]
            C = np.linalg.inv(X.T @ X + ridge * np.eye(X.shape[1]))
            if X.shape[1]:
                terms += [-term for term in weights_divergence(H, C, ridge * np.eye(len(C)), hyper.users.precision)]
                terms += ridge_density(ridge, 30.0, H.size)
            for i, f in zip(np.flatnonzero(self.owner == client), X, strict=True):
                a = self.a_users[i]
                mean = hyper.users.B.T @ a + H.T @ f
                terms += [-term for term in divergence(users[i], mean, hyper.users.precision)]
                terms += [-q / 2 * float(a @ C_users @ a), -q / 2 * float(f @ C @ f)]  # the spread of the prior mean
                for j in self.rated_by(i):
                    error = squared_error(self.M[i, j], users[i], items[j])
                    terms += [math.log(hyper.noise) / 2, -math.log(2 * math.pi) / 2, -hyper.noise / 2 * error]
            clients[client] = terms
        of_items = []
        for j in rated:
            mean = hyper.items.B.T @ self.a_items[j]
            of_items += [-term for term in divergence(items[j], mean, hyper.items.precision)]
            of_items.append(-q / 2 * float(self.a_items[j] @ C_items @ self.a_items[j]))
        of_hyper, guess = [math.log(hyper.noise), -0.5 * hyper.noise], self.guess(joined)
        for prior, rows, C, groups in (
            (hyper.users, int(counted.sum()), C_users, self.user_groups),
            (hyper.items, len(rated), C_items, self.item_groups),
        ):
            weight = 0.4 * rows
            of_hyper.append(weight / 2 * float(np.linalg.slogdet(prior.precision)[1]))
            of_hyper.append(-weight / 2 * float(np.trace(np.diag(guess) @ prior.precision)))
            of_hyper += [-term for term in weights_divergence(prior.B, C, prior.R, prior.precision)]
            start = 0
            for group in groups:
                of_hyper += ridge_density(float(prior.ridge[start]), group[0], len(group) * q)
                start += len(group)
        return Bound(clients, of_items, of_hyper)


def learned_prior(
    rows: Sequence[Gauss], a: np.ndarray, guess: np.ndarray, before: Prior, groups: Sequence[np.ndarray],
    penalty: np.ndarray | float = 0.0,
) -> Prior:  # fmt: skip
    """argmax of the bound over B and Lambda, at the ridges of before, and then over the ridges."""
    weight = 0.4 * len(rows)
    C = np.linalg.inv(a.T @ a + before.R)
    B = C @ a.T @ np.array([row.mean for row in rows])
    spread = weight * np.diag(guess) + B.T @ before.R @ B + penalty
    for row, one in zip(rows, a, strict=True):
        away = row.mean - B.T @ one
        spread = spread + np.outer(away, away) + row.cov
    precision = np.linalg.inv(spread / (len(rows) + weight))
    ridge, start = np.zeros(0), 0
    for group in groups:
        some = slice(start, start + len(group))
        found = learned_ridge(B[some], C[some, some], precision, group[0])
        ridge, start = np.append(ridge, np.full(len(group), found)), some.stop
    assert len(B) == start + 1
    return Prior(B[-1], precision, B[:-1], ridge)
