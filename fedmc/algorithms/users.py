"""A client's user factors: their initial values, and how they are fitted to item factors."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.state import State
from fedmc.data.partition import Shard
from fedmc.problem import subproblem
from fedmc.problem.penalties import project
from fedmc.problem.rng import client_rng
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

FIT_TOLERANCE = 1e-5  # stops the steps that fit users if there is no exact solution


def by_user(shard: Shard, broadcast: Broadcast) -> Problem:
    """The sub-problem of the users: one row per user."""
    return Problem(shard.by_user, broadcast.settings.make_loss(), broadcast.scaling)


def by_item(shard: Shard, broadcast: Broadcast) -> Problem:
    """The sub-problem of the items: one row per item."""
    return Problem(shard.by_item, broadcast.settings.make_loss(), broadcast.scaling)


def start_users(shard: Shard, broadcast: Broadcast) -> Array:
    """U uniform in [0, 1] times `start_scale`, from the client's own generator, projected onto its constraints."""
    settings = broadcast.settings
    users, _ = settings.penalties(broadcast.clients)
    drawn = client_rng(settings.seed, shard.client).random((len(shard.users), settings.width))
    return project(users, drawn * settings.start_scale).astype(broadcast.V.dtype)


def users_at(shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
    """The U that belongs to the global V: the client's own, or fitted to V with `fold_in` or if it has none yet.

    With entry="all" a client without an update has its initial U.
    """
    settings = broadcast.settings
    if not settings.fold_in and (state is not None or settings.entry == "all"):
        return start_users(shard, broadcast) if state is None else np.asarray(state.U)
    penalty, _ = settings.penalties(broadcast.clients)
    problem, opening = by_user(shard, broadcast), opening_users(shard, state, broadcast)
    return subproblem.minimise(problem, broadcast.V, opening, penalty, FIT_TOLERANCE)


def new_users(matrix: sparse.csr_array, broadcast: Broadcast) -> Array:
    """Users with these ratings, fitted to V, who belong to no client."""
    settings, V = broadcast.settings, broadcast.V
    problem = Problem(matrix, settings.make_loss(), broadcast.scaling)
    penalty, _ = settings.penalties(broadcast.clients)
    return subproblem.minimise(problem, V, np.zeros((matrix.shape[0], settings.width), V.dtype), penalty)


def opening_users(shard: Shard, state: State | None, broadcast: Broadcast) -> Array:
    """Initial user factors: the client's current ones, or its start values if the solver depends on them."""
    if state is not None:
        return np.asarray(state.U)
    settings = broadcast.settings
    penalty, _ = settings.penalties(broadcast.clients)
    numbers = subproblem.solvable(settings.make_loss(), penalty, settings.width)
    if numbers is not None and numbers.closed:
        return np.zeros((len(shard.users), settings.width), broadcast.V.dtype)  # one solve, whatever the start
    return start_users(shard, broadcast)
