"""What an export holds: the numbers of the formula that turns a model into predictions.

score       user's factors x item's factors + user's bias + item's bias
            or, of a model from items to items: the sum of the item's weights of all items that the user had
prediction  link(score) * scale + mean, clipped to the range of ratings
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.errors import require
from fedmc.model import Model
from fedmc.problem.losses import Logistic, Loss, Square
from fedmc.types import Array, DType

# Links that an export can name.
LINKS: Mapping[str, Callable[[Array], Array]] = {"identity": Square().link, "logistic": Logistic().link}
PROBES = np.linspace(-6, 6, 49)  # where a loss's link is compared with these
NO_DAYS = "The biases of users by day are left out: predictions are those for no given time."


class Users(NamedTuple):
    """The users of a model; a model from items to items has no factors of them."""

    ids: Array
    factors: Array | None
    bias: Array | None
    seen: sparse.csr_array  # columns of the items that each has rated or had


class Items(NamedTuple):
    """The items of a model, with factors and biases or, of a model from items to items, with weights."""

    ids: Array
    titles: Array | None  # an empty string where it is not known
    factors: Array | None
    bias: Array | None
    weights: Array | None


class Spread(NamedTuple):
    """What standard deviations and intervals need besides the means: packed covariances, noise, calibration."""

    noise: float
    item_covariances: Array
    user_covariances: Array | None
    calibration: Array | None


class Content(NamedTuple):
    """All of an export, whatever its form."""

    items: Items
    users: Users | None  # None: items only
    spread: Spread | None
    mean: float
    scale: float
    low: float  # -inf and inf: predictions are not clipped
    high: float
    link: str | None  # None: not one of LINKS
    about: Mapping[str, object]  # the model in words, for people
    notes: tuple[str, ...]

    @property
    def dtype(self) -> DType:
        """The type of factors and weights."""
        numbers = self.items.factors if self.items.weights is None else self.items.weights
        assert numbers is not None
        return numbers.dtype


def content_of(model: Model, items_only: bool, posterior: bool, dtype: DType | None) -> Content:
    """What to export of a model."""
    kind = model.V.dtype if dtype is None else dtype
    U, V = (array.astype(kind, copy=False) for array in (_user_rows(model), model.V))
    low, high = model.rating_range or (-np.inf, np.inf)
    loss = model.settings.make_loss()
    algorithm = str(model.settings.make_algorithm())
    about = {"preset": model.settings.preset_name, "algorithm": algorithm, "loss": str(loss)}
    days = model.posterior is not None and model.posterior.days is not None
    user_parts, item_parts = _parts(model, U, V)
    return Content(
        Items(model.items, _titles(model), *item_parts),
        None if items_only else Users(model.users, *user_parts, model.seen),
        _spread(model, items_only, kind) if posterior else None,
        *(model.scaling.mean, model.scaling.scale, low, high),
        link_of(loss), about, (NO_DAYS,) if days and not items_only else (),
    )  # fmt: skip


def link_of(loss: Loss) -> str | None:
    """The name of a loss's link, found by its values; None if it is none of LINKS."""
    found = loss.link(PROBES)
    return next(
        (name for name, link in LINKS.items() if np.allclose(found, link(PROBES), rtol=1e-12, atol=1e-12)), None
    )


def _titles(model: Model) -> Array | None:
    """The titles as text that every file can hold."""
    if model.titles is None:
        return None
    return np.array([title.encode("utf-8", "replace").decode("utf-8") for title in model.titles.tolist()], np.str_)


def _user_rows(model: Model) -> Array:
    """What stands for users in scores; no columns if scores are sums over the items that a user had."""
    if not model.U.shape[1]:
        return model.U
    return model.settings.make_algorithm().user_rows(model.U, model.seen)


def _parts(
    model: Model, U: Array, V: Array
) -> tuple[tuple[Array | None, Array | None], tuple[Array | None, Array | None, Array | None]]:
    """(factors, bias) of users, and (factors, bias, weights) of items."""
    if not U.shape[1]:
        return (None, None), (None, None, V)
    r = model.settings.rank
    if model.settings.biases and (U[:, r] == 1).all() and (V[:, r + 1] == 1).all():
        return (U[:, :r], U[:, r + 1]), (V[:, :r], V[:, r], None)
    return (U, np.zeros(len(U), U.dtype)), (V, np.zeros(len(V), V.dtype), None)


def _spread(model: Model, items_only: bool, kind: DType) -> Spread:
    known = model.bayesian("posterior=True")
    users = None if items_only else known.user_covariances
    if users is not None:
        require(known.calibration is not None, "this model's intervals are not calibrated: export it without posterior")
    calibration = None if items_only else known.calibration
    lines = (None if array is None else array.astype(kind, copy=False) for array in (known.item_covariances, users))
    of_items, of_users = lines
    assert of_items is not None
    return Spread(float(known.hyper.noise), of_items, of_users, calibration)
