"""Ids of users and items: integers if possible, else strings."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike

from fedmc.errors import DataError, quoted, require
from fedmc.types import Array


def as_ids(ids: ArrayLike, role: str) -> Array:
    """Ids as int64 if they are whole numbers, else as strings: types that a file without pickle can hold."""
    try:
        array = np.atleast_1d(np.asarray(ids))
    except ValueError:
        raise DataError(f"{role} ids must be one-dimensional, got lists of different lengths within a list") from None
    require(array.ndim == 1, f"{role} ids must be one-dimensional, got shape {array.shape}", DataError)
    kind = array.dtype.kind
    if kind == "i" or (kind == "u" and array.max(initial=0) < 2**63):
        return array.astype(np.int64)
    if kind == "f":
        whole = (
            np.isfinite(array).all() and np.abs(array).max(initial=0) < 2**53 and bool((array == np.floor(array)).all())
        )
        require(
            whole, f"{role} ids must be whole numbers or strings, got {array.dtype} with fractions or NaN", DataError
        )
        return array.astype(np.int64)
    if kind == "S":
        return np.char.decode(array, "utf-8", "backslashreplace")
    return _object_ids(array, role) if kind == "O" else array.astype(np.str_)


def _object_ids(array: Array, role: str) -> Array:
    """Python objects as integers if all are, else as text; refused if two different ids have the same text."""
    values = array.tolist()
    if all(isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 for value in values):
        return array.astype(np.int64)
    for place, value in enumerate(values):
        missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
        require(not missing, f"{role} id {place + 1} is missing: give every row one", DataError)
        if not isinstance(value, Hashable):
            raise DataError(f"{role} id {place + 1} must be a whole number or a text, got {quoted(value)}")
    texts = [str(value) for value in values]
    require(
        len(set(values)) == len(set(texts)),
        f"{role} ids mix numbers and strings that look alike: use one kind",
        DataError,
    )
    return np.array(texts, dtype=np.str_)


def as_kind_of(ids: Array, others: Array, what: str) -> Array:
    """Ids as whole numbers if the others are, else as strings, so that both can be compared."""
    if ids.dtype.kind == others.dtype.kind:
        return ids
    if others.dtype.kind == "U":
        return ids.astype(np.str_)
    for text in ids.tolist():
        sign = text[1:] if text.startswith("-") else text
        require(
            sign.isascii() and sign.isdigit() and str(int(text)) == text and len(sign) < 19,
            lambda: f"{what} ids are whole numbers in the ratings, but not in the table: got {text!r}",  # noqa: B023
            DataError,
        )
    return ids.astype(np.int64)


def places(known: Array, ids: Array) -> Array:
    """The place of each id among the known ones, -1 if it is not there; 17 and "17" are the same id."""
    if not len(known):
        return np.full(len(ids), -1)
    same = known.dtype.kind == ids.dtype.kind
    texts = known if same else known.astype(np.str_)
    if not same or not ascending(known):
        order = np.argsort(texts)
        found = places(texts[order], ids if same else ids.astype(np.str_))
        return np.where(found >= 0, order[found], -1)
    found = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[found] == ids, found, -1)


def ascending(ids: Array) -> bool:
    """Whether ids are in order, each once: those of a catalogue that has grown are not."""
    return bool((ids[1:] > ids[:-1]).all())
