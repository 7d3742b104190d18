"""The attack on replies about who rated what (`algorithms.incidence`): lists of items, each of one person.

The line of an item with one rater is sum of P_k / n over the n items k of that person: some 250 linear measurements of
a sparse list, for directions P that the server chose itself. Lines of all items of which this person is the only rater
are equal. A list is found by non-negative least squares, which takes up popular items first, and kept only if it gives
the line exactly: so lists that are named are right, up to chance. Then the person is subtracted, which leaves other
items with one rater.

Items with few raters in all have no lines, so that in a sum over all clients no item has one rater. But if one person
more rated an item than another item, the difference of the two lines is that person's. Such pairs are guessed from the
lines. A client's own replies still have items with one rater there. Lists are without the items that have no lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.incidence import NAME, PATTERN
from fedmc.algorithms.leakage import Observation
from fedmc.types import Array

ROWS = "rows"  # of an observation: the items whose lines are kept
PATIENCE = 20  # lists in a row that are not found, before the attack gives up
ATTEMPTS = 150  # at lists of those who are the only rater of an item
PAIRS = 150  # attempts at differences of two items' lines
WIDTH = 2000  # items with the same number of raters that pairs are looked for among
STEPS = 400  # of least squares
SPARSE = 0.6  # of a line's numbers: items that a list takes up at most, if there are many more to choose from
CLEAR = 1e5  # directions count if they stand out of the rounding that much
RIDGE = 1e-12


def lists(seen: Sequence[Observation], rounding: float) -> list[Array]:
    """Lists of items, each all items with lines of one person; `seen` are the replies to the steps, in order."""
    if len(seen) < 2:
        return []
    items = with_lines(seen)
    counts, *lines = [one.parts[PATTERN][np.searchsorted(one.parts[ROWS], items)] for one in seen]
    counts = np.array(counts[:, 0])
    P = np.concatenate([one.broadcast.shared.arrays[NAME][items] for one in seen[1:]], axis=1)
    L = np.concatenate(lines, axis=1)
    _, sizes, turn = np.linalg.svd(P, full_matrices=False)
    clear = sizes > CLEAR * rounding
    white = turn[clear].T / sizes[clear]
    found = _peeled(counts, P @ white, L @ white, rounding / float(sizes[clear].min(initial=np.inf)))
    return [items[one] for one in found]


def with_lines(seen: Sequence[Observation]) -> Array:
    """The items that have lines: rare ones are counted in the first step, but then left out."""
    return reduce(np.intersect1d, [one.parts[ROWS] for one in seen])


class Suspect(NamedTuple):
    """Somebody who has all of the items `own` and none of `without`, and the line that they would have."""

    own: Array
    without: Array
    line: Array


def _peeled(counts: Array, P: Array, L: Array, rounding: float) -> list[Array]:
    """The lists of those with an item of their own, and then of those who have one without them, and so on."""
    found: list[Array] = []
    alone, pairs = ATTEMPTS, PAIRS
    while True:
        new, tried = _found(_alone(counts, L, rounding)[:alone], PATIENCE, counts, P, rounding)
        alone -= tried
        if not new:
            new, tried = _found(_one_more(counts, P, L)[:pairs], PAIRS, counts, P, rounding)
            pairs -= tried
        if not new:
            return found
        for one in new:
            L[one] -= P[one].sum(axis=0) / len(one)
            counts[one] -= 1
        found += new


def _found(
    suspects: Sequence[Suspect], patience: int, counts: Array, P: Array, rounding: float
) -> tuple[list[Array], int]:
    """The lists of these suspects, as far as they are found, and the number of attempts."""
    new: dict[bytes, Array] = {}
    failures = tried = 0
    for suspect in suspects:
        if failures == patience:
            break
        tried += 1
        one = _whole(suspect, counts, P, rounding)
        failures = 0 if one is not None else failures + 1
        new |= {} if one is None else {one.tobytes(): one}
    return list(new.values()), tried


def _alone(counts: Array, L: Array, rounding: float) -> list[Suspect]:
    """Those who are the only rater of some items; those with short lists, and so large lines, first."""
    alone = np.flatnonzero(np.abs(counts - 1) < 0.1)
    if not len(alone) or not L.shape[1]:
        return []
    order = alone[np.argsort(L[alone, 0], kind="stable")]
    parts: list[list[int]] = []
    for j in order.tolist():
        near = (part for part in reversed(parts[-20:]) if np.abs(L[part[0]] - L[j]).max() < 20 * rounding)
        part = next(near, None)
        parts.append([j]) if part is None else part.append(j)
    parts.sort(key=lambda part: -float(np.linalg.norm(L[part[0]])))
    return [Suspect(np.array(part), np.array([], np.int64), L[part].mean(axis=0)) for part in parts]


def _one_more(counts: Array, P: Array, L: Array) -> list[Suspect]:
    """Those who may be all that tells the raters of two items apart; the likeliest first.

    The lines of two items differ by lists of some who rated only the one, minus lists of some who rated only the other.
    If there are none of the latter, then the other item itself has no part in the difference: else a negative one.
    """
    size, found = np.maximum(np.square(P).sum(axis=1), 1e-300), []
    raters = np.rint(counts).astype(np.int64)
    for number in range(1, int(raters.max(initial=0))):
        more, less = (np.flatnonzero(raters == n)[:WIDTH] for n in (number + 1, number))
        if len(more) and len(less) and L.shape[1]:
            part = (L[more] @ P[less].T - np.sum(L[less] * P[less], axis=1)) / size[less]
            best = np.argsort(-part, axis=None, kind="stable")[:PAIRS]
            rows, columns = np.unravel_index(best, part.shape)
            found += [(-float(part[r, c]), int(more[r]), int(less[c])) for r, c in zip(rows, columns, strict=True)]
    return [Suspect(np.array([j]), np.array([k]), L[j] - L[k]) for _, j, k in sorted(found)[:PAIRS]]


def _whole(suspect: Suspect, counts: Array, P: Array, rounding: float) -> Array | None:
    """The list of a suspect, or None."""
    (own, without, line), many = suspect, counts > 1.5
    many[own] = many[without] = False
    shared = np.flatnonzero(many)
    scale = float(np.linalg.norm(P[shared], axis=1).mean()) if len(shared) else 1.0
    columns = np.concatenate([P[own].sum(axis=0)[None], P[shared]]).T
    A = np.append(columns, scale * np.append(len(own), np.ones(len(shared)))[None], axis=0)
    weights = np.append(counts[shared].max(initial=1.0), counts[shared])
    chosen, share = _least_squares(A, np.append(line, scale), weights, 10 * rounding)
    at = np.flatnonzero(chosen == 0)
    if not len(at):
        return None
    taken = chosen[(share > share[at[0]] / 2) & (chosen > 0)] - 1
    whole = np.sort(np.concatenate([own, shared[taken]]))
    return whole if np.abs(P[whole].sum(axis=0) / len(whole) - line).max() < 20 * rounding else None


def _least_squares(A: Array, b: Array, weights: Array, enough: float) -> tuple[Array, Array]:
    """Columns and positive coefficients of A x = b, by Lawson and Hanson: the weights say what is taken up first."""
    chosen: list[int] = []
    x, left = np.zeros(0), b
    most = len(A) - 1 if A.shape[1] < 4 * len(A) else int(SPARSE * len(A))
    for _ in range(STEPS):
        gain = (left @ A) * weights
        gain[chosen] = -1.0
        best = int(gain.argmax())
        if np.linalg.norm(left) <= enough or gain[best] <= 0 or len(chosen) >= most:
            break
        chosen, x = [*chosen, best], np.append(x, 0.0)
        while chosen:
            some = A[:, chosen]
            z = np.linalg.solve(some.T @ some + RIDGE * np.eye(len(chosen)), some.T @ b)
            out = z <= 0
            if not out.any():
                x = z
                break
            x = x + float(np.min(x[out] / (x[out] - z[out] + 1e-300))) * (z - x)
            kept = x > RIDGE
            chosen, x = [k for k, there in zip(chosen, kept, strict=True) if there], x[kept]
        left = b - A[:, chosen] @ x
    return np.array(chosen, dtype=np.int64), x
