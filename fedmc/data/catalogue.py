"""The catalogue: the item ids, one per column, with a hash by which organisations compare theirs.

It may hold a public table of features of the items. The hash then covers the table too. A catalogue that has grown
keeps its columns: new items come after all others. The authority of a federation signs it, so that nodes can take it
in (`federation.node.growth`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from fedmc.data.feature_files import StoredFeatures, hashed, restored, stored
from fedmc.data.feature_rows import Features, aligned
from fedmc.data.files import write_whole
from fedmc.data.ids import as_ids, as_kind_of, ascending, places
from fedmc.data.ratings import Ratings
from fedmc.errors import DataError, FedmcError, require, unknown
from fedmc.types import Array

UnknownItems = Literal["refuse", "drop"]
FORMAT, VERSION = "fedmc-catalogue", 1
WITH_FEATURES = 2  # the version of a catalogue with features
GROWN = 3  # of one that has grown, or is signed; with or without features

CHARACTER, MAX_IDS = (
    4,
    2**32,
)  # bytes: of a character of an id, and of all ids, each of which takes as much as the longest


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Item ids, sorted (whole numbers by size, strings by their characters) but for those that came later."""

    items: Array
    features: Features | None = None  # of some or all of the items
    signature: str = ""  # of the federation's authority on the hash, in hexadecimal digits

    @classmethod
    def of(cls, *parts: ArrayLike) -> Catalogue:
        """The union of these items; a mixture of whole numbers and strings becomes strings."""
        ids = [as_ids(part, "item") for part in parts]
        if len({part.dtype.kind for part in ids}) > 1:
            ids = [part.astype(np.str_) for part in ids]
        return cls(np.unique(np.concatenate(ids)))

    def with_table(self, features: Features) -> Catalogue:
        """The catalogue with a table of features, and with the items that only the table has."""
        same = features.like(self.items) if len(self) else features
        return Catalogue(np.union1d(self.items, same.ids) if len(self) else same.ids, same)

    def grown(self, more: Array, features: Features | None = None) -> Catalogue:
        """The catalogue with new columns for those of `more` items that it lacks, and a table for all of them."""
        more = as_ids(more, "item") if features is None else np.concatenate([as_ids(more, "item"), features.ids])
        same = as_kind_of(more, self.items, "item") if len(self) else more
        new = np.unique(same[places(self.items, same) < 0])
        items = np.concatenate([self.items, new]) if len(self) else new
        return Catalogue(items, features if features is None else features.like(items))

    def begins(self, other: Catalogue) -> bool:
        """Whether the other catalogue is this one with more items at its end."""
        return len(self) < len(other) and np.array_equal(self.items, other.items[: len(self)])

    @property
    def hash(self) -> str:
        """SHA-256 of the kind of ids and the ids, one per line, and of the features if there are any."""
        kind = "int" if self.items.dtype.kind == "i" else "str"
        digest = hashlib.sha256("\n".join([kind, *map(str, self.items.tolist())]).encode())
        if self.features is not None:
            digest.update(hashed(self.features, self.items))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def item_features(self) -> Array | None:
        """A row of features for each item, zeros (the means) for those without; None if there are no features."""
        table = self.features
        return None if table is None or not table.names else aligned(table, self.items, "item").values

    def save(self, path: str | Path) -> None:
        version = VERSION if self.features is None else WITH_FEATURES
        version = GROWN if self.signature or not ascending(self.items) else version
        content = {"format": FORMAT, "version": version, "hash": self.hash, "items": self.items.tolist()}
        content |= {"signature": self.signature} if version == GROWN else {}
        if self.features is not None:
            content["features"] = stored(self.features, self.items)
        write_whole(Path(path), json.dumps(content, ensure_ascii=False, indent=0).encode())

    def columns_of(self, items: Array) -> Array:
        """The column of each item; -1 if it is not in the catalogue."""
        if items.dtype.kind != self.items.dtype.kind:
            items = items.astype(np.str_) if self.items.dtype.kind == "U" else items
        return places(self.items, items) if items.dtype.kind == self.items.dtype.kind else np.full(len(items), -1)


def load(path: str | Path) -> Catalogue:
    """Read a saved catalogue and check its hash."""
    require(Path(path).is_file(), f"there is no catalogue {path}", DataError)
    return parsed(Path(path).read_bytes(), path)


def parsed(content: bytes, path: str | Path) -> Catalogue:
    """The catalogue in these bytes, whose hash is checked; `path` is for errors."""
    try:
        found = json.loads(content)
        ours = isinstance(found, dict) and found.get("format") == FORMAT
        require(ours, f"{path} is not a fedmc catalogue", DataError)
        version = found["version"]
        known = version in (VERSION, WITH_FEATURES, GROWN)
        require(known, f"{path} has format {version}, this fedmc reads {VERSION} to {GROWN}", DataError)
        longest = max((len(one) for one in found["items"] if isinstance(one, str)), default=0)
        size = CHARACTER * longest * len(found["items"])
        require(size <= MAX_IDS, f"the item ids of {path} would take {size} bytes, at most {MAX_IDS:,}", DataError)
        items = as_ids(found["items"] or np.empty(0, np.int64), "item")
        held = version == WITH_FEATURES or (version == GROWN and "features" in found)
        features = _features(found["features"], items, path) if held else None
        catalogue = Catalogue(items, features, str(found.get("signature", "")))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a whole catalogue: {error}") from None
    require(len(np.unique(items)) == len(items), f"{path} names an item twice", DataError)
    require(catalogue.hash == found["hash"], f"{path} was changed: its hash does not fit its items", DataError)
    return catalogue


def _features(content: StoredFeatures, items: Array, path: str | Path) -> Features:
    try:
        return restored(content, items)
    except FedmcError as error:
        raise DataError(f"{path} is not a whole catalogue: {error}") from None


def merged(catalogues: Sequence[Catalogue]) -> Catalogue:
    """One catalogue with the items of several; all that have a table of features must have the same."""
    together = Catalogue.of(*(one.items for one in catalogues))
    tables = [one.features for one in catalogues if one.features is not None]
    kinds = {Catalogue(table.ids, table).hash for table in tables}
    require(
        len(kinds) <= 1,
        "the catalogues have different tables of features: merge catalogues without, and give the table to the result",
        DataError,
    )
    return together.with_table(tables[0]) if tables else together


def align(ratings: Ratings, catalogue: Catalogue, unknown_items: UnknownItems = "refuse") -> tuple[Ratings, str | None]:
    """The ratings with the catalogue's columns, and a message about ratings that were dropped."""
    if unknown_items not in ("refuse", "drop"):
        raise unknown("way to treat unknown items", unknown_items, ("refuse", "drop"))
    columns = catalogue.columns_of(ratings.items)
    report = report_unknown(ratings, columns)
    if report is not None and unknown_items == "refuse":
        raise DataError(f"{report}: add them to the catalogue, or drop them (unknown_items='drop')")
    kept = ratings if report is None else ratings.with_entries(columns[ratings.matrix.indices] >= 0)
    shape = len(kept.users), len(catalogue)
    moved = columns[kept.matrix.indices].astype(np.int32)
    data, times = kept.matrix.data, kept.times
    if not ascending(catalogue.items):  # otherwise columns keep their order: both lists of items are sorted
        order = np.lexsort((moved, kept.rows()))
        moved, data, times = moved[order], data[order], None if times is None else times[order]
    matrix = sparse.csr_array((data, moved, kept.matrix.indptr), shape=shape)
    return replace(kept, items=catalogue.items, matrix=matrix, times=times), report


def report_unknown(ratings: Ratings, columns: Array) -> str | None:
    """How many ratings are of items outside of the catalogue, and the first ten of those items."""
    outside = np.flatnonzero(columns < 0)
    if not len(outside):
        return None
    counts = np.bincount(ratings.matrix.indices, minlength=len(ratings.items))
    first = ", ".join(str(ratings.items[item]) for item in outside[:10])
    more = ", ..." if len(outside) > 10 else ""
    return f"{counts[outside].sum():,} ratings are of {len(outside):,} items outside of the catalogue ({first}{more})"
