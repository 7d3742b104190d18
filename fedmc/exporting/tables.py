"""The numbers of an export as numpy arrays in one .npz file, or as two Parquet tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedmc.data.readers.vectors import Column, Lists, write_vectors
from fedmc.exporting.content import Content
from fedmc.types import Array

ITEMS, USERS, ARRAYS = "items.parquet", "users.parquet", "model.npz"
Given = dict[str, Column | None]


def write_npz(folder: Path, content: Content) -> dict[str, str]:
    """Write all arrays into one file that holds no pickled objects."""
    arrays: dict[str, Any] = dict(arrays_of(content))
    np.savez(folder / ARRAYS, **arrays)
    return {ARRAYS: "all arrays of the formula; read it with numpy.load"}


def arrays_of(content: Content) -> dict[str, Array]:
    """The arrays by name, as the formula names them."""
    items, users, spread = content.items, content.users, content.spread
    found: dict[str, Array | None] = {
        "item_ids": items.ids, "item_titles": items.titles, "item_factors": items.factors, "item_bias": items.bias,
        "item_weights": items.weights,
    }  # fmt: skip
    if users is not None:
        found |= {"user_ids": users.ids, "user_factors": users.factors, "user_bias": users.bias}
        found |= {"seen_indptr": users.seen.indptr, "seen_items": users.seen.indices}
    if spread is not None:
        found |= {"noise": np.array(spread.noise), "item_covariances": spread.item_covariances}
        found |= {"user_covariances": spread.user_covariances, "calibration": spread.calibration}
    numbers = {"mean": content.mean, "scale": content.scale, "low": content.low, "high": content.high}
    found |= {name: np.array(number) for name, number in numbers.items()}
    return {name: array for name, array in found.items() if array is not None}


def write_parquet(folder: Path, content: Content) -> dict[str, str]:
    """Write a table of the items and, unless they are left out, one of the users."""
    items, users, spread = content.items, content.users, content.spread
    of_items: Given = {"item": items.ids, "title": items.titles, "bias": items.bias, "factors": items.factors}
    of_items |= {"weights": items.weights, "covariance": None if spread is None else spread.item_covariances}
    written = _write(folder / ITEMS, of_items)
    if users is None:
        return {ITEMS: written}
    of_users: Given = {"user": users.ids, "bias": users.bias, "factors": users.factors, "seen": _seen(content)}
    of_users["covariance"] = None if spread is None else spread.user_covariances
    return {ITEMS: written, USERS: _write(folder / USERS, of_users)}


def write_ids(folder: Path, content: Content) -> dict[str, str]:
    """Write the same tables without factors: which id belongs to which row, and what each user has rated or had."""
    written = {ITEMS: _write(folder / ITEMS, {"item": content.items.ids, "title": content.items.titles})}
    if content.users is not None:
        written[USERS] = _write(folder / USERS, {"user": content.users.ids, "seen": _seen(content)})
    return written


def _seen(content: Content) -> Lists:
    assert content.users is not None
    return Lists(content.users.seen.indptr.astype(np.int64), content.users.seen.indices)


def _write(path: Path, columns: Given) -> str:
    """Write a table, and describe it."""
    there = {name: column for name, column in columns.items() if column is not None}
    write_vectors(path, there)
    return f"a row for each {next(iter(there))}: {', '.join(there)}"
