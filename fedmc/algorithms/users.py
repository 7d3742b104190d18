"""A client's user factors: where they start, and how they are fitted to item factors."""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.penalties import project
from fedmc.problem.rng import client_rng
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

FIT_TOLERANCE = 1e-5  # when steps towards fitted users end, where there is no exact answer


def by_user(shard: Shard, broadcast: Broadcast) -> Problem:
    """The sub-problem of the users: one row a user."""
    return Problem(shard.by_user, broadcast.settings.make_loss(), broadcast.scaling)


def by_item(shard: Shard, broadcast: Broadcast) -> Problem:
    """The sub-problem of the items: one row an item."""
    return Problem(shard.by_item, broadcast.settings.make_loss(), broadcast.scaling)


def start_users(shard: Shard, broadcast: Broadcast) -> Array:
    """U uniform in [0, 1], from the client's own generator, projected onto its constraints."""
    settings = broadcast.settings
    users, _ = settings.penalties(broadcast.clients)
    drawn = client_rng(settings.seed, shard.client).random((len(shard.users), settings.width))
    return project(users, drawn).astype(broadcast.V.dtype)


def users_at(shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
    """U to go with the global V: as the client has it, or fitted to V where wanted or where there is none yet.

    Where all clients are there from the start, one that had no update has the U it starts with.
    """
    settings = broadcast.settings
    if not settings.fold_in and (state is not None or settings.entry == "all"):
        return start_users(shard, broadcast) if state is None else np.asarray(state.U)
    penalty, _ = settings.penalties(broadcast.clients)
    problem, opening = by_user(shard, broadcast), opening_users(shard, state, broadcast)
    return subproblem.minimise(problem, broadcast.V, opening, penalty, FIT_TOLERANCE)


def opening_users(shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
    """Initial user factors: the client's current ones, or its start values if the solver depends on them."""
    if state is not None:
        return np.asarray(state.U)
    settings = broadcast.settings
    penalty, _ = settings.penalties(broadcast.clients)
    numbers = subproblem.solvable(settings.make_loss(), penalty, settings.width)
    if numbers is not None and numbers.closed:
        return np.zeros((len(shard.users), settings.width), broadcast.V.dtype)  # one solve, wherever it starts
    return start_users(shard, broadcast)
