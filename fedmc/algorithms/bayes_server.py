"""The server's side of the Bayesian model: what it keeps, what it broadcasts, and what it learns from the sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.gaussians import Hyper, Prior, Ratings, Rows
from fedmc.algorithms.messages import Broadcast, Shared, Sums
from fedmc.algorithms.posterior import Posterior
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import ServerState
from fedmc.errors import InputError, require
from fedmc.kernels import moments
from fedmc.types import Array

ROOTS, NOISE = "item_roots", "noise"
PRIORS = ("user_mean", "user_precision", "item_mean", "item_precision")
NAMES = (ROOTS, NOISE, *PRIORS)
EIGENVALUES = 1e-3, 1e9  # of a prior's precision
NOISES = 1e-3, 1e9  # of the noise's precision
ROUNDING = 1e-6  # relative error of sums in fixed point
LARGEST = 1e6  # an entry of a covariance's root, or of a prior mean


class ServerSums(NamedTuple):
    """What the server keeps: the clients' sums, noise and priors; `packed` as one vector."""

    items: Array  # [G, b] of each item
    users: Array
    hyper: Hyper

    def packed(self) -> Array:
        noise, users, items = self.hyper
        parts = self.items, self.users, np.array([noise]), *users, *items
        return np.concatenate([part.ravel() for part in parts])

    @classmethod
    def unpacked(cls, vector: Array, items: int, size: int) -> ServerSums:
        shapes = [(items, moments.line_length(size)), (user_numbers(size),), (1,), *[(size,), (size, size)] * 2]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        parts = [part.reshape(shape) for part, shape in zip(np.split(vector, ends), shapes, strict=True)]
        return cls(parts[0], parts[1], Hyper(float(parts[2][0]), Prior(*parts[3:5]), Prior(*parts[5:])))


def sums_of(server: ServerState, settings: Settings) -> ServerSums:
    """The sums in a server's state."""
    assert server.S is not None
    return ServerSums.unpacked(server.S, len(server.V), settings.rank + 1)


def user_numbers(size: int) -> int:
    """Numbers in the sums over users."""
    return 4 + size + size * (size + 1) // 2


# --- what is broadcast


def shared_of(hyper: Hyper, roots: Array) -> Shared:
    """Noise, priors, and the items' covariances as packed roots: whatever a server sends, they are covariances."""
    values = hyper.users.mean, hyper.users.precision, hyper.items.mean, hyper.items.precision
    copies = dict(zip(PRIORS, map(np.array, values), strict=True))  # views would keep all of the server's sums
    return Shared({ROOTS: roots, NOISE: np.array([hyper.noise]), **copies})


def posterior_of(broadcast: Broadcast) -> Posterior:
    """The items' posteriors, noise and priors of a broadcast."""
    arrays, size = broadcast.shared.arrays, broadcast.settings.rank + 1

    def covariances() -> Array:
        return moments.covariances_of(arrays[ROOTS], size)

    users, items = Prior(arrays[PRIORS[0]], arrays[PRIORS[1]]), Prior(arrays[PRIORS[2]], arrays[PRIORS[3]])
    hyper = Hyper(float(arrays[NOISE][0]), users, items)
    means = np.ascontiguousarray(broadcast.V[:, :size])
    return Posterior(hyper, means, broadcast.shared.derive("covariances", covariances))


def lines_of(broadcast: Broadcast) -> Array:
    """The items' packed moments, computed once per broadcast."""

    def lines() -> Array:
        known = posterior_of(broadcast)
        return moments.moment_lines(known.item_means, known.item_covariances)

    return broadcast.shared.derive("lines", lines)


def check_broadcast(broadcast: Broadcast) -> None:
    """Refuse noise, priors and covariances that no honest server would send: no posterior may fail at them."""
    if broadcast.task == "moments":
        return
    size, arrays = broadcast.settings.rank + 1, broadcast.shared.arrays
    shapes = [(len(broadcast.V), size * (size + 1) // 2), (1,), *[(size,), (size, size)] * 2]
    for name, shape in zip(NAMES, shapes, strict=True):
        if name not in arrays or arrays[name].shape != shape:
            raise InputError(f"the server's {name} is missing or has another shape than {shape}")
        finite = bool((np.abs(arrays[name]) <= max(LARGEST, NOISES[1], EIGENVALUES[1])).all())
        require(finite, f"the server's {name} has numbers that are not finite or too large")
    for name in (ROOTS, "user_mean", "item_mean"):
        require(bool((np.abs(arrays[name]) <= LARGEST).all()), f"the server's {name} has numbers beyond {LARGEST:g}")
    noise = float(arrays[NOISE][0])
    require(NOISES[0] <= noise <= NOISES[1], f"noise must be {NOISES[0]:g} to {NOISES[1]:g}, got {noise:g}")
    for name in ("user_precision", "item_precision"):
        eigenvalues = np.linalg.eigvalsh(arrays[name])
        inside = EIGENVALUES[0] <= eigenvalues[0] and eigenvalues[-1] <= EIGENVALUES[1]
        symmetric = bool(np.array_equal(arrays[name], arrays[name].T))
        require(inside and symmetric, f"the server's {name} is no precision: symmetric, eigenvalues {EIGENVALUES}")


# --- what is learned


def added(sums: ServerSums, total: Sums) -> ServerSums:
    """The sums with those of a round; InputError if they cannot be sums over users and ratings."""
    found = sums._replace(items=sums.items + total["S"], users=sums.users + total["users"][0])
    finite = bool(np.isfinite(found.items).all() and np.isfinite(found.users).all())
    require(finite, "the sums are not finite")
    users, error, ratings = found.users[0], found.users[-3], found.users[-1]
    counted = min(users, error, ratings) >= -ROUNDING * max(1.0, abs(ratings))
    require(bool(counted), f"{users:g} users, {ratings:g} ratings and an error of {error:g} cannot be sums")
    return found


def item_posteriors(sums: ServerSums) -> tuple[Array, Array, Array]:
    """Means, packed covariances and their log determinants, from the sums."""
    prior = sums.hyper.items
    return moments.posteriors(sums.items, sums.hyper.noise, prior.precision, prior.pull)


def item_roots(sums: ServerSums) -> tuple[Array, Array]:
    """Means and packed roots of covariances, from the sums."""
    prior = sums.hyper.items
    return moments.posterior_roots(sums.items, sums.hyper.noise, prior.precision, prior.pull)


def learned(sums: ServerSums) -> Hyper:
    """Noise and priors that maximise the bound, given the users' posteriors and the items' that follow from them."""
    _, ratings, users, items, variances = bound_parts(sums)
    priors = [gaussians.learned_prior(rows, variances) for rows in (users, items)]
    return Hyper(gaussians.learned_noise(ratings), *priors)


def bound_parts(sums: ServerSums) -> tuple[Hyper, Ratings, Rows, Rows, Array]:
    """The arguments of `gaussians.bound`, at the items' posteriors that follow from the sums.

    There (precision + noise G) mean = pull + noise b, and (precision + noise G) covariance = 1. So the items' part of
    the expected squared error, sum tr(G E[v v']) - 2 b'E[v], needs no product with G.
    """
    hyper, means = sums.hyper, (found := item_posteriors(sums))[0]
    items = _rated(sums, *found)
    away = items.number * means.shape[1] + hyper.items.pull @ items.mean
    away -= float(np.sum(hyper.items.precision * gaussians.unpacked(items.second)))
    b = sums.items[:, -means.shape[1] :]
    fitted = float(np.einsum("ja,ja->", b, means))  # avoids BLAS, whose threads compete with the kernels
    return _parts(sums, items, float(away / hyper.noise - fitted))


def parts_at(
    sums: ServerSums, means: Array, covariances: Array, log_dets: Array
) -> tuple[Hyper, Ratings, Rows, Rows, Array]:
    """`bound_parts` at any other posteriors of the items."""
    size = means.shape[1]
    G, b = sums.items[:, :-size], sums.items[:, -size:]
    second = gaussians.second_moments(means, covariances)
    error = float(np.sum((G * second) @ gaussians.multiplicity(size)) - 2 * np.sum(b * means))
    return _parts(sums, _rated(sums, means, covariances, log_dets), error)


def _raters(sums: ServerSums) -> Array:
    """The number of ratings of each item."""
    found: Array = sums.items[:, -len(sums.hyper.items.mean) - 1]
    return found


def _rated(sums: ServerSums, means: Array, covariances: Array, log_dets: Array) -> Rows:
    """The sums over the items that anybody rated."""
    rated = _raters(sums) > 0
    if rated.all():
        return gaussians.summed(means, covariances, log_dets)
    return gaussians.summed(means[rated], covariances[rated], log_dets[rated])


def _parts(sums: ServerSums, items: Rows, items_error: float) -> tuple[Hyper, Ratings, Rows, Rows, Array]:
    """`items_error` is the items' part of the expected squared error."""
    size = len(sums.hyper.items.mean)
    count, (error, log_det, number) = float(sums.users[0]), sums.users[-3:].tolist()
    users = Rows(count, sums.users[1 : size + 1], sums.users[size + 1 : -3], log_det)
    raters = _raters(sums)
    typical = number / max(count, 1e-9) * float(np.square(raters).sum() / max(float(raters.sum()), 1e-9))
    return sums.hyper, Ratings(number, error + items_error), users, items, gaussians.guess(size, typical)
