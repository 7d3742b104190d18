"""Ranking metrics as sums over users, so that clients add them up and nobody sends a figure of a single user.

For a user with held-out items H and recommendations r_1, r_2, ... (best first), with K the cutoff:

    recall      |{r_1..r_K} ∩ H| / |H|                                precision   |{r_1..r_K} ∩ H| / K
    hit rate    1 if any of r_1..r_K is in H                          mrr         1 / position of the first hit
    ndcg        sum over hits of 1 / log2(1 + position), divided by its largest value, with min(K, |H|) hits in front
    map         average precision: precision at each hit, summed, divided by min(K, |H|)
    novelty     mean of -log2 of the share of users who have r_1..r_K; an item that nobody has counts as one user's
    coverage    share of the catalogue that is recommended to any user

Users without held-out items do not count. Rank all items that a user has not seen (`kernels.ranking.top_items`);
`sampled_top` is for comparisons with papers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedmc.errors import require
from fedmc.kernels.ranking import NONE, top_items
from fedmc.types import Array

CUTOFFS = (10, 20)
USERS = "users"  # the number of users that count
RECOMMENDED = "recommended"  # by item: the number of users to whom it is recommended
METRICS = ("recall", "precision", "ndcg", "hit_rate", "map", "mrr", "novelty")
CANDIDATES = 0x72616E6B  # the purpose of a draw, beside those of `rng`

Pattern = tuple[Array, Array]  # (indptr, indices) of a CSR matrix with a row for each user


class Popularity(NamedTuple):
    """How many users have each item, among how many: of the whole catalogue, the same for all clients."""

    counts: Array
    users: int


class Ranking(NamedTuple):
    """The metrics at one cutoff, as means over users; NaN if no user has held-out items."""

    recall: float
    precision: float
    ndcg: float
    hit_rate: float
    map: float
    mrr: float
    novelty: float
    coverage: float


def sums_of(
    top: Array, held_out: Pattern, popularity: Popularity, cutoffs: tuple[int, ...] = CUTOFFS
) -> dict[str, Array]:
    """Sums over users of every metric at every cutoff ("ndcg_20"), "users", and by item "recommended_20".

    `top` has the recommended items of a user in each row, best first, with -1 in places that are missing. It needs as
    many columns as the largest cutoff, or as there are items.
    """
    items = len(popularity.counts)
    _check(top, held_out, items, cutoffs)
    top = np.pad(top, ((0, 0), (0, max(max(cutoffs) - top.shape[1], 0))), constant_values=NONE)
    hits, relevant = _hits(top, held_out, items)
    counted = relevant > 0
    top, hits, relevant = top[counted], hits[counted], relevant[counted]
    bits = _information(popularity)
    sums = {USERS: np.asarray(np.count_nonzero(counted), np.float64)}
    for K in cutoffs:
        by_user = _metrics(hits[:, :K], relevant) | {"novelty": _novelty(top[:, :K], bits)}
        sums |= {f"{name}_{K}": np.asarray(by_user[name].sum()) for name in METRICS}
        shown = top[:, :K]
        sums[f"{RECOMMENDED}_{K}"] = np.bincount(shown[shown != NONE], minlength=items).astype(np.float64)
    return sums


def means_of(sums: Mapping[str, Array]) -> dict[int, Ranking]:
    """The metrics by cutoff, from sums of one client or added over several."""
    users = float(sums[USERS])
    found = {}
    for K in sorted(int(name.rpartition("_")[2]) for name in sums if name.startswith(f"{RECOMMENDED}_")):
        means = {name: float(sums[f"{name}_{K}"]) / users if users else np.nan for name in METRICS}
        recommended = sums[f"{RECOMMENDED}_{K}"]
        coverage = float(np.mean(recommended > 0)) if users else np.nan
        found[K] = Ranking(**means, coverage=coverage)
    return found


def beside(found: Mapping[str, object], part: str, name: str) -> str:
    """A metric such as `ndcg_20` of a part in words, beside that of popularity, if it is known."""
    popular = found.get(f"{part}_popular_{name}")
    return f"{found[f'{part}_{name}']:.4f}" + ("" if popular is None else f" (popularity {popular:.4f})")


def _check(top: Array, held_out: Pattern, items: int, cutoffs: tuple[int, ...]) -> None:
    indptr, indices = held_out
    require(len(cutoffs) > 0 and min(cutoffs) >= 1, f"cutoffs must be whole numbers from 1 on, got {cutoffs}")
    places = min(max(cutoffs), items)
    require(top.ndim == 2 and top.shape[1] >= places, f"rankings need {places} places, got {top.shape[-1]}")
    require(len(indptr) == len(top) + 1, f"{len(top)} rankings need as many rows of held-out items")
    for name, numbers, low in (("recommended", top, NONE), ("held-out", indices, 0)):
        known = not numbers.size or low <= int(numbers.min()) <= int(numbers.max()) < items
        require(known, f"{name} items must be numbers from {low} to {items - 1}, places in the popularity counts")


def _keys(pattern: Pattern, items: int) -> Array:
    """Each (user, item) of a pattern as one number, sorted and distinct."""
    indptr, indices = pattern
    users = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return np.unique(users * items + indices)


def _hits(top: Array, held_out: Pattern, items: int) -> tuple[Array, Array]:
    """(whether each recommended item is among the user's held-out items, how many held-out items each user has)."""
    keys = _keys(held_out, items)
    wanted = np.arange(len(top))[:, None] * items + top
    found = (top != NONE) & (np.append(keys, -1)[np.searchsorted(keys, wanted)] == wanted)
    return found, np.bincount(keys // max(items, 1), minlength=len(top))


def _metrics(hits: Array, relevant: Array) -> dict[str, Array]:
    """Every metric but novelty, by user."""
    K = hits.shape[1]
    positions = np.arange(1, K + 1)
    most = np.minimum(K, relevant)  # hits of the ideal ranking
    discount = 1 / np.log2(1 + positions)
    number = hits.sum(axis=1)
    precisions = np.cumsum(hits, axis=1) / positions
    return {
        "recall": number / relevant,
        "precision": number / K,
        "ndcg": hits @ discount / np.cumsum(discount)[most - 1],
        "hit_rate": np.asarray(number > 0, np.float64),
        "map": (precisions * hits).sum(axis=1) / most,
        "mrr": (hits / positions).max(axis=1),
    }


def _information(popularity: Popularity) -> Array:
    """-log2 of the share of users who have each item."""
    users = max(popularity.users, 1)
    return np.asarray(np.log2(users) - np.log2(np.clip(popularity.counts, 1, users)))


def _novelty(top: Array, bits: Array) -> Array:
    """The mean novelty of each user's recommended items; 0 if there are none."""
    there = top != NONE
    total = np.where(there, bits[np.where(there, top, 0)], 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(there.sum(axis=1), 1))


def popularity_top(counts: Array, seen: Pattern, k: int, allowed: Array | None = None) -> Array:
    """The k most popular items that each user has not seen: the baseline, by the same search as a model's top items."""
    ones, popularity = np.ones((len(seen[0]) - 1, 1)), np.asarray(counts, np.float64)[:, None]
    items, _ = top_items(ones, popularity, *seen, k, allowed)
    return items


def random_top(user_ids: Array, items: int, seen: Pattern, k: int, seed: int = 0) -> Array:
    """k items at random that each user has not seen: the floor of every metric. Draws depend on user ids alone."""
    indptr, indices = seen
    out = np.full((len(user_ids), k), NONE, np.int32)
    for row, user in enumerate(user_ids.tolist()):
        drawn = _unseen(items, indices[indptr[row] : indptr[row + 1]], k, seed, user)
        out[row, : len(drawn)] = drawn
    return out


def sampled_top(
    factors: tuple[Array, Array], seen: Pattern, held_out: Pattern, user_ids: Array, k: int,
    negatives: int = 99, seed: int = 0,
) -> Array:  # fmt: skip
    """The best k of each user's held-out items and a few random items that the user has neither seen nor held out.

    `factors` are (U, V). The draws depend on the seed and the user ids (whole numbers) alone, not on who asks.

    Warning: metrics of sampled candidates are not comparable with those of a full ranking, and can invert the order of
    methods (W. Krichene and S. Rendle, "On sampled metrics for item recommendation", KDD 2020). They exist only for
    comparisons with papers that report them. Use `top_items` for everything else.
    """
    U, V = factors
    out = np.full((len(U), k), NONE, np.int32)
    for row, user in enumerate(user_ids.tolist()):
        known, wanted = (indices[indptr[row] : indptr[row + 1]] for indptr, indices in (seen, held_out))
        drawn = _unseen(len(V), np.concatenate([known, wanted]), negatives, seed, user)
        candidates = np.unique(np.concatenate([wanted, drawn]))
        scores = V[candidates] @ U[row]
        best = candidates[np.argsort(-scores, kind="stable")][:k]
        out[row, : len(best)] = best
    return out


def _unseen(items: int, excluded: Array, count: int, seed: int, user: int) -> Array:
    """Up to `count` different items at random that are not excluded."""
    rng = np.random.default_rng([seed, CANDIDATES, user])
    gone = np.unique(excluded)
    left = items - len(gone)
    drawn = rng.choice(left, min(count, left), replace=False)  # numbers of the items that are left
    return np.asarray(drawn + np.searchsorted(gone - np.arange(len(gone)), drawn, side="right"))
