"""Implicit terms: regressors of users and items from who rated (or saw) what, by sums over clients.

Let F be the incidence matrix, users x items, with a one where the user rated or saw the item. Koren's SVD++ adds to a
user's prior mean a free vector for each item it rated, over the root of their number; its mirror does so for items.
Most directions of these vectors cannot be told from noise. Here they lie in the span of the leading singular vectors

    D_users^-1/2 F D_items^-1/2  ~  A diag(s) B'            D: diagonal matrices of the numbers of ratings

Item j is given the regressors s^2 B_j, and user i about A_i s^2: the sum over its items of a line for each of them
(`directions`), times about one over the root of their number (`posterior.seen_weights`). What remains to be learned
are k x q weights a side: they follow from small sums in closed form, with their uncertainty, whoever takes part
(`gaussians`).

The items' lines are centred: what matters is how a user's items differ from what is rated on average, not how many
they are. Otherwise the least active users get the most extreme prior means.

B is found at the start by subspace iteration: a client replies to directions P with F' D_users^-1 F P, a line for each
item, and the server orthonormalises the sum. Users' rows A_i never leave home: users add up their items' lines there.

The line of an item with one rater would be that person's whole list of items. So F has the items of at least MIN_RATERS
raters only: the server counts raters first, and then asks with zeros for all others. A client leaves such items out of
its reply and out of the numbers that it divides by, as if nobody had rated them. The own regressors of rare items are
the mean of those of the rarest items that are in F.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Rows, Schema, Shared, Sums
from fedmc.algorithms.start import Ask
from fedmc.data.partition import Shard
from fedmc.errors import DataError, require
from fedmc.problem.rng import directions_rng
from fedmc.types import Array

MIN_RATERS = 5  # of an item in F
DIRECTIONS = 64  # at most; every fourth item in F allows one
STEPS = 5  # each asks all clients: once for counts, then for the subspace iteration
PATTERN, USERS = "pattern", "users"  # parts of the reply
SMALLEST = 1e-6  # of the squares of singular values that are told from 0
NAME = "directions"  # the array of the broadcast
MAX_SUM = 1e12  # of numbers of ratings
LARGEST = 1e3  # an entry of the directions that an honest server asks with


class Implicit(NamedTuple):
    """Of each item: what it adds to the regressors of its users, and its own regressors."""

    directions: Array
    items: Array


def most(items: int) -> int:
    """The number of directions of so many items, at most."""
    return min(DIRECTIONS, items // 4)


def find(ask: Ask, broadcast: Broadcast) -> Implicit | None:
    """The leading singular vectors of who rated what; None if there are too few items for any."""
    raters = _asked(ask, broadcast, 1, np.ones((len(broadcast.V), 1)))[PATTERN][:, 0]
    check_sums(raters, 1)
    counts = np.where(raters >= MIN_RATERS, raters, 0.0)
    size = most(int((counts > 0).sum()))
    if size == 0:
        return None
    weights = np.where(counts > 0, 1 / np.sqrt(np.maximum(counts, 1)), 0.0)
    P = _orthonormal(_first(counts, size, broadcast.settings.seed))
    for step in range(2, STEPS + 1):
        total = _asked(ask, broadcast, step, P * weights[:, None])
        image = total[PATTERN] * weights[:, None]
        check_sums(image, total.number(USERS))
        if step < STEPS:
            P = _orthonormal(image)
    found = _regressors(P, image, counts, weights, total.number(USERS))
    rare = (raters > 0) & (counts == 0)
    found.items[rare] = _rarest(found.items, counts)
    return found


def _rarest(items: Array, counts: Array) -> Array:
    """The mean of the own regressors of the rarest items in F, or else of all items in F."""
    known = counts > 0
    few = known & (counts < 2 * MIN_RATERS)
    return np.asarray(items[few if few.any() else known].mean(axis=0))


def _regressors(P: Array, image: Array, counts: Array, weights: Array, users: float) -> Implicit:
    """Directions and items' regressors, from the last subspace P and its image."""
    squares, turn = np.linalg.eigh(P.T @ image)  # Rayleigh and Ritz
    squares, turn = squares[::-1], turn[:, ::-1]
    image, rated = image @ turn, int((counts > 0).sum())  # image: s^2 B
    safe = np.sqrt(np.where(squares > SMALLEST, squares, np.inf))
    lines = np.sqrt(users) * weights[:, None] * (image / safe)
    lines -= np.einsum("j,jx->x", counts / counts.sum(), lines)
    lines[counts == 0] = 0
    lines[:, np.abs(lines).max(axis=0) < SMALLEST] = 0  # that of the largest singular value is constant
    return Implicit(lines, np.sqrt(rated) * image)


def check_sums(sums: Array, users: float) -> None:
    """Refuse what cannot be sums over clients."""
    finite = bool((np.abs(sums) <= MAX_SUM).all()) and 0 < users <= MAX_SUM
    require(finite, "the clients' sums of who rated what are not finite, too large, or of no users", DataError)


def _asked(ask: Ask, broadcast: Broadcast, step: int, directions: Array) -> Sums:
    """The sum of all clients' replies to these directions."""
    asked = broadcast._replace(task="pattern", round=step, shared=Shared({NAME: directions}))
    return ask(asked, range(broadcast.clients))


def _first(counts: Array, size: int, seed: int) -> Array:
    """The first directions: that of the largest singular value, which is known, and random ones."""
    found = directions_rng(seed).standard_normal((len(counts), size)) * (counts > 0)[:, None]
    found[:, 0] = np.sqrt(counts)
    return found


def _orthonormal(columns: Array) -> Array:
    found: Array = np.linalg.qr(columns)[0]
    return found


# --- the client


def reply(shard: Shard, broadcast: Broadcast) -> Sums:
    """F' D_users^-1 F times the directions, and the number of users with items in F: those with a row that is not 0."""
    asked = broadcast.shared.arrays[NAME]
    columns, seen = _asked_for(shard.incidence, asked)
    numbers = np.diff(seen.indptr)
    lines = (seen @ asked[columns]) / np.maximum(numbers, 1)[:, None]
    return Sums.of(pattern=Rows(columns, seen.T @ lines, len(asked)), users=int((numbers > 0).sum()))


def _asked_for(seen: sparse.csr_array, asked: Array) -> tuple[Array, sparse.csr_array]:
    """The items that somebody here rated or saw and that the directions are not all zero for, and who did."""
    here = np.bincount(seen.indices, minlength=seen.shape[1]) > 0
    columns = np.flatnonzero(here & asked.any(axis=1)).astype(np.int32)
    ones = sparse.csr_array((np.ones(seen.nnz), seen.indices, seen.indptr), shape=seen.shape)
    return columns, ones[:, columns]


def schema(broadcast: Broadcast, items: int) -> Schema:
    width = broadcast.shared.arrays[NAME].shape[-1]
    return {PATTERN: Part((items, width), SUM_BITS, sparse=True), USERS: Part(nonnegative=True)}


def check_broadcast(broadcast: Broadcast) -> None:
    """Refuse directions that no honest server would ask with."""
    arrays, items = broadcast.shared.arrays, len(broadcast.V)
    require(arrays.keys() == {NAME}, lambda: f"the server sends {sorted(arrays)} with the task pattern")
    require(1 <= broadcast.round <= STEPS, f"step {broadcast.round} of {STEPS} does not exist")
    require(broadcast.settings.implicit, "the server asks who rated what in a run with implicit=False")
    asked = arrays[NAME]
    shaped = asked.ndim == 2 and len(asked) == items and 1 <= asked.shape[1] <= max(1, most(items))
    require(shaped, f"directions of shape {asked.shape} do not fit {items} items and at most {DIRECTIONS} directions")
    require(bool((np.abs(asked) <= LARGEST).all()), f"the directions have numbers beyond {LARGEST:g}")
    require(broadcast.round > 1 or asked.shape[1] == 1, "step 1 counts raters: it has one direction")
