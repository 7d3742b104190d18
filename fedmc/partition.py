"""From a table of ratings to shards: the ratings of each client, by user and by item."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedmc.errors import DataError, require
from fedmc.ratings import Ratings

Array = NDArray[Any]


class Shard(NamedTuple):
    """The ratings of one client; `by_item` is the transpose of `by_user`."""

    client: int  # its number
    users: Array  # the rows of the whole table that are this client's
    by_user: sparse.csr_array
    by_item: sparse.csr_array
    test: sparse.csr_array | None = None
    validation: sparse.csr_array | None = None


def assign_users(users: int, clients: int, seed: int) -> Array:
    """Which client each user belongs to: uniformly at random, sizes equal up to one."""
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    require(clients >= 1, f"the number of clients must be at least 1, got {clients}")
    require(clients <= users, f"there are more clients ({clients}) than users ({users}): at most {users} clients")
    owner = np.empty(users, np.int64)
    for client, members in enumerate(np.array_split(np.random.default_rng(seed).permutation(users), clients)):
        owner[members] = client
    return owner


def owners_from_names(names: Any, users: int) -> Array:
    """Which client each user belongs to, from one client name per user, numbered in the names' order."""
    array = np.asarray(names)
    require(
        array.shape == (users,),
        f"name one client per user: got {array.shape}, expected ({users},)",
        DataError,
    )
    owner: Array = np.unique(array, return_inverse=True)[1]
    return owner


def make_shards(
    train: Ratings, owner: Array, dtype: Any, test: Ratings | None = None, validation: Ratings | None = None
) -> list[Shard]:
    """One shard per client; a client without a single training rating is refused."""
    shards = []
    for client in range(int(owner.max()) + 1):
        rows = np.flatnonzero(owner == client)
        by_user = _rows(train.matrix, rows, dtype)
        require(
            by_user.nnz > 0,
            f"client {client} has no training ratings ({len(rows)} users): use fewer clients or a smaller test share",
            DataError,
        )
        held_out = [None if part is None else _rows(part.matrix, rows, dtype) for part in (test, validation)]
        shards.append(Shard(client, rows, by_user, _transpose(by_user), *held_out))
    return shards


def _rows(matrix: sparse.csr_array, rows: Array, dtype: Any) -> sparse.csr_array:
    return _narrow(matrix[rows].astype(dtype))


def _transpose(matrix: sparse.csr_array) -> sparse.csr_array:
    return _narrow(matrix.T.tocsr())


def _narrow(matrix: sparse.csr_array) -> sparse.csr_array:
    """int32 indices, sorted: one compiled form of each kernel, and a fixed order of every sum."""
    matrix.sort_indices()
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(np.int32, copy=False)
    return matrix
