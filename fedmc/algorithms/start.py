"""The start of a run: the first V, and the mean and spread of the ratings from sums over clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedmc.algorithms.messages import Broadcast, Rows, Sums
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import ServerState
from fedmc.data.partition import Shard
from fedmc.errors import DataError, require
from fedmc.problem.penalties import project
from fedmc.problem.rng import server_rng
from fedmc.problem.scaling import Scaling
from fedmc.types import Array

Ask = Callable[[Broadcast, Sequence[int]], Sums]


def start_items(items: int, settings: Settings) -> Array:
    """V uniform in [0, 1] as in the paper, or normal with spread 0.3, times `start_scale`, within its constraints."""
    rng = server_rng(settings.seed)
    shape = items, settings.width
    V = rng.random(shape) if settings.start == "uniform" else rng.normal(0, 0.3, shape)
    _, penalty = settings.penalties(1)
    return np.ascontiguousarray(project(penalty, V * settings.start_scale), settings.dtype)


def moments(shard: Shard, broadcast: Broadcast) -> Sums:
    """Count, sum and sum of squares of the ratings minus `scaling.mean`, and each item's number of ratings."""
    data = shard.by_user.data.astype(np.float64) - broadcast.scaling.mean
    items = Rows(shard.rated, np.diff(shard.by_rated.indptr), shard.by_user.shape[1])
    return Sums.of(count=data.size, sum=data.sum(), squares=np.square(data).sum(), items=items)


def normalised(ask: Ask, broadcast: Broadcast, always: bool = False) -> tuple[Broadcast, Sums | None]:
    """The broadcast with the scaling of the settings, and the clients' moments if they were requested.

    A broadcast that has a scaling already, that of a trained model, keeps it.
    """
    settings, everyone = broadcast.settings, range(broadcast.clients)
    known = settings.normalise == "none" or broadcast.scaling != Scaling()
    if known and not always:
        return broadcast, None
    found = ask(broadcast._replace(scaling=Scaling()), everyone)
    if known:
        return broadcast, found
    mean, variance = mean_and_variance(found)
    if variance < 1e-6 * mean**2:  # cancellation of two large sums
        shifted = ask(broadcast._replace(scaling=Scaling(mean)), everyone)
        mean, variance = mean + mean_and_variance(shifted)[0], mean_and_variance(shifted)[1]
    return broadcast._replace(scaling=scaling_of(mean, variance, settings)), found


def mean_and_variance(found: Sums) -> tuple[float, float]:
    require(found.number("count") > 0, "the clients have no ratings between them", DataError)
    mean = found.number("sum") / found.number("count")
    return mean, max(found.number("squares") / found.number("count") - mean**2, 0.0)


def scaling_of(mean: float, variance: float, settings: Settings) -> Scaling:
    """The scaling of the settings; ratings that are all equal are centred but not scaled."""
    if settings.normalise == "none":
        return Scaling()
    wanted = settings.normalise == "standard" and variance > 1e-24 * mean**2
    return Scaling(mean, float(np.sqrt(variance)) if wanted else 1.0)


def server_at(V: Array, S: Array | None = None, seen: int = 0) -> ServerState:
    return ServerState(S, V, seen)
