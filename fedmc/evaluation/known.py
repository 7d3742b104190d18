"""Test pairs of users and items that a model has never seen: how many there are, and those without them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, require
from fedmc.evaluation.coverage import HeldOut
from fedmc.model import Model, find_ids
from fedmc.types import Array


class LeftOut(NamedTuple):
    """How many pairs the model cannot score, and of how many users and items that it does not know."""

    pairs: int
    users: int
    items: int
    example: str = ""  # one of them, such as "user 17"

    def in_words(self, of: int) -> str:
        counts = ("user", self.users), ("item", self.items)
        named = [f"{number:,} {what}{'s' * (number != 1)}" for what, number in counts if number]
        return f"{self.pairs:,} of {of:,} pairs are of {' and '.join(named)} that the model does not know"


class Known(NamedTuple):
    """The held-out pairs of users and items that a model knows, and what was left out."""

    held_out: HeldOut
    left_out: LeftOut


def known_pairs(model: Model, held_out: HeldOut) -> Known:
    """The pairs of users and items that the model knows, which may be none."""
    users, items = _unknown(model.users, held_out.users, "user"), _unknown(model.items, held_out.items, "item")
    gone = users | items
    lost = {"user": held_out.users[users], "item": held_out.items[items]}
    new_users, new_items = (len(np.unique(ids)) for ids in lost.values())
    example = next((f"{role} {ids[0]}" for role, ids in lost.items() if len(ids)), "")
    return Known(held_out.some(~gone), LeftOut(int(gone.sum()), new_users, new_items, example))


def known_items(model: Model, ratings: Ratings) -> Ratings:
    """The ratings or events without items that the model does not know."""
    known = ~_unknown(model.items, ratings.items, "item")
    require(bool(known.any()), f"none of the {len(known):,} items to fold in is an item of the model", DataError)
    kept = ratings.with_entries(known[ratings.matrix.indices])
    matrix = sparse.csr_array(kept.matrix[:, np.flatnonzero(known)])
    return Ratings(ratings.users, ratings.items[known], matrix, kept.times)


def _unknown(known: Array, wanted: Array, role: str) -> Array:
    return np.asarray(find_ids(known, wanted, role, "prior") < 0)
