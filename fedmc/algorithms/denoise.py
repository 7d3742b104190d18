"""What the server makes of releases under differential privacy: the most likely V, given how large the noise is.

Of item j it knows its count c_j (each user's ratings weighing 1/sqrt(their number)), and of round t the slope g_jt at
x_jt, where x_j = (v_j, b_j / KAPPA). With the curvature pooled over items, H_jt = c_j B_t, what was seen is

    y_jt = g_jt + H_jt x_jt = H_jt x_j + noise                 var = noise^2 / s_j^2 + SAMPLING c_j

and x_j is the posterior mean given all rounds, older ones discounted, under a prior: factors spread around 0, biases
around a line in the log of the count. Rare items, of which noise leaves nothing, stay at the prior. Until the last
round the factors are rotated and scaled to be orthogonal and of one size, a power iteration with memory: small factors
could not grow against the prior. All of it is post-processing of what was released: it costs no privacy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms.messages import Broadcast
from fedmc.problem.rng import server_rng
from fedmc.types import Array

KAPPA = 0.4  # the constant beside a user's factors: how much of its norm goes to biases
BIAS_ROUNDS = 3  # the first so many, counts included, are about biases only
FACTOR_SPREAD = 0.3  # of the prior
BIAS_SPREAD = 0.7
SIZE = 0.25  # of factors between rounds
FORGETTING = 0.3, 0.95  # what rounds weigh in the next, about factors: while they are found, and in the second half
WORTH = 5.0  # a usual item's count over its noise for each factor; less than for two is not enough for any
SAMPLING = 1.0
MIN_COUNT = 2.0
START = 5.0
MIN_CURVATURE = 1.0


class Posterior(NamedTuple):
    """What the server remembers."""

    counts: Array  # of items
    users: float
    noise: float  # of the counts
    clients: int  # whose counts they are
    evidence: Array  # of each item: sum over rounds of B y, times what the item's rounds weigh
    precision: Array  # sum over rounds of B B

    def packed(self) -> Array:
        """As one array, as it goes down with V."""
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
    noise: float  # of each slope
    clients: int


def scale(width: int) -> Array:
    """What the columns of U are multiplied with, and those of V divided by."""
    return np.array([1.0] * (width - 1) + [KAPPA])


def weight_of(posterior: Posterior) -> Array:
    """s_j, 1 on average."""
    s = 1 / np.sqrt(posterior.counts + START + posterior.noise / 2)
    return np.asarray(s / s.mean())


def opening(raw: Array, users: float, noise: float, clients: int, width: int) -> Posterior:
    """From the first release: counts, shrunk to their mean by what noise adds to their spread, and users."""
    spread = max(float(raw.var()), 1e-12)
    kept = max(spread - noise**2, 0.0) / spread
    counts = np.maximum(raw.mean() + kept * (raw - raw.mean()), MIN_COUNT)
    return Posterior(
        counts, max(float(users), 1.0), noise, clients, np.zeros((len(raw), width)), np.zeros((width, width))
    )


def without_factors(V: Array) -> Array:
    """All 0, but for the column of ones that users' biases meet."""
    V = np.zeros_like(V)
    V[:, -1] = 1.0
    return V


def advance(
    posterior: Posterior, release: Release, broadcast: Broadcast, free: Array, rounds: int
) -> tuple[Posterior, Array]:
    """The next round's V, and the posterior then."""
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
    """How many factors noise would leave something of, by the count of the item of a usual rating."""
    usual = float(np.square(posterior.counts).sum() / posterior.counts.sum()) / max(posterior.noise, 1e-6)
    return int(usual / WORTH) if usual >= 2 * WORTH else 0


def estimate(
    posterior: Posterior, release: Release, x: Array, live: Array, forgetting: float
) -> tuple[Posterior, Array]:
    """Add one round to the posterior, and each item's mean given all of it, in the columns that are there."""
    width = x.shape[1]
    here = release.clients / posterior.clients  # 1 unless some are missing
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
    """A line in log count through the items' biases, each weighing by how well it is known."""
    precision = np.maximum(precision, 1e-12)
    weight = 1 / (1 / precision + 1 / prior)
    X = np.stack([np.ones(len(counts)), np.log(counts + START)], axis=1)
    line: Array = np.linalg.lstsq((X * weight[:, None]).T @ X, X.T @ (weight * evidence / precision), rcond=None)[0]
    return X @ line


def positive(Q: Array) -> Array:
    """The nearest matrix whose eigenvalues are those of a curvature."""
    values, vectors = np.linalg.eigh((Q + Q.T) / 2)
    return np.asarray((vectors * np.maximum(values, MIN_CURVATURE)) @ vectors.T)


def levelled(posterior: Posterior, x: Array, factors: Array) -> tuple[Posterior, Array]:
    """Factors turned and stretched to be orthogonal (over ratings) and of one size, and the posterior with them."""
    V, share = x[:, factors], posterior.counts / posterior.counts.sum()
    values, vectors = np.linalg.eigh((V * share[:, None]).T @ V)
    A = np.eye(x.shape[1])
    A[np.ix_(factors, factors)] = vectors * (SIZE / np.sqrt(np.maximum(values, 1e-12)))
    back = np.linalg.inv(A)
    posterior = posterior._replace(evidence=posterior.evidence @ back.T, precision=back @ posterior.precision @ back.T)
    return posterior, x @ A
