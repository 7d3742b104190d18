"""Explanations: which ratings, which items and which features moved a prediction. Computed at home, from the model.

A prediction is mean + scale (z'w + c), with z = (factors, bias) the posterior mean of the user, and w = (factors, 1)
and c the factors and the bias of the item. The user's posterior mean is a sum, with alpha the noise's precision:

    z     = prior + sum over its ratings m of   covariance alpha (m E[w_j] - E[w_j c_j] - E[w_j w_j'] prior)
    prior = mean of all users + sum over the items it rated or saw of   line_j / sqrt(n + 20), n of them + home'x

So a rating counts by how far it is from what the prior expects. The item's posterior mean is a sum too: its features x
add covariance precision weights'x, which ratings of the item shrink.

The prediction is linear in the parts of the user, and in those of the item. What a part of the user and a part of the
item add only together is halved between them. So the effects are the Shapley values of all parts, relative to a user
of whom nothing is known and to the item without its features, and they add up to the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.posterior import Posterior, seen_weight
from fedmc.data.ids import as_ids, places
from fedmc.data.ratings import Ratings
from fedmc.errors import require
from fedmc.types import Array

Kind = Literal["mean", "item", "item feature", "user feature", "seen", "rating", "ratings", "rest"]
Id = str | int
SMALLEST_REST = 1e-9  # in units of the scaled ratings: less is rounding


class Effect(NamedTuple):
    """What one part adds to a prediction, in units of the ratings.

    The kinds of effects::

        mean           the mean of all ratings
        item           the item itself, for a user of whom nothing is known
        item feature   a public feature of the item, named
        user feature   one of the user's own features, named
        seen           that the user rated or saw this item, whatever the rating
        rating         how much the user's rating of this item differs from what was expected
        ratings        the same for all ratings together, if their values are not known
        rest           what was not given: the user's features, or events without a rating; and in a model of several
                       simulated clients how far their weights of user features are from their average, which it holds
    """

    kind: Kind
    name: Id | None  # an item's id, or a feature's name
    effect: float


class Names(NamedTuple):
    """Names of features; those that are missing are numbered."""

    user: Sequence[str] = ()
    item: Sequence[str] = ()


class Case(NamedTuple):
    """A user and an item of a model, with what is known of them."""

    posterior: Posterior
    items: Array  # ids of all items
    row: int
    column: int
    mean: Array  # of the user's posterior: (factors, bias)
    rated: Array  # columns of the items that the user rated
    ratings: Array | None  # scaled; None if they are not known
    seen: Array  # columns of the items that the user rated or saw
    user_features: Array | None
    item_features: Array | None
    names: Names


class _Part(NamedTuple):
    """A summand of the posterior mean of a user or an item."""

    kind: Kind
    name: Id | None
    vector: Array


def effects(case: Case) -> list[Effect]:
    """What each part adds to the prediction, in units of the scaled ratings and without their mean."""
    nobody, item = case.posterior.hyper.users.mean, case.posterior.item_means[case.column].astype(np.float64)
    of_item, of_user = _item_parts(case), _user_parts(case)
    moved = _total(of_item, len(item))
    rest, user = item - moved, (nobody + case.mean) / 2
    found = [Effect("item", case.items[case.column].item(), _factors(nobody, rest) + nobody[-1] + rest[-1])]
    found += [Effect(kind, name, _factors(part, item - moved / 2) + part[-1]) for kind, name, part in of_user]
    found += [Effect(kind, name, _factors(user, part) + part[-1]) for kind, name, part in of_item]
    found = [one._replace(effect=float(one.effect)) for one in found]
    return [one for one in found if one.kind != "rest" or abs(one.effect) > SMALLEST_REST]


def ratings_of(ratings: Ratings, user: Id, items: Array) -> Array:
    """The user's ratings of these items; refused if one of them is missing."""
    place = int(places(ratings.users, as_ids([user], "user"))[0])
    require(place >= 0, f"the given ratings have none of user {user}")
    some = slice(*ratings.matrix.indptr[place : place + 2])
    ids, values = ratings.items[ratings.matrix.indices[some]], ratings.matrix.data[some]
    order = np.argsort(ids)
    found = places(ids[order], items)
    missing = items[found < 0]
    require(
        not len(missing),
        lambda: (
            f"the given ratings lack {len(missing)} of the {len(items)} that the model knows of user {user}: item "
            f"{missing[0]}, ...: give those that it was trained on"
        ),
    )
    return np.asarray(values[order][found], np.float64)


def ordered(found: Iterable[Effect]) -> list[Effect]:
    """The largest effects first."""
    return sorted(found, key=lambda one: -abs(one.effect))


def _factors(user: Array, item: Array) -> float:
    """The product of their factors, without their biases."""
    return float(user[:-1] @ item[:-1])


def _total(parts: Sequence[_Part], size: int) -> Array:
    return np.sum([part.vector for part in parts], axis=0) if parts else np.zeros(size)


def _user_parts(case: Case) -> list[_Part]:
    """All parts of the user's posterior mean besides the mean of all users."""
    known, parts = case.posterior, []
    if known.directions is not None and len(case.seen):
        lines = known.seen_lines[case.seen] * seen_weight(np.array(len(case.seen)))
        parts += [_Part("seen", *one) for one in zip(case.items[case.seen].tolist(), lines, strict=True)]
    parts += _feature_parts("user feature", case.user_features, known.home, case.names.user)
    prior = known.hyper.users.mean + _total(parts, len(case.mean))
    if case.ratings is not None:
        vectors = _rating_parts(case, prior, case.ratings)
        parts += [_Part("rating", *one) for one in zip(case.items[case.rated].tolist(), vectors, strict=True)]
    elif len(case.rated):
        parts.append(_Part("ratings", None, case.mean - prior))
    return [*parts, _Part("rest", None, case.mean - known.hyper.users.mean - _total(parts, len(case.mean)))]


def _rating_parts(case: Case, prior: Array, ratings: Array) -> Array:
    """covariance alpha (m E[w] - E[w c] - E[w w'] prior) of each rating m, a row each."""
    known = case.posterior
    assert known.user_covariances is not None
    w = known.item_means[case.rated].astype(np.float64)
    spread = gaussians.unpacked(known.item_covariances[case.rated].astype(np.float64))
    surprise = ratings - w[:, -1] - w[:, :-1] @ prior[:-1] - prior[-1]
    w[:, -1] = 1
    pulls = surprise[:, None] * w
    pulls[:, :-1] -= spread[:, :-1, :-1] @ prior[:-1] + spread[:, :-1, -1]
    covariance = gaussians.unpacked(known.user_covariances[case.row].astype(np.float64))
    return np.asarray(known.hyper.noise * pulls @ covariance)


def _item_parts(case: Case) -> list[_Part]:
    """What the item's features add to its posterior mean, given its ratings.

    The covariance of an item without ratings is not below that of the prior, and its features count in full.
    """
    known = case.posterior
    precision = known.hyper.items.precision
    shrunk = precision @ gaussians.unpacked(known.item_covariances[case.column].astype(np.float64))
    if np.trace(shrunk) > len(precision) * (1 - 1e-6):
        shrunk = np.eye(len(precision))
    weights = None if known.item_weights is None else known.item_weights @ shrunk
    return _feature_parts("item feature", case.item_features, weights, case.names.item)


def _feature_parts(kind: Kind, values: Array | None, weights: Array | None, names: Sequence[str]) -> list[_Part]:
    if values is None:
        return []
    count = 0 if weights is None else len(weights)
    require(values.shape == (count,), f"the model knows {count} {kind}s, but a row of shape {values.shape} was given")
    if weights is None:
        return []
    named = names if len(names) == count else [f"feature {k}" for k in range(1, count + 1)]
    return [_Part(kind, *one) for one in zip(named, values[:, None] * weights, strict=True)]
