"""beta, the weight that ties a client's W to V: one number, or one number per item and coordinate.

With beta="auto" it is a product of two factors, and only the factors are broadcast:

    beta_ja = c (count_j + 1) mean_t u_ta^2 / p^2        c times the curvature of an average client, over p
"""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.messages import Broadcast, Shared, Sums
from fedmc.errors import InputError, require
from fedmc.types import Array

NUMBER, ITEMS, COORDINATES = "beta", "beta_items", "beta_coordinates"


def constant(beta: float) -> Shared:
    return Shared({NUMBER: np.asarray(float(beta))})


def from_sums(moments: Sums, scale: Sums) -> Shared:
    """The two factors of beta="auto", from the items' counts and the users' mean squares."""
    mean_squares = scale["squares"] / scale.number("users")
    floor = max(float(mean_squares.max()), 1.0) * 1e-6
    return Shared({ITEMS: moments["items"] + 1.0, COORDINATES: np.maximum(mean_squares, floor)})


def beta_of(broadcast: Broadcast) -> float | Array:
    """beta as clients use it; 1 if the algorithm has none."""
    shared = broadcast.shared
    if ITEMS in shared.arrays:
        return shared.derive("beta", lambda: _product(broadcast))
    number = shared.arrays.get(NUMBER)
    return 1.0 if number is None else float(number)


def _product(broadcast: Broadcast) -> Array:
    arrays, settings = broadcast.shared.arrays, broadcast.settings
    beta = settings.beta_scale * np.outer(arrays[ITEMS], arrays[COORDINATES]) / broadcast.clients**2
    return np.asarray(beta.astype(settings.dtype))


def check(broadcast: Broadcast) -> None:
    """Refuse a broadcast whose beta is missing, of a wrong shape, not above 0, or not that of the settings."""
    arrays, (items, width) = broadcast.shared.arrays, broadcast.V.shape
    shapes = {name: array.shape for name, array in arrays.items()}
    known: list[dict[str, tuple[int, ...]]] = [{NUMBER: ()}, {ITEMS: (items,), COORDINATES: (width,)}]
    if shapes not in known:
        raise InputError(f"beta must be one number, or one factor per item and one per coordinate, got {shapes}")
    require(all(bool((array > 0).all()) for array in arrays.values()), "beta must be above 0")
    wanted = broadcast.settings.beta
    if wanted == "auto":
        require(ITEMS in arrays, "beta is 'auto' in the settings, but the broadcast has one number")
        return
    same = NUMBER in arrays and bool(arrays[NUMBER] == np.asarray(wanted, arrays[NUMBER].dtype))
    require(same, f"beta is {wanted} in the settings, but the broadcast has another one")
