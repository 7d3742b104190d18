"""Group testing: which client rated which item, proven from the rows of sums that are exactly zero.

If nobody in a cohort rated an item, the item's row of the cohort's sum is what the server can compute by itself: zero,
or the change of V alone. Each sum is thus a test of every item over a group of clients.

    a row that is silent                            nobody in the cohort rated the item
    a row that is not, and all but one member of    that member rated it
    the cohort are known not to have rated the item

Over reshuffled cohorts these proofs add up until they name clients. Over fixed groups all tests of a group say the
same, and nobody is named, unless a member is absent from one of them, really or because the server pretends so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.leakage import Observation, rows_of
from fedmc.algorithms.messages import SUM_BITS
from fedmc.audit.results import Attributed
from fedmc.types import Array

RARE = 2  # an item is rare if at most so many clients rated it
STEPS = 2.0 ** (1 - SUM_BITS)  # how far a client's rounding can move an entry


class Proven(NamedTuple):
    """What is proven of each client (row) and item (column)."""

    rated: Array
    unrated: Array


def silent_items(one: Observation, members: int) -> Array:
    """Which rows of a sum are as if nobody in the cohort had rated the item."""
    rows = np.asarray(rows_of(one), np.float64)
    accounted = np.broadcast_to(one.accounted, rows.shape)
    blur = 8 * np.finfo(one.broadcast.V.dtype).eps * np.abs(accounted) + members * STEPS
    silent: Array = (np.abs(rows - accounted) <= blur).all(axis=1)
    return silent


def prove(silent: Sequence[Array], cohorts: Sequence[Sequence[int]], clients: int) -> Proven:
    """All that follows from which items were silent in which cohort."""
    items = len(silent[0])
    rated, unrated = np.zeros((clients, items), bool), np.zeros((clients, items), bool)
    for quiet, cohort in zip(silent, cohorts, strict=True):
        unrated[list(cohort)] |= quiet
    for quiet, cohort in zip(silent, cohorts, strict=True):
        members = np.array(cohort)
        possible = ~unrated[members]
        named = np.flatnonzero(~quiet & (possible.sum(axis=0) == 1))
        rated[members[possible[:, named].argmax(axis=0)], named] = True
    return Proven(rated, unrated)


def attribute(sums: Sequence[Observation], cohorts: Sequence[Sequence[int]], truth: Array) -> Attributed:
    """The attack on these sums, scored against the truth (clients by items)."""
    silent = [silent_items(one, len(cohort)) for one, cohort in zip(sums, cohorts, strict=True)]
    rated, unrated = prove(silent, cohorts, len(truth))
    raters = truth.sum(axis=0)
    rare = (raters > 0) & (raters <= RARE)
    wrong = (rated & ~truth) | (unrated & truth)
    return Attributed(
        len(sums), int(rated.sum()), int(truth.sum()), int(unrated.sum()), int(wrong.sum()),
        int((rated & truth)[:, rare].sum()), int(truth[:, rare].sum()),
    )  # fmt: skip
