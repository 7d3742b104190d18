"""`rank="auto"`: as many factors as the ratings show, found in short runs of the Bayesian model.

Along a factor that the ratings say nothing about, all items' posterior means are near the prior's. Let M be the scatter
of the means and C the sum of the covariances, both weighted by the items' numbers of ratings. The eigenvalues of
(M + C)^-1 M are the shares of the factors' variance that the means account for: near 1 for a factor that the ratings
determine, near 0 for one that they do not. They do not depend on how the factors are rotated or scaled. A factor counts
as used if its share is at least USED. The rank doubles for as long as nearly all factors are used.

The server computes this from the items' posteriors, which it has: no message is added and no rating is held out.
The evidence bound does not serve to compare ranks. Compared with rank 20, the found rank makes most models smaller and
changes their error little, in either direction. docs/explanation/bayes.md has the figures for both.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import linalg

from fedmc.algorithms import gaussians
from fedmc.algorithms.bayes_server import ServerSums, item_posteriors, sums_of
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard
from fedmc.errors import InputError, require
from fedmc.training import event_tuning, memory
from fedmc.training.event_tuning import EventTrial
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Checkpoint, rounds
from fedmc.training.stopping import Stop, until
from fedmc.training.tuning import Budget, held_out, rounds_of_a_pass
from fedmc.types import Array

AUTO: Literal["auto"] = "auto"
Rank = int | Literal["auto"]
FIRST, LARGEST = 20, 80  # ranks that are tried, each twice the one before
USED = 0.1  # smallest such share of a used factor: one factor too few costs more than one too many
NEARLY_ALL = 0.75  # of the factors: if more are used, a larger rank is tried
PASSES = 12  # over the clients in a trial: unused factors take about 10 to fade


class RankTrial(NamedTuple):
    """A short run with one rank."""

    rank: int
    used: int  # factors
    rounds: int
    validation_rmse: float | None  # if ratings were held out
    bytes_up: int
    seconds: float


def first(rank: Rank) -> int:
    """The rank to make settings with: the first one to try, if it is still to be chosen."""
    return FIRST if rank == AUTO else rank


def check(settings: Settings) -> None:
    """Refuse to choose the rank of another model than the Bayesian one."""
    algorithm = settings.make_algorithm().name
    require(
        algorithm == "bayes" or event_tuning.is_for(settings),
        f"rank 'auto' needs preset 'bayes' or feedback='implicit', got algorithm {algorithm!r}: give a number, or let "
        "`fedmc tune` choose rank and penalty of preset 'fast'",
    )


def chosen(
    shards: Sequence[Shard],
    settings: Settings,
    rank: Rank,
    on_trial: Callable[[RankTrial | EventTrial], None] = lambda trial: None,
) -> tuple[Settings, tuple[RankTrial | EventTrial, ...]]:
    """The settings with the rank that was found and the trials, if `rank` is "auto"; else as they are, and no trial.

    Of a model of events, alpha0 and lambda are chosen with the rank.
    """
    if rank != AUTO:
        return settings, ()
    if event_tuning.is_for(settings):
        done = event_tuning.choose(shards, settings, on_trial=on_trial)
        return event_tuning.tuned(settings, event_tuning.best(done)), tuple(done)
    trials = grow(shards, settings, on_trial)
    return settings.replace(rank=max(trials[-1].used, 1)), tuple(trials)


def grow(
    shards: Sequence[Shard], settings: Settings, on_trial: Callable[[RankTrial], None] = lambda trial: None
) -> list[RankTrial]:
    """Trials with growing ranks, until some factors are unused, or the next rank does not fit into memory."""
    check(settings)
    number = rounds_of_a_trial(settings, len(shards))
    trials: list[RankTrial] = []
    rank = FIRST
    while rank <= LARGEST and (not trials or _fits(shards, settings.replace(rank=rank), number)):
        trials.append(attempt(shards, settings.replace(rank=rank), number))
        on_trial(trials[-1])
        if trials[-1].used <= NEARLY_ALL * rank:
            break
        rank *= 2
    return trials


def compare(
    shards: Sequence[Shard],
    settings: Settings,
    ranks: Sequence[int],
    budget: Budget,
    on_trial: Callable[[RankTrial], None] = lambda trial: None,
) -> list[RankTrial]:
    """A trial with each rank, evaluated on ratings that the clients hold out."""
    check(settings)
    kept = held_out(shards, budget.share, settings.seed)
    trials: list[RankTrial] = []
    for rank in ranks:
        number = rounds_of_a_trial(settings, len(shards), budget.rounds)
        trials.append(attempt(kept, settings.replace(rank=rank), number))
        on_trial(trials[-1])
    return trials


def best(trials: Sequence[RankTrial]) -> RankTrial:
    """The trial with the smallest validation RMSE; the smaller rank among equals."""
    return min(trials, key=lambda trial: (trial.validation_rmse or 0.0, trial.rank))


def rounds_of_a_trial(settings: Settings, clients: int, given: int | None = None) -> int:
    return given or PASSES * rounds_of_a_pass(settings, clients)


def attempt(shards: Sequence[Shard], settings: Settings, number: int) -> RankTrial:
    """One trial of so many rounds."""
    began, sent, rmse = time.perf_counter(), 0, None
    last: deque[Checkpoint] = deque(maxlen=1)
    running = rounds(LocalEngine(shards), settings, measure_every=number, last=number, on_checkpoint=last.append)
    for round in until(running, Stop(number)):
        sent += round.bytes_up
        rmse = round.diagnostics.validation_rmse
    used = int(np.sum(shares(sums_of(last[0].server, settings)) >= USED))
    return RankTrial(settings.rank, used, number, rmse, sent, time.perf_counter() - began)


def shares(sums: ServerSums) -> Array:
    """The share of each factor's variance over the items that their posterior means account for, largest first."""
    means, covariances, _ = item_posteriors(sums)
    ratings = sums.items[:, -means.shape[1] - 1]
    weights = ratings / max(float(ratings.sum()), 1e-9)
    factors = means[:, :-1] - weights @ means[:, :-1]
    between = np.einsum("k,ka,kb->ab", weights, factors, factors, optimize=True)
    within = gaussians.unpacked(weights @ covariances)[:-1, :-1]
    return np.asarray(linalg.eigh(between, between + within, eigvals_only=True)[::-1])


def _fits(shards: Sequence[Shard], settings: Settings, number: int) -> bool:
    try:
        memory.check(shards, settings, number)
    except InputError:
        return False
    return True
