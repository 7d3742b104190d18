"""Synthetic ratings with planted factors and biases, skewed like real ones, written straight to prepared shards.

    rating = mean + b_user + b_item + u'v + noise,    rounded to a scale on request

The noise is known, so a model's RMSE can be compared with the best possible one: `noise_floor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from scipy import sparse

from fedmc.data.catalogue import Catalogue
from fedmc.data.prepared import writing
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError, require, unknown
from fedmc.kernels import draws
from fedmc.types import Array

LIKE = {
    "ml-1m": (6_040, 3_706, 1_000_209),
    "ml-10m": (69_878, 10_677, 10_000_054),
    "netflix": (480_189, 17_770, 100_480_507),
}


@dataclass(frozen=True)
class Recipe:
    """The parameters of synthetic ratings. With a scale (low, high, step) ratings are clipped and rounded to it."""

    users: int
    items: int
    ratings: int
    rank: int = 10
    noise: float = 0.8
    seed: int = 0
    scale: tuple[float, float, float] | None = None
    mean: float = 3.6
    user_spread: float = 0.4  # standard deviation of the biases
    item_spread: float = 0.4
    factor_spread: float = 0.4  # standard deviation of u'v

    def __post_init__(self) -> None:
        for name in ("users", "items", "ratings", "rank"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        low, high = self.users, self.users * self.items * 3 // 5
        bounds = f"{low:,} (one per user) and {high:,} (60 % full)"
        require(low <= self.ratings <= high, f"ratings must lie between {bounds}, got {self.ratings:,}")
        require(self.noise >= 0, f"noise must be at least 0, got {self.noise}")
        require(self.seed >= 0, f"seed must be at least 0, got {self.seed}")
        if self.scale is not None:
            first, last, step = self.scale
            require(
                first < last and step > 0, f"a scale is LOW,HIGH,STEP with LOW < HIGH and STEP > 0, got {self.scale}"
            )

    @property
    def noise_floor(self) -> float:
        """The RMSE of the planted model: the noise plus the rounding to the scale (clipping is ignored)."""
        step = 0.0 if self.scale is None else self.scale[2]
        return float(np.sqrt(self.noise**2 + step**2 / 12))


class RecipeOptions(TypedDict, total=False):
    """The fields of a `Recipe` that `like` can change."""

    rank: int
    noise: float
    seed: int
    scale: tuple[float, float, float] | None
    mean: float
    user_spread: float
    item_spread: float
    factor_spread: float


def like(name: str, **changes: Unpack[RecipeOptions]) -> Recipe:
    """A recipe with the size of a real data set."""
    if name not in LIKE:
        raise unknown("set", name, LIKE)
    users, items, ratings = LIKE[name]
    changes.setdefault("scale", (1.0, 5.0, 1.0))
    return Recipe(users, items, ratings, **changes)


class Items(NamedTuple):
    """The items' popularity (with its alias tables), biases and factors."""

    weights: Array
    keep: Array
    other: Array
    biases: Array
    V: Array


def make_items(recipe: Recipe) -> Items:
    rng = np.random.default_rng([recipe.seed, 0])
    weights = np.exp(1.6 * rng.normal(size=recipe.items))
    V = rng.normal(size=(recipe.items, recipe.rank))
    biases = recipe.item_spread * rng.normal(size=recipe.items) + 0.1 * np.log(weights)
    keep, other = draws.alias_table(weights)
    return Items(weights, keep, other, biases - biases.mean(), V)


def activity(recipe: Recipe) -> Array:
    """How many ratings each user gives: log-normal, at least one, at most 60 % of the items."""
    rng = np.random.default_rng([recipe.seed, 1])
    weights = np.exp(1.1 * rng.normal(size=recipe.users))
    max_count = max(recipe.items * 3 // 5, 1)
    low, high = 0.0, float(recipe.ratings) * 4
    for _ in range(100):  # bisect for the factor that gives the requested total
        middle = (low + high) / 2
        total = np.clip(np.floor(weights * middle), 1, max_count).sum()
        low, high = (middle, high) if total <= recipe.ratings else (low, middle)
    counts = np.clip(np.floor(weights * low), 1, max_count).astype(np.int64)
    room = np.flatnonzero(counts < max_count)
    counts[np.resize(room, recipe.ratings - counts.sum())] += 1
    return np.minimum(counts, recipe.items)


def chunks(recipe: Recipe, clients: int) -> Iterator[tuple[Array, sparse.csr_array]]:
    """The ratings of each client: (user numbers, matrix), with users assigned at random."""
    require(1 <= clients <= recipe.users, f"clients must lie in 1..{recipe.users}, got {clients}")
    items, counts = make_items(recipe), activity(recipe)
    order = np.random.default_rng([recipe.seed, 2]).permutation(recipe.users)
    for users in np.array_split(order, clients):
        users = np.sort(users)
        yield users, _ratings_of(recipe, items, users, counts[users])


def _ratings_of(recipe: Recipe, items: Items, users: Array, counts: Array) -> sparse.csr_array:
    """One client's ratings. A user's items depend on the seed and the user, the values also on the client's users."""
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    indices = np.empty(indptr[-1], np.int32)
    seeds = users.astype(np.uint64) * np.uint64(0x2545F4914F6CDD1D) + np.uint64(recipe.seed)
    draws.draw_items(indptr, items.weights, items.keep, items.other, seeds, indices)
    rng = np.random.default_rng([recipe.seed, 3, int(users[0])])
    U = rng.normal(size=(len(users), recipe.rank)) * (recipe.factor_spread / np.sqrt(recipe.rank))
    rows = np.repeat(np.arange(len(users)), counts)
    ratings = np.einsum("kr,kr->k", U[rows], items.V[indices]) + items.biases[indices] + recipe.mean
    ratings += recipe.user_spread * rng.normal(size=len(users))[rows] + recipe.noise * rng.normal(size=len(rows))
    if recipe.scale is not None:
        low, high, step = recipe.scale
        ratings = np.clip(low + np.round((ratings - low) / step) * step, low, high)
    return sparse.csr_array((ratings.astype(np.float32), indices, indptr), shape=(len(users), recipe.items))


def write_shards(recipe: Recipe, path: Path, clients: int, test: float = 0.0, overwrite: bool = False) -> None:
    """Write a folder of prepared shards, with one client in memory at a time."""
    require(0 <= test < 1, f"the test share must be at least 0 and below 1, got {test}")
    about = {"synthetic": asdict(recipe), "noise_floor": recipe.noise_floor, "test": test}
    with writing(path, Catalogue(np.arange(recipe.items)), overwrite) as writer:
        for client, (users, matrix) in enumerate(chunks(recipe, clients)):
            if test:
                part = Ratings(users, np.arange(recipe.items), matrix)
                held_out = np.random.default_rng([recipe.seed, 4, client]).random(matrix.nnz) < test
                writer.add(users, part.with_entries(~held_out).matrix, part.with_entries(held_out).matrix)
            else:
                writer.add(users, matrix)
        writer.finish(about)


def make_ratings(recipe: Recipe) -> Ratings:
    """The same ratings as one table, for sizes that fit in memory."""
    if recipe.ratings > 50_000_000:
        raise InputError(f"{recipe.ratings:,} ratings are too many for one table: write prepared shards")
    (users, matrix), *_ = chunks(recipe, 1)
    return Ratings(users.astype(np.int64), np.arange(recipe.items), matrix)
