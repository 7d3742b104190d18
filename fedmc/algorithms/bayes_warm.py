"""Warm starts of the Bayesian model: what it takes over from a trained one."""

from __future__ import annotations

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.bayes_server import shared_of, sums_of
from fedmc.algorithms.gaussians import Hyper, Prior
from fedmc.algorithms.previous import Previous
from fedmc.algorithms.protocol import Start
from fedmc.algorithms.side import Side
from fedmc.errors import require
from fedmc.types import Array

CONDITION = 1e-6  # eigenvalues below this share of the largest one are rounding
SMALLEST = 1e-12


def warm_start(begun: Start, previous: Previous) -> Start:
    """The start with the noise, the priors and the items' posteriors of the trained model."""
    sums, settings = sums_of(begun.server, begun.broadcast.settings), begun.broadcast.settings
    hyper, means, roots = carried(previous, sums.side)
    V = np.ones((len(means), settings.rank + 2), begun.broadcast.V.dtype)
    V[:, :-1] = means
    shared = shared_of(hyper, roots.astype(V.dtype), sums.side)
    server = begun.server._replace(V=V, S=sums._replace(hyper=hyper).packed())
    return Start(begun.broadcast._replace(V=V, shared=shared), server)


def carried(previous: Previous, side: Side) -> tuple[Hyper, Array, Array]:
    """Noise and priors of a trained model for a run with this side information; the items' means and packed roots.

    The directions of two runs differ. The users' weights are those that give the known items the same effect on the
    prior means of who rated them, by least squares; the items' are the regression of the known items' means. Weights of
    what says little about known items begin at 0.
    """
    trained, known = previous.posterior, previous.known
    require(trained is not None, "a Bayesian run goes on from a Bayesian model only: train without it")
    assert trained is not None
    noise, *priors = trained.hyper
    users, items = (
        gaussians.with_regressors(Prior.plain(prior.mean, prior.precision), groups)
        for prior, groups in zip(priors, side.groups(), strict=True)
    )
    if trained.directions is not None and len(users.weights):
        users = users._replace(weights=_effects(side.directions, known, trained.seen_lines[known]))
    regressors = side.regressors()
    told = regressors[known] * _about_known(regressors, known)
    rows = trained.item_means[known], trained.item_covariances[known], np.zeros(int(known.sum())), told
    B, _ = gaussians.coefficients(gaussians.summed(*rows), items)
    items = items._replace(weights=B[:-1], mean=B[-1])
    means, covariances = items.means(regressors), gaussians.packed(np.linalg.inv(items.precision))
    means[known] = trained.item_means[known]
    spread = np.where(known[:, None], trained.item_covariances, covariances).astype(np.float64)
    return Hyper(noise, users, items), means, gaussians.lower_roots(spread)


def _effects(directions: Array, known: Array, lines: Array) -> Array:
    """Weights of the directions that give the known items these lines, by least squares."""
    D = directions[known] * _about_known(directions, known)
    sizes = np.maximum(np.linalg.norm(D, axis=0), SMALLEST)
    D = D / sizes
    gram = np.einsum("jx,jy->xy", D, D)
    found = np.linalg.pinv(gram, rcond=CONDITION, hermitian=True) @ np.einsum("jx,ja->xa", D, lines)
    return np.asarray(found / sizes[:, None])


def _about_known(columns: Array, known: Array) -> Array:
    """1 for each column that says more about the known items than about new ones, else 0.

    Nothing is known of the weights of the others: those of new items that only new users have seen, say. They begin at
    0; fitted to the little that such a column says about known items, they would be arbitrarily large.
    """
    squares = np.square(columns)
    return np.where(squares[known].sum(axis=0) > 0.5 * squares.sum(axis=0), 1.0, 0.0)
