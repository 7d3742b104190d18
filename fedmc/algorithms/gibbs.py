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
from itertools import accumulate, pairwise

import numpy as np

from fedmc.algorithms import gaussians
from fedmc.algorithms.bayes import Bayes
from fedmc.algorithms.bayes_client import BayesState, warm_rounds, with_ones
from fedmc.algorithms.bayes_server import LARGEST, ServerSums, added, check_broadcast, shared_of
from fedmc.algorithms.gibbs_server import (
    SAMPLE,
    SAMPLED,
    Average,
    Chain,
    chain_of,
    drawn_hyper,
    drawn_rows,
    triangle,
)  # fmt: skip
from fedmc.algorithms.messages import Broadcast, Shared, Sums
from fedmc.algorithms.posterior import free_part
from fedmc.algorithms.protocol import Sizes, Start
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import Ask
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.kernels import moments
from fedmc.problem import subproblem
from fedmc.problem.rng import sample_rng
from fedmc.types import Array

BURN_IN = 10  # rounds that are not averaged


class Gibbs(Bayes):
    """Samples from the posterior of the Bayesian model; all clients take part in every round."""

    name = "gibbs"
    state_types = (LocalState,)
    tasks = Bayes.tasks - {"pattern"}
    uses_side = False
    takes_decoys = False
    warm_starts = False  # a chain needs its last sample, which a model does not keep
    unused_settings = Bayes.unused_settings | {"extrapolation", "implicit"}

    def check(self, settings: Settings) -> None:
        super().check(settings)
        clips = settings.privacy.clips
        require(not clips, "algorithm='gibbs' draws users anew in every round: what `clip` cuts off would never arrive")

    # --- the client, whose state is the sample of its users

    def batch_update(
        self, shards: Sequence[Shard], states: Sequence[State | None], broadcast: Broadcast
    ) -> tuple[Sequence[State], Sums]:
        known = [None if state is None else _exactly(state.U) for state in states]
        after, sums = super().batch_update(shards, known, broadcast)
        return [LocalState(state.U) for state in after], sums

    def moved(
        self, shards: Sequence[Shard], whole: Shard, before: Sequence[BayesState | None], broadcast: Broadcast
    ) -> list[BayesState]:
        """Each client's users, drawn from their Gaussians."""
        arrays, size = broadcast.shared.arrays, broadcast.settings.rank + 1
        noise, mean, precision = (arrays[name] for name in SAMPLED.values())
        lines = broadcast.shared.derive("sample lines", lambda: _lines(arrays[SAMPLE]))
        S = moments.sum_moments(*subproblem.raw(by_user(whole, broadcast)), lines, size)
        means, roots = moments.posterior_roots(S, float(noise[0]), precision, precision @ mean)
        found = []
        for shard, (start, stop) in zip(shards, pairwise(accumulate(map(_users, shards), initial=0)), strict=True):
            rng = sample_rng(broadcast.settings.seed, broadcast.round, shard.client)
            drawn = drawn_rows(means[start:stop], roots[start:stop], rng)
            found.append(_exactly(with_ones(drawn.astype(broadcast.V.dtype))))
        return found

    def contribution(self, shard: Shard, state: State, broadcast: Broadcast) -> dict[str, Array]:
        return super().contribution(shard, _exactly(state.U), broadcast)

    # --- the server

    def start(self, ask: Ask, broadcast: Broadcast, first: Sequence[int]) -> Start:
        settings, clients = broadcast.settings, broadcast.clients
        require(
            len(first) == clients,
            f"algorithm='gibbs' needs all {clients} clients in every round: set active={clients} "
            f"(it is {settings.active}), or use algorithm='bayes', which does not need them all",
        )
        broadcast, server = super().start(ask, broadcast, first)
        assert server.S is not None
        V = server.V[:, : settings.rank + 1].astype(np.float64)
        sums = ServerSums.unpacked(server.S, *V.shape)
        chain = Chain(sums, V, Average(V, np.zeros((len(V), triangle(V.shape[1]))), sums.hyper))
        shared = Shared({**broadcast.shared.arrays, **chain.sampled(settings)})
        return Start(broadcast._replace(shared=shared), server._replace(S=chain.packed()))

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        settings = broadcast.settings
        (sums, sample, average), rng = chain_of(server, settings), sample_rng(settings.seed, broadcast.round)
        sums = added(sums, total)
        if sums.users[-1] > 0 and broadcast.round > warm_rounds(settings, broadcast.clients):
            sums = sums._replace(hyper=drawn_hyper(sums, sample, rng))
        prior, size = sums.hyper.items, settings.rank + 1
        means, roots = moments.posterior_roots(sums.items, sums.hyper.noise, prior.precision, prior.pull)
        sample = drawn_rows(means, roots, rng).astype(settings.dtype).astype(np.float64)  # as clients will see it
        found = Average(means, moments.covariances_of(roots, size), sums.hyper)
        if broadcast.round > BURN_IN + 1:
            found = average.with_another(found, 1 / (broadcast.round - BURN_IN))
        V = np.append(found.means, np.ones((len(means), 1)), axis=1)
        return ServerState(Chain(sums, sample, found).packed(), V, server.seen + round(total.number("joined")))

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        if not server.seen:
            return broadcast.shared
        chain, settings = chain_of(server, broadcast.settings), broadcast.settings
        roots = gaussians.lower_roots(chain.average.covariances).astype(settings.dtype)
        averages = shared_of(chain.average.hyper, roots)  # as `bayes` sends its posteriors
        return Shared({**averages.arrays, **chain.sampled(settings)})

    def bound(self, server: ServerState, broadcast: Broadcast) -> float | None:
        return None  # samples have no bound

    def check_broadcast(self, broadcast: Broadcast) -> None:
        """Refuse averages and samples that no honest server would send: no draw may fail at them."""
        check_broadcast(broadcast)
        if broadcast.task == "moments":
            return
        arrays, shape = broadcast.shared.arrays, (len(broadcast.V), broadcast.settings.rank + 1)
        missing = [name for name in (SAMPLE, *SAMPLED.values()) if name not in arrays]
        require(not missing, lambda: f"the server's {missing[0]} is missing")
        fits = arrays[SAMPLE].shape == shape and bool((np.abs(arrays[SAMPLE]) <= LARGEST).all())
        require(fits, f"the server's sample must have the shape {shape} and numbers up to {LARGEST:g}")
        sampled = {name: arrays[other] for name, other in SAMPLED.items()}
        check_broadcast(broadcast._replace(shared=Shared({**arrays, **sampled})))

    def state_numbers(self, sizes: Sizes) -> int:
        return 0


def _exactly(U: Array) -> BayesState:
    """Users that are known exactly, for the formulas of `bayes`."""
    Z = free_part(U)
    spread, nothing = np.zeros((len(Z), triangle(Z.shape[1])), Z.dtype), np.zeros((0, Z.shape[1]))
    return BayesState(U, Z, spread, np.zeros(len(Z)), np.zeros((len(Z), 0)), nothing, np.ones(1))


def _lines(sample: Array) -> Array:
    return moments.moment_lines(sample, np.zeros((len(sample), triangle(sample.shape[1])), sample.dtype))


def _users(shard: Shard) -> int:
    return len(shard.users)
