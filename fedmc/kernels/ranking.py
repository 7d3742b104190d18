"""The best items of every user by the inner product of factors, over a whole catalogue, without the matrix of scores.

A tile of scores, ROWS users by two packs of items, stays in registers while the products are summed; then each of its
lines is compared with the user's threshold, the k-th best score so far. Only what reaches the threshold is looked at
further, and scores are never written to memory beyond a tile. Items are visited by decreasing norm: good items come
early, and by Cauchy-Schwarz the rest can be left out as soon as its norms are too small to reach the threshold.

A score is one chain of multiply-adds over the coordinates, in their order, whatever tile it is in. So results do not
depend on the other users of a call, on the order of items or on threads. `reference_top` is the plain numpy twin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.errors import require
from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.simd import fma, lanes, load, padded, splat, spread, store
from fedmc.types import Array, Scalar

ROWS = 6  # users in a tile: 6 by 2 packs of sums, two of items and one of a user fit into 16 registers
BLOCK = 8 * ROWS  # users that share a chunk of items while it is in cache
CHUNK = 1 << 18  # bytes of item factors in a chunk: a quarter of a common level-2 cache
EVERY = 8  # panels of items after which a tile's users are asked whether the rest could still reach their thresholds
NONE = -1  # the item of a place for which there is no candidate
FREE = np.iinfo(np.int32).max  # the same while the search goes on: it ranks after every item


class Candidates(NamedTuple):
    """Items arranged for searches: by decreasing norm, in panels of two packs of items, coordinate by coordinate."""

    rank: int
    norms: Array  # by panel: that of its first item, the largest
    order: Array  # the items' numbers
    places: Array  # of every item in this order; those that are no candidates come last
    panels: Array


def top_items(
    U: Array, V: Array, seen_indptr: Array, seen_indices: Array, k: int, allowed: Array | None = None
) -> tuple[Array, Array]:
    """(items, scores) of the k largest inner products of each row of U with the rows of V, best first.

    A user's seen items, in CSR form, are left out, and so are items whose place in the mask `allowed` is False. Equal
    scores are ranked by item number. With fewer than k candidates, the last places have item -1 and score -inf; a
    score of NaN or -inf is no candidate. Factors are all float32 or all float64, and the scores are too.
    """
    return search(U, arranged(V, allowed), seen_indptr, seen_indices, k)


def search(U: Array, candidates: Candidates, seen_indptr: Array, seen_indices: Array, k: int) -> tuple[Array, Array]:
    """`top_items` of items that are arranged already: many searches share the work."""
    _check(U, candidates, seen_indptr, seen_indices, k)
    items, scores = np.full((len(U), k), FREE, np.int32), np.full((len(U), k), -np.inf, U.dtype)
    starts = np.arange(0, len(U) + BLOCK, BLOCK).clip(max=len(U))
    seen = seen_indptr.astype(np.int64, copy=False), seen_indices.astype(np.int32, copy=False)
    _, norms, order, places, panels = candidates
    arguments = starts, np.ascontiguousarray(U), _norms(U), panels, norms, order, places, *seen, items, scores
    threads.over_rows(_rank_blocks, np.arange(len(starts)), float(U.size) * len(order), *arguments)
    return items, scores


def reference_top(
    U: Array, V: Array, seen_indptr: Array, seen_indices: Array, k: int, allowed: Array | None = None
) -> tuple[Array, Array]:
    """The plain numpy twin of `top_items`, which holds all scores: the oracle of the tests."""
    all_scores = U @ V.T
    users = np.repeat(np.arange(len(U)), np.diff(seen_indptr))
    all_scores[users, seen_indices] = -np.inf
    all_scores[np.isnan(all_scores)] = -np.inf
    if allowed is not None:
        all_scores[:, ~allowed] = -np.inf
    items, scores = np.full((len(U), k), NONE, np.int32), np.full((len(U), k), -np.inf, U.dtype)
    best = np.argsort(-all_scores, axis=1, kind="stable")[:, :k]
    scores[:, : best.shape[1]] = np.take_along_axis(all_scores, best, axis=1)
    items[:, : best.shape[1]] = best
    items[scores == -np.inf] = NONE
    return items, scores


def _norms(X: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(np.square(X, dtype=np.float64).sum(axis=1)))


def _check(U: Array, candidates: Candidates, indptr: Array, indices: Array, k: int) -> None:
    require(U.dtype == candidates.panels.dtype, "factors must be all float32 or all float64")
    require(U.ndim == 2 and U.shape[1] == candidates.rank, "users and items must have factors of one rank")
    require(k >= 1, f"k must be at least 1, got {k}")
    require(len(indptr) == len(U) + 1, f"{len(U)} users need {len(U) + 1} row pointers, got {len(indptr)}")
    count = len(candidates.places)
    known = not len(indices) or 0 <= int(indices.min()) <= int(indices.max()) < count
    require(known, f"seen items must be numbers from 0 to {count - 1}")
    ends = int(indptr[0]) == 0 and int(indptr[-1]) == len(indices) and bool((indptr[1:] >= indptr[:-1]).all())
    require(ends, "row pointers must rise from 0 to the number of seen items")


def arranged(V: Array, allowed: Array | None = None) -> Candidates:
    """The items with these factors, or those of them that are `allowed`, for `search`."""
    require(V.dtype in (np.float32, np.float64) and V.ndim == 2, "factors must be all float32 or all float64")
    require(allowed is None or (allowed.dtype == bool and allowed.shape == (len(V),)), "allowed is a mask over items")
    width = 2 * padded(1, V.dtype)
    candidates = np.arange(len(V)) if allowed is None else np.flatnonzero(allowed)
    norms = _norms(V)[candidates]
    norms[np.isnan(norms)] = np.inf
    by_norm = np.argsort(-norms, kind="stable")
    order, count = candidates[by_norm].astype(np.int32), -(-len(candidates) // width)
    places = np.full(len(V), len(V), np.int32)
    places[order] = np.arange(len(order))
    panels = np.empty((count, V.shape[1] * width), V.dtype)
    threads.over_rows(_pack_panels, np.arange(count + 1), V.size, np.ascontiguousarray(V), order, width, panels)
    return Candidates(V.shape[1], np.ascontiguousarray(norms[by_norm][::width]), order, places, panels)


@njit(cache=True, nogil=True)
def _pack_panels(first: int, last: int, V: Array, order: Array, width: int, panels: Array) -> None:
    for panel in range(first, last):
        panels[panel] = 0
        for lane in range(min(width, order.size - panel * width)):
            item = order[panel * width + lane]
            for c in range(V.shape[1]):
                panels[panel, c * width + lane] = V[item, c]


@inlined
def _score_tile(W: Array, group: int, panels: Array, panel: int, rank: int, tile: Array) -> None:
    """tile = the scores of a group of users for a panel of items."""
    step = lanes(W)
    a0 = a1 = a2 = a3 = a4 = a5 = splat(W.dtype.type(0))
    b0 = b1 = b2 = b3 = b4 = b5 = splat(W.dtype.type(0))
    for c in range(rank):
        x, y, at = load(panels, (panel, 2 * step * c)), load(panels, (panel, 2 * step * c + step)), ROWS * c
        u = spread(W, (group, at))
        a0, b0 = fma(u, x, a0), fma(u, y, b0)
        u = spread(W, (group, at + 1))
        a1, b1 = fma(u, x, a1), fma(u, y, b1)
        u = spread(W, (group, at + 2))
        a2, b2 = fma(u, x, a2), fma(u, y, b2)
        u = spread(W, (group, at + 3))
        a3, b3 = fma(u, x, a3), fma(u, y, b3)
        u = spread(W, (group, at + 4))
        a4, b4 = fma(u, x, a4), fma(u, y, b4)
        u = spread(W, (group, at + 5))
        a5, b5 = fma(u, x, a5), fma(u, y, b5)
    store(tile, (0, 0), a0)
    store(tile, (0, step), b0)
    store(tile, (1, 0), a1)
    store(tile, (1, step), b1)
    store(tile, (2, 0), a2)
    store(tile, (2, step), b2)
    store(tile, (3, 0), a3)
    store(tile, (3, step), b3)
    store(tile, (4, 0), a4)
    store(tile, (4, step), b4)
    store(tile, (5, 0), a5)
    store(tile, (5, step), b5)


@inlined
def _reaches(tile: Array, row: int, threshold: Scalar) -> bool:
    """Whether any score of a line of the tile reaches the threshold."""
    found = False
    for lane in range(2 * lanes(tile)):
        found |= tile[row, lane] >= threshold
    return found


@inlined
def _worse(score: Scalar, item: int, other: Scalar, other_item: int) -> bool:
    """Whether a candidate ranks after another."""
    return bool(score < other or (score == other and item > other_item))


@njit(cache=True, nogil=True)
def _replace(scores: Array, items: Array, score: Scalar, item: int, size: int) -> None:
    """Put a candidate into the place of the worst one, the root of a heap of this size in which parents are worse."""
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _worse(scores[child + 1], items[child + 1], scores[child], items[child]):
            child += 1
        if not _worse(scores[child], items[child], score, item):
            break
        scores[place], items[place] = scores[child], items[child]
        place = child
    scores[place], items[place] = score, item


@njit(cache=True, nogil=True)
def _sort_heap(scores: Array, items: Array) -> None:
    """Best first, with NONE in the free places."""
    for size in range(scores.size - 1, 0, -1):
        score, item = scores[size], items[size]
        scores[size], items[size] = scores[0], items[0]
        _replace(scores, items, score, item, size)
    for place in range(scores.size):
        if scores[place] == -np.inf:
            items[place] = NONE


@njit(cache=True, nogil=True)
def _offer(line: Array, start: int, order: Array, seen: Array, passed: int, scores: Array, items: Array) -> int:
    """Offer a tile's line to the heap of its user. Returns how many of the seen places, which rise, are passed."""
    for place in range(start, min(start + line.size, order.size)):
        score, item = line[place - start], order[place]
        if not _worse(scores[0], items[0], score, item):
            continue
        while passed < seen.size and seen[passed] < place:
            passed += 1
        if passed == seen.size or seen[passed] != place:
            _replace(scores, items, score, item, scores.size)
    return passed


@njit(cache=True, nogil=True)
def _done(lengths: Array, norm: float, scores: Array, slack: float, least: float) -> bool:
    """Whether no item of this norm or less can reach a threshold of these users, whatever the rounding."""
    done = True
    for user in range(lengths.size):
        done = done and lengths[user] * norm * slack + least < scores[user, 0]
    return done


@njit(cache=True, nogil=True)
def _rank_tile(
    low: int, high: int, W: Array, group: int, lengths: Array, panels: Array, norms: Array, order: Array, indptr: Array,
    seen: Array, passed: Array, tile: Array, items: Array, scores: Array,
) -> None:  # fmt: skip
    """Rank the panels from `low` to `high` for the users of one tile; all arrays by user are those of its users."""
    size, width = W.shape[1] // ROWS, tile.shape[1]
    slack, least = 1 + 4 * (size + 4) * np.finfo(tile.dtype).eps, np.finfo(tile.dtype).tiny
    for panel in range(low, high):
        if panel % EVERY == 0 and _done(lengths, norms[panel], scores, slack, least):
            break
        _score_tile(W, group, panels, panel, size, tile)
        for row in range(lengths.size):
            if _reaches(tile, row, scores[row, 0]):
                mine = seen[indptr[row] - indptr[0] : indptr[row + 1] - indptr[0]]
                passed[row] = _offer(tile[row], panel * width, order, mine, passed[row], scores[row], items[row])


@njit(cache=True, nogil=True)
def _pack_users(U: Array) -> Array:
    """The factors of tiles of users, coordinate by coordinate, with zeros for users who are missing in the last."""
    W = np.zeros((-(-len(U) // ROWS), U.shape[1] * ROWS), U.dtype)
    for user in range(len(U)):
        for c in range(U.shape[1]):
            W[user // ROWS, c * ROWS + user % ROWS] = U[user, c]
    return W


@njit(cache=True, nogil=True)
def _seen_places(indptr: Array, indices: Array, places: Array) -> Array:
    """The places of each user's seen items in the order of the search, sorted."""
    out = np.empty(indptr[-1] - indptr[0], np.int32)
    for k in range(out.size):
        out[k] = places[indices[indptr[0] + k]]
    for user in range(indptr.size - 1):
        out[indptr[user] - indptr[0] : indptr[user + 1] - indptr[0]].sort()
    return out


@njit(cache=True, nogil=True)
def _rank_blocks(
    first: int, last: int, starts: Array, U: Array, lengths: Array, panels: Array, norms: Array, order: Array,
    places: Array, indptr: Array, indices: Array, items: Array, scores: Array,
) -> None:  # fmt: skip
    tile = np.empty((ROWS, 2 * lanes(U)), U.dtype)
    chunk = max(1, CHUNK // max(1, panels.shape[1] * panels.itemsize))
    for block in range(first, last):
        begin, end = starts[block], starts[block + 1]
        W, passed = _pack_users(U[begin:end]), np.zeros(end - begin, np.int64)
        seen = _seen_places(indptr[begin : end + 1], indices, places)
        for low in range(0, len(panels), chunk):
            high = min(low + chunk, len(panels))
            for group in range(len(W)):
                a, b = begin + group * ROWS, min(end, begin + group * ROWS + ROWS)
                _rank_tile(
                    low, high, W, group, lengths[a:b], panels, norms, order, indptr[a : b + 1],
                    seen[indptr[a] - indptr[begin] :], passed[a - begin : b - begin], tile, items[a:b], scores[a:b],
                )  # fmt: skip
        for user in range(begin, end):
            _sort_heap(scores[user], items[user])
