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
    prior means of who rated them, by least squares; the items' are the regression of the known items' means.
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
        D = side.directions[known]
        gram = np.einsum("jx,jy->xy", D, D)
        weights = np.linalg.pinv(gram, hermitian=True) @ np.einsum("jx,ja->xa", D, trained.seen_lines[known])
        users = users._replace(weights=weights)
    regressors = side.regressors()
    rows = trained.item_means[known], trained.item_covariances[known], np.zeros(int(known.sum())), regressors[known]
    B, _ = gaussians.coefficients(gaussians.summed(*rows), items)
    items = items._replace(weights=B[:-1], mean=B[-1])
    means, covariances = items.means(regressors), gaussians.packed(np.linalg.inv(items.precision))
    means[known] = trained.item_means[known]
    spread = np.where(known[:, None], trained.item_covariances, covariances).astype(np.float64)
    return Hyper(noise, users, items), means, gaussians.lower_roots(spread)
