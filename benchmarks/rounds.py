"""Seconds a round, beside a plain numpy and scipy transcription, in one run: read the ratios.

    python benchmarks/rounds.py [RATINGS FILE]

Without a file, on made-up ratings of MovieLens 1M's size and skew. Paper preset, 100 clients, 10 a round.
"""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np
from plain import PlainClient

from fedmc.engines.local import LocalEngine
from fedmc.partition import assign_users, make_shards
from fedmc.ratings import Ratings
from fedmc.readers import read_source
from fedmc.server import rounds
from fedmc.settings import Settings
from fedmc.training import warm_up

CLIENTS, ACTIVE, ROUNDS, BETA, WEIGHT = 100, 10, 8, 0.3, 1e-6


def made_up(users=6040, items=3706, count=1_000_000, seed=0) -> Ratings:
    rng = np.random.default_rng(seed)
    popularity = rng.pareto(1.2, items) + 0.05
    drawn = rng.integers(users, size=2 * count) * items + rng.choice(items, 2 * count, p=popularity / popularity.sum())
    cells = rng.permutation(np.unique(drawn))[:count]
    return Ratings.from_arrays(cells // items, cells % items, rng.integers(1, 6, len(cells)))


def compare(shards, rank: int, N: int) -> None:
    engine = LocalEngine(shards)
    settings = Settings.preset("paper", rank=rank, inner_steps=N, beta=BETA, active=ACTIVE)
    warm_up(settings, "float64")
    run = rounds(engine, settings, measure_every=10**9)
    V = next(run).V
    plain = [PlainClient(s.by_user, state.U, V, CLIENTS) for s, state in zip(shards, engine.states, strict=True)]
    history = list(itertools.islice(run, ROUNDS))
    ours, theirs, S = [round.seconds for round in history], [], sum(BETA * c.W + c.Y for c in plain)
    for round in history:
        began = time.perf_counter()
        for i in round.participants:
            before = BETA * plain[i].W + plain[i].Y
            plain[i].update(V, BETA, N, WEIGHT)
            S = S + BETA * plain[i].W + plain[i].Y - before
        V = S / (CLIENTS * BETA + WEIGHT)
        theirs.append(time.perf_counter() - began)
    apart = np.linalg.norm(V - round.V) / np.linalg.norm(V)
    fast, slow = np.median(ours), np.median(theirs)
    print(
        f"r {rank:3}  N {N:3}  {1e3 * fast:8.2f} ms  {1e3 * slow:9.1f} ms  {slow / fast:6.1f} times  apart {apart:.0e}"
    )


def main() -> None:
    ratings = read_source(sys.argv[1]) if len(sys.argv) > 1 else made_up()
    print(f"{ratings}, {CLIENTS} clients, {ACTIVE} a round: fedmc, plain numpy and scipy, ratio; how far apart V ends")
    shards = make_shards(ratings, assign_users(len(ratings.users), CLIENTS, 0), "float64")
    for rank, N in ((5, 10), (5, 30), (13, 10), (50, 10)):
        compare(shards, rank, N)


if __name__ == "__main__":
    main()
