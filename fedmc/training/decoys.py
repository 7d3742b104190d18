"""Decoys: ratings that nobody gave, so that the rows of a sum do not show what a client's users rated.

A client adds one decoy to each row that it would leave empty, or to a part `rate` of them. A decoy is a real rating of
the client that was moved to another item: its user is the author of that rating, its value what the user is predicted
to give to the item, plus a part of the error of the real rating. So it has the size of a real rating, and changes from
round to round as one does, since its user's factors are fitted anew at each V.

    permanent   which rows, and whose ratings: drawn once from a secret that stays at the client. Decoys that were
                drawn anew in each round would average out
    predicted   at the passes 1, 2, 4, 8, ... over the clients, and kept in between: a rating that follows V in every
                round shows that nobody gave it. Predictions that never followed V would hold back the model

Decoys enter the sums over items only. Users, counts, measurements and models are without them.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.data.matrices import narrow
from fedmc.data.partition import Shard
from fedmc.problem.rng import decoy_rng
from fedmc.types import Array

SHARE = 0.7  # of a real rating's error that its decoy has: chosen on validation ratings, docs/explanation/audit.md
SECRET = 4  # words of 64 bits

Secret = Callable[[Settings, int], Array]  # of a client with this number, as words


class Decoys(NamedTuple):
    """The decoys of a client, which never change."""

    items: Array  # ascending
    places: Array  # in `by_user`, of the ratings that were moved
    users: Array  # their authors


def simulated(settings: Settings, client: int) -> Array:
    """The secret of a simulated client, so that runs can be repeated."""
    return decoy_rng(settings.seed, client).integers(0, 1 << 62, SECRET)


def at_home(settings: Settings, client: int) -> Array:
    """A secret that nobody else can know."""
    return np.frombuffer(secrets.token_bytes(8 * SECRET), np.int64)


def drawn(shard: Shard, secret: Array, rate: float) -> Decoys:
    """One decoy for each unrated item that the secret chooses: a part `rate` of them."""
    items = shard.by_user.shape[1]
    chosen = _uniform(secret, b"items", items) < rate
    chosen[shard.rated] = False
    places = (_uniform(secret, b"places", items) * shard.by_user.nnz).astype(np.int64)[chosen]
    users = np.searchsorted(shard.by_user.indptr, places, side="right") - 1
    return Decoys(np.flatnonzero(chosen), places, users)


def _uniform(secret: Array, purpose: bytes, number: int) -> Array:
    """Numbers in [0, 1) that only whoever knows the secret can compute."""
    stream = hashlib.shake_256(purpose + secret.tobytes()).digest(8 * number)
    return (np.frombuffer(stream, np.uint64) >> np.uint64(11)) * 2.0**-53


def predicted(shard: Shard, decoys: Decoys, U: Array, broadcast: Broadcast) -> Array:
    """The values of the decoys at this V, as ratings."""
    V, (mean, scale) = broadcast.V, broadcast.scaling
    of_users, real = U[decoys.users], shard.by_user
    given = (real.data[decoys.places].astype(np.float64) - mean) / scale
    error = given - np.einsum("ka,ka->k", of_users, V[real.indices[decoys.places]])
    return np.asarray(mean + scale * (np.einsum("ka,ka->k", of_users, V[decoys.items]) + SHARE * error), np.float64)


def due(broadcast: Broadcast) -> bool:
    """Whether decoys are predicted anew: in the passes 1, 2, 4, 8, ... over the clients."""
    rounds = math.ceil(broadcast.clients / min(broadcast.settings.active, broadcast.clients))
    number = (max(broadcast.round, 1) - 1) // rounds + 1
    return number & (number - 1) == 0


def only_decoys(shard: Shard, decoys: Decoys, ratings: Array) -> Shard:
    """A shard with the client's users, whose ratings are the decoys."""
    values = ratings.astype(shard.by_user.data.dtype)
    matrix = sparse.csr_array((values, (decoys.users, decoys.items)), shape=shard.by_user.shape)
    matrix.sort_indices()
    return Shard.of(shard.client, shard.users, narrow(matrix))


def with_decoys(shard: Shard, rate: float, words: Array, U: Array, broadcast: Broadcast) -> tuple[Shard, Array]:
    """The decoys as a shard, and the words to keep: the secret, and the decoys' values. `words` may hold no values."""
    secret, known = words[:SECRET], words[SECRET:].view(np.float64)
    decoys = drawn(shard, secret, rate)
    fresh = due(broadcast) or len(known) != len(decoys.items)
    ratings = predicted(shard, decoys, U, broadcast) if fresh else known
    return only_decoys(shard, decoys, ratings), np.concatenate([secret, ratings.view(np.int64)])
