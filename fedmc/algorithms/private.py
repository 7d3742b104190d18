"""Training under differential privacy for each user, as a method of `methods`: what clients release.

    round 1     sum over users of  rated_j / sqrt(number of ratings)     for each item j, and the number of users
    later       sum over users of  e_tj s_j z_t / norm                   for each item j: a slope of the square loss
                and                z_t z_t' times a number               pooled over the items: its curvature

z_t = (u_t, KAPPA) are a user's factors fitted at home to the V of the round and a constant for the item's bias, e_tj
what they leave of its ratings; s_j, smaller for popular items, spends less on those who need it least. Everybody's part
has norm 1: who rates much or is hard to fit weighs as much as anybody else. On MovieLens 1M clipping at larger
norms did no better, and slopes with one pooled curvature cost far less noise than a Gram for every item.

Nothing else leaves a client: no mean, no count, no error. Ratings are centred by their public range, users' factors
and biases are fitted and used at home. What the server makes of the releases is in `denoise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.algorithms import denoise
from fedmc.algorithms.messages import Broadcast, Sums
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard
from fedmc.errors import require
from fedmc.privacy.dp import mechanism
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.problem.penalties import coefficients
from fedmc.problem.subproblem import Problem, Scaling
from fedmc.types import Array

COUNTS = 0.15  # the first release's share of the budget
POOLED = 0.2  # of a user's norm of 1, what goes into numbers that are pooled over items
ITEMS = math.sqrt(1 - POOLED**2)  # and what is left for the items
LONGEST = 1e9  # a user's factors or misfits beyond which nothing of it is released
MOST_CURVATURE = 4.0  # beyond which a user's curvature is cut


class Users(NamedTuple):
    """What a client remembers: its users' factors, which it could fit anew any time."""

    U: Array


@dataclass(frozen=True)
class Private:
    """(epsilon, delta) for each user of a client, over `rounds` rounds in which all clients take part.

    Each client adds all the noise itself; with `hidden`, where the server sees but the sum, its share of it: so much
    that the noise is all there if only two thirds of the clients are (and keep theirs to themselves).
    """

    epsilon: float
    delta: float
    rounds: int = 19
    lowest: float = 1.0  # the public range of ratings
    highest: float = 5.0
    hidden: bool = False
    factors: bool = True  # False: item biases only, for budgets that factors would drown in

    def __post_init__(self) -> None:
        require(self.rounds >= 2, f"rounds must be at least 2 (counts, and a slope), got {self.rounds}")
        require(
            self.lowest < self.highest, f"the range of ratings must not be empty, got {self.lowest} to {self.highest}"
        )
        mechanism.check_budget(
            self.epsilon, self.delta
        )  # the plan is made when it is needed: a model can be read without

    @cached_property
    def _plan(self) -> list[float]:
        later = self.rounds - 1
        return mechanism.shares(self.epsilon, self.delta, [COUNTS] + [(1 - COUNTS) / later] * later)

    @property
    def scaling(self) -> Scaling:
        """Ratings from -2 to 2, by what everybody knows."""
        return Scaling((self.lowest + self.highest) / 2, (self.highest - self.lowest) / 4)

    def check(self, settings: Settings) -> None:
        """Refuse settings under which a user's factors would depend on other users."""
        require(settings.biases, "privacy='dp' needs biases=True")
        require(isinstance(settings.make_loss(), Square), f"privacy='dp' needs the square loss, got {settings.loss}")
        separable = coefficients(settings.penalties(1)[0], settings.width) is not None
        require(separable, "privacy='dp' needs a separable penalty of the users, such as l2:1.5")

    def check_cast(self, cast: Broadcast) -> None:
        """Refuse what an honest server never sends, before any rating is looked at."""
        self.multiplier(max(cast.round, 1))
        require(cast.scaling == self.scaling, f"ratings are scaled by {self.scaling}, not by {cast.scaling}")
        if cast.round <= 1 or cast.task != "round":
            return
        width = len(self.free(cast.settings.rank))
        ok = cast.memory is not None and np.shape(cast.memory) == (len(cast.V) + width + 2, width + 1)
        require(ok, "what the server remembers has another shape")
        known = denoise.Known.unpacked(cast.memory)
        sane = known.counts.min() >= denoise.LEAST_COUNT and known.counts.max() <= 1e12 and 0 <= known.noise <= 1e12
        require(bool(sane), "what the server remembers of counts and noise cannot be")

    def multiplier(self, number: int) -> float:
        """The noise multiplier of a round's release, for the ledger."""
        require(
            1 <= number <= self.rounds,
            f"the budget was divided among {self.rounds} rounds, this is {number}: start a run of more rounds",
        )
        return self._plan[number - 1]

    def own_noise(self, number: int, clients: int) -> float:
        """The noise that one client adds."""
        return self.multiplier(number) / math.sqrt(2 * clients // 3 + 1 if self.hidden else 1)

    def free(self, rank: int) -> Array:
        """The columns of U and V that are released: factors, if any, and the bias of items last."""
        return np.array([*range(rank if self.factors else 0), rank])

    def shape(self, cast: Broadcast, items: int) -> tuple[int, int]:
        """Of what a client sends."""
        width = 1 if cast.round == 1 else len(self.free(cast.settings.rank))
        return items + width, width

    def turn(self, shard: Shard, state: Users | None, cast: Broadcast) -> tuple[Users, Sums]:
        self.check(cast.settings)
        noise = self.own_noise(cast.round, cast.clients)
        U = users(shard, cast)
        values = counts(shard) if cast.round == 1 else slopes(shard, U, cast, self.free(cast.settings.rank))
        return Users(U), Sums.of(release=mechanism.noised(values, noise))

    def gather(
        self, memory: Array | None, reply: Sums, cast: Broadcast, participants: int
    ) -> tuple[Array | None, Array]:
        noise = self.own_noise(cast.round, cast.clients) * math.sqrt(participants)
        free, release = self.free(cast.settings.rank), reply["release"]
        if cast.round == 1:
            rated, number = release[:-1, 0] / ITEMS, release[-1, 0] / POOLED
            known = denoise.opening(rated, number, noise / ITEMS, participants, len(free))
            return known.packed(), denoise.without_factors(cast.V)
        assert memory is not None
        items = len(cast.V)
        curvature = release[items:] * (MOST_CURVATURE / POOLED)
        seen = denoise.Seen(release[:items] / ITEMS, curvature, noise / ITEMS, participants)
        known, V = denoise.advance(denoise.Known.unpacked(memory), seen, cast, free, self.rounds)
        return known.packed(), V


def users(shard: Shard, cast: Broadcast) -> Array:
    """U fitted to V; before there is one, nobody's factors."""
    settings = cast.settings
    U = np.zeros((len(shard.users), settings.width), cast.V.dtype)
    if cast.round <= 2:
        U[:, settings.rank] = 1.0
        return U
    numbers = coefficients(settings.penalties(cast.clients)[0], settings.width)
    assert numbers is not None  # `Private.check` made sure: each user by itself, whoever else is there
    return subproblem.exact(Problem(shard.by_user, Square(), cast.scaling), cast.V, U, numbers)


def counts(shard: Shard) -> Array:
    """Round 1: how often each item was rated, a user's ratings weighing 1/sqrt(their number); and a line of users."""
    number = np.diff(shard.by_user.indptr)
    weights = np.repeat(1 / np.sqrt(np.maximum(number, 1)), number)
    rated = np.bincount(shard.by_user.indices, weights, shard.by_user.shape[1])
    return np.append(ITEMS * rated, POOLED * len(number))[:, None]


def slopes(shard: Shard, U: Array, cast: Broadcast, free: Array) -> Array:
    """A later round: a line of slopes for each item, and the lines of the pooled curvature."""
    ratings = shard.by_user
    number = np.diff(ratings.indptr)
    rows = np.repeat(np.arange(len(number)), number)
    z = np.asarray(U[:, free], np.float64) * denoise.scale(len(free))
    with np.errstate(over="ignore", invalid="ignore"):  # whatever V is, the norm is 1 at most
        fitted = np.einsum("ka,ka->k", U[rows], cast.V[ratings.indices], dtype=np.float64)
        pulls = (ratings.data - cast.scaling.mean) / cast.scaling.scale - fitted
        pulls *= denoise.weight_of(denoise.Known.unpacked(cast.memory))[ratings.indices]
        length = np.linalg.norm(z, axis=1)
        left = np.sqrt(np.bincount(rows, np.square(pulls), len(number)))
        weights = mechanism.shrink(left * length)
        weights[(length > LONGEST) | (left > LONGEST) | (left < mechanism.TINY)] = (
            0  # nobody honest: squares that lose digits
        )
    z[weights == 0], pulls[weights[rows] == 0] = 0, 0
    parts = sparse.csr_array((pulls * weights[rows], ratings.indices, ratings.indptr), shape=ratings.shape)
    return np.concatenate([ITEMS * (parts.T @ z), POOLED * curvature(z, weights * np.sqrt(number))])


def curvature(z: Array, weights: Array) -> Array:
    """sum of weight z z', each of norm MOST_CURVATURE at most, in units of that."""
    most = MOST_CURVATURE / np.maximum(np.square(z).sum(axis=1), mechanism.TINY)
    cut: Array = (z * np.minimum(weights, most)[:, None]).T @ z / MOST_CURVATURE
    return cut
