"""Ids and their positions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from fedmc.data.ids import places
from fedmc.data.ratings import Ratings, as_ids
from fedmc.data.recency import later_of
from fedmc.errors import InputError, quoted, require
from fedmc.types import Array, DType

Unknown = Literal["refuse", "prior"]


def find_ids(known: Array, wanted: Any, role: str, unknown: Unknown = "refuse") -> Array:
    """Positions of ids among the known ones; an unknown one is an error that names it, or -1 with "prior"."""
    ids = as_ids(wanted, role)
    if known.dtype.kind != ids.dtype.kind:
        ids, whole = (ids.astype(np.str_), True) if known.dtype.kind == "U" else _whole_numbers(ids, role, unknown)
    else:
        whole = True
    found = np.where(whole, places(known, ids), -1)
    missing = np.flatnonzero(found < 0)
    if unknown == "refuse" and len(missing):
        cure = (
            "fold in their ratings to predict for new users (Model.fold_in)"
            if role == "user"
            else "the model knows only items it was trained on"
        )
        raise InputError(f"unknown {role} {ids[missing[0]]!s} ({len(missing)} of {len(ids)} unknown): {cure}")
    return found


def _whole_numbers(ids: Array, role: str, unknown: Unknown) -> tuple[Array, Array]:
    """Texts such as 17 as integers, and which of them are; others, such as 017 or x, cannot be ids of this model."""
    whole = np.array(
        [bool(re.fullmatch(r"0|-?[1-9][0-9]{0,18}", str(text))) and abs(int(text)) < 2**63 for text in ids]
    )
    if unknown == "refuse" and not whole.all():
        raise InputError(f"unknown {role} {ids[~whole][0]!s}: this model's {role} ids are whole numbers")
    return np.where(whole, ids, "0").astype(np.int64), whole


def later_onto_catalogue(items: Array, ratings: Ratings) -> Array | None:
    """How many later ratings the user has, in the places of `onto_catalogue`, if they have times."""
    times = ratings.time_table()
    return (
        None if times is None else later_of(onto_catalogue(items, replace(ratings, matrix=times), np.dtype(np.int64)))
    )


def onto_catalogue(items: Array, ratings: Ratings, dtype: DType) -> sparse.csr_array:
    """The ratings as a matrix whose columns are these items."""
    cure = "make one with Ratings.from_arrays(users, items, ratings)"
    require(isinstance(ratings, Ratings), lambda: f"new users come as Ratings, got {quoted(ratings)}: {cure}")
    columns = find_ids(items, ratings.items, "item")
    entries = ratings.matrix.tocoo()
    shape = len(ratings.users), len(items)
    matrix = sparse.csr_array((entries.data.astype(dtype), (entries.row, columns[entries.col])), shape=shape)
    matrix.sort_indices()
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix
