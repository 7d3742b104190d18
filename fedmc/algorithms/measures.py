"""A client's measurements at the global V, as numbers that are summed over clients, and what the server makes of them.

Models of ratings are measured by loss, penalty and squared errors. Models of events have other measures
(`event_measures`): an algorithm names its own.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from fedmc.algorithms import rating_ranking
from fedmc.algorithms.messages import Broadcast, Part, Schema, Sums
from fedmc.algorithms.settings import Settings
from fedmc.algorithms.state import State
from fedmc.algorithms.users import by_user
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.types import Array

HELD_OUT = ("train", "test", "validation")
COUNT = Part(nonnegative=True)


class Measures(Protocol):
    """What a client measures, as sums, and what the server makes of the sums."""

    def schema(self) -> Schema:
        """The parts of a measurement."""
        ...

    def client(self, shard: Shard, U: Array, broadcast: Broadcast) -> dict[str, ArrayLike]:
        """One client's part, given the factors U of its users at the global V."""
        ...

    def server(self, sums: Sums, broadcast: Broadcast) -> dict[str, object]:
        """The diagnostics of a round, by name."""
        ...


class RatingMeasures(Measures):
    """Loss, penalty, squared errors, and the share of factors that are not 0."""

    def schema(self) -> Schema:
        found: Schema = {"loss": COUNT, "penalty": Part(), "nonzeros": COUNT, "entries": COUNT}
        return found | {f"{part}_{what}": COUNT for part in HELD_OUT for what in ("count", "error")}

    def client(self, shard: Shard, U: Array, broadcast: Broadcast) -> dict[str, ArrayLike]:
        settings, problem, V = broadcast.settings, by_user(shard, broadcast), broadcast.V
        penalty, _ = settings.penalties(broadcast.clients)
        factors = U[:, : settings.rank]
        loss, error = subproblem.misfit(problem, V, U)
        parts: dict[str, ArrayLike] = {
            "loss": loss,
            "train_count": shard.by_user.nnz,
            "train_error": error,
            "penalty": penalty.value(U),
            "nonzeros": np.count_nonzero(factors),
            "entries": factors.size,
        }
        for name, held_out in (("test", shard.test), ("validation", shard.validation)):
            count = 0 if held_out is None else held_out.nnz
            parts[f"{name}_count"] = count
            parts[f"{name}_error"] = subproblem.squared_error(problem._replace(matrix=held_out), V, U) if count else 0.0
        return parts

    def server(self, sums: Sums, broadcast: Broadcast) -> dict[str, object]:
        _, penalty = broadcast.settings.penalties(broadcast.clients)
        factors = broadcast.V[:, : broadcast.settings.rank]
        of_clients = (sums.number("loss") + sums.number("penalty")) / broadcast.clients
        return {
            "objective": of_clients + penalty.value(broadcast.V),
            "nonzeros_users": sums.number("nonzeros") / max(sums.number("entries"), 1),
            "nonzeros_items": float(np.count_nonzero(factors)) / factors.size,
        } | {f"{part}_rmse": _rmse(sums, part) for part in HELD_OUT}


RATINGS = RatingMeasures()


class WithRanking(Measures):
    """The measures of a model of ratings, and how it ranks what was held out."""

    def __init__(self, own: Measures) -> None:
        self.own = own

    def schema(self) -> Schema:
        return self.own.schema() | rating_ranking.schema()

    def client(self, shard: Shard, U: Array, broadcast: Broadcast) -> dict[str, ArrayLike]:
        return self.own.client(shard, U, broadcast) | rating_ranking.client(shard, U, broadcast.V)

    def server(self, sums: Sums, broadcast: Broadcast) -> dict[str, object]:
        return self.own.server(sums, broadcast) | {"ranking": rating_ranking.server(sums)}


def measures_of(settings: Settings) -> Measures:
    """The algorithm's measures, with the ranking of ratings if the settings ask for it."""
    own = settings.make_algorithm().measures
    return WithRanking(own) if settings.ranking else own


def schema(broadcast: Broadcast, items: int) -> Schema:
    """The parts of a measurement; with `broadcast.full` also what the algorithm's theory needs."""
    algorithm = broadcast.settings.make_algorithm()
    found, theory = measures_of(broadcast.settings).schema(), algorithm.theory
    return found | theory.schema(broadcast, items) if broadcast.full and theory is not None else found


def measure(shard: Shard, state: State | None, broadcast: Broadcast) -> Sums:
    """The algorithm's measures at the global V; with `broadcast.full` also the theory's parts."""
    algorithm = broadcast.settings.make_algorithm()
    U = algorithm.users_at(shard, state, broadcast)
    shard = algorithm.adjusted(shard, state, broadcast)
    parts = measures_of(broadcast.settings).client(shard, U, algorithm.measured_at(shard, state, broadcast))
    if broadcast.full and algorithm.theory is not None:
        parts |= algorithm.theory.client(shard, state, broadcast, U)
    return Sums.of(**parts)


def _rmse(sums: Sums, part: str) -> float | None:
    count = sums.number(f"{part}_count")
    return float(np.sqrt(sums.number(f"{part}_error") / count)) if count else None
