"""Tuning of a model of events: alpha0, lambda and rank by NDCG@10 on events that each client holds out.

Only sums of metrics leave a client. Each trial is a new run that makes a few passes over the clients. The search starts
from the defaults and climbs: lambda, alpha0, lambda again, by factors of 2 while NDCG rises, and then the rank.

Which weights are best depends on what is to be predicted: some of many events at random, or each user's next one. So
validation events that are given (`--validation last:1`) are used; otherwise each client holds out a random share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from fedmc.algorithms.event_sums import default_weights
from fedmc.algorithms.protocol import Algorithm
from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard
from fedmc.errors import Diverged, InputError, require
from fedmc.training import memory
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.stopping import Stop, until
from fedmc.training.tuning import Budget, held_out, rounds_of_a_pass

FACTOR = 2.0
METRIC = "validation_ndcg_10"
PASSES, FEWEST_ROUNDS = 5, 8
TRIALS = 16
RANKS = (32, 64, 128)


class EventTrial(NamedTuple):
    """One run on the kept events, evaluated on those held out."""

    rank: int
    alpha0: float
    weight: float  # lambda
    rounds: int
    validation_ndcg: float
    bytes_up: int
    seconds: float


class Point(NamedTuple):
    """What is searched over."""

    rank: int
    alpha0: float
    weight: float


def is_for(settings: Settings) -> bool:
    """Whether these settings are those of a model of events that can be tuned."""
    return settings.make_algorithm().with_weights(1.0, 1.0) is not None


def tuned(settings: Settings, best: EventTrial) -> Settings:
    """The settings with the best trial's values."""
    return _settings(settings, Point(best.rank, best.alpha0, best.weight))


def choose(
    shards: Sequence[Shard],
    settings: Settings,
    budget: Budget | None = None,
    ranks: Sequence[int] = RANKS,
    on_trial: Callable[[EventTrial], None] = lambda trial: None,
) -> list[EventTrial]:
    """All trials, within the budget; `best` picks one."""
    algorithm = settings.make_algorithm()
    require(is_for(settings), f"alpha0 and lambda are settings of ials, not of {algorithm}")
    budget = budget or Budget(TRIALS)
    kept = validating(shards, budget.share, settings.seed)
    number = budget.rounds or max(PASSES * rounds_of_a_pass(settings, len(kept)), FEWEST_ROUNDS)
    known: dict[Point, EventTrial] = {}

    def attempt(point: Point) -> EventTrial | None:
        """The trial at a point; None if the budget is used up or the rank does not fit into memory."""
        if point not in known:
            if len(known) >= budget.trials or not _fits(kept, _settings(settings, point), number):
                return None
            known[point] = _run(kept, _settings(settings, point), point, number)
            on_trial(known[point])
        return known[point]

    first = sorted(ranks, key=lambda rank: (abs(rank - 64), rank))[0]
    at = Point(first, *_start(algorithm, kept))
    attempt(at)
    order: tuple[Literal["alpha0", "weight"], ...] = ("weight", "alpha0", "weight")
    for name in order:
        at = _climb(attempt, at, name)
    for rank in ranks:
        attempt(at._replace(rank=rank))
    return list(known.values())


def validating(shards: Sequence[Shard], share: float, seed: int) -> list[Shard]:
    """The shards with the validation events that they have, or else each with a share of its events held out."""
    given = any(shard.validation is not None and shard.validation.nnz for shard in shards)
    return list(shards) if given else held_out(shards, share, seed)


def _start(algorithm: Algorithm, shards: Sequence[Shard]) -> tuple[float, float]:
    """The weights to start from: those given, or those that the server would choose."""
    if algorithm.weights is not None:
        return algorithm.weights
    users, events = sum(len(shard.users) for shard in shards), sum(shard.by_user.nnz for shard in shards)
    alpha0, weight = default_weights(users, shards[0].by_user.shape[1], max(events, 1))
    return float(f"{alpha0:.3g}"), float(f"{weight:.3g}")


def best(trials: Sequence[EventTrial]) -> EventTrial:
    """The trial with the largest NDCG; the smaller rank among equals."""
    return max(trials, key=lambda trial: (trial.validation_ndcg, -trial.rank))


def _climb(attempt: Callable[[Point], EventTrial | None], at: Point, name: Literal["alpha0", "weight"]) -> Point:
    """From a point to larger values of one number, or else smaller ones, while NDCG rises."""
    top = attempt(at)
    for factor in (FACTOR, 1 / FACTOR):
        start = at
        while top is not None:
            step = _moved(at, name, factor)
            trial = attempt(step)
            if trial is None or not trial.validation_ndcg > top.validation_ndcg:
                break
            at, top = step, trial
        if at != start:
            return at
    return at


def _moved(at: Point, name: Literal["alpha0", "weight"], factor: float) -> Point:
    alpha0, weight = (factor if one == name else 1.0 for one in ("alpha0", "weight"))
    return Point(at.rank, float(f"{at.alpha0 * alpha0:.3g}"), float(f"{at.weight * weight:.3g}"))


def _settings(settings: Settings, point: Point) -> Settings:
    algorithm = settings.make_algorithm().with_weights(point.alpha0, point.weight)
    return settings.replace(rank=point.rank, algorithm=str(algorithm))


def _fits(shards: Sequence[Shard], settings: Settings, number: int) -> bool:
    try:
        memory.check(shards, settings, number)
    except InputError:
        return False
    return True


def _run(shards: Sequence[Shard], settings: Settings, point: Point, number: int) -> EventTrial:
    """One trial; a run that diverges has an NDCG of 0."""
    began, sent, ndcg = time.perf_counter(), 0, 0.0
    try:
        running = rounds(LocalEngine(shards), settings, measure_every=number, last=number)
        for round in until(running, Stop(number)):
            sent += round.bytes_up
            ndcg = (round.diagnostics.ranking or {}).get(METRIC, ndcg)
    except Diverged:
        ndcg = 0.0
    return EventTrial(*point, number, ndcg, sent, time.perf_counter() - began)
