"""Tuning of penalty and rank on ratings that each client holds out; only sums of squared errors leave a client.

The l2 weight is found by hill climbing: from a start to larger or else smaller weights, by factors of 1.5, while the
validation RMSE falls. Each trial is a new run from scratch that makes a few passes over the clients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.settings import AUTO_START, Settings
from fedmc.data.days import held_out_days
from fedmc.data.matrices import only, without
from fedmc.data.partition import Shard
from fedmc.data.recency import later_among
from fedmc.errors import DataError, Diverged, require
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.training.sampling import sampler_of
from fedmc.training.stopping import Stop, until

FACTOR = 1.5
PASSES = 4  # over the clients in a trial
FEWEST_ROUNDS = 10


class Trial(NamedTuple):
    """One run on the kept ratings, evaluated on those held out."""

    rank: int
    weight: float  # of l2
    rounds: int
    validation_rmse: float
    bytes_up: int
    seconds: float


@dataclass(frozen=True)
class Budget:
    """The budget of tuning: the number of trials per rank, and of rounds per trial."""

    trials: int = 6
    rounds: int | None = None  # None: four passes over the clients, at least 10
    share: float = 0.1  # of each client's ratings, held out

    def __post_init__(self) -> None:
        require(self.trials >= 1, f"tuning needs at least 1 trial, got {self.trials}")
        require(self.rounds is None or self.rounds >= 1, f"a trial needs at least 1 round, got {self.rounds}")
        require(0 < self.share < 1, f"the share to validate on must lie between 0 and 1, got {self.share}")

    def rounds_of_a_trial(self, settings: Settings, clients: int) -> int:
        return self.rounds or max(PASSES * rounds_of_a_pass(settings, clients), FEWEST_ROUNDS)


def rounds_of_a_pass(settings: Settings, clients: int) -> int:
    """Rounds in which a client takes part once, on average."""
    return math.ceil(round(1 / float(sampler_of(settings, clients).probabilities(clients).mean()), 6))


def choose(
    shards: Sequence[Shard],
    settings: Settings,
    budget: Budget | None = None,
    ranks: Sequence[int] = (),
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Run all trials, rank by rank (the settings' rank if `ranks` is empty); `best` picks one."""
    budget = budget or Budget()
    kept = held_out(shards, budget.share, settings.seed)
    number = budget.rounds_of_a_trial(settings, len(kept))
    trials: list[Trial] = []
    for rank in ranks or (settings.rank,):

        def attempt(weight: float, rank: int = rank) -> Trial:
            trials.append(_run(kept, settings.replace(rank=rank, penalty_users=in_words(weight)), weight, number))
            on_trial(trials[-1])
            return trials[-1]

        climb(attempt, best(trials).weight if trials else AUTO_START, budget.trials)
    return trials


def climb(attempt: Callable[[float], Trial], start: float, most: int) -> None:
    """Try the start, then larger weights or else smaller ones, for as long as they improve."""
    top = attempt(start)
    left = most - 1
    for factor in (FACTOR, 1 / FACTOR):
        weight = start * factor
        while left > 0:
            trial, left = attempt(weight), left - 1
            if not trial.validation_rmse < top.validation_rmse:
                break
            top, weight = trial, weight * factor
        if top.weight != start:
            return


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the smallest validation RMSE; the smaller rank among equals."""
    return min(trials, key=lambda trial: (trial.validation_rmse, trial.rank))


def in_words(weight: float) -> str:
    return f"l2:{weight:.4g}"


def held_out(shards: Sequence[Shard], share: float, seed: int) -> list[Shard]:
    """The shards, each with a share of its ratings held out; refused if this leaves none to validate on."""
    kept = [hold_out(shard, share, seed) for shard in shards]
    validating = sum(shard.validation.nnz for shard in kept if shard.validation is not None)
    few = f"clients of so few ratings have none to validate on at a share of {share}"
    require(validating > 0, f"{few}: give rank and penalty, or a larger share", DataError)
    return kept


def hold_out(shard: Shard, share: float, seed: int) -> Shard:
    """The shard with a random share of the client's training ratings held out for validation, also of `also_seen`."""
    matrix = shard.by_user
    rng = np.random.default_rng([seed, shard.client, 7])
    aside = np.zeros(matrix.nnz, bool)
    aside[rng.permutation(matrix.nnz)[: int(share * matrix.nnz)]] = True
    kept, held_out = (only(matrix, chosen) for chosen in (~aside, aside))
    seen = None if shard.also_seen is None else without(shard.also_seen, held_out)
    days = None if shard.days is None else held_out_days(shard.days, matrix, aside)
    parts = shard.client, shard.users, kept, None, held_out
    later = None if shard.later is None else later_among(shard.later, matrix, ~aside)
    return Shard.of(*parts, features=shard.features, also_seen=seen, days=days, later=later)


def _run(shards: Sequence[Shard], settings: Settings, weight: float, number: int) -> Trial:
    """One trial; a run that diverges has an infinite RMSE."""
    began = time.perf_counter()
    sent = 0
    rmse = math.inf
    try:
        running = rounds(LocalEngine(shards), settings, measure_every=number, last=number)
        for round in until(running, Stop(number)):
            sent += round.bytes_up
            found = round.diagnostics.validation_rmse
            rmse = rmse if found is None else found
    except Diverged:
        rmse = math.inf
    return Trial(settings.rank, weight, number, rmse, sent, time.perf_counter() - began)
