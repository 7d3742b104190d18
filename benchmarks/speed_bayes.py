"""Parts of the sections `bayes` and `best` of `speed.py`: rounds against other presets, and training to its end.

The section `bayes` is on the Bayesian model without implicit terms, `best` on the preset as it is, with them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
from peers import Result, myfm
from speed_common import CLIENTS, FOREVER, movielens, settings_of

from fedmc.algorithms.settings import Settings
from fedmc.data.partition import Shard, assign_users, make_shards
from fedmc.data.splits import at_random
from fedmc.privacy.protocol import DEFAULT_ACTIVE, ROUNDS
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import Round, rounds
from fedmc.training.simulation import warm_up

NUMBER = 60  # timed rounds of each
SKIPPED = 20  # two passes: by then all clients have joined, and noise and priors are learned
MARGIN = 1.003  # of the RMSE at the end of training
BEST_MARGIN, BEST_END = 1.005, 200  # the same with implicit terms, and the rounds after which they stand still


def started(shards: list[Shard], settings: Settings, measure_every: int = FOREVER) -> Iterator[Round]:
    warm_up(settings, shards[0].by_user.data.dtype)
    return rounds(LocalEngine(shards), settings, measure_every=measure_every)


def in_turns(shards: list[Shard], *settings: Settings) -> list[float]:
    """The median time of a round of each run; they take turns, so that all see the machine fast and slow."""
    runs = [started(shards, each) for each in settings]
    spent = [[next(run).seconds for run in runs] for _ in range(1 + SKIPPED + NUMBER)]
    return [float(median) for median in np.median(spent[1 + SKIPPED :], axis=0)]


def against_fast() -> None:
    ratings = movielens()
    shards = make_shards(ratings, assign_users(len(ratings.users), CLIENTS, 0), "float64")
    for rank, bound in ((10, " (at most 2.5)"), (20, "")):
        bayes, fast = in_turns(shards, settings_of("bayes", rank, implicit=False), settings_of("fast", rank))
        print(
            f"{ratings}, {CLIENTS} clients, 10 a round, rank {rank}, medians a round: bayes {1e3 * bayes:.1f} ms, "
            f"fast {1e3 * fast:.1f} ms: {bayes / fast:.2f} times{bound}",
            flush=True,
        )


def against_myfm(rank: int = 20, seed: int = 1) -> None:
    """Seconds until the RMSE is within 0.3 % of that at the end, and those of myFM until it has the same."""
    train, test = at_random(movielens(), 0.2, seed)
    shards = make_shards(train, assign_users(len(train.users), DEFAULT_ACTIVE, seed), "float64", test)
    settings = settings_of("bayes", rank, seed=seed, implicit=False)
    errors = [round.diagnostics.test_rmse for round in itertools.islice(started(shards, settings, 1), 1 + ROUNDS)]
    number = next(k for k, error in enumerate(errors) if error <= MARGIN * errors[-1])
    run, cpu = started(shards, settings), time.process_time()
    seconds, cpu = sum(next(run).seconds for _ in range(1 + number)), time.process_time() - cpu
    print(
        f"MovieLens 1M, rank {rank}, {DEFAULT_ACTIVE} clients that all take part: RMSE {errors[-1]:.4f} after {ROUNDS} "
        f"rounds, {errors[number]:.4f} after {number}, which take {seconds:.2f} s ({cpu:.2f} s of CPU, two threads)",
        flush=True,
    )
    for theirs in (10, 32):
        show_myfm(f"myFM rank {theirs}", myfm(theirs)(train, test, seed), errors[number], seconds, cpu)


def show_myfm(name: str, found: Result, rmse: float, seconds: float, cpu: float) -> None:
    whole = f"{found.rmse:.4f} after {found.setting}, {found.seconds:.1f} s ({found.cpu_seconds:.1f} s of CPU)"
    until, until_cpu = found.seconds_until(rmse), found.seconds_until(rmse, cpu=True)
    if until is None or until_cpu is None:
        share = f"never reaches {rmse:.4f}; fedmc takes {seconds / found.seconds:.3f} of all its time"
    else:
        share = f"{rmse:.4f} after {until:.1f} s ({until_cpu:.1f} s of CPU): fedmc takes {seconds / until:.3f} of it"
        share += f" (at most 0.05), {cpu / until_cpu:.3f} of its CPU"
    print(f"{name}: {share}; {whole}", flush=True)


def against_plain_bayes() -> None:
    """What implicit terms cost a round."""
    ratings = movielens()
    shards = make_shards(ratings, assign_users(len(ratings.users), DEFAULT_ACTIVE, 0), "float64")
    for rank in (20, 10):
        chosen = settings_of("bayes", rank)
        ours, plain = in_turns(shards, chosen, chosen.replace(implicit=False))
        print(
            f"{ratings}, {DEFAULT_ACTIVE} clients that all take part, rank {rank}, medians a round: "
            f"{1e3 * ours:.1f} ms, without implicit terms {1e3 * plain:.1f} ms: {ours / plain:.2f} times "
            f"(at most 1.6): {'yes' if ours <= 1.6 * plain else 'NO'}",
            flush=True,
        )


def to_the_end(rank: int = 20, seed: int = 1) -> None:
    """Seconds of updates, start-up among them, until the RMSE is within 0.5 % of that at the end."""
    train, test = at_random(movielens(), 0.2, seed)
    shards = make_shards(train, assign_users(len(train.users), DEFAULT_ACTIVE, seed), "float64", test)
    settings = settings_of("bayes", rank, seed=seed)
    history = itertools.islice(started(shards, settings, 1), 1 + BEST_END)
    errors = [round.diagnostics.test_rmse for round in history]
    number = next(k for k, error in enumerate(errors) if error <= BEST_MARGIN * errors[-1])
    run, cpu = started(shards, settings), time.process_time()
    first, *later = (next(run).seconds for _ in range(1 + number))
    print(
        f"MovieLens 1M, rank {rank}, {DEFAULT_ACTIVE} clients that all take part: RMSE {errors[-1]:.4f} after "
        f"{BEST_END} rounds, {errors[ROUNDS]:.4f} after {ROUNDS}, {errors[number]:.4f} after {number}, which take "
        f"{first + sum(later):.2f} s (at most 15; {first:.2f} s of it to start up; "
        f"{time.process_time() - cpu:.2f} s of CPU, two threads)",
        flush=True,
    )
