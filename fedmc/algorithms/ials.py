"""iALS: implicit feedback by alternating least squares (Hu, Koren, Volinsky 2008; Rendle et al. 2021), by sums.

Each event of user i and item j says 1, with the confidence c_ij; all pairs, seen or not, say 0 with the weight alpha0:

    sum_seen c_ij (1 - u_i'v_j)^2  +  alpha0 sum_all (u_i'v_j)^2
        + lambda ( sum_i (n_i + alpha0 items)^nu |u_i|^2  +  sum_j (n_j + alpha0 users)^nu |v_j|^2 )

n_i and n_j are the numbers of events of a user and of an item. A round:

    client   u_i <- (alpha0 V'V + sum c v v' + lambda_i)^-1 sum c v         for each of its users
             send the change since its last update of
                 S       [sum c u u', sum c u, number of events] of each item
                 users   sum u u' over all of its users, and their number
    server   v_j <- (alpha0 U'U + sum c u u' + lambda_j)^-1 sum c u         for each item

The sums are over the users that are counted so far: those of every client that has taken part. So each round is a step
of block coordinate descent on their objective, which never rises; at a client's first update it grows by the terms of
that client's users. If all clients take part, it is alternating least squares on the pooled events. Otherwise V stays
at its start in the first pass over the clients: it is then that of one half of a sweep over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from fedmc.algorithms.curvature import joined_rows, parted
from fedmc.algorithms.event_measures import COUNTS, USERS, EventMeasures, popularity_of
from fedmc.algorithms.event_sums import (
    WEIGHTS,
    EventSums,
    UserSums,
    default_weights,
    event_errors,
    event_roots,
    first_pass,
    line_length,
    shared_counts,
    turned_of,
    user_change,
    user_sums,
)  # fmt: skip
from fedmc.algorithms.leakage import CurvatureLeakage, Leakage, Observation
from fedmc.algorithms.messages import NOTHING, SUM_BITS, Broadcast, Part, Rows, Schema, Shared, Sums, Task
from fedmc.algorithms.protocol import Algorithm, Start
from fedmc.algorithms.settings import Feedback, Settings
from fedmc.algorithms.start import Ask, server_at
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.data.partition import Shard, together
from fedmc.data.recency import recent
from fedmc.errors import require
from fedmc.kernels import weighted
from fedmc.problem.scaling import Scaling
from fedmc.types import MAX_NUMBER, MIN_POSITIVE, Array, number

ALPHA0, WEIGHT, EXPONENT = 0.1, 0.01, 1.0
SIZES: Task = "pattern"  # the task of the first request, if the server chooses the weights
ENOUGH = 2  # times as many users as factors must be counted before V moves
SPREAD = 0.1  # of the first item factors, times 1 / sqrt(rank), as in Rendle et al.


class IALSLeakage(CurvatureLeakage):
    """As for the curvature update: a message holds the second moments of user factors, item by item."""

    def grams(self, seen: Sequence[Observation]) -> tuple[Array, Array]:
        cut = [one._replace(parts=one.parts | {"S": one.parts["S"][:, :-1]}) for one in seen]
        return super().grams(cut)

    def _raters(self, seen: Sequence[Observation]) -> Array:
        return np.asarray(sum(one.parts["S"][:, -1] for one in seen))


class IALS(Algorithm):
    """iALS; `alpha0` is the weight of all pairs, `weight` is lambda and `exponent` nu."""

    name = "ials"
    label = "iALS"
    state_types: tuple[type[State], ...] = (LocalState,)
    tasks = frozenset({SIZES, "round", "measure", "finish"})
    feedback: Feedback = "implicit"
    cumulative = True
    max_rank = 128
    unused_settings = frozenset(
        {"beta", "beta_scale", "dual_step", "inner_steps", "passes", "fit_users_to", "entry_penalty", "extrapolation"}
        | {"penalty_users", "penalty_items", "loss", "normalise", "biases"}
    )
    leakage: Leakage = IALSLeakage()
    remedy = "raise lambda, the second number of ials:ALPHA0,LAMBDA"

    def __init__(self, alpha0: float | None = None, weight: float | None = None, exponent: float = EXPONENT) -> None:
        require((alpha0 is None) == (weight is None), f"give {self.name} both alpha0 and lambda, or none of them")
        self.auto = alpha0 is None  # the server chooses them, from the size of the data
        self.alpha0 = number("alpha0 of ials", ALPHA0 if alpha0 is None else alpha0, MIN_POSITIVE, MAX_NUMBER)
        self.weight = number("lambda of ials", WEIGHT if weight is None else weight, MIN_POSITIVE, MAX_NUMBER)
        self.exponent = number("nu of ials", exponent, 0, 2)
        self.weights = None if self.auto else (self.alpha0, self.weight)
        self.measures = EventMeasures(self.terms, self.item_terms, self.prediction_users)

    def __str__(self) -> str:
        if self.auto:
            return self.name
        numbers = (repr(one).removesuffix(".0") for one in (self.alpha0, self.weight, self.exponent))
        return f"{self.name}:{','.join(numbers)}"

    def with_weights(self, alpha0: float, weight: float) -> IALS:
        """The same algorithm with other weights of all pairs and of the penalty."""
        return type(self)(alpha0, weight, self.exponent)

    def at(self, broadcast: Broadcast) -> IALS:
        """The algorithm with its weights: its own or, if the server chose them, those of the broadcast."""
        if not self.auto:
            return self
        chosen = broadcast.shared.arrays[WEIGHTS].tolist()
        return broadcast.shared.derive("algorithm", lambda: self.with_weights(*chosen))

    def model_settings(self, broadcast: Broadcast) -> Settings:
        return broadcast.settings.replace(algorithm=str(self.at(broadcast))) if self.auto else broadcast.settings

    def check(self, settings: Settings) -> None:
        plain = settings.normalise == "none" and not settings.biases and settings.entry == "first-turn"
        require(plain, f"algorithm={self.name!r} needs preset='implicit' (feedback='implicit')")
        require(settings.fold_in, f"algorithm={self.name!r} needs fold_in=True")
        self.check_rank(settings)

    def check_rank(self, settings: Settings) -> None:
        numbers = line_length(settings.rank)
        require(
            settings.rank <= self.max_rank,
            f"with rank {settings.rank}, a client sends {numbers:,} numbers for each of its items: use at most "
            f"{self.max_rank}, or algorithm='ials-blocks', in which all clients take part",
        )

    def scaling(self, settings: Settings) -> Scaling:
        return Scaling()

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        if broadcast.task == SIZES:
            return state, Sums.of(users=len(shard.users), events=shard.by_user.nnz)
        (after,), sums = self.batch_update([shard], [state], broadcast)
        return after, sums

    def can_batch(self, broadcast: Broadcast) -> bool:
        return True  # a user's factors depend only on V and on the user's own events

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        whole = together(shards)
        U = self.new_users(whole.by_user, broadcast)
        parts = parted(U, shards)
        before = [np.zeros_like(now) if old is None else old.U for now, old in zip(parts, states, strict=True)]
        known = np.repeat([old is not None for old in states], [len(now) for now in parts])
        S = EventSums(whole, len(broadcast.V), U, joined_rows(before), known)
        users = [user_change(now, old) for now, old in zip(parts, states, strict=True)]
        one = len(shards) == 1
        sums = Sums.of(
            S=S,
            users=users[0][None] if one else Rows(np.zeros(len(users), np.int64), np.array(users), 1),
            joined=sum(state is None for state in states),
        )
        apart = sums["joined"].nbytes * (len(shards) - 1) - (0 if one else 8 * len(shards))
        return [LocalState(now) for now in parts], replace(sums, sent=sums.sent + apart)

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        S = np.zeros((len(broadcast.V), line_length(broadcast.settings.rank)))
        nothing = np.zeros_like(state.U), np.zeros(len(state.U), np.bool_)
        EventSums(shard, len(broadcast.V), state.U, *nothing).add_to(S)
        return {"S": S, "users": user_change(state.U, None)[None]}

    def users_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
        return self.new_users(shard.by_user, broadcast)

    def in_predictions(self, events: sparse.csr_array, later: Array) -> sparse.csr_array:
        return recent(events, later)

    def new_users(self, matrix: sparse.csr_array, broadcast: Broadcast) -> Array:
        """The users' factors that minimise the objective, given V."""
        own = self.at(broadcast)
        turned, pattern = turned_of(broadcast), (matrix.indptr, matrix.indices)
        roots = event_roots(matrix.data, broadcast.V.dtype)
        ridge = own.ridges(np.diff(matrix.indptr), len(broadcast.V))
        found = weighted.solve_events(*pattern, roots, turned.V, own.alpha0 * turned.squares, ridge)
        return weighted.times(found, np.ascontiguousarray(turned.Q.T))

    def event_effects(self, events: sparse.csr_array, column: int, broadcast: Broadcast) -> Array:
        V, c, own = broadcast.V.astype(np.float64), events.data.astype(np.float64), self.at(broadcast)
        lines = V[events.indices]
        ridge = float(own.ridges(np.array([events.nnz]), len(V))[0])
        M = own.alpha0 * weighted.gram_of(V) + (lines * c[:, None]).T @ lines + ridge * np.eye(V.shape[1])
        return np.asarray(c * (lines @ np.linalg.solve(M, V[column])))

    def ridges(self, events: Array, others: float) -> Array:
        """lambda (events + alpha0 others)^nu of each user or item."""
        return np.asarray(self.weight * (events + self.alpha0 * others) ** self.exponent)

    def terms(self, shard: Shard, U: Array, broadcast: Broadcast) -> tuple[float, float]:
        """The loss and the penalty of a client's users."""
        events, V, own = shard.by_user, broadcast.V, self.at(broadcast)
        pairs = float(np.sum(weighted.gram_of(U) * weighted.gram_of(V)))
        ridge = own.ridges(np.diff(events.indptr), len(V))
        penalty = float(ridge @ np.square(U.astype(np.float64)).sum(axis=1))
        return event_errors(events, U, V) + own.alpha0 * pairs, penalty

    def item_terms(self, broadcast: Broadcast) -> float:
        """The penalty of the items."""
        counts, users = popularity_of(broadcast)
        return float(self.at(broadcast).ridges(counts, users) @ np.square(broadcast.V.astype(np.float64)).sum(axis=1))

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        rank = broadcast.settings.rank
        V = broadcast.V * np.asarray(SPREAD / (0.3 * np.sqrt(rank)), broadcast.V.dtype)
        S = np.zeros((len(V) + 1, line_length(rank)))
        shared = shared_counts(np.zeros(len(V)), 0.0, self.chosen(ask, broadcast))
        return Start(broadcast._replace(V=V, shared=shared), server_at(V, S))

    def chosen(self, ask: Ask, broadcast: Broadcast) -> Array | None:
        """alpha0 and lambda from the numbers of users, items and events, if they are not given."""
        if not self.auto:
            return None
        sizes = ask(broadcast._replace(task=SIZES, round=1, shared=NOTHING), range(broadcast.clients))
        users, events = (max(sizes.number(name), 1.0) for name in ("users", "events"))
        return np.array(default_weights(users, len(broadcast.V), events))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        assert server.S is not None
        S, rank = np.empty_like(server.S), broadcast.settings.rank
        np.add(server.S[:-1], total["S"], out=S[:-1])
        S[-1] = server.S[-1]
        S[-1, : total["users"].shape[1]] += total["users"][0]
        users = user_sums(S, rank)
        require(users.number > -0.5, f"{users.number:g} users cannot be a sum")
        seen = server.seen + round(total.number("joined"))
        return ServerState(S, self.next_items(S, users, broadcast, seen), seen)

    def next_items(self, S: Array, users: UserSums, broadcast: Broadcast, seen: int) -> Array:
        """The items' factors that minimise the objective, given the sums over the users counted so far.

        In the first pass over the clients, V stays: factors fitted to few users would have no more dimensions than
        there are users, and those that are lost never come back. For the same reason an item without events stays
        where it is, until all clients are counted.
        """
        few = users.number < ENOUGH * broadcast.settings.rank and seen < broadcast.clients
        if few or broadcast.round < first_pass(broadcast):
            return broadcast.V
        counts, own = S[:-1, -1], self.at(broadcast)
        ridge = np.maximum(own.ridges(np.maximum(counts, 0), max(users.number, 0)), MIN_POSITIVE)
        V = weighted.solve_event_sums(S[:-1], own.alpha0 * users.gram, ridge)
        waits = (counts < 0.5) & (seen < broadcast.clients)
        V[waits] = broadcast.V[waits]
        return V

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        assert server.S is not None
        users = user_sums(server.S, broadcast.settings.rank).number
        return shared_counts(server.S[:-1, -1], users, broadcast.shared.arrays.get(WEIGHTS))

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        if broadcast.task == SIZES:
            return {"users": Part(nonnegative=True), "events": Part(nonnegative=True)}
        rank = broadcast.settings.rank
        return {
            "S": Part((items, line_length(rank)), SUM_BITS, cumulative=True, sparse=True),
            "users": Part((1, rank * (rank + 1) // 2 + 1), SUM_BITS, cumulative=True),
            "joined": Part(),
        }

    def check_broadcast(self, broadcast: Broadcast) -> None:
        arrays, items = broadcast.shared.arrays, len(broadcast.V)
        if broadcast.task == SIZES:
            asked = self.auto and not arrays and broadcast.round == 1
            return require(asked, "the server asks for the number of events, which this run does not need")
        shapes = {COUNTS: (items,), USERS: (1,)} | ({WEIGHTS: (2,)} if self.auto else {})
        shaped = {name: array.shape for name, array in arrays.items()} == shapes
        require(shaped, f"the server sends other arrays than {', '.join(shapes)} with V")
        if self.auto:
            self.at(broadcast)  # refuses weights beyond their bounds
        finite = all(bool((np.abs(array) <= MAX_NUMBER).all()) for array in (*arrays.values(), broadcast.V))
        require(finite, f"the server sends numbers beyond {MAX_NUMBER:g}")

    def user_penalty(self, broadcast: Broadcast) -> float:
        own = self.at(broadcast) if broadcast.task != SIZES else self
        return float(own.ridges(np.zeros(1), len(broadcast.V))[0])
