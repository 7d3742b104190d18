"""Gibbs sampling (`algorithm="gibbs"`): the model of `bayes`, whose posterior is sampled instead of approximated.

The messages are those of `bayes`, with samples in place of moments. A round is

    client   draw each of its users from its Gaussian, given the sampled items, noise and users' prior;
             send the change of S and of the users' sums (`bayes`), computed from the samples
    server   draw noise and both priors given the sampled users and the items that these were drawn with (after the
             first rounds), then each item from its Gaussian, given the sampled users, noise and items' prior

The hyperpriors are those of `gaussians`, read as densities of the noise alpha, and of a prior's mean m and precision P:

    alpha  ~ Gamma((NOISE_WEIGHT + 2) / 2, rate NOISE_WEIGHT NOISE_VARIANCE / 2)
    P      ~ Wishart(w + q degrees of freedom, (w diag(guess))^-1)       w = PRIOR_WEIGHT times the number of rows
    m | P  ~ N(0, (MEAN_WEIGHT P)^-1)

They are conjugate, and the modes of the conditional distributions are what `bayes` learns in closed form:

    alpha  ~ Gamma((N + NOISE_WEIGHT + 2) / 2, with the mode `learned_noise`)                      N ratings
    P      ~ Wishart(n + w + q degrees of freedom, (mode of P) / (n + w))                          n rows
    m | P  ~ N(mode of m, ((n + MEAN_WEIGHT) P)^-1)

What is measured, and the model, are averages over the rounds after the first BURN_IN: the server averages each item's
mean and covariance, noise and priors. Clients fit their users to these averages at home, as in `bayes`. Rotating all
factors changes no prediction, and nothing stops a chain from rotating slowly, so each round is first turned to the
average so far. Samples themselves are never turned: a client that misses a round keeps its part in the sums, which is
still a step of an exact sampler.

Every draw depends on the seed, the round and who draws, so a resumed run and a federation repeat the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.bayes import Bayes, BayesState, warm_rounds, with_ones
from fedmc.algorithms.bayes_server import LARGEST, ServerSums, check_broadcast, item_posteriors, parts_at, shared_of
from fedmc.algorithms.gaussians import Hyper, Prior, Ratings, Rows
from fedmc.algorithms.messages import Broadcast, Shared, Sums
from fedmc.algorithms.posterior import Posterior, fit_users, free_part
from fedmc.algorithms.protocol import Sizes, Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.kernels import moments
from fedmc.problem.rng import sample_rng
from fedmc.types import Array

BURN_IN = 10  # rounds that are not averaged
SAMPLE, NOISE, MEAN, PRECISION = SAMPLED = ("sample", "sampled_noise", "sampled_user_mean", "sampled_user_precision")
ROWS = 4096  # rows that are drawn at a time
SMALLEST = 1e-300  # a pivot of a covariance is kept above it, whatever the server sent


class Gibbs(Bayes):
    """Samples from the posterior of the Bayesian model; all clients take part in every round."""

    name = "gibbs"
    state_types = (LocalState,)
    unused_settings = Bayes.unused_settings | {"extrapolation"}

    def check(self, settings: Settings) -> None:
        super().check(settings)
        clips = settings.privacy.clips
        require(not clips, "algorithm='gibbs' draws users anew in every round: what `clip` cuts off would never arrive")

    # --- the client: its state is the sample of its users

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        known = [None if state is None else _without_spread(state.U) for state in states]
        after, sums = super().batch_update(shards, known, broadcast)
        return [LocalState(state.U) for state in after], sums

    def moved(
        self, shards: Sequence[Shard], whole: Shard, before: Sequence[BayesState | None], broadcast: Broadcast
    ) -> list[BayesState]:
        """Each client's users, drawn from their Gaussians."""
        known, lines = _sampled(broadcast)
        fit = fit_users(by_user(whole, broadcast), known, lines, np.dtype(np.float64))
        found, first = [], 0
        for shard in shards:
            rng = sample_rng(broadcast.settings.seed, broadcast.round, shard.client)
            own = slice(first, first + len(shard.users))
            drawn = drawn_rows(fit.means[own], fit.covariances[own], rng).astype(broadcast.V.dtype)
            found.append(_without_spread(with_ones(drawn)))
            first = own.stop
        return found

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        return super().contribution(shard, _without_spread(state.U), broadcast)

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        settings, clients = broadcast.settings, broadcast.clients
        everybody = settings.active >= clients and len(first) == clients
        require(
            everybody,
            f"algorithm='gibbs' needs all {clients} clients in every round: give active={clients} "
            f"(got {settings.active}), or use algorithm='bayes', which does not",
        )
        broadcast, server = super().start(ask, broadcast, first)
        size = settings.rank + 1
        assert server.S is not None
        sums, V = ServerSums.unpacked(server.S, len(server.V), size), server.V[:, :size].astype(np.float64)
        chain = Chain(sums, V, Average(V, _no_spread(V), sums.hyper))
        return Start(broadcast._replace(shared=chain.shared(broadcast)), server._replace(S=chain.packed()))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        settings = broadcast.settings
        chain, rng = chain_of(server, settings), sample_rng(settings.seed, broadcast.round)
        sums = chain.sums._replace(
            items=chain.sums.items + total["S"], users=chain.sums.users + total["users"][0]
        )  # fmt: skip
        if broadcast.round > warm_rounds(settings, broadcast.clients):
            sums = sums._replace(hyper=drawn_hyper(sums, chain.sample, rng))
        means, covariances, _ = item_posteriors(sums)
        sample = drawn_rows(means, covariances, rng).astype(settings.dtype).astype(np.float64)
        found = Average(means, covariances, sums.hyper)
        if broadcast.round > BURN_IN + 1:
            found = chain.average.with_another(found, 1 / (broadcast.round - BURN_IN))
        V = np.append(found.means, np.ones((len(means), 1)), axis=1)
        return ServerState(Chain(sums, sample, found).packed(), V, server.seen + round(total.number("joined")))

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        return chain_of(server, broadcast.settings).shared(broadcast)

    def bound(self, server: ServerState, broadcast: Broadcast) -> float | None:
        return None  # samples have none

    def check_broadcast(self, broadcast: Broadcast) -> None:
        """Refuse averages and samples that no honest server would send: no draw may fail at them."""
        check_broadcast(broadcast)
        if broadcast.task == "moments":
            return
        arrays, shape = broadcast.shared.arrays, (len(broadcast.V), broadcast.settings.rank + 1)
        missing = [name for name in SAMPLED if name not in arrays]
        require(not missing, lambda: f"the server's {missing[0]} is missing")
        fits = arrays[SAMPLE].shape == shape and bool((np.abs(arrays[SAMPLE]) <= LARGEST).all())
        require(fits, f"the server's sample must have the shape {shape} and numbers of at most {LARGEST:g}")
        instead = {"noise": arrays[NOISE], "user_mean": arrays[MEAN], "user_precision": arrays[PRECISION]}
        check_broadcast(broadcast._replace(shared=Shared({**arrays, **instead})))

    def state_numbers(self, sizes: Sizes) -> int:
        return 0


class Average(NamedTuple):
    """The items' means and packed covariances, noise and priors: of one round, or averaged over several."""

    means: Array
    covariances: Array
    hyper: Hyper

    def with_another(self, other: Average, weight: float) -> Average:
        """The average in which another round, turned to this one, has this weight."""
        turned = other.turned(rotation(other.means, self.means))
        step = turned.means - self.means
        between = gaussians.second_moments(step, np.zeros(()))
        return Average(
            self.means + weight * step,
            (1 - weight) * (self.covariances + weight * between) + weight * turned.covariances,
            _mixed(self.hyper, turned.hyper, weight),
        )

    def turned(self, Q: Array) -> Average:
        """The same with other axes: a row x becomes x Q."""
        covariances = gaussians.packed(_both_sides(gaussians.unpacked(self.covariances), Q))
        noise, users, items = self.hyper
        priors = (Prior(prior.mean @ Q, _both_sides(prior.precision, Q)) for prior in (users, items))
        return Average(np.einsum("ka,ab->kb", self.means, Q), covariances, Hyper(noise, *priors))


class Chain(NamedTuple):
    """What the server keeps: sums of the users' samples with sampled noise and priors, the items' sample, averages."""

    sums: ServerSums
    sample: Array
    average: Average

    def packed(self) -> Array:
        rows = ServerSums(np.hstack([self.average.covariances, self.average.means]), np.zeros(0), self.average.hyper)
        return np.concatenate([self.sums.packed(), rows.packed(), self.sample.ravel()])

    def shared(self, broadcast: Broadcast) -> Shared:
        """The averages, as `bayes` sends its posteriors, and the sample."""
        (means, covariances, hyper), dtype = self.average, broadcast.V.dtype
        noise, users, _ = self.sums.hyper
        return Shared({})
