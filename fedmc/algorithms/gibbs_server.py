"""The server's side of Gibbs sampling: its chain, draws of noise and priors, and averages over rounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.bayes_server import ServerSums, parts_at
from fedmc.algorithms.gaussians import Hyper, Prior, Rows
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import ServerState
from fedmc.types import Array

SAMPLE = "sample"  # the items' (factors, bias)
SAMPLED = {"noise": "sampled_noise", "user_mean": "sampled_user_mean", "user_precision": "sampled_user_precision"}


class Average(NamedTuple):
    """The items' means and packed covariances, noise and priors: those of one round, or averaged over several."""

    means: Array
    covariances: Array
    hyper: Hyper

    def with_another(self, other: Average, weight: float) -> Average:
        """The average in which another round, turned to this one, has this weight."""
        turned = other.turned(rotation(other.means, self.means))
        step = turned.means - self.means
        spread = gaussians.second_moments(step, np.zeros(()))
        return Average(
            self.means + weight * step,
            (1 - weight) * (self.covariances + weight * spread) + weight * turned.covariances,
            _mixed(self.hyper, turned.hyper, weight),
        )

    def turned(self, Q: Array) -> Average:
        """The same with other axes: a row x becomes x Q."""
        noise, *priors = self.hyper
        users, items = (Prior.plain(prior.mean @ Q, _turned(prior.precision, Q)) for prior in priors)
        covariances = gaussians.packed(_turned(gaussians.unpacked(self.covariances), Q))
        return Average(np.einsum("ka,ab->kb", self.means, Q), covariances, Hyper(noise, users, items))


class Chain(NamedTuple):
    """What the server keeps: the sums of the users' samples with sampled noise and priors, the items' sample, and the
    averages; `packed` as one vector."""

    sums: ServerSums
    sample: Array
    average: Average

    def packed(self) -> Array:
        means, covariances, (noise, users, items) = self.average
        priors = users.mean, users.precision, items.mean, items.precision
        parts = self.sums.packed(), self.sample, means, covariances, np.array([noise]), *priors
        return np.concatenate([part.ravel() for part in parts])

    @classmethod
    def unpacked(cls, vector: Array, items: int, size: int) -> Chain:
        shapes = [(items, size), (items, size), (items, triangle(size)), (1,), *[(size,), (size, size)] * 2]
        lengths = [int(np.prod(shape)) for shape in shapes]
        sums, *flat = np.split(vector, len(vector) - np.cumsum(lengths[::-1])[::-1])
        sample, means, covariances, noise, *priors = (
            part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)
        )
        hyper = Hyper(float(noise[0]), Prior.plain(*priors[:2]), Prior.plain(*priors[2:]))
        return cls(ServerSums.unpacked(sums, items, size), sample, Average(means, covariances, hyper))

    def sampled(self, settings: Settings) -> dict[str, Array]:
        """What the users of the next round are drawn with."""
        noise, users, _ = self.sums.hyper
        hyper = dict(zip(SAMPLED.values(), (np.array([noise]), users.mean, users.precision), strict=True))
        return {SAMPLE: self.sample.astype(settings.dtype), **hyper}


# --- draws


def drawn_rows(means: Array, roots: Array, rng: np.random.Generator) -> Array:
    """One draw from each of these Gaussians; their covariances are R'R, R lower triangular and packed."""
    normal, found, start = rng.standard_normal(means.shape), means.copy(), 0
    for k in range(means.shape[1]):
        found[:, : k + 1] += roots[:, start : start + k + 1] * normal[:, k : k + 1]
        start += k + 1
    return found


def drawn_hyper(sums: ServerSums, sample: Array, rng: np.random.Generator) -> Hyper:
    """Noise and priors, given the users behind the sums and the sample of the items."""
    nothing = np.zeros((len(sample), triangle(sample.shape[1])))
    _, ratings, users, items, variances, _ = parts_at(sums, sample, nothing, np.zeros(len(sample)))
    shape = (ratings.number + gaussians.NOISE_WEIGHT) / 2 + 1
    noise = float(rng.standard_gamma(shape)) / (shape - 1) * gaussians.learned_noise(ratings)
    before = sums.hyper
    priors = [drawn_prior(*one, variances, rng) for one in ((users, before.users), (items, before.items))]
    return Hyper(noise, *priors)


def drawn_prior(rows: Rows, before: Prior, variances: Array, rng: np.random.Generator) -> Prior:
    """A prior, given sampled rows; the Wishart distribution is drawn by Bartlett's decomposition."""
    mode, size = gaussians.learned_prior(rows, variances, before), len(variances)
    weight = rows.number * (1 + gaussians.PRIOR_WEIGHT)
    lower = np.tril(rng.standard_normal((size, size)), -1)
    lower += np.diag(np.sqrt(rng.chisquare(weight + size - np.arange(size))))
    root = np.linalg.cholesky(mode.precision / weight) @ lower
    normal = rng.standard_normal(size) / np.sqrt(rows.number + gaussians.MEAN_WEIGHT)
    precision = root @ root.T
    return Prior.plain(mode.mean + np.linalg.solve(root.T, normal), (precision + precision.T) / 2)


# --- averages


def rotation(means: Array, target: Array) -> Array:
    """The rotation of the factors that takes these items closest to their targets; biases stay as they are."""
    size = means.shape[1]
    Q = np.eye(size)
    left, _, right = np.linalg.svd(np.einsum("ka,kb->ab", means[:, :-1], target[:, :-1]))
    Q[:-1, :-1] = left @ right
    return Q


def _mixed(one: Hyper, other: Hyper, weight: float) -> Hyper:
    """Averages of the noise, of the precisions, and of their products with the means: fits depend on these."""
    priors = []
    for a, b in ((one.users, other.users), (one.items, other.items)):
        precision = a.precision + weight * (b.precision - a.precision)
        priors.append(Prior.plain(np.linalg.solve(precision, a.pull + weight * (b.pull - a.pull)), precision))
    return Hyper(one.noise + weight * (other.noise - one.noise), *priors)


def _turned(matrices: Array, Q: Array) -> Array:
    """Q'MQ, exactly symmetric."""
    found = np.matmul(np.matmul(Q.T, matrices), Q)
    return np.asarray((found + np.swapaxes(found, -1, -2)) / 2)


def chain_of(server: ServerState, settings: Settings) -> Chain:
    assert server.S is not None
    return Chain.unpacked(server.S, len(server.V), settings.rank + 1)


def triangle(size: int) -> int:
    """Numbers in a packed symmetric matrix."""
    return size * (size + 1) // 2
