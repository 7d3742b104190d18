"""Parts of the section `bayes` of `speed.py`: a round against the fast preset, and training against myFM."""

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


def started(shards: list[Shard], settings: Settings, measure_every: int = FOREVER) -> Iterator[Round]:
    warm_up(settings, shards[0].by_user.data.dtype)
    return rounds(LocalEngine(shards), settings, measure_every=measure_every)


def against_fast() -> None:
    """Rounds of both presets in turns, so that both see the machine fast and slow."""
    ratings = movielens()
    shards = make_shards(ratings, assign_users(len(ratings.users), CLIENTS, 0), "float64")
    for rank, bound in ((10, " (at most 2.5)"), (20, "")):
        runs = {preset: started(shards, settings_of(preset, rank)) for preset in ("bayes", "fast")}
        spent: dict[str, list[float]] = {preset: [] for preset in runs}
        for _ in range(1 + SKIPPED + NUMBER):
            for preset, run in runs.items():
                spent[preset].append(next(run).seconds)
        bayes, fast = (float(np.median(spent[preset][1 + SKIPPED :])) for preset in ("bayes", "fast"))
        print(
            f"{ratings}, {CLIENTS} clients, 10 a round, rank {rank}, medians a round: bayes {1e3 * bayes:.1f} ms, "
            f"fast {1e3 * fast:.1f} ms: {bayes / fast:.2f} times{bound}",
            flush=True,
        )


def against_myfm(rank: int = 20, seed: int = 1) -> None:
    """Seconds until the RMSE is within 0.3 % of that at the end, and those of myFM until it has the same."""
    train, test = at_random(movielens(), 0.2, seed)
    shards = make_shards(train, assign_users(len(train.users), DEFAULT_ACTIVE, seed), "float64", test)
    settings = settings_of("bayes", rank, seed=seed)
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
