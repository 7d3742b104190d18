"""The server's estimate under differential privacy: the posterior mean of V, given the releases and their noise.

For item j the server knows the count c_j (each rating weighs 1/sqrt(number of its user's ratings)) and, from round t,
the negative gradient g_jt at x_jt, where x_j = (v_j, b_j / KAPPA). With the curvature pooled over items,
H_jt = c_j B_t, the observation is

    y_jt = g_jt + H_jt x_jt = H_jt x_j + noise                 var = noise^2 / s_j^2 + SAMPLING c_j

The estimate of x_j is the posterior mean given all rounds, older ones discounted. The prior centres factors at 0 and
biases at a line in the log of the count. Rare items, whose releases are mostly noise, stay near the prior. After every
round but the last the factors are rotated and scaled to be orthogonal and of equal size (a power iteration with
memory), because small factors could not grow against the prior. All of this is post-processing of the releases, so it
costs no privacy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms.messages import Broadcast
from fedmc.problem.rng import server_rng
from fedmc.types import Array

KAPPA = 0.4  # the constant appended to a user's factors: sets how much of the user's norm goes to biases
BIAS_ROUNDS = 3  # the first rounds, the counts included, which estimate biases only
FACTOR_SPREAD = 0.3  # standard deviation of the prior
BIAS_SPREAD = 0.7
SIZE = 0.25  # root mean square of each factor over ratings, between rounds
FORGETTING = 0.3, 0.95  # discount per round of the factors' precision (evidence: its root): first half, second half
WORTH = 5.0  # signal-to-noise ratio of a typical item's count per factor; below twice that, no factors are fitted
SAMPLING = 1.0
MIN_COUNT = 2.0
START = 5.0
MIN_CURVATURE = 1.0


class Posterior(NamedTuple):
    """The server's memory between rounds: counts, and the accumulated evidence on each item."""

    counts: Array  # of items
    users: float
    noise: float  # standard deviation, of the counts
    clients: int  # how many clients the counts include
    evidence: Array  # per item: sum over rounds of weight B y
    precision: Array  # sum over rounds of B B

    def packed(self) -> Array:
        """The posterior as one array, which is broadcast beside V."""
        width = len(self.precision)
        below = np.zeros((width + 2, 1))
        below[:3, 0] = self.users, self.noise, self.clients
        lines = np.concatenate([self.evidence, self.precision, np.zeros((2, width))])
        return np.hstack([np.concatenate([self.counts[:, None], below]), lines])

    @classmethod
    def unpacked(cls, memory: Array) -> Posterior:
        width = memory.shape[1] - 1
        items = len(memory) - width - 2
        users, noise, clients = memory[items : items + 3, 0]
        return cls(memory[:items, 0], users, noise, int(clients), memory[:items, 1:], memory[items:-2, 1:])


class Release(NamedTuple):
    """One round's release."""

    slopes: Array
    curvature: Array
    noise: float  # standard deviation, of each slope
    clients: int


def scale(width: int) -> Array:
    """The factor that multiplies the columns of U and divides those of V."""
    return np.array([1.0] * (width - 1) + [KAPPA])


def weight_of(posterior: Posterior) -> Array:
    """The weights s_j of the items, with mean 1."""
    s = 1 / np.sqrt(posterior.counts + START + posterior.noise / 2)
    return np.asarray(s / s.mean())


def opening(raw: Array, users: float, noise: float, clients: int, width: int) -> Posterior:
    """The posterior after the first release: the number of users, and counts shrunk to their mean to offset noise."""
    spread = max(float(raw.var()), 1e-12)
    kept = max(spread - noise**2, 0.0) / spread
    counts = np.maximum(raw.mean() + kept * (raw - raw.mean()), MIN_COUNT)
    return Posterior(
        counts, max(float(users), 1.0), noise, clients, np.zeros((len(raw), width)), np.zeros((width, width))
    )


def without_factors(V: Array) -> Array:
    """V with all columns 0 except the column of ones, which multiplies users' biases."""
    V = np.zeros_like(V)
    V[:, -1] = 1.0
    return V


def advance(
    posterior: Posterior, release: Release, broadcast: Broadcast, free: Array, rounds: int
) -> tuple[Posterior, Array]:
    """The next posterior, and the next round's V."""
    x = np.asarray(broadcast.V[:, free], np.float64) / scale(len(free))
    live: Array = np.append(np.abs(x[:, :-1]).max(axis=0) > 0, True)
    posterior, x = estimate(posterior, release, x, live, FORGETTING[2 * broadcast.round >= rounds])
    if broadcast.round == BIAS_ROUNDS:
        begun = min(worth(posterior), len(free) - 1)
        x[:, :begun] = server_rng(broadcast.settings.seed).normal(0, SIZE, (len(x), begun))
    elif broadcast.round < rounds and live.sum() > 1:
        posterior, x = levelled(posterior, x, np.flatnonzero(live[:-1]))
    V = without_factors(broadcast.V)
    V[:, free] = x * scale(len(free))
    return posterior, V


def worth(posterior: Posterior) -> int:
    """The number of factors that can be found in the noise, judged by the rating-weighted mean count of items."""
    usual = float(np.square(posterior.counts).sum() / posterior.counts.sum()) / max(posterior.noise, 1e-6)
    return int(usual / WORTH) if usual >= 2 * WORTH else 0


def estimate(
    posterior: Posterior, release: Release, x: Array, live: Array, forgetting: float
) -> tuple[Posterior, Array]:
    """The posterior after one more round, and each item's posterior mean; only `live` columns have new evidence."""
    width = x.shape[1]
    here = release.clients / posterior.clients  # 1 unless clients are missing
    B = np.zeros((width, width))
    B[np.ix_(live, live)] = positive(release.curvature[np.ix_(live, live)]) / (posterior.users * here)
    count, s = posterior.counts * here, weight_of(posterior)
    weight = count / (release.noise**2 / s**2 + SAMPLING * count)
    y = release.slopes / s[:, None] + count[:, None] * (x @ B)
    kept = np.sqrt([forgetting] * (width - 1) + [1.0])
    precision = posterior.precision * np.outer(kept, kept) + B @ B
    evidence = posterior.evidence * kept + weight[:, None] * (y @ B)
    prior = np.array([FACTOR_SPREAD**-2] * (width - 1) + [(BIAS_SPREAD / KAPPA) ** -2])
    pull = evidence.copy()
    pull[:, -1] += prior[-1] * usual_bias(evidence[:, -1], count * weight * precision[-1, -1], prior[-1], count)
    A = (count * weight)[:, None, None] * precision + np.diag(prior)
    x = np.linalg.solve(A, pull[:, :, None])[:, :, 0]
    return posterior._replace(evidence=evidence, precision=precision), x


def usual_bias(evidence: Array, precision: Array, prior: float, counts: Array) -> Array:
    """The prior mean of each item's bias: a line in the log count, fitted to the biases weighted by their precision."""
    precision = np.maximum(precision, 1e-12)
    weight = 1 / (1 / precision + 1 / prior)
    X = np.stack([np.ones(len(counts)), np.log(counts + START)], axis=1)
    line: Array = np.linalg.lstsq((X * weight[:, None]).T @ X, X.T @ (weight * evidence / precision), rcond=None)[0]
    return X @ line


def positive(Q: Array) -> Array:
    """The nearest symmetric matrix with eigenvalues of at least MIN_CURVATURE."""
    values, vectors = np.linalg.eigh((Q + Q.T) / 2)
    return np.asarray((vectors * np.maximum(values, MIN_CURVATURE)) @ vectors.T)


def levelled(posterior: Posterior, x: Array, factors: Array) -> tuple[Posterior, Array]:
    """Rotate and scale the factors to be orthogonal over ratings and of equal size, and the posterior accordingly."""
    V, share = x[:, factors], posterior.counts / posterior.counts.sum()
    values, vectors = np.linalg.eigh((V * share[:, None]).T @ V)
    A = np.eye(x.shape[1])
    A[np.ix_(factors, factors)] = vectors * (SIZE / np.sqrt(np.maximum(values, 1e-12)))
    back = np.linalg.inv(A)
    posterior = posterior._replace(evidence=posterior.evidence @ back.T, precision=back @ posterior.precision @ back.T)
    return posterior, x @ A
