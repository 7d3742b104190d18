"""Variational Bayes by sums (`preset="bayes"`): a Gaussian posterior with a full covariance for every user and item.

The model is in `gaussians`; regressors of users and items, from who rated what, are found first (`incidence`). With
w = (factors, 1) of the other side, a round is

    client   posterior of each of its users, given those of the items, the noise alpha and the users' prior:
                 covariance = (precision + alpha sum E[w w'])^-1
                 mean       = covariance (precision prior + alpha sum (m E[w] - E[w c]))     over the user's ratings m
             weights of its users' own features, at home (`home`)
             send the change since its last update of
                 S       [G, b] of each item: sum E[w w'] and sum (m E[w] - E[w b]) over the item's ratings
                 users   sum a a', sum a z', sum E[z z'] with a = (regressors, 1) and z without what the features
                         explain, sum E[(m - b)^2], sum of log determinants, number of ratings
    server   posterior of each item from [G, b], by the same formula; then, after the first passes, noise, and priors
             with their weights, in closed form, and the items' posteriors again

With extrapolation 0 every update maximises the same evidence bound over one block of it. A client that does not take
part keeps its posteriors, and its part stays in the sums. So the bound never falls between joins, whoever takes part.
A client that joins adds its terms. Extrapolation sends means that lie beyond the new ones, along the last change: the
bound is still one, but may fall for a round.

In the first passes noise and priors are fixed. If they were learned while few clients have joined, the factors that
the few cannot tell from noise would be pruned for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmc.algorithms import bayes_client as client
from fedmc.algorithms import bayes_warm, gaussians, home, incidence
from fedmc.algorithms.bayes_client import BayesState
from fedmc.algorithms.bayes_server import (
    DIRECTIONS,
    ERROR,
    ITEM_WEIGHTS,
    NAMES,
    WEIGHTS,
    added,
    bound_parts,
    check_broadcast,
    directions_of,
    first_sums,
    item_roots,
    items_error,
    learned,
    posterior_of,
    shared_of,
    sums_of,
    user_numbers,
)  # fmt: skip
from fedmc.algorithms.curvature import joined_rows, parted
from fedmc.algorithms.leakage import CurvatureLeakage, Leakage
from fedmc.algorithms.messages import ITEM_FEATURES, NOTHING, SUM_BITS, Broadcast, Part, Schema, Shared, Sums
from fedmc.algorithms.messages import Rows as SparseRows
from fedmc.algorithms.posterior import Fit, Posterior
from fedmc.algorithms.previous import Previous
from fedmc.algorithms.protocol import Algorithm, Sizes, Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.side import Side
from fedmc.algorithms.start import Ask, normalised, server_at
from fedmc.algorithms.state import ServerState, State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard, together
from fedmc.errors import Diverged, require
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.types import Array


class BayesLeakage(CurvatureLeakage):
    """As for the curvature update: a message holds the second moments of user factors, item by item."""

    def user_bias(self, broadcast: Broadcast, u: Array, left: float) -> float:
        """From the last line of precision (u, bias) = pull + noise (sums): noise and prior are known to the server."""
        noise, users, _ = posterior_of(broadcast).hyper
        return float((noise * left + users.pull[-1] - users.precision[-1, :-1] @ u) / users.precision[-1, -1])


class Bayes(Algorithm):
    """Posterior means and covariances, learned noise and priors: nothing to tune, and an error bar for everything."""

    name = "bayes"
    state_types: tuple[type[State], ...] = (BayesState,)
    tasks = (Algorithm.tasks - {"start"}) | {"pattern"}
    uses_side: bool = True
    cumulative = True
    takes_decoys = True
    unused_settings = frozenset(
        {"beta", "beta_scale", "dual_step", "inner_steps", "passes", "fit_users_to", "entry_penalty"}
        | {"penalty_users", "penalty_items"}
    )
    leakage: Leakage = BayesLeakage()
    remedy = "rescale the ratings"

    def check(self, settings: Settings) -> None:
        square, needs = isinstance(settings.make_loss(), Square), f"algorithm={self.name!r} needs"
        require(square, f"{needs} the square loss, got {settings.loss}")
        require(settings.biases, f"{needs} biases=True")
        standard = settings.normalise == "standard"
        require(standard, f"{needs} normalise='standard', got {settings.normalise!r}")
        needed = settings.entry == "first-turn" and settings.fold_in
        require(needed, f"{needs} entry='first-turn' and fold_in=True")

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State | None, Sums]:
        if broadcast.task == "pattern":
            return state, incidence.reply(shard, broadcast)
        (after,), sums = self.batch_update([shard], [state], broadcast)
        return after, sums

    def can_batch(self, broadcast: Broadcast) -> bool:
        return True  # a user's posterior depends only on the items' and on the user's own ratings

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        """The users' posteriors, and the change of the sums over them, or all of it if a client is new."""
        before = [client.known_state(state) for state in states]
        whole = _together(shards, before, broadcast)
        after = self.moved(shards, whole, before, broadcast)
        _check_finite([state.U for state in after], whole, broadcast)
        change = _item_change(shards, whole, before, after, broadcast)
        users = [client.changed_users(*one, broadcast) for one in zip(shards, after, before, strict=True)]
        sums = Sums.of(
            S=SparseRows(whole.rated, change, len(broadcast.V)),
            users=users[0][None]
            if len(shards) == 1
            else SparseRows(np.zeros(len(users), np.int64), np.array(users), 1),
            joined=sum(state is None for state in states),
        )
        apart = sums["joined"].nbytes * (len(shards) - 1)  # one from every client
        numbers = 0 if len(shards) == 1 else 8 * len(shards)  # of the rows of `users`, which no client sends
        return after, replace(sums, sent=sums.sent + apart - numbers)

    def moved(
        self, shards: Sequence[Shard], whole: Shard, before: Sequence[BayesState | None], broadcast: Broadcast
    ) -> list[BayesState]:
        """The clients' states after a round; `whole` is their shards together."""
        size = broadcast.settings.rank + 1
        known = [(shard, client.home_of(shard, old, size)) for shard, old in zip(shards, before, strict=True)]
        priors = client.server_priors(whole, broadcast)
        fit = client.fit(whole, broadcast, priors + joined_rows([home.offsets(*one) for one in known]))
        parts = zip(*(parted(part, shards) for part in (*fit, priors)), strict=True)
        found = []
        for (shard, own), old, (*one, prior) in zip(known, before, parts, strict=True):
            regressors = client.regressors_of(shard, old, broadcast)
            state = client.state_of(Fit(*one), regressors, own, old, broadcast.settings)
            if broadcast.round > client.warm_rounds(broadcast.settings, broadcast.clients):
                own = home.fitted(shard, own, state.Z - prior, posterior_of(broadcast).hyper.users.precision)
                state = state._replace(home=own.weights, ridge=own.ridge)
                state = client.with_days(shard, state, old, broadcast)
            found.append(state)
        return found

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        known = client.known_state(state)
        assert known is not None
        S = _dense_sums(client.adjusted(shard, known, broadcast), known, broadcast)
        return {"S": S, "users": client.user_sums(shard, known, broadcast)[None]}

    def decoy_sums(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        """Decoys are no ratings: their squared errors at this V are taken out again, so that noise is not learned."""
        known = client.known_state(state)
        assert known is not None
        S = _dense_sums(shard, known, broadcast)
        users = np.zeros((1, user_numbers(broadcast.settings.rank + 1, directions_of(broadcast))))
        users[0, ERROR] = -items_error(S, broadcast)
        return {"S": S, "users": users}

    def users_at(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
        """Posterior means, given the items' posteriors of this broadcast."""
        own = client.home_of(shard, client.known_state(state), broadcast.settings.rank + 1)
        priors = client.server_priors(shard, broadcast) + home.offsets(shard, own)
        return client.with_ones(client.fit(self.adjusted(shard, state, broadcast), broadcast, priors).means)

    def adjusted(self, shard: Shard, state: State | None, broadcast: Broadcast) -> Shard:
        return client.adjusted(shard, client.known_state(state), broadcast)

    def posterior(self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast) -> Posterior:
        priors = [np.zeros((len(shard.users), broadcast.settings.rank + 1)) for shard in shards]
        fits = [client.fit(shard, broadcast, prior) for shard, prior in zip(shards, priors, strict=True)]
        found = posterior_of(broadcast).of_users(joined_rows([fit.covariances for fit in fits]))
        known = [client.known_state(state) for state in states]
        return replace(found, home=client.average_home(shards, known), days=client.known_days(shards, known))

    def item_posterior(self, broadcast: Broadcast) -> Posterior:
        return posterior_of(broadcast)

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        features = broadcast.shared.arrays.get(ITEM_FEATURES)
        broadcast, _ = normalised(ask, broadcast._replace(shared=NOTHING))
        items, size = len(broadcast.V), broadcast.settings.rank + 1
        side = Side.nothing(items)
        if features is not None:
            side = side._replace(features=features)
        if broadcast.settings.implicit and (found := incidence.find(ask, broadcast)) is not None:
            side = side._replace(directions=found.directions, implicit=found.items)
        sums = first_sums(items, size, side)
        roots = np.zeros((items, size * (size + 1) // 2), broadcast.V.dtype)
        shared = shared_of(sums.hyper, roots, side)
        return Start(broadcast._replace(shared=shared), server_at(broadcast.V, sums.packed()))

    def warm_start(self, begun: Start, previous: Previous) -> Start:
        return bayes_warm.warm_start(begun, previous)

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        sums, size = added(sums_of(server, broadcast.settings), total), broadcast.settings.rank + 1
        if sums.users[-1] > 0 and broadcast.round > client.warm_rounds(broadcast.settings, broadcast.clients):
            sums = sums._replace(hyper=learned(sums))
        means, _ = item_roots(sums)
        V = np.ones((len(means), size + 1))
        V[:, :size] = means
        return ServerState(sums.packed(), V, server.seen + round(total.number("joined")))

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        if not server.seen:
            return broadcast.shared
        sums = sums_of(server, broadcast.settings)
        roots = item_roots(sums)[1]
        return shared_of(sums.hyper, roots.astype(broadcast.V.dtype), sums.side)

    def bound(self, server: ServerState, broadcast: Broadcast) -> float | None:
        if not server.seen:
            return None
        return gaussians.bound(*bound_parts(sums_of(server, broadcast.settings)))

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        if broadcast.task == "pattern":
            return incidence.schema(broadcast, items)
        size, regressors = broadcast.settings.rank + 1, directions_of(broadcast)
        return {
            "S": Part((items, moments.line_length(size)), SUM_BITS, cumulative=True, sparse=True),
            "users": Part((1, user_numbers(size, regressors)), cumulative=True),
            "joined": Part(),
        }

    def check_broadcast(self, broadcast: Broadcast) -> None:
        """Refuse noise, priors and covariances that no honest server would send: no posterior may fail at them."""
        if broadcast.task == "pattern":
            return incidence.check_broadcast(broadcast)
        check_broadcast(broadcast)
        known = {*NAMES, ITEM_WEIGHTS} | ({DIRECTIONS, WEIGHTS} if broadcast.settings.implicit else set())
        strange = sorted(broadcast.shared.arrays.keys() - known)
        require(not strange, lambda: f"the server sends {strange[0]}, which this algorithm does not know")

    def state_numbers(self, sizes: Sizes) -> int:
        q = sizes.width - 1
        regressors = min(incidence.DIRECTIONS, sizes.items // 4)
        return sizes.users * (q + q * (q + 1) // 2 + 1 + regressors) + sizes.clients  # Z, covariances, log dets, ridges


def _together(shards: Sequence[Shard], states: Sequence[BayesState | None], broadcast: Broadcast) -> Shard:
    """Several clients' ratings without the biases of their days, as one shard."""
    return together([client.adjusted(shard, state, broadcast) for shard, state in zip(shards, states, strict=True)])


def _item_change(
    shards: Sequence[Shard],
    whole: Shard,
    before: Sequence[BayesState | None],
    after: Sequence[BayesState],
    broadcast: Broadcast,
) -> Array:
    """The change of [G, b] of each rated item; `whole` are the ratings without the biases of before."""
    if all(shard.days is None for shard in shards):
        lines = [client.change(client.lines, new, old) for new, old in zip(after, before, strict=True)]
        return _item_sums(whole, lines, broadcast)
    now = [client.lines(state) for state in after]
    then = [0 * new if old is None else client.lines(old) for new, old in zip(now, before, strict=True)]
    found = _item_sums(_together(shards, after, broadcast), now, broadcast)
    return np.asarray(found - _item_sums(whole, then, broadcast))


def _dense_sums(shard: Shard, state: BayesState, broadcast: Broadcast) -> Array:
    """[G, b] of every item over one client's ratings."""
    S = np.zeros((len(broadcast.V), moments.line_length(broadcast.settings.rank + 1)))
    S[shard.rated] = _item_sums(shard, [client.lines(state)], broadcast)
    return S


def _item_sums(whole: Shard, lines: Sequence[Array], broadcast: Broadcast) -> Array:
    """[G, b] of each rated item, from the packed moments of the users."""
    by_rated = by_user(whole, broadcast)._replace(matrix=whole.by_rated)
    return moments.sum_moments(*subproblem.raw(by_rated), joined_rows(list(lines)), broadcast.settings.rank + 1)


def _check_finite(users: Sequence[Array], whole: Shard, broadcast: Broadcast) -> None:
    if broadcast.settings.privacy.failures_tell or all(np.isfinite(U).all() for U in users):
        return  # under secure aggregation, an error could tell something
    raise Diverged(broadcast.round, f"client {whole.client} got user factors that are not finite", Bayes.remedy)
