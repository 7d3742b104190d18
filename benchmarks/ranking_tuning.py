"""The section `tune` of `ranking.py`: the parameters of `implicit` on validation events, around those in PEERS.

Its objective is solved by fedmc, which is faster and has the same minimum (`equal`). Validation events are held out of
the training events of a split as the test events were: at random, or each user's last. Means over seeds; the test
events are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, product

import numpy as np
from ranking_common import Pair, Peer, first_items, fitted, measured, ones, ratings_of

from fedmc.data import splits
from fedmc.evaluation.pooled_events import quick_sweeps

SEEDS = (11, 12)
RANKS, ALPHAS, PENALTIES = (64, 128), (0.5, 1.0, 2.0), (0.6, 1.0, 1.6)


def validation_of(name: str, split: str, seed: int) -> Pair:
    """Events to train on, and validation events, both from the training events of the split."""
    ratings = ratings_of(name)
    if split == "last":
        return tuple(map(ones, splits.last(splits.last(ratings, 1)[0], 1)))
    return tuple(map(ones, splits.at_random(splits.at_random(ratings, 0.2, seed)[0], 0.2, seed + 10)))


def ndcg(peer: Peer, pair: Pair, seed: int) -> float:
    train = pair[0]
    start = first_items(train.shape[1], peer.rank, seed)
    _, V = next(islice(quick_sweeps(peer.ours(), train, start), peer.sweeps - 1, None))
    return measured((fitted(peer.ours(), train, V), V), pair)[10].ndcg


def tuned(peer: Peer, pairs: list[Pair]) -> tuple[Peer, float]:
    """The best of the grid around these parameters."""
    found = {}
    for rank, alpha, penalty in product(RANKS, ALPHAS, PENALTIES):
        one = Peer(rank, max(1.1, alpha * peer.alpha), penalty * peer.regularization, peer.sweeps)
        found[one] = float(np.mean([ndcg(one, pair, seed) for seed, pair in zip(SEEDS, pairs, strict=True)]))
    best = max(found, key=found.__getitem__)
    return best, found[best]


def tune(peers: Mapping[tuple[str, str], Peer]) -> None:
    """The small sets: a grid of MovieLens 1M and Gowalla takes hours."""
    for (name, split), peer in peers.items():
        if name.startswith(("ml-100k", "demo")):
            pairs = [validation_of(name, split, seed) for seed in SEEDS]
            now = float(np.mean([ndcg(peer, pair, seed) for seed, pair in zip(SEEDS, pairs, strict=True)]))
            best, value = tuned(peer, pairs)
            print(f"{name}, {split}: {tuple(peer)} has {now:.4f}; {tuple(best)} has {value:.4f}", flush=True)
