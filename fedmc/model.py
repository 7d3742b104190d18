"""A fitted model: predict, recommend, fold in new users, complete a table, save and load."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedmc.algorithms.settings import Settings
from fedmc.data.ratings import Ratings, as_ids
from fedmc.errors import DataError, FedmcError, InputError, ModelFileError, UnknownNameError, require
from fedmc.problem import subproblem
from fedmc.problem.scaling import Scaling
from fedmc.problem.subproblem import Problem
from fedmc.types import Array

FORMAT, VERSION = "fedmc-model", 1


@dataclass(frozen=True, eq=False)
class Model:
    """Item factors V, user factors U, their ids, the items each user has rated, and the scaling of ratings."""

    items: Array
    V: Array
    users: Array
    U: Array
    seen: sparse.csr_array  # pattern of the training ratings
    scaling: Scaling
    settings: Settings
    clients: int

    def __repr__(self) -> str:
        return f"Model({len(self.users):,} users x {len(self.items):,} items, rank {self.settings.rank})"

    def predict(self, users: Any, items: Any) -> Array:
        """Predicted ratings of (user, item) pairs: two arrays of equal length, or one of them a single id."""
        rows, columns = find_ids(self.users, users, "user"), find_ids(self.items, items, "item")
        require(
            len(rows) == len(columns) or 1 in (len(rows), len(columns)),
            f"users and items must be equally long, got {len(rows)} and {len(columns)}",
        )
        rows, columns = np.broadcast_arrays(rows, columns)
        return self._to_ratings(np.einsum("kr,kr->k", self.U[rows], self.V[columns]))

    def recommend(self, users: Any, n: int = 10, *, exclude_seen: bool = True) -> tuple[Array, Array]:
        """The n best items of each user (or all, if there are fewer): (ids, scores), one row per user.

        A row with fewer items is filled up with the id -1 (or an empty string) and the score NaN.
        """
        require(n >= 1, f"n must be at least 1, got {n}")
        rows = find_ids(self.users, users, "user")
        scores = self._to_ratings(self.U[rows] @ self.V.T).astype(np.float64)
        if exclude_seen:
            seen = self.seen[rows]
            scores[np.repeat(np.arange(len(rows)), np.diff(seen.indptr)), seen.indices] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :n]
        scores = np.take_along_axis(scores, best, axis=1)
        ids = self.items[best]
        ids[np.isneginf(scores)] = -1 if ids.dtype.kind == "i" else ""
        scores[np.isneginf(scores)] = np.nan
        return (ids[0], scores[0]) if np.ndim(users) == 0 else (ids, scores)

    def has_seen(self, users: Any, items: Any) -> Array:
        """Which of these (user, item) pairs the model was trained on."""
        rows, columns = find_ids(self.users, users, "user"), find_ids(self.items, items, "item")
        width = len(self.items)
        seen = np.repeat(np.arange(len(self.users)), np.diff(self.seen.indptr)) * width + self.seen.indices
        return np.isin(rows * width + columns, seen)

    def fold_in(self, ratings: Ratings) -> Model:
        """The model of new users: their factors are fitted to V, which does not change."""
        matrix = self._onto_catalogue(ratings)
        penalty, _ = self.settings.penalties(self.clients)
        problem = Problem(matrix, self.settings.make_loss(), self.scaling)
        U = subproblem.minimise(
            problem, self.V, np.zeros((len(ratings.users), self.settings.width), self.V.dtype), penalty
        )
        return replace(self, users=ratings.users, U=U, seen=matrix)

    def transform(self, ratings: Ratings) -> Array:
        """Users x all items of the model: the given ratings unchanged, the missing ones predicted by fold-in."""
        folded = self.fold_in(ratings)
        filled = self._to_ratings(folded.U @ self.V.T).astype(np.float64)
        rows = np.repeat(np.arange(len(ratings.users)), np.diff(folded.seen.indptr))
        filled[rows, folded.seen.indices] = folded.seen.data
        return filled

    def _to_ratings(self, scores: Array) -> Array:
        return self.settings.make_loss().link(scores) * self.scaling.scale + self.scaling.mean

    def _onto_catalogue(self, ratings: Ratings) -> sparse.csr_array:
        """The ratings as a matrix with this model's columns."""
        columns = find_ids(self.items, ratings.items, "item")
        entries = ratings.matrix.tocoo()
        shape = len(ratings.users), len(self.items)
        matrix = sparse.csr_array((entries.data.astype(self.V.dtype), (entries.row, columns[entries.col])), shape=shape)
        matrix.sort_indices()
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
        return matrix

    def save(self, path: str | Path) -> None:
        """Write one .npz file without pickle, atomically."""
        path = Path(path)
        partial = path.with_name(path.name + ".part")
        about = {
            "clients": self.clients,
            "mean": self.scaling.mean,
            "scale": self.scaling.scale,
            "settings": self.settings.to_dict(),
        }
        with open(partial, "wb") as file:
            np.savez(
                file,
                format=np.array(FORMAT),
                version=np.array(VERSION),
                about=np.array(json.dumps(about)),
                items=self.items,
                V=self.V,
                users=self.users,
                U=self.U,
                seen_indptr=self.seen.indptr,
                seen_indices=self.seen.indices,
            )
        os.replace(partial, path)


# The errors of numpy and zipfile on files that are truncated, overwritten or of another kind.
_DAMAGE = (
    zipfile.BadZipFile,
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    struct.error,
    zlib.error,
    AttributeError,
)


def load(path: str | Path, **overrides: Any) -> Model:
    """Load a saved model. `overrides` replace settings that a file cannot hold, such as a user's own penalty."""
    require(Path(path).is_file(), f"there is no model file {path}", ModelFileError)
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            require(hasattr(archive, "files"), "it is a single array", ModelFileError)
            content = {name: archive[name] for name in archive.files}
    except _DAMAGE as error:
        raise ModelFileError(f"{path} is not a whole fedmc model file: {error}") from None
    require(str(content.get("format")) == FORMAT, f"{path} is an .npz file, but not a fedmc model", ModelFileError)
    try:
        version = int(content["version"])
        require(version <= VERSION, f"it has format {version}, this fedmc reads up to {VERSION}; update fedmc")
        return _from_content(content, overrides)
    except UnknownNameError as error:
        cure = "install the plug-in's package, or give an object of your own again: load(path, algorithm=...)"
        raise ModelFileError(f"{path} cannot be read: {error}; {cure}") from None
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        cause = f"{error}" if isinstance(error, FedmcError) else f"{type(error).__name__}: {error}"
        raise ModelFileError(f"{path} cannot be read: {cause}") from None


def _from_content(content: dict[str, Array], overrides: dict[str, Any]) -> Model:
    about = json.loads(str(content["about"]))
    shape = len(content["users"]), len(content["items"])
    ones = np.ones(len(content["seen_indices"]), np.int8)
    seen = sparse.csr_array((ones, content["seen_indices"], content["seen_indptr"]), shape=shape)
    settings = Settings.from_dict({**about["settings"], **overrides})
    _check_arrays(content)
    consistent = content["V"].shape == (shape[1], settings.width) and content["U"].shape == (
        shape[0],
        settings.width,
    )
    require(
        consistent,
        f"the factors {content['U'].shape}, {content['V'].shape} do not fit the ids {shape}",
        DataError,
    )
    scaling = Scaling(about["mean"], about["scale"])
    return Model(
        content["items"],
        content["V"],
        content["users"],
        content["U"],
        seen,
        scaling,
        settings,
        about["clients"],
    )


def _check_arrays(content: dict[str, Array]) -> None:
    """Require finite factors, sorted ids, and a valid table of seen items."""
    for name in ("U", "V"):
        require(
            content[name].dtype.kind == "f" and bool(np.isfinite(content[name]).all()),
            f"{name} is not finite",
            DataError,
        )
    for name in ("users", "items"):
        ids = content[name]
        require(
            ids.dtype.kind in "iU" and bool((ids[1:] > ids[:-1]).all()), f"its {name} are not sorted ids", DataError
        )
    indices, indptr = content["seen_indices"], content["seen_indptr"]
    inside = indices.size == 0 or (indices.min() >= 0 and indices.max() < len(content["items"]))
    ordered = len(indptr) == len(content["users"]) + 1 and indptr[0] == 0 and indptr[-1] == len(indices)
    require(bool(inside and ordered and (np.diff(indptr) >= 0).all()), "its table of seen items is damaged", DataError)


def find_ids(known: Array, wanted: Any, role: str) -> Array:
    """Positions of ids among the sorted known ones; the error for an unknown id names it."""
    ids = as_ids(wanted, role)
    if known.dtype.kind != ids.dtype.kind:
        ids = ids.astype(np.str_) if known.dtype.kind == "U" else _whole_numbers(ids, role)
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    missing = np.flatnonzero(known[places] != ids)
    if len(missing):
        cure = (
            "fold in their ratings to predict for new users"
            if role == "user"
            else "the model knows only items it was trained on"
        )
        raise InputError(f"unknown {role} {ids[missing[0]]!s} ({len(missing)} of {len(ids)} unknown): {cure}")
    return places


def _whole_numbers(ids: Array, role: str) -> Array:
    """Convert texts such as 17 to integers; refuse 017 or x, which cannot be ids of this model."""
    for text in ids:
        if not re.fullmatch(r"0|-?[1-9][0-9]{0,18}", str(text)) or abs(int(text)) >= 2**63:
            raise InputError(f"unknown {role} {text!s}: this model's {role} ids are whole numbers")
    return ids.astype(np.int64)
