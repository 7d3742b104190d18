"""EASE: a linear model from items to items (Steck 2019), exact after one sum over users.

X has a row of zeros and ones for each user: which items the user has events with. The scores of a user are x'B, with

    B = argmin |X - X B|^2 + lambda |B|^2   with diag(B) = 0
      = 1 - P diag(1 / P_jj),   P = (X'X + lambda)^-1

X'X, the number of users of each pair of items, is a sum over users. A client sends its own at its first update, and
nothing later. So after a round in which all take part, or as soon as every client has taken part, B is that of the
pooled events. There are no iterations and no user factors: V is B', items by items, and U has no columns.

A message holds each pair once, in rows of equal length: row j has X'X[j, (j + k) mod n] for k = 0 ... n // 2, where
k = 0 is the number of users of item j. It has n (n + 1) / 2 numbers (n (n + 2) / 2 if n is even). In plain mode, only
the rows of items with events are sent. The server learns the sums of these counts: for a client of one user, they are
the list of the user's items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import lapack

from fedmc.algorithms.event_measures import COUNTS, USERS, EventMeasures
from fedmc.algorithms.ials import IALS
from fedmc.algorithms.leakage import Leakage, Observation, rows_of
from fedmc.algorithms.messages import Broadcast, Part, Rows, Schema, Shared, Sums
from fedmc.algorithms.protocol import Algorithm, Start
from fedmc.algorithms.settings import Feedback, Settings
from fedmc.algorithms.start import Ask, server_at
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.data import matrices
from fedmc.data.partition import Shard, together
from fedmc.errors import InputError, require
from fedmc.problem.scaling import Scaling
from fedmc.types import MAX_NUMBER, MIN_POSITIVE, Array, number

WEIGHT = 500.0  # lambda, as in the paper for MovieLens 20M
MAX_ITEMS = 10_000  # X'X takes 0.4 GB in a message and 0.8 GB at the server; its inverse about a minute on two cores
USERS_AT_A_TIME = 256  # whose scores are measured together
PAIRS_AT_A_TIME = 1 << 22  # pairs of items that are counted together


class PairLeakage(Leakage):
    """A message holds the number of users of each item, and of each pair of items."""

    def evidence(self, seen: Sequence[Observation]) -> list[Array]:
        return [np.asarray(rows_of(one)[:, 0]) for one in seen]

    def sum_size(self, one: Observation) -> Array:
        return self.evidence([one])[0]


class EASE(Algorithm):
    """EASE; `weight` is lambda: `ease`, or `ease:200`."""

    name = "ease"
    label = "EASE"
    state_types: tuple[type[State], ...] = (LocalState,)
    tasks = IALS.tasks
    feedback: Feedback = "implicit"
    one_pass = True
    warm_starts = False  # its item weights follow from the events alone
    unused_settings = IALS.unused_settings
    leakage: Leakage = PairLeakage()
    remedy = "raise lambda, the number of ease:LAMBDA"

    def __init__(self, weight: float = WEIGHT) -> None:
        self.weight = number("lambda of ease", weight, MIN_POSITIVE, MAX_NUMBER)
        self.measures = ItemMeasures(terms, self.item_terms)

    def __str__(self) -> str:
        return f"{self.name}:{self.weight:g}"

    def check(self, settings: Settings) -> None:
        plain = settings.normalise == "none" and not settings.biases and settings.entry == "first-turn"
        require(plain, f"algorithm={self.name!r} needs preset='implicit' (feedback='implicit')")

    def scaling(self, settings: Settings) -> Scaling:
        return Scaling()

    def columns(self, settings: Settings, items: int) -> tuple[int, int]:
        """Columns of U and of V."""
        return 0, items

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        (after,), sums = self.batch_update([shard], [state], broadcast)
        return after, sums

    def can_batch(self, broadcast: Broadcast) -> bool:
        return True  # counts are whole numbers: their sums are exact in any order

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        new = [shard for shard, state in zip(shards, states, strict=True) if state is None]
        items, width = len(broadcast.V), row_length(len(broadcast.V))
        rows, counts = np.empty(0, np.int32), np.empty((0, width), np.int32)
        if new:
            rows, counts = pair_counts(together(new).by_user)
        users = sum(len(shard.users) for shard in new)
        sums = Sums.of(pairs=Rows(rows, counts, items), users=users, joined=len(new))
        apart = sum(len(shard.rated) for shard in new) * (rows.itemsize + width * counts.itemsize)
        numbers = (sums["users"].nbytes + sums["joined"].nbytes) * len(shards)
        nothing = [LocalState(self._no_factors(len(shard.users), broadcast)) for shard in shards]
        return nothing, replace(sums, sent=apart + numbers)

    def users_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
        return self._no_factors(len(shard.users), broadcast)

    def new_users(self, matrix: sparse.csr_array, broadcast: Broadcast) -> Array:
        return self._no_factors(matrix.shape[0], broadcast)

    def _no_factors(self, users: int, broadcast: Broadcast) -> Array:
        return np.zeros((users, 0), broadcast.V.dtype)

    def user_rows(self, U: Array, events: sparse.csr_array) -> Array:
        """Rows whose inner products with V's rows are the scores of users with these events: zeros and ones."""
        return np.asarray(pattern_of(events, U.dtype.type).toarray())

    def event_effects(self, events: sparse.csr_array, column: int, broadcast: Broadcast) -> Array:
        return np.asarray(broadcast.V[column, events.indices], np.float64)

    def item_terms(self, broadcast: Broadcast) -> float:
        """lambda |B|^2."""
        return self.weight * float(np.square(broadcast.V, dtype=np.float64).sum())

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        items = len(broadcast.V)
        check_items(items)
        V, S = np.zeros((items, items), broadcast.V.dtype), np.zeros((items + 1, row_length(items)))
        return Start(broadcast._replace(V=V, shared=_shared(S)), server_at(V, S))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        joined = round(total.number("joined"))
        if not joined:
            return server
        assert server.S is not None
        S = server.S.copy()
        S[:-1] += total["pairs"]
        S[-1, 0] += total.number("users")
        return ServerState(S, weights(S[:-1], self.weight), server.seen + joined)

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        assert server.S is not None
        return _shared(server.S)

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        check_items(items)
        pairs = Part((items, row_length(items)), bits=0, sparse=True, nonnegative=True)
        return {"pairs": pairs, "users": Part(bits=0, nonnegative=True), "joined": Part()}

    def check_broadcast(self, broadcast: Broadcast) -> None:
        arrays, items = broadcast.shared.arrays, len(broadcast.V)
        check_items(items)
        require(broadcast.V.shape == (items, items), f"V must be items by items, got {broadcast.V.shape}")
        shaped = arrays.keys() == {COUNTS, USERS} and arrays[COUNTS].shape == (items,) and arrays[USERS].shape == (1,)
        require(shaped, "the server sends no counts, or more than counts, with V")
        finite = all(bool((np.abs(array) <= MAX_NUMBER).all()) for array in (*arrays.values(), broadcast.V))
        require(finite, f"the server sends numbers beyond {MAX_NUMBER:g}")


class ItemMeasures(EventMeasures):
    """The measures of events, a few users at a time: their rows of zeros and ones are made when they are needed."""

    def client(self, shard: Shard, U: Array, broadcast: Broadcast) -> dict[str, ArrayLike]:
        found: dict[str, float] = {}
        for part in _parts(shard):
            some = np.unique(np.append(part.by_user.indices, 0))  # all other columns of V are multiplied with 0
            rows = pattern_of(part.by_user, broadcast.V.dtype.type)[:, some].toarray()
            sums = super().client(part, rows, broadcast._replace(V=np.take(broadcast.V, some, axis=1)))
            found = {name: found.get(name, 0.0) + float(np.asarray(value)) for name, value in sums.items()}
        return dict(found)


def terms(shard: Shard, U: Array, broadcast: Broadcast) -> tuple[float, float]:
    """|X - X B|^2 of a client's users; there is no penalty on users."""
    errors = (U @ broadcast.V.T).astype(np.float64)
    events = shard.by_user
    errors[np.repeat(np.arange(len(U)), np.diff(events.indptr)), events.indices] -= 1
    return float(np.square(errors).sum()), 0.0


def _parts(shard: Shard) -> Iterator[Shard]:
    """The shard, a few users at a time."""
    for start in range(0, len(shard.users), USERS_AT_A_TIME):
        here = slice(start, min(start + USERS_AT_A_TIME, len(shard.users)))
        held_out = [None if one is None else matrices.rows_of(one, here) for one in (shard.test, shard.validation)]
        yield Shard.of(shard.client, shard.users[here], matrices.rows_of(shard.by_user, here), *held_out)


def pattern_of(events: sparse.csr_array, kind: type[np.generic] = np.int32) -> sparse.csr_array:
    """A one for each event."""
    return matrices.as_csr(np.ones(len(events.indices), kind), events.indices, events.indptr, events.shape[1])


def check_items(items: int) -> None:
    """Refuse a catalogue whose pairs of items are too many."""
    numbers = items * row_length(items)
    if items > MAX_ITEMS:
        raise InputError(
            f"ease takes at most {MAX_ITEMS:,} items, got {items:,}: each client would send {numbers:,} numbers "
            f"({8 * numbers / 1e9:.1f} GB). Leave out rare items (min_events), or choose algorithm='ials'"
        )


def row_length(items: int) -> int:
    """Numbers in a row of a message: the pairs of an item with itself and with half of the others."""
    return items // 2 + 1


def pair_counts(events: sparse.csr_array) -> tuple[Array, Array]:
    """(the items with events, ascending; of each, a row of X'X in the form of a message)."""
    rows, by_item = matrices.rated_rows(pattern_of(events))
    items, width, pattern = events.shape[1], row_length(events.shape[1]), pattern_of(events)
    counts = np.zeros((len(rows), width), np.int32)
    step = max(1, PAIRS_AT_A_TIME // items)
    for start in range(0, len(rows), step):
        found = (by_item[start : start + step] @ pattern).tocoo()
        row = found.row + start
        k = (found.col - rows[row]) % items
        here = k < width
        counts[row[here], k[here]] = found.data[here]
    return rows, counts


def unpacked(pairs: Array) -> Array:
    """X'X from the rows of messages."""
    items, row = len(pairs), np.arange(len(pairs))
    G = np.empty((items, items))
    for k in range(pairs.shape[1]):
        column = (row + k) % items
        G[row, column] = G[column, row] = pairs[:, k]
    return G


def weights(pairs: Array, weight: float) -> Array:
    """B', given the rows of X'X in the form of messages."""
    G = unpacked(pairs)
    G[np.diag_indices_from(G)] += weight
    factor, failed = lapack.dpotrf(G, lower=1, clean=0)
    inverse, singular = lapack.dpotri(factor, lower=1, overwrite_c=1)
    if failed or singular:
        raise np.linalg.LinAlgError("X'X + lambda is not positive definite")
    P = np.tril(inverse, -1)
    P += P.T.copy()
    V = P / -inverse.diagonal()[:, None]  # its diagonal is 0
    return np.asarray(V + 0.0)  # no negative zeros


def _shared(S: Array) -> Shared:
    return Shared({COUNTS: S[:-1, 0].copy(), USERS: S[-1, :1].copy()})
