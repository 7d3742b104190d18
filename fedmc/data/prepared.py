"""Prepared shards: the clients' ratings as memory-mapped arrays on disk.

    DIR/manifest.json     format, version, counts, and for each shard its file, size, hash and array offsets
    DIR/catalogue.json    the items
    DIR/client-N.shard    all arrays of a client one after the other

Opening checks the manifest, and the size and both ends of each shard: milliseconds for shards of any size. `verify`
reads everything and compares the hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

import numpy as np
from scipy import sparse

from fedmc.data import catalogue as catalogues
from fedmc.data.addresses import present
from fedmc.data.catalogue import Catalogue
from fedmc.data.days import Days
from fedmc.data.feedback import EventOptions
from fedmc.data.files import staged, write_whole
from fedmc.data.partition import Shard, narrow, rated_rows
from fedmc.data.prepared_side import SideEntry, parts_of, side_arrays, side_entry, stored_days, stored_pattern
from fedmc.data.shared import map_file
from fedmc.errors import DataError, require
from fedmc.types import Array

FORMAT, VERSION, ALIGN, EDGE = "fedmc-shards", 2, 64, 4096
WITH_SIDE = 3  # the version of shards with user features or events without a rating


class StoredArrays(TypedDict):
    """One shard file: its size and hashes, and the dtype, length and offset of each array."""

    size: int
    sha256: str
    edges: int
    arrays: dict[str, tuple[str, int, int]]


class ShardEntry(StoredArrays, SideEntry):
    """One shard in the manifest."""

    file: str
    users: int
    ratings: int
    test: int


class Manifest(TypedDict):
    """The content of manifest.json, without its hash."""

    format: str
    version: int
    clients: int
    items: int
    users: int
    ratings: int
    test: int
    catalogue: str
    about: dict[str, object]
    shards: list[ShardEntry]


class Prepared(NamedTuple):
    """An opened folder of shards."""

    catalogue: Catalogue
    shards: list[Shard]
    ids: list[Array]  # the user ids of each shard
    about: dict[str, object]

    @property
    def user_feature_names(self) -> tuple[str, ...]:
        names = self.about.get("user_features", [])
        return tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def events(self) -> EventOptions | None:
        """How the events were read; None if the shards were prepared as ratings."""
        options = self.about.get("events")
        return EventOptions(**options) if isinstance(options, dict) else None

    def as_events(self, wanted: EventOptions) -> Prepared:
        """The shards for these options; refuses others than those of `fedmc prepare`, and values that are no amounts.

        Without `recency`, the order of events is left out.
        """
        held = (EventOptions(), EventOptions() if self.events is None else self.events)
        require(
            wanted in (replace(one, recency=wanted.recency) for one in held),
            "prepared shards hold their events: give these options to `fedmc prepare`, and leave them out here",
            DataError,
        )
        low = min((float(shard.by_user.data.min()) for shard in self.shards if shard.by_user.nnz), default=1.0)
        cure = "prepare them again as events (--feedback implicit)"
        require(low > 0, f"prepared ratings go down to {low:g}, amounts of events must be above 0: {cure}", DataError)
        return self if wanted.recency else self.without_order()

    def without_order(self) -> Prepared:
        """The shards without the order of events, which then all count alike."""
        return self._replace(shards=[replace(shard, later=None) for shard in self.shards])


def is_prepared(path: Path) -> bool:
    return all(present(path / name) and (path / name).is_file() for name in ("manifest.json", "catalogue.json"))


class Writer:
    """Writes shards one at a time; at most one is in memory."""

    def __init__(self, folder: Path, catalogue: Catalogue) -> None:
        self.folder, self.catalogue = folder, catalogue
        self.entries: list[ShardEntry] = []

    def add(
        self,
        ids: Array,
        by_user: sparse.csr_array,
        test: sparse.csr_array | None = None,
        features: Array | None = None,
        also_seen: sparse.csr_array | None = None,
        days: Days | None = None,
        later: Array | None = None,
    ) -> None:
        """Add one client's ratings, with the catalogue's columns, and what is known besides."""
        shape = len(ids), len(self.catalogue)
        require(by_user.shape == shape, f"a shard must have shape {shape}, got {by_user.shape}", DataError)
        rated, by_rated = rated_rows(by_user)
        arrays = {"users": ids, "rated": rated, **parts_of("by_user", by_user), **parts_of("by_rated", by_rated)}
        if test is not None:
            arrays |= parts_of("test", narrow(test))
        name = f"client-{len(self.entries):06}.shard"
        entry: ShardEntry = {
            "file": name,
            "users": len(ids),
            "ratings": int(by_user.nnz),
            "test": 0 if test is None else int(test.nnz),
            **_write_arrays(self.folder / name, arrays | side_arrays(features, also_seen, days, later)),
            **side_entry(features, also_seen, days),
        }
        self.entries.append(entry)

    def finish(self, about: dict[str, object]) -> None:
        """Write the catalogue and the manifest."""
        require(bool(self.entries), "there is no shard to write", DataError)
        self.catalogue.save(self.folder / "catalogue.json")
        entries = self.entries
        with_side = any({"features", "also_seen", "days"} & entry.keys() for entry in entries)
        manifest: Manifest = {
            "format": FORMAT,
            "version": WITH_SIDE if with_side else VERSION,
            "clients": len(entries),
            "items": len(self.catalogue),
            "users": sum(entry["users"] for entry in entries),
            "ratings": sum(entry["ratings"] for entry in entries),
            "test": sum(entry["test"] for entry in entries),
            "catalogue": self.catalogue.hash,
            "about": about,
            "shards": entries,
        }
        write_whole(self.folder / "manifest.json", json.dumps({**manifest, "hash": _hash(manifest)}).encode())


@contextmanager
def writing(path: Path, catalogue: Catalogue, overwrite: bool = False) -> Iterator[Writer]:
    """A writer of a folder of shards; the folder appears when all are written."""
    with staged(path, overwrite, is_prepared, "folder of shards", keep=lambda staging: False) as staging:
        yield Writer(staging, catalogue)


def open_prepared(path: str | Path) -> Prepared:
    """Memory-map all shards of a folder; reads only the manifest, the catalogue and the ends of the files."""
    path = Path(path)
    manifest = read_manifest(path)
    catalogue = catalogues.load(path / "catalogue.json")
    require(
        catalogue.hash == manifest["catalogue"], f"{path}: the catalogue is not the one it was prepared with", DataError
    )
    shards, ids, row = [], [], 0
    for client, entry in enumerate(manifest["shards"]):
        arrays = _map_arrays(path / entry["file"], entry)
        users = arrays["users"]
        rows = np.arange(row, row + len(users))
        row += len(users)
        shape = len(users), len(catalogue)
        test = _matrix("test", arrays, shape) if entry["test"] else None
        rated, by_user = arrays["rated"], _matrix("by_user", arrays, shape)
        by_rated = _matrix("by_rated", arrays, (len(rated), len(users)))
        width = entry.get("features")
        days = stored_days(arrays) if "days" in entry else None
        features = None if width is None else arrays["features"].reshape(len(users), width)
        events = stored_pattern("also_seen", arrays, shape) if "also_seen" in entry else None
        more = features, events, days, arrays.get("later")
        shards.append(Shard(client, rows, by_user, rated, by_rated, test, None, *more))
        ids.append(users)
    return Prepared(catalogue, shards, ids, manifest["about"])


def read_manifest(path: Path) -> Manifest:
    """The manifest of a folder of shards, after checks of its hash and version."""
    require(is_prepared(path), f"{path} is not a folder of prepared shards: make one with `fedmc prepare`", DataError)
    content: dict[str, object] = {}
    try:
        content = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        found = content.pop("hash")
        whole = content["format"] == FORMAT and found == _hash(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    require(whole, f"{path / 'manifest.json'} is damaged: prepare the shards again", DataError)
    version = content["version"]
    reads = f"this fedmc reads {VERSION} and {WITH_SIDE}"
    require(version in (VERSION, WITH_SIDE), f"{path} has format {version}, {reads}: prepare it again", DataError)
    return cast("Manifest", content)


def verify(path: str | Path) -> None:
    """Read every shard and compare its hash."""
    path = Path(path)
    for entry in read_manifest(path)["shards"]:
        with open(path / entry["file"], "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        require(found == entry["sha256"], f"{path / entry['file']} is damaged: prepare the shards again", DataError)


def _matrix(name: str, arrays: dict[str, Array], shape: tuple[int, int]) -> sparse.csr_array:
    parts = tuple(arrays[f"{name}/{part}"] for part in ("data", "indices", "indptr"))
    matrix = sparse.csr_array(parts, shape=shape, copy=False)
    matrix.has_sorted_indices = True
    return matrix


def _write_arrays(path: Path, arrays: dict[str, Array]) -> StoredArrays:
    """Write the arrays in order, each at a multiple of 64 bytes; returns their offsets and the file's hash."""
    places: dict[str, tuple[str, int, int]] = {}
    digest, at = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for name, array in arrays.items():
            raw = np.ascontiguousarray(array)
            places[name] = raw.dtype.str, raw.size, at
            padding = bytes(-raw.nbytes % ALIGN)
            for piece in (raw.data, padding):
                file.write(piece)
                digest.update(piece)
            at += raw.nbytes + len(padding)
        file.flush()
        os.fsync(file.fileno())
    return {"size": at, "sha256": digest.hexdigest(), "edges": _edges(path, at), "arrays": places}


def _map_arrays(path: Path, entry: StoredArrays) -> dict[str, Array]:
    """Views into the mapped file, private to this process: a write would not reach the file."""
    whole = path.is_file() and path.stat().st_size == entry["size"]
    require(
        whole and _edges(path, entry["size"]) == entry["edges"],
        f"{path} is damaged: prepare the shards again",
        DataError,
    )
    view = map_file(path)
    return {
        name: np.frombuffer(view, np.dtype(kind), count, offset)
        for name, (kind, count, offset) in entry["arrays"].items()
    }


def _edges(path: Path, size: int) -> int:
    """A checksum of the first and the last bytes."""
    with open(path, "rb") as file:
        first = file.read(EDGE)
        file.seek(max(size - EDGE, 0))
        return zlib.crc32(file.read(EDGE), zlib.crc32(first))


def _hash(manifest: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
