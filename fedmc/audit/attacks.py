"""Attacks of an honest-but-curious server: what it can infer from what it sees.

Each attack is a function of what the server sees (`Observation`, arrays) and of what it knows anyway: the settings, the
item factors it sent, the items' popularity and the scale of the ratings. `audit` measures their success.

    rated_items     which items were rated by a client's users, from that client's messages
    ratings_of_one  every rating of a client that has one user
    persons         which items were rated by the same person, in a client or in a cohort's sum
    in_a_sum        which items were rated by one client's users, from sums over cohorts
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import nnls
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree
from scipy.stats import rankdata

from fedmc.algorithms.gaussians import unpacked
from fedmc.algorithms.leakage import Leakage, Observation, Pulls
from fedmc.algorithms.messages import Broadcast
from fedmc.algorithms.settings import Settings
from fedmc.types import Array

SAME = 1e-6  # vectors of norm about 1 that differ by less belong to the same person
CLEAR = 100  # a row has a direction if its norm is this many times the rounding of a message
CROWD = 8  # the largest number of raters of an item that `_untangle` tries to separate


class Recovered(NamedTuple):
    """Items and their recovered ratings, on the rating scale."""

    items: Array
    ratings: Array


def auc(scores: Array, labels: Array) -> float:
    """The probability that a rated item scores higher than an unrated one (a tie counts half)."""
    rated = int(labels.sum())
    if rated in (0, len(labels)):
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[labels].sum() - rated * (rated + 1) / 2) / (rated * (len(labels) - rated)))


def mean_auc(values: Sequence[float]) -> float:
    """The mean over the clients that have rated and unrated items; NaN if there is none."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def rated_items(seen: Sequence[Observation]) -> Array:
    """A score for each item, high if a user of the client rated it, from the clearest of the messages."""
    return max(leakage_of(seen).evidence(seen), key=lambda scores: _widest_gap(scores)[0])


def leakage_of(seen: Sequence[Observation]) -> Leakage:
    """The `Leakage` of the algorithm behind these messages."""
    return seen[0].broadcast.settings.make_algorithm().leakage


def ratings_of_one(seen: Sequence[Observation], grid: Array | None) -> Recovered | None:
    """All ratings of a client with one user, from its first message; None if this attack does not apply."""
    first, leakage = seen[:1], leakage_of(seen)
    settings, (mean, scale) = first[0].broadcast.settings, first[0].broadcast.scaling
    moments = leakage.grams(first)
    if moments is not None:
        items, candidates = _from_curvature(leakage, first[0].broadcast, *moments)
    else:
        found = leakage.pulls(first)
        if not found or not (settings.biases or grid is not None):
            return None
        items, candidates = _from_pulls(found[0], settings, None if grid is None else (grid - mean) / scale)
    on_scale = [mean + scale * candidate for candidate in candidates]
    if grid is None:
        return Recovered(items, on_scale[0])
    best = min(on_scale, key=lambda ratings: round(float(np.abs(ratings - nearest(ratings, grid)).mean()), 5))
    return Recovered(items, nearest(best, grid))


def nearest(ratings: Array, grid: Array) -> Array:
    """The ratings rounded to the rating scale."""
    ordered = np.sort(grid)
    rounded: Array = ordered[np.searchsorted((ordered[1:] + ordered[:-1]) / 2, ratings)]
    return rounded


def _from_curvature(leakage: Leakage, broadcast: Broadcast, G: Array, b: Array) -> tuple[Array, list[Array]]:
    """G = z z' and b = (m - user bias) z give m up to the bias, which the user's own equation determines."""
    items = np.flatnonzero(stands_out(np.trace(G, axis1=1, axis2=2)))
    G, b, settings = G[items], b[items], broadcast.settings
    if not settings.biases:
        z = _direction(G.reshape(-1, G.shape[2]))
        size = np.sqrt(np.abs(np.einsum("a,jab,b->j", z, G, z)).mean())
        return items, [b @ z / size, -(b @ z) / size]
    u, less_bias = G[0, -1] / G[0, -1, -1], b[:, -1] / G[:, -1, -1]
    left = less_bias - broadcast.V[items][:, : settings.rank + 1] @ u
    bias = leakage.user_bias(broadcast, u[:-1], float(left.sum()))
    return items, [less_bias + (-less_bias.mean() if bias is None else bias)]


def _from_pulls(one: Pulls, settings: Settings, grid: Array | None) -> tuple[Array, list[Array]]:
    """Rows (m - u'w) u have u's direction. Its length follows from a column of ones, else from the rating scale."""
    items = np.flatnonzero(stands_out(np.linalg.norm(one.rows, axis=1)))
    rows, W = one.rows[items], one.W[items]
    u = _direction(rows)
    if settings.biases:
        u = u / u[settings.rank]
        return items, [rows @ u / (u @ u) + W @ u]
    assert grid is not None
    along, left = W @ u, rows @ u  # m = a along + left / a, a the length of u
    trusted = np.argsort(-np.abs(along * left))[:3]
    lengths = [np.roots([along[j], -m, left[j]]) for j in trusted for m in grid]
    real = [float(a.real) for a in np.concatenate(lengths) if abs(a.imag) <= 1e-6 * abs(a) and abs(a) > 0]
    return items, [a * along + left / a for a in real] or [np.zeros(len(items))]


def persons(seen: Sequence[Observation]) -> list[Array]:
    """Lists of items, each rated by a single person."""
    leakage = leakage_of(seen)
    moments = leakage.grams(seen[:1])
    if moments is not None:
        return _by_moments(moments[0], seen[0].broadcast.settings.biases)
    rows = leakage.deviations(leakage.clearest(seen))
    return _by_direction(rows[-1]) if rows else []


def _by_direction(rows: Array) -> list[Array]:
    """An item with one rater has a row parallel to that person's factors: items with parallel rows are linked."""
    sizes = np.linalg.norm(rows, axis=1)
    _, noise = _widest_gap(sizes)
    items = np.flatnonzero(sizes > CLEAR * noise)
    lines = rows[items] / sizes[items, None]
    lines *= np.sign(lines[:, :1])
    return [items[group] for group in _same(lines, np.maximum(2 * noise / sizes[items], SAME)) if len(group) > 1]


def _by_moments(G: Array, counted: bool) -> list[Array]:
    """An item with one rater has that person's E[z z'] as its G; those known then separate items with a few raters.

    `counted`: the last coordinate of every z is 1, so that the last entry of G counts raters. Else a single rater is
    recognised by the rank of G.
    """
    whole = np.trace(G, axis1=1, axis2=2)
    candidates = np.flatnonzero(whole > 1e-9 * whole.max(initial=0.0))
    single = [j for j in candidates if _of_one(G[j], counted)]
    pairs = np.tril_indices(G.shape[1])
    lines = G[:, *pairs]
    groups = _same(lines[single])
    linked, known = [[single[k] for k in group] for group in groups], [lines[single[group[0]]] for group in groups]
    for j in sorted(set(candidates) - set(single), key=lambda j: float(whole[j])):
        if known and not (counted and lines[j][-1] > CROWD + 0.5):
            _untangle(int(j), lines[j], known, linked, counted)
    return [np.array(items) for items in linked if len(items) > 1]


def _untangle(item: int, line: Array, known: list[Array], linked: list[list[int]], counted: bool) -> None:
    """Link the item to the persons whose E[z z'] add up to its G; a remainder of one person is a new one."""
    share, left = nnls(np.array(known).T, line)
    whole = np.rint(share).astype(bool)
    if left <= SAME * np.linalg.norm(line) and np.abs(share - whole).max() < 1e-3:
        for k in np.flatnonzero(whole).tolist():
            linked[k].append(item)
        return
    if counted and line[-1] > 2.5:
        return  # what one known person leaves is not one person
    for k, one in enumerate(known):
        if _of_one(unpacked(line - one), counted):
            linked[k].append(item)
            known.append(line - one)
            linked.append([item])
            return


def _of_one(G: Array, counted: bool) -> bool:
    """Whether G can be the E[z z'] of one person."""
    if counted:
        return bool(abs(G[-1, -1] - 1) < SAME and np.linalg.eigvalsh(G)[0] > -SAME)
    k = int(np.argmax(np.diag(G)))
    z = G[:, k] / np.sqrt(max(G[k, k], 1e-300))
    return bool(np.abs(G - np.outer(z, z)).max() <= SAME * np.abs(G).max() and np.trace(G) > 0)


def _same(points: Array, blur: float | Array = SAME) -> list[Array]:
    """Groups of points that are equal up to the error `blur` of each."""
    if len(points) == 0:
        return []
    blur = np.broadcast_to(blur, len(points))
    first, second = KDTree(points).query_pairs(2 * float(blur.max()), output_type="ndarray").T
    near = np.linalg.norm(points[first] - points[second], axis=1) <= blur[first] + blur[second]
    links = sparse.coo_array((np.ones(near.sum()), (first[near], second[near])), shape=(len(points), len(points)))
    _, label = connected_components(links, directed=False)
    order = np.argsort(label, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(label[order])) + 1)


def in_a_sum(sums: Sequence[Observation], took_part: Sequence[bool], popularity: Array) -> dict[str, Array]:
    """Scores for the items of one client, by name, from the sums of rounds with and without it."""
    sizes = [leakage_of(sums).sum_size(one) for one in sums]
    present = [size for size, there in zip(sizes, took_part, strict=True) if there]
    absent = [size for size, there in zip(sizes, took_part, strict=True) if not there]
    expected = np.sqrt(popularity + 1.0)
    scores = {"first sum": present[0], "first sum for its popularity": present[0] / expected}
    if len(present) > 1:
        scores["all its sums"] = np.mean(present, axis=0)
    if absent:
        usual = np.mean(absent, axis=0)
        scores["its sums less the others"] = np.mean(present, axis=0) - usual
        scores["its sums over the others"] = np.mean(present, axis=0) / (usual + 1e-3 * usual.max() + 1e-300)
    blended = {f"{name}, and popularity": rankdata(score) + 3 * rankdata(popularity) for name, score in scores.items()}
    return scores | blended


def stands_out(scores: Array) -> Array:
    """Which scores lie above the widest gap between the sorted scores, in orders of magnitude."""
    above: Array = scores > _widest_gap(scores)[1]
    return above


def _widest_gap(scores: Array) -> tuple[float, float]:
    """The width of the widest gap between the log scores, and the score below it."""
    top = float(scores.max(initial=0.0))
    if top <= 0:
        return 0.0, top
    ordered = np.sort(np.maximum(scores, 1e-17 * top))
    gaps = np.diff(np.log(ordered))
    k = int(gaps.argmax()) if len(gaps) else 0
    return (float(gaps[k]), float(ordered[k])) if len(gaps) else (0.0, 0.0)


def _direction(rows: Array) -> Array:
    """The direction that the rows share: the first right singular vector."""
    line: Array = np.linalg.svd(rows, full_matrices=False)[2][0]
    return line
