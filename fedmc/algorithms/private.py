"""Training under user-level differential privacy: what clients release.

    round 1     sum over users of  rated_j / sqrt(number of ratings)     for each item j, and the number of users
    later       sum over users of  e_tj s_j z_t / norm                   for each item j: minus a gradient
                and                z_t z_t' times a number               pooled over the items: its curvature

z_t = (u_t, KAPPA) is the vector of a user's factors, fitted locally to the round's V, and a constant for the item's
bias. e_tj are the residuals of the user's ratings. The weight s_j is smaller for popular items, which need less of the
budget. Every user's part has norm 1, however many ratings the user has and however badly they fit. On MovieLens 1M
clipping at larger norms did no better, and gradients with one pooled curvature cost far less noise than a Gram matrix
for every item.

Nothing else leaves a client: no mean, no count, no error. Ratings are centred by their public range; users' factors
and biases are fitted and used locally. `denoise` turns the releases into V.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import sparse

from fedmc.algorithms import denoise
from fedmc.algorithms.leakage import ReleaseLeakage
from fedmc.algorithms.messages import SUM_BITS, Broadcast, Part, Schema, Shared, Sums
from fedmc.algorithms.protocol import Algorithm
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import LocalState, ServerState, State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard
from fedmc.errors import InputError, require
from fedmc.privacy.dp import bounds, mechanism
from fedmc.privacy.modes import DP
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.problem.penalties import coefficients
from fedmc.problem.scaling import Scaling
from fedmc.types import Array

COUNTS = 0.15  # the first release's share of the budget
POOLED = 0.2  # the part of a user's norm of 1 for numbers that are pooled over items
ITEMS = math.sqrt(1 - POOLED**2)  # the part for the items
MAX_NORM = 1e9  # a user whose factors or residuals have a larger norm is left out of the release
MAX_CURVATURE = 4.0  # a user's curvature is clipped to this norm
POSTERIOR = "posterior"


class Private(Algorithm):
    """(epsilon, delta) for each user of a client, over the rounds of `settings.privacy`, with all clients in each.

    Each client adds the full noise itself. If the mode shares the noise (the server sees only the sum), each client
    adds a share: the shares of any two thirds of the clients plus one, kept secret, add up to the full noise.
    """

    name = "dp"
    ignored_settings = frozenset(
        {"beta", "beta_scale", "inner_steps", "passes", "dual_step", "fit_users_to", "extrapolation", "entry_penalty"}
    )
    state_types = (LocalState,)
    leakage = ReleaseLeakage()
    several_only = True  # one party alone releases nothing
    warm_starts = False  # a second run over the same users spends a second budget
    objectives_differ = False  # the bound on what a user adds is that of the run's penalty

    def __init__(self, factors: float = 1) -> None:
        """`dp:0` learns item biases only, for budgets too small for factors."""
        require(factors in (0, 1), f"dp learns factors (1) or item biases only (0), got {factors}")
        self.factors = bool(factors)

    def __str__(self) -> str:
        return self.name if self.factors else f"{self.name}:0"

    def check(self, settings: Settings) -> None:
        """Refuse settings under which a user's factors would depend on other users."""
        mode = mode_of(settings).mode
        require(
            settings.normalise == "none",
            f"with privacy={mode!r} ratings are centred by their public range: normalise='none'",
        )
        require(settings.biases, f"privacy={mode!r} needs biases=True")
        bounds.check_rank(settings.rank)
        require(
            isinstance(settings.make_loss(), Square), f"privacy={mode!r} needs the square loss, got {settings.loss}"
        )
        separable = coefficients(settings.penalties(1)[0], settings.width) is not None
        require(separable, f"privacy={mode!r} needs a separable penalty of the users, such as l2:1.5")

    def scaling(self, settings: Settings) -> Scaling:
        """Maps the public range of ratings to [-2, 2]."""
        low, high = mode_of(settings).rating_range
        return Scaling((low + high) / 2, (high - low) / 4)

    def free(self, rank: int) -> Array:
        """The columns of U and V that are released: factors, if any, and the bias of items last."""
        return np.array([*range(rank if self.factors else 0), rank])

    # --- the client

    def client_update(self, shard: Shard, state: State | None, broadcast: Broadcast) -> tuple[State, Sums]:
        self.check(broadcast.settings)
        noise = own_noise(broadcast)
        U = users(shard, broadcast)
        first = broadcast.round == 1
        values = counts(shard) if first else slopes(shard, U, broadcast, self.free(broadcast.settings.rank))
        return LocalState(U), Sums.of(release=mechanism.noised(values, noise))

    # --- the server

    def aggregate(self, server: ServerState, total: Sums, broadcast: Broadcast, participants: int) -> ServerState:
        noise = own_noise(broadcast) * math.sqrt(participants)
        free, release, V = self.free(broadcast.settings.rank), total["release"], broadcast.V
        if broadcast.round == 1:
            rated, number = release[:-1, 0] / ITEMS, release[-1, 0] / POOLED
            posterior = denoise.opening(rated, number, noise / ITEMS, participants, len(free))
            return ServerState(posterior.packed(), denoise.without_factors(V), 0)
        assert server.S is not None
        curvature = release[len(V) :] * (MAX_CURVATURE / POOLED)
        seen = denoise.Release(release[: len(V)] / ITEMS, curvature, noise / ITEMS, participants)
        rounds = mode_of(broadcast.settings).rounds
        posterior, V = denoise.advance(denoise.Posterior.unpacked(server.S), seen, broadcast, free, rounds)
        return ServerState(posterior.packed(), V, 0)

    def shared(self, server: ServerState, broadcast: Broadcast) -> Shared:
        return broadcast.shared if server.S is None else Shared({POSTERIOR: server.S})

    def epsilon_spent(self, settings: Settings, rounds: int) -> float | None:
        """The epsilon of the first `rounds` releases, by the planned noise multipliers."""
        privacy = mode_of(settings)
        return mechanism.spent([multiplier(privacy, number) for number in range(1, rounds + 1)], privacy.delta)

    # --- messages

    def schema(self, broadcast: Broadcast, items: int) -> Schema:
        width = 1 if broadcast.round == 1 else len(self.free(broadcast.settings.rank))
        return {"release": Part((items + width, width), SUM_BITS)}

    def check_broadcast(self, broadcast: Broadcast) -> None:
        """Refuse a round outside of the plan, a scaling other than the public one, and an implausible posterior."""
        multiplier(mode_of(broadcast.settings), max(broadcast.round, 1))
        scaling = self.scaling(broadcast.settings)
        require(broadcast.scaling == scaling, f"ratings are scaled by {scaling}, not by {broadcast.scaling}")
        if broadcast.round <= 1 or broadcast.task != "round":
            return
        width, packed = len(self.free(broadcast.settings.rank)), broadcast.shared.arrays.get(POSTERIOR)
        if packed is None or packed.shape != (len(broadcast.V) + width + 2, width + 1):
            raise InputError("the server's posterior is missing or has another shape")
        known = denoise.Posterior.unpacked(packed)
        sane = known.counts.min() >= denoise.MIN_COUNT and known.counts.max() <= 1e12 and 0 <= known.noise <= 1e12
        require(bool(sane), "the server's posterior has counts or noise that cannot be")

    def noise_multiplier(self, broadcast: Broadcast) -> float | None:
        return multiplier(mode_of(broadcast.settings), broadcast.round)


def mode_of(settings: Settings) -> DP:
    """The DP mode of the settings."""
    if not isinstance(settings.privacy, DP):
        raise InputError(f"algorithm='dp' needs privacy='dp' or 'dp+secagg', got {settings.privacy.mode!r}")
    return settings.privacy


@lru_cache(maxsize=64)
def _plan(privacy: DP) -> Sequence[float]:
    """The noise multiplier of each round's release; computed lazily, so that a model can be loaded without it."""
    later = privacy.rounds - 1
    return mechanism.shares(privacy.epsilon, privacy.delta, [COUNTS] + [(1 - COUNTS) / later] * later)


def multiplier(privacy: DP, number: int) -> float:
    """The noise multiplier of a round's release, for the ledger."""
    require(
        1 <= number <= privacy.rounds,
        f"the budget was divided among {privacy.rounds} rounds, this is {number}: start a run of more rounds",
    )
    return _plan(privacy)[number - 1]


def own_noise(broadcast: Broadcast) -> float:
    """The standard deviation of the noise that one client adds."""
    privacy = mode_of(broadcast.settings)
    sharers = 2 * broadcast.clients // 3 + 1 if privacy.noise_shared else 1
    return multiplier(privacy, broadcast.round) / math.sqrt(sharers)


def users(shard: Shard, broadcast: Broadcast) -> Array:
    """U fitted to V; in rounds 1 and 2, before there is a V to fit to, only the constant column."""
    settings = broadcast.settings
    U = np.zeros((len(shard.users), settings.width), broadcast.V.dtype)
    if broadcast.round <= 2:
        U[:, settings.rank] = 1.0
        return U
    numbers = coefficients(settings.penalties(broadcast.clients)[0], settings.width)
    assert numbers is not None  # `Private.check` requires it, so that each user is fitted alone
    return subproblem.exact(by_user(shard, broadcast), broadcast.V, U, numbers)


def counts(shard: Shard) -> Array:
    """Round 1: each item's count, a rating weighing 1/sqrt(its user's number of ratings); last the number of users."""
    number = np.diff(shard.by_user.indptr)
    weights = np.repeat(1 / np.sqrt(np.maximum(number, 1)), number)
    rated = np.bincount(shard.by_user.indices, weights, shard.by_user.shape[1])
    return np.append(ITEMS * rated, POOLED * len(number))[:, None]


def slopes(shard: Shard, U: Array, broadcast: Broadcast, free: Array) -> Array:
    """A later round: minus the gradient, a row per item, followed by the rows of the pooled curvature."""
    ratings = shard.by_user
    number = np.diff(ratings.indptr)
    rows = np.repeat(np.arange(len(number)), number)
    z = np.asarray(U[:, free], np.float64) * denoise.scale(len(free))
    with np.errstate(over="ignore", invalid="ignore"):  # whatever V is, a user's norm is at most 1
        fitted = np.einsum("ka,ka->k", U[rows], broadcast.V[ratings.indices], dtype=np.float64)
        pulls = (ratings.data - broadcast.scaling.mean) / broadcast.scaling.scale - fitted
        pulls *= denoise.weight_of(denoise.Posterior.unpacked(broadcast.shared.arrays[POSTERIOR]))[ratings.indices]
        length = np.linalg.norm(z, axis=1)
        left = np.sqrt(np.bincount(rows, np.square(pulls), len(number)))
        weights = mechanism.shrink(left * length)
        weights[(length > MAX_NORM) | (left > MAX_NORM) | (left < mechanism.TINY)] = (
            0  # no honest run: their squares lose digits
        )
    z[weights == 0], pulls[weights[rows] == 0] = 0, 0
    parts = sparse.csr_array((pulls * weights[rows], ratings.indices, ratings.indptr), shape=ratings.shape)
    return np.concatenate([ITEMS * (parts.T @ z), POOLED * curvature(z, weights * np.sqrt(number))])


def curvature(z: Array, weights: Array) -> Array:
    """Sum over users of weight z z', each clipped to norm MAX_CURVATURE, in units of MAX_CURVATURE."""
    most = MAX_CURVATURE / np.maximum(np.square(z).sum(axis=1), mechanism.TINY)
    cut: Array = (z * np.minimum(weights, most)[:, None]).T @ z / MAX_CURVATURE
    return cut
