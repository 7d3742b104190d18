"""Central baselines: exact alternating least squares, clients alone, biases only, and proximal gradient."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.algorithms.start import scaling_of
from fedmc.data.partition import Shard, make_shards
from fedmc.data.ratings import Ratings
from fedmc.errors import InputError
from fedmc.evaluation import dp_als, softimpute
from fedmc.privacy.modes import DP
from fedmc.problem import subproblem
from fedmc.problem.losses import Square
from fedmc.problem.penalties import Fixed, Penalty, l2
from fedmc.problem.rng import server_rng
from fedmc.problem.scaling import Scaling
from fedmc.problem.subproblem import Problem
from fedmc.types import Array


class Fit(NamedTuple):
    """The factors, and the scaling that maps predictions back to ratings."""

    U: Array
    V: Array
    scaling: Scaling

    def objective(self, shard: Shard, users: Penalty, items: Penalty) -> float:
        """f(U, V) + R(U) + R(V) on one table."""
        loss = subproblem.loss_value(Problem(shard.by_user, Square(), self.scaling), self.V, self.U)
        return loss + users.value(self.U) + items.value(self.V)

    def squared_error(self, held_out: sparse.csr_array) -> float:
        return subproblem.squared_error(Problem(held_out, Square(), self.scaling), self.V, self.U)


Fits = list[tuple[Fit, Shard]]  # of one table, or of each client's


def als(
    shard: Shard,
    users: Penalty,
    items: Penalty,
    width: int,
    *,
    sweeps: int = 100,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Fit:
    """Exact alternating solves on one table of centred and scaled ratings, until V changes less than the tolerance."""
    data = shard.by_user.data.astype(np.float64)
    scaling = Scaling(float(data.mean()), float(data.std()) or 1.0)
    by_user, by_item = (Problem(matrix, Square(), scaling) for matrix in (shard.by_user, shard.by_item))
    numbers = [subproblem.solvable(Square(), penalty, width) for penalty in (users, items)]
    if numbers[0] is None or numbers[1] is None:
        raise InputError("pooled alternating solves need separable penalties")
    dtype = shard.by_user.dtype
    V = items.prox(server_rng(seed).normal(0, 0.3, (shard.by_user.shape[1], width)), 0.0).astype(dtype)
    U = np.zeros((shard.by_user.shape[0], width), dtype)
    for _ in range(sweeps):
        before = V
        U = subproblem.exact(by_user, V, U, numbers[0])
        V = subproblem.exact(by_item, U, V, numbers[1])
        if _length(V - before) <= tolerance * _length(V):
            break
    return Fit(subproblem.exact(by_user, V, U, numbers[0]), V, scaling)


def _length(V: Array) -> float:
    """The Frobenius norm, without BLAS, whose threads compete with the kernels."""
    return float(np.sqrt(np.square(V, dtype=np.float64).sum()))


def proximal_gradient(
    shard: Shard, users: Penalty, items: Penalty, V: Array, scaling: Scaling, *, sweeps: int = 5000, steps: int = 10
) -> Fit:
    """Alternating proximal gradient on one table from V, `steps` of 1/L per half, until the factors converge."""
    by_user, by_item = (Problem(matrix, Square(), scaling) for matrix in (shard.by_user, shard.by_item))
    U = subproblem.minimise(by_user, V, users.prox(np.zeros((len(shard.users), V.shape[1]), V.dtype), 0.0), users)
    for _ in range(sweeps):
        before = U, V
        V = subproblem.prox_steps(by_item, U, V, items, steps)
        U = subproblem.prox_steps(by_user, V, U, users, steps)
        if all(np.allclose(new, old, rtol=1e-10, atol=1e-12) for new, old in zip((U, V), before, strict=True)):
            break
    return Fit(U, V, scaling)


def pooled_fits(train: Ratings, test: Ratings, settings: Settings) -> Fits:
    """The same model trained on pooled data."""
    shard = _whole(train, test, settings.dtype)
    return [(als(shard, *settings.penalties(1), settings.width, seed=settings.seed), shard)]


def proximal_fits(train: Ratings, test: Ratings, settings: Settings, V: Array, sweeps: int = 200) -> Fits:
    """Pooled proximal gradient from V, after at most `sweeps` sweeps of N steps per half."""
    shard = _whole(train, test, settings.dtype)
    data = shard.by_user.data.astype(np.float64)
    scaling = scaling_of(float(data.mean()), float(data.var()), settings)
    penalties = settings.penalties(1)
    fit = proximal_gradient(shard, *penalties, V, scaling, sweeps=sweeps, steps=settings.inner_steps)
    return [(fit, shard)]


def alone_fits(train: Ratings, test: Ratings, owner: Array, settings: Settings) -> Fits:
    """Every client trains on its own ratings only."""
    shards = make_shards(train, owner, settings.dtype, test)
    penalties = settings.penalties(1)
    return [(als(shard, *penalties, settings.width, seed=settings.seed), shard) for shard in shards]


def bias_fits(train: Ratings, test: Ratings, weight: float = 4.0) -> Fits:
    """Mean + user bias + item bias: user row [1, b_user], item row [b_item, 1].

    The weight is close to the best on validation ratings of four data sets (docs/explanation/algorithm.md).
    """
    shard = _whole(train, test, "float64")
    return [(als(shard, Fixed((0,), (1.0,), l2(weight)), Fixed((1,), (1.0,), l2(weight)), 2), shard)]


def soft_impute_fits(train: Ratings, test: Ratings, settings: Settings) -> Fits:
    """softImpute on what the biases leave, with lambda from the l2 penalties of both sides: as sqrt(users' items')."""
    weights = [_l2_weight("softImpute", penalty, settings.width) for penalty in settings.penalties(1)]
    biases, shard = bias_fits(train, test)[0]
    problem = Problem(shard.by_user, Square(), biases.scaling)
    fitted, scaled = subproblem.scores(problem, biases.V, biases.U)
    left = sparse.csr_array((scaled - fitted, shard.by_user.indices, shard.by_user.indptr), shape=shard.by_user.shape)
    weight = float(np.sqrt(weights[0] * weights[1]))
    A, B = softimpute.soft_impute(left, settings.rank, weight, seed=settings.seed).factors()
    return [(Fit(np.hstack([A, biases.U]), np.hstack([B, biases.V]), biases.scaling), shard)]


def dp_als_fits(train: Ratings, test: Ratings, settings: Settings) -> Fits:
    """Private alternating least squares, at the epsilon and delta of the settings; ratings are centred publicly."""
    shard, privacy = _whole(train, test, "float64"), cast(DP, settings.privacy)
    scaling = settings.make_algorithm().scaling(settings)
    assert scaling is not None  # that of privacy="dp" is public
    weight = _l2_weight("dp-als", settings.penalties(1)[0], settings.width)
    table = shard.by_user.copy()
    table.data = (table.data - scaling.mean) / scaling.scale
    V = dp_als.factors(table, settings.rank, weight, privacy.epsilon, privacy.delta, settings.seed)
    return [(Fit(dp_als.users(table, V, weight), V, scaling), shard)]


def _l2_weight(method: str, penalty: Penalty, width: int) -> float:
    numbers = subproblem.solvable(Square(), penalty, width)
    if numbers is None or not numbers.closed or not numbers.l2[numbers.free].all():
        raise InputError(f"{method} needs l2 penalties, got {penalty}")
    return float(numbers.l2[numbers.free][0])


def rmse_of(fits: Fits) -> float:
    """The test RMSE."""
    errors = [(fit.squared_error(shard.test), shard.test.nnz) for fit, shard in fits if shard.test is not None]
    total, count = np.sum(errors, axis=0)
    return float(np.sqrt(total / count))


def pooled_rmse(train: Ratings, test: Ratings, settings: Settings) -> float:
    """Test RMSE of the same model trained on pooled data."""
    return rmse_of(pooled_fits(train, test, settings))


def alone_rmse(train: Ratings, test: Ratings, owner: Array, settings: Settings) -> float:
    """Test RMSE when every client trains on its own ratings only."""
    return rmse_of(alone_fits(train, test, owner, settings))


def bias_rmse(train: Ratings, test: Ratings) -> float:
    """Test RMSE of mean + user bias + item bias."""
    return rmse_of(bias_fits(train, test))


def _whole(train: Ratings, test: Ratings, dtype: str) -> Shard:
    return make_shards(train, np.zeros(len(train.users), np.int64), dtype, test)[0]
