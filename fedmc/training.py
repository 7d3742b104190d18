"""The one way from ratings to a model: shards, engine, rounds, model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmc import kernels
from fedmc.client import users_at
from fedmc.diagnostics import from_sums
from fedmc.engines.local import LocalEngine
from fedmc.errors import DataError, Diverged, require
from fedmc.messages import Broadcast
from fedmc.model import Model
from fedmc.partition import make_shards
from fedmc.ratings import Ratings
from fedmc.server import Round, rounds
from fedmc.settings import Settings
from fedmc.stopping import Stop, until

Array = NDArray[Any]


class Run(NamedTuple):
    """A model, how it came about, and where it broke off if it did."""

    model: Model
    history: list[Round]
    diverged: Diverged | None = None


def train(
    ratings: Ratings,
    owner: Array,
    settings: Settings,
    stop: Stop | None = None,
    *,
    test: Ratings | None = None,
    validation: Ratings | None = None,
    measure_every: int = 1,
    full: bool = False,
    on_round: Callable[[Round], None] = lambda round: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Run:
    """Train over simulated clients; `owner` says which client each user belongs to.

    A run that diverges ends with its last finite model and says so in `Run.diverged`.
    """
    stop = stop or Stop()
    check_domain(settings, ratings)
    engine = LocalEngine(make_shards(ratings, owner, settings.dtype, test, validation))
    full = full or stop.tolerance is not None
    kernels.warm_up(settings.dtype)
    history: list[Round] = []
    diverged = None
    running = rounds(engine, settings, measure_every=measure_every, last=stop.rounds, full=full)
    try:
        for round in until(running, stop, interrupted):
            history.append(round)
            on_round(round)
    except Diverged as error:
        if not history:
            raise
        diverged = error
    last = history[-1]
    cast = Broadcast("measure", last.number, engine.clients, settings, last.V, last.beta, last.scaling)
    if last.diagnostics.objective is None:
        history[-1] = last._replace(diagnostics=from_sums(engine.ask(cast, range(engine.clients)), cast))
    return Run(collect(engine, ratings, cast), history, diverged)


def check_domain(settings: Settings, *parts: Ratings) -> None:
    """Refuse ratings that the loss has no meaning for."""
    domain = getattr(settings.make_loss(), "domain", None)
    if domain is None:
        return
    low, high = min(part.matrix.data.min() for part in parts), max(part.matrix.data.max() for part in parts)
    ok = domain[0] <= low and high <= domain[1]
    require(
        ok, f"this loss takes ratings from {domain[0]} to {domain[1]}, got {low:g} to {high:g}: rescale them", DataError
    )


def collect(engine: LocalEngine, ratings: Ratings, cast: Broadcast) -> Model:
    """The model of the whole simulated federation: V, and every client's U (refitted to V where settings say so)."""
    U = np.zeros((len(ratings.users), cast.settings.width), cast.V.dtype)
    for shard, state in zip(engine.shards, engine.states, strict=True):
        U[shard.users] = users_at(shard, state, cast)
    return Model(ratings.items, cast.V, ratings.users, U, ratings.matrix, cast.scaling, cast.settings, cast.clients)


def summary(history: list[Round]) -> dict[str, Any]:
    """How a run ended, in a few numbers."""
    last = history[-1].diagnostics
    return {
        "test_rmse": last.test_rmse,
        "train_rmse": last.train_rmse,
        "objective": last.objective,
        "rounds": history[-1].number,
        "seconds": sum(round.seconds for round in history),
        "bytes_up": sum(round.bytes_up for round in history),
        "bytes_down": sum(round.bytes_down for round in history),
        "certified": last.certified,
    }
