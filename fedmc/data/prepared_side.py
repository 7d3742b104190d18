"""What prepared shards hold besides ratings: features of users, events without a rating, and the days of ratings.

Of events it is their order, the array `later`. It has no entry in the manifest: who does not know it can do without.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from scipy import sparse

from fedmc.data.days import Days
from fedmc.types import Array


class SideEntry(TypedDict, total=False):
    """The side information of a shard, if it has any."""

    features: int  # the number of features of each user
    also_seen: int  # the number of events without a rating
    days: int  # the number of groups by user and day


def parts_of(name: str, matrix: sparse.csr_array) -> dict[str, Array]:
    return {
        f"{name}/indptr": matrix.indptr.astype(np.int32, copy=False),
        f"{name}/indices": matrix.indices.astype(np.int32, copy=False),
        f"{name}/data": matrix.data.astype(np.float32, copy=False),
    }


def side_entry(features: Array | None, also_seen: sparse.csr_array | None, days: Days | None) -> SideEntry:
    entry: SideEntry = {}
    if features is not None:
        entry["features"] = int(features.shape[1])
    if also_seen is not None:
        entry["also_seen"] = int(also_seen.nnz)
    if days is not None:
        entry["days"] = len(days.users)
    return entry


def side_arrays(
    features: Array | None, also_seen: sparse.csr_array | None, days: Days | None, later: Array | None = None
) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    if features is not None:
        arrays["features"] = features.ravel()
    if also_seen is not None:
        arrays |= {name: part for name, part in parts_of("also_seen", also_seen).items() if not name.endswith("/data")}
    if days is not None:
        known = {name: part for name, part in days._asdict().items() if part is not None}
        arrays |= {f"days/{name}": part.astype(np.int64, copy=False) for name, part in known.items()}
    return arrays if later is None else arrays | {"later": later}


def stored_days(arrays: dict[str, Array]) -> Days:
    return Days(**{name: arrays[f"days/{name}"] for name in Days._fields if f"days/{name}" in arrays})


def stored_pattern(name: str, arrays: dict[str, Array], shape: tuple[int, int]) -> sparse.csr_array:
    indices, indptr = arrays[f"{name}/indices"], arrays[f"{name}/indptr"]
    matrix = sparse.csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=shape, copy=False)
    matrix.has_sorted_indices = True
    return matrix
