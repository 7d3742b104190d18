"""Which client rated which item, scored from how rows of a group's sums differ around a client's absence.

`group_testing` proves from rows that are exactly zero. With decoys there are none, so this attack weighs what is left.
It knows the mechanism, and all that follows is computed from sums, the item factors sent, and counts of ratings:

    size      how large an item's row is in each turn of the group: smaller while a rater is absent
    pull      how far the sum's own equation b - G v of an item moves from turn to turn
    follow    that move along the change of v: what a real rating adds to it, and a rating that follows v does not

For each fact "client c rated item j", these are compared between the turn that c missed, the one after it, and the
others. A logistic regression weighs the comparisons. It is fitted to the facts of the other groups, as if the server
knew these: a real server knows less, so that the scores are on the safe side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.leakage import Observation, free_columns, rows_of
from fedmc.audit.attacks import auc, leakage_of
from fedmc.audit.group_testing import RARE
from fedmc.audit.results import Support
from fedmc.types import Array

SILENT = 1e-7  # added to sizes before the logarithm: below the rounding of a few clients
STEPS, RIDGE = 25, 1.0  # of the logistic regression
NEAR = (-2, -1, 2, 3)  # turns from the one that was missed


class Group(NamedTuple):
    """A fixed group, the numbers of its sums, and the places among these at which each member was absent."""

    members: tuple[int, ...]
    sums: list[int]
    missed: dict[int, list[int]]


def groups_of(cohorts: Sequence[tuple[int, ...]]) -> list[Group]:
    """The groups behind these cohorts: each joined with all of its members."""
    found: list[Group] = []
    for number, cohort in enumerate(cohorts):
        known = next((group for group in found if set(cohort) <= set(group.members)), None)
        if known is None:
            known = Group(cohort, [], {})
            found.append(known)
        for client in set(known.members) - set(cohort):
            known.missed.setdefault(client, []).append(len(known.sums))
        known.sums.append(number)
    return found


def attack(sums: Sequence[Observation], cohorts: Sequence[tuple[int, ...]], truth: Array, counts: Array) -> Support:
    """The attack on these sums, scored against the truth (clients by items); `counts` are ratings of each item."""
    groups = groups_of(cohorts)
    found = {client: lines for group in groups for client, lines in features(sums, group, counts).items()}
    clients, raters = sorted(found), truth.sum(axis=0)
    rare = np.flatnonzero((raters > 0) & (raters <= RARE))
    X, told = np.stack([found[client] for client in clients]), truth[clients]
    owner = np.array([next(k for k, group in enumerate(groups) if client in group.members) for client in clients])
    popularity = np.broadcast_to(counts, told.shape)
    scores = [popularity, scored(X, told, owner, np.arange(len(counts)))]
    whole = [auc(score.ravel(), told.ravel()) for score in scores]
    few = [*(score[:, rare] for score in scores), scored(X, told, owner, rare)]
    part = [auc(score.ravel(), told[:, rare].ravel()) for score in few]
    return Support(told.size, max(whole), whole[0], int(told[:, rare].sum()), max(part), part[0])


def features(sums: Sequence[Observation], group: Group, counts: Array) -> dict[int, Array]:
    """For each member, the comparisons (items by numbers)."""
    seen = [sums[number] for number in group.sums]
    first = np.log(np.abs(_first(seen)) + 0.1)
    turns = statistics(seen)
    level = [np.mean(part[1:], axis=0) if len(part) > 1 else part[0] for part in turns]
    known = [np.log(counts + 0.5), first, *level]
    return {
        client: np.stack(
            [*known, *(line for part in turns for line in compared(part, group.missed.get(client, [])))], -1
        )
        for client in group.members
    }


def _first(seen: Sequence[Observation]) -> Array:
    """The size of each item's row as the group joined: its number of ratings, where messages have that."""
    moments = leakage_of(seen).grams(seen[:1])
    if moments is None:
        return np.asarray(np.linalg.norm(rows_of(seen[0]) - seen[0].accounted, axis=1))
    return np.asarray(moments[0][:, -1, -1])


def statistics(seen: Sequence[Observation]) -> list[Array]:
    """Numbers for each turn of a group and each item, relative to what is usual in the turn."""
    found = [_relative([np.linalg.norm(rows_of(one) - one.accounted, axis=1) for one in seen])]
    leakage = leakage_of(seen)
    if leakage.grams(seen[:1]) is None:
        return found
    pulls, follow = [], []
    before: tuple[Array, Array] | None = None
    whole: Sequence[Array] = (np.zeros(()), np.zeros(()))
    for one in seen:
        G, b = (part + more for part, more in zip(whole, leakage.grams([one]) or (), strict=True))
        v = one.broadcast.V[:, free_columns(one.broadcast)].astype(np.float64)
        pull = b - np.einsum("jab,jb->ja", G, v)
        moved, along = _moved(before, (pull, v), G)
        pulls.append(moved)
        follow.append(along)
        before, whole = (pull, v), (G, b)
    usual = np.median(np.abs(follow), axis=1, keepdims=True)
    return [*found, _relative(pulls), np.clip(follow / np.maximum(usual, 1e-12), -50, 50)]


def _moved(before: tuple[Array, Array] | None, now: tuple[Array, Array], G: Array) -> tuple[Array, Array]:
    """The size of an item's move since the turn before, and its part along the change of v."""
    if before is None:
        return np.linalg.norm(now[0], axis=1), np.zeros(len(now[0]))
    moved, change = now[0] - before[0], now[1] - before[1]
    mean = G / np.maximum(np.abs(G[:, -1:, -1:]), 0.5)
    along = np.einsum("jb,jb->j", mean[:, -1], change)
    return np.linalg.norm(moved, axis=1), -moved[:, -1] * np.sign(along)


def _relative(sizes: Sequence[Array]) -> Array:
    """Logarithms, minus the median of the rows that are not silent."""
    logs = np.log(np.asarray(sizes) + SILENT)
    loud = np.where(logs > np.log(2 * SILENT), logs, np.nan)
    return np.asarray(logs - np.array([[np.nanmedian(line) if np.isfinite(line).any() else 0.0] for line in loud]))


def compared(turns: Array, missed: list[int]) -> list[Array]:
    """The turns that a client missed, and those after them, against the other turns; zeros if that cannot be said."""
    back = [turn + 1 for turn in missed if turn + 1 < len(turns)] or missed
    others = [turn for turn in range(1, len(turns)) if turn not in {*missed, *back}]
    if not missed or not others:
        return [np.zeros(turns.shape[1])] * 6
    near = [turn for turn in others if any(turn - step in missed for step in NEAR)] or others
    at, after, usual = (turns[some].mean(axis=0) for some in (missed, back, others))
    return [
        usual - at,
        turns[near].mean(axis=0) - at,
        turns[others].min(axis=0) - at,
        np.mean(turns[others] > at, axis=0),
        after - usual,
        after - at,
    ]


def scored(X: Array, told: Array, owner: Array, items: Array) -> Array:
    """A score for each fact, by a regression fitted to the facts of the other groups."""
    found, X, told = np.zeros((len(X), len(items))), X[:, items], told[:, items]
    for group in np.unique(owner):
        known, asked = owner != group, owner == group
        if not told[known].any() or told[known].all():
            continue
        lines = _terms(X[known].reshape(-1, X.shape[-1]), X[known])
        weights = logistic(lines, told[known].ravel())
        found[asked] = (_terms(X[asked].reshape(-1, X.shape[-1]), X[known]) @ weights).reshape(asked.sum(), -1)
    return found


def _terms(lines: Array, like: Array) -> Array:
    """Standardised comparisons, their squares, and a constant."""
    flat = like.reshape(-1, like.shape[-1])
    standard = np.clip((lines - flat.mean(axis=0)) / (flat.std(axis=0) + 1e-9), -5, 5)
    return np.concatenate([standard, standard**2, np.ones((len(lines), 1))], axis=1)


def logistic(lines: Array, labels: Array) -> Array:
    """The weights of a ridge-penalised logistic regression, by Newton's method."""
    weights, eye = np.zeros(lines.shape[1]), RIDGE * np.eye(lines.shape[1])
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-np.clip(lines @ weights, -30, 30)))
        slope = lines.T @ (labels - chance) - RIDGE * weights
        step = np.linalg.solve((lines * (chance * (1 - chance))[:, None]).T @ lines + eye, slope)
        weights = weights + step
        if np.abs(step).max() < 1e-6:
            break
    return weights
