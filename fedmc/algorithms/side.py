"""Side information about items: who rated them, and public features. What follows for items without ratings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.gaussians import Group, Groups, Prior
from fedmc.types import Array

IMPLICIT_RIDGE, FEATURE_RIDGE = 10.0, 30.0  # the hyperprior's guesses of ridges
UNRATED_RIDGE = 10.0  # rated items that the ridge of `unrated` counts as


class Side(NamedTuple):
    """What is known besides ratings, a row for each item; fixed from the start of a run."""

    directions: Array  # what an item adds to the regressors of those who rated it
    implicit: Array  # the item's own regressors, from who rated it
    features: Array  # its public features

    @classmethod
    def nothing(cls, items: int) -> Side:
        return cls(*(np.zeros((items, 0)) for _ in range(3)))

    def regressors(self) -> Array:
        """The regressors of the items."""
        return np.concatenate([self.implicit, self.features], axis=1)

    def groups(self) -> Groups:
        """The groups of the users' and of the items' regressors."""
        users, items, public = (part.shape[1] for part in self)
        return _groups(users), _groups(items, public)


def _groups(implicit: int, public: int = 0) -> list[Group]:
    found = Group(implicit, IMPLICIT_RIDGE), Group(public, FEATURE_RIDGE)
    return [group for group in found if group.size]


def unrated(prior: Prior, side: Side, raters: Array) -> tuple[Array, Array]:
    """Means, and one packed root of a covariance, for the items without ratings: nobody knows who will rate them.

    What their implicit regressors would explain is predicted from the features, by ridge regression over the rated
    items. If an item without ratings is rated, it is most likely one that many rate: so items count by their ratings.
    """
    (_, implicit, features), rated = side, raters > 0
    covariance, count = np.linalg.inv(prior.precision), implicit.shape[1]
    a = np.append(features, np.ones((len(features), 1)), axis=1)
    B = np.concatenate([prior.weights[count:], prior.mean[None]])
    if count and rated.any():
        explained = np.einsum("jx,xa->ja", implicit[rated], prior.weights[:count])
        share = raters[rated] / raters.sum()
        ridge = np.append(np.full(features.shape[1], UNRATED_RIDGE / rated.sum()), 0.0)
        gram = np.einsum("j,jx,jy->xy", share, a[rated], a[rated]) + np.diag(ridge)
        C = np.linalg.solve(gram, np.einsum("j,jx,ja->xa", share, a[rated], explained))
        away = explained - np.einsum("jx,xa->ja", a[rated], C)
        B, covariance = B + C, covariance + np.einsum("j,ja,jb->ab", share, away, away)
    root = gaussians.lower_roots(gaussians.packed((covariance + covariance.T) / 2)[None])
    return np.einsum("jx,xa->ja", a[~rated], B), root[0]
