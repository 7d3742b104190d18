"""PFedRec under the protocol of its paper, on MovieLens 100K: each user's last event beside 99 items at random.

    python benchmarks/personal.py [ROUNDS]        FEDMC_DATA names the folder that holds ml-100k

One user a client, all in each round, rank 32, with the numbers of the authors' code. Their code passes once over
batches of 256 pairs, three for the average user: here each user takes 3 steps on all pairs. They hold out two events of
each user and report the round that is best on one of them: here one is held out, and the last round counts. They never
draw a held-out item as a negative: here it is drawn like any other.
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from fedmc.algorithms.settings import Settings
from fedmc.data import splits
from fedmc.data.datasets import load_source
from fedmc.data.feedback import EventOptions
from fedmc.data.partition import make_shards
from fedmc.problem.ranking import CUTOFFS, Popularity, sampled_top, sums_of
from fedmc.training.local import LocalEngine
from fedmc.training.rounds import rounds
from fedmc.types import Array

SPEC, RANK, STEPS, ROUNDS, EVERY, DEPTH = "pfedrec:0.1,80,4", 32, 3, 100, 20, max(CUTOFFS)
METRICS = "hit_rate_10", "ndcg_10"


def main(last: int) -> None:
    source = Path(os.environ["FEDMC_DATA"]) / "ml-100k" / "u.data"
    train, test = splits.parse("last:1", load_source(str(source), events=EventOptions(), times=True), 1)
    shards = make_shards(train.without_times(), np.arange(len(train.users)), "float32", test, events=True)
    engine, counts = LocalEngine(shards), np.bincount(train.matrix.indices, minlength=len(train.items))
    popular = [(np.ones((1, 1)), counts[:, None].astype(float))] * engine.clients
    print("popularity:", *scored(engine, popular, counts))
    options = {"rank": RANK, "inner_steps": STEPS, "active": engine.clients, "seed": 1, "dtype": "float32"}
    settings = Settings.preset("implicit", algorithm=SPEC, **options)
    for round in islice(rounds(engine, settings, measure_every=last, last=last), last + 1):
        if round.number and (round.number % EVERY == 0 or round.number == last):
            own = [(state.U, state.W) for state in engine.states]
            print(f"{SPEC}, round {round.number}:", *scored(engine, own, counts), flush=True)


def scored(engine: LocalEngine, factors: list[tuple[Array, Array]], counts: Array) -> list[str]:
    """Hit rate and NDCG of each client's users, by its own factors."""
    totals, popularity = dict.fromkeys(("users", *METRICS), 0.0), Popularity(counts, engine.clients)
    for shard, own in zip(engine.shards, factors, strict=True):
        seen, wanted = ((part.indptr, part.indices) for part in (shard.by_user, shard.test))
        top = sampled_top(own, seen, wanted, shard.users, DEPTH)
        found = sums_of(top, wanted, popularity)
        totals = {name: totals[name] + float(found[name]) for name in totals}
    return [f"{name} {totals[name] / totals['users']:.4f}" for name in METRICS]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
