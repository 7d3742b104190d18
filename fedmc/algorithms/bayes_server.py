"""The server's side of the Bayesian model: what it keeps, what it broadcasts, and what it learns from the sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians, incidence
from fedmc.algorithms.gaussians import Groups, Hyper, Prior, Ratings, Rows
from fedmc.algorithms.messages import Broadcast, Shared, Sums
from fedmc.algorithms.posterior import Posterior
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.side import Side, unrated
from fedmc.algorithms.state import ServerState
from fedmc.errors import InputError, require
from fedmc.kernels import moments
from fedmc.types import Array

ROOTS, NOISE = "item_roots", "noise"
PRIORS = ("user_mean", "user_precision", "item_mean", "item_precision")
NAMES = (ROOTS, NOISE, *PRIORS)
DIRECTIONS, WEIGHTS = "directions", "user_weights"  # broadcast if the model has implicit terms
ITEM_WEIGHTS = "item_weights"  # of public features of items, if there are any
EIGENVALUES = 1e-3, 1e9  # of a prior's precision
NOISES = 1e-3, 1e9  # of the noise's precision
ROUNDING = 1e-6  # relative error of sums in fixed point
LARGEST = 1e6  # an entry of a covariance's root, or of a prior mean
MAX_FEATURES = 10_000


class ServerSums(NamedTuple):
    """What the server keeps: the clients' sums, noise and priors, and side information; `packed` as one vector."""

    items: Array  # [G, b] of each item
    users: Array
    hyper: Hyper
    side: Side

    def packed(self) -> Array:
        noise, users, items = self.hyper
        columns = np.array([part.shape[1] for part in self.side], np.float64)
        parts = columns, self.items, self.users, np.array([noise]), *users, *items, *self.side
        return np.concatenate([part.ravel() for part in parts])

    @classmethod
    def unpacked(cls, vector: Array, items: int, size: int) -> ServerSums:
        own, implicit, public = (int(number) for number in vector[:3])
        shapes = [(items, moments.line_length(size)), (user_numbers(size, own),), (1,)]
        for count in (own, implicit + public):
            shapes += [(size,), (size, size), (count, size), (count,)]
        shapes += [(items, own), (items, implicit), (items, public)]
        ends = 3 + np.cumsum([int(np.prod(shape)) for shape in shapes])
        flat = np.split(vector, [3, *ends])[1:-1]
        parts = [part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)]
        hyper = Hyper(float(parts[2][0]), Prior(*parts[3:7]), Prior(*parts[7:11]))
        return cls(parts[0], parts[1], hyper, Side(*parts[11:]))


def first_sums(items: int, size: int, side: Side) -> ServerSums:
    """The sums before any client has joined."""
    noise, *priors = gaussians.first_hyper(size)
    users, own = map(gaussians.with_regressors, priors, side.groups())
    zeros = np.zeros((items, moments.line_length(size)))
    return ServerSums(zeros, np.zeros(user_numbers(size, side.directions.shape[1])), Hyper(noise, users, own), side)


def sums_of(server: ServerState, settings: Settings) -> ServerSums:
    """The sums in a server's state."""
    assert server.S is not None
    return ServerSums.unpacked(server.S, len(server.V), settings.rank + 1)


def user_numbers(size: int, regressors: int = 0) -> int:
    """Numbers in the sums over users: a a', a z' and E[z z'], packed, and three scalars, with a = (regressors, 1)."""
    ones = regressors + 1
    return ones * (ones + 1) // 2 + ones * size + size * (size + 1) // 2 + 3


ERROR = -3  # the place of the expected squared error in `packed_users`


def packed_users(rows: Rows, error: float, ratings: float) -> Array:
    """The sums over users as one vector."""
    scalars = np.array([error, rows.log_det, ratings])
    return np.concatenate([gaussians.packed(rows.gram), rows.cross.ravel(), rows.second, scalars])


def unpacked_users(vector: Array, size: int) -> tuple[Rows, float, float]:
    """Inverse of `packed_users`."""
    second = size * (size + 1) // 2
    rest = len(vector) - 3 - second
    ones = round((np.sqrt((2 * size + 1) ** 2 + 8 * rest) - (2 * size + 1)) / 2)  # ones (ones + 1) / 2 + ones size
    gram, cross, squares = np.split(vector[:-3], [ones * (ones + 1) // 2, rest])
    error, log_det, ratings = vector[-3:].tolist()
    return Rows(gaussians.unpacked(gram), cross.reshape(ones, size), squares, log_det), error, ratings


# --- what is broadcast


def shared_of(hyper: Hyper, roots: Array, side: Side | None = None) -> Shared:
    """Noise, priors, and the items' covariances as packed roots: whatever a server sends, they are covariances."""
    values = hyper.users.mean, hyper.users.precision, hyper.items.mean, hyper.items.precision
    copies = dict(zip(PRIORS, map(np.array, values), strict=True))  # views would keep all of the server's sums
    if side is not None and side.directions.shape[1]:
        copies |= {DIRECTIONS: side.directions.astype(roots.dtype), WEIGHTS: np.array(hyper.users.weights)}
    if side is not None and side.features.shape[1]:
        copies |= {ITEM_WEIGHTS: hyper.items.weights[side.implicit.shape[1] :].copy()}
    return Shared({ROOTS: roots, NOISE: np.array([hyper.noise]), **copies})


def posterior_of(broadcast: Broadcast) -> Posterior:
    """The items' posteriors, noise and priors of a broadcast, computed once for it."""
    return broadcast.shared.derive("posterior", lambda: _posterior_of(broadcast))


def _posterior_of(broadcast: Broadcast) -> Posterior:
    arrays, size = broadcast.shared.arrays, broadcast.settings.rank + 1
    users, items = (Prior.plain(arrays[PRIORS[k]], arrays[PRIORS[k + 1]]) for k in (0, 2))
    if DIRECTIONS in arrays:
        users = users._replace(weights=arrays[WEIGHTS], ridge=np.ones(len(arrays[WEIGHTS])))
    hyper = Hyper(float(arrays[NOISE][0]), users, items)
    means = np.ascontiguousarray(broadcast.V[:, :size])
    side = arrays.get(DIRECTIONS), arrays.get(ITEM_WEIGHTS)
    return Posterior(hyper, means, moments.covariances_of(arrays[ROOTS], size), None, *side)


def directions_of(broadcast: Broadcast) -> int:
    """The number of the users' regressors."""
    found = broadcast.shared.arrays.get(DIRECTIONS)
    return 0 if found is None else int(found.shape[-1])


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
    names: tuple[str, ...] = NAMES
    if broadcast.settings.implicit and not arrays.keys().isdisjoint({DIRECTIONS, WEIGHTS}):
        count = (0, *arrays[DIRECTIONS].shape)[-1] if DIRECTIONS in arrays else 0
        most = incidence.most(len(broadcast.V))
        require(0 < count <= most, f"the server sends {count} directions: at most {most} are known")
        names, shapes = (*names, DIRECTIONS, WEIGHTS), [*shapes, (len(broadcast.V), count), (count, size)]
    if ITEM_WEIGHTS in arrays:
        count = (*arrays[ITEM_WEIGHTS].shape, 0)[0]
        require(0 < count <= MAX_FEATURES, f"the server sends weights of {count} features, at most {MAX_FEATURES}")
        names, shapes = (*names, ITEM_WEIGHTS), [*shapes, (count, size)]
    for name, shape in zip(names, shapes, strict=True):
        if name not in arrays or arrays[name].shape != shape:
            raise InputError(f"the server's {name} is missing or has another shape than {shape}")
        finite = bool((np.abs(arrays[name]) <= max(LARGEST, NOISES[1], EIGENVALUES[1])).all())
        require(finite, f"the server's {name} has numbers that are not finite or too large")
    for name in {ROOTS, "user_mean", "item_mean", *names[len(NAMES) :]}:
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
    rows, error, ratings = unpacked_users(found.users, len(sums.hyper.users.mean))
    counted = min(rows.number, error, ratings) >= -ROUNDING * max(1.0, abs(ratings))
    require(bool(counted), f"{rows.number:g} users, {ratings:g} ratings and an error of {error:g} cannot be sums")
    return found


def item_pulls(sums: ServerSums) -> Array:
    """precision times prior mean of each item."""
    prior = sums.hyper.items
    return prior.pulls(prior.means(sums.side.regressors()))


def item_posteriors(sums: ServerSums) -> tuple[Array, Array, Array]:
    """Means, packed covariances and their log determinants, from the sums."""
    return moments.posteriors(sums.items, sums.hyper.noise, sums.hyper.items.precision, item_pulls(sums))


def item_roots(sums: ServerSums) -> tuple[Array, Array]:
    """Means and packed roots of covariances, from the sums."""
    prior, raters = sums.hyper.items, _raters(sums)
    means, roots = moments.posterior_roots(sums.items, sums.hyper.noise, prior.precision, item_pulls(sums))
    if (raters == 0).any():
        means[raters == 0], roots[raters == 0] = unrated(prior, sums.side, raters)
    return means, roots


def learned(sums: ServerSums) -> Hyper:
    """Noise and priors that maximise the bound, given the users' posteriors and the items' that follow from them."""
    before, ratings, users, items, variances, groups = bound_parts(sums)
    sides = zip((users, items), (before.users, before.items), groups, strict=True)
    priors = [gaussians.learned_prior(rows, variances, prior, some) for rows, prior, some in sides]
    return Hyper(gaussians.learned_noise(ratings), *priors)


Parts = tuple[Hyper, Ratings, Rows, Rows, Array, Groups]  # the arguments of `gaussians.bound`


def bound_parts(sums: ServerSums) -> Parts:
    """The arguments of `gaussians.bound`, at the items' posteriors that follow from the sums.

    There (precision + noise G) mean = pull + noise b, and (precision + noise G) covariance = 1. So the items' part of
    the expected squared error, sum tr(G E[v v']) - 2 b'E[v], needs no product with G.
    """
    hyper, pulls = sums.hyper, item_pulls(sums)
    means, covariances, log_dets = moments.posteriors(sums.items, hyper.noise, hyper.items.precision, pulls)
    rated, size = _raters(sums) > 0, means.shape[1]
    items = _rated(sums, means, covariances, log_dets)
    pulled = float(np.einsum("ja,ja->", pulls[rated], means[rated]))
    away = items.number * size + pulled - float(np.sum(hyper.items.precision * gaussians.unpacked(items.second)))
    fitted = float(
        np.einsum("ja,ja->", sums.items[:, -size:], means)
    )  # avoids BLAS, whose threads compete with kernels
    return _parts(sums, items, away / hyper.noise - fitted)


def parts_at(sums: ServerSums, means: Array, covariances: Array, log_dets: Array) -> Parts:
    """`bound_parts` at any other posteriors of the items."""
    error = _items_error(sums.items, means, covariances)
    return _parts(sums, _rated(sums, means, covariances, log_dets), error)


def items_error(S: Array, broadcast: Broadcast) -> float:
    """The items' part of the expected squared error of the ratings behind these sums, at the posteriors broadcast."""
    known = posterior_of(broadcast)
    return _items_error(S, known.item_means, known.item_covariances)


def _items_error(S: Array, means: Array, covariances: Array) -> float:
    size = means.shape[1]
    G, b = S[:, :-size], S[:, -size:]
    second = gaussians.second_moments(means, covariances)
    return float(np.sum((G * second) @ gaussians.multiplicity(size)) - 2 * np.sum(b * means))


def _raters(sums: ServerSums) -> Array:
    """The number of ratings of each item."""
    found: Array = sums.items[:, -len(sums.hyper.items.mean) - 1]
    return found


def _rated(sums: ServerSums, means: Array, covariances: Array, log_dets: Array) -> Rows:
    """The sums over the items that anybody rated."""
    rated, regressors = _raters(sums) > 0, sums.side.regressors()
    if rated.all():
        return gaussians.summed(means, covariances, log_dets, regressors)
    return gaussians.summed(means[rated], covariances[rated], log_dets[rated], regressors[rated])


def _parts(sums: ServerSums, items: Rows, items_error: float) -> Parts:
    """`items_error` is the items' part of the expected squared error."""
    size = len(sums.hyper.items.mean)
    users, error, number = unpacked_users(sums.users, size)
    raters = _raters(sums)
    typical = number / max(users.number, 1e-9) * float(np.square(raters).sum() / max(float(raters.sum()), 1e-9))
    guess = gaussians.guess(size, typical)
    return sums.hyper, Ratings(number, error + items_error), users, items, guess, sums.side.groups()
