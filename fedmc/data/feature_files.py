"""A table of item features inside of a catalogue's JSON file, and the bytes that its hash covers.

Names, rows and titles are plain JSON. The values, mostly of two kinds in a column, are compressed: base64 of zlib of
float64, little-endian, row by row.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import TypedDict

import numpy as np

from fedmc.data.feature_rows import Feature, Features
from fedmc.data.ids import ascending, places
from fedmc.errors import DataError, require
from fedmc.types import Array, number

MAX_COLUMNS = 10_000  # of a file; reading a table makes at most 500


class StoredFeatures(TypedDict):
    """The table in the file."""

    names: list[str]
    rows: list[int]  # the place of each row's item in the catalogue
    encoding: list[list[str | float | None]]  # column, category, mean and scale of each feature
    titles: list[str] | None
    values: str


def stored(features: Features, items: Array) -> StoredFeatures:
    """The table as JSON, its rows in the order of the catalogue."""
    features = _in_order_of(features, items)
    return {
        "names": list(features.names),
        "rows": places(items, features.ids).tolist(),
        "encoding": [list(one) for one in features.encoding],
        "titles": None if features.titles is None else list(features.titles),
        "values": base64.b64encode(zlib.compress(_bytes(features))).decode(),
    }


def restored(content: StoredFeatures, items: Array) -> Features:
    """The table of a file; everything in it is checked."""
    names = tuple(_as_text(name) for name in content["names"])
    rows = np.asarray(content["rows"] or np.empty(0, np.int64))
    ordered = rows.dtype.kind == "i" and rows.ndim == 1 and bool((np.diff(rows) > 0).all())
    inside = ordered and (not len(rows) or (rows[0] >= 0 and rows[-1] < len(items)))
    require(bool(inside), "the rows of its features are not places of its items in order", DataError)
    require(len(names) <= MAX_COLUMNS, f"it has {len(names)} features, at most {MAX_COLUMNS} are read", DataError)
    encoding = tuple(_feature(*one) for one in content["encoding"])
    require(tuple(one.name for one in encoding) == names, "its features are not those of its encoding", DataError)
    titles = None if content["titles"] is None else tuple(_as_text(title) for title in content["titles"])
    require(titles is None or len(titles) == len(rows), "it has not one title for each row of features", DataError)
    values = _values(content["values"], (len(rows), len(names)))
    found = Features(items[rows], names, values, titles, encoding)
    return found if ascending(found.ids) else found.rows(np.argsort(found.ids))


def hashed(features: Features, items: Array) -> bytes:
    """What a hash of the table covers: names, rows, encoding and values, not the titles. Lengths come first."""
    content, features = stored(features, items), _in_order_of(features, items)
    about = json.dumps([content["names"], content["rows"], content["encoding"]]).encode()
    return f"\nfeatures {len(about)} {features.values.nbytes}\n".encode() + about + _bytes(features)


def _in_order_of(features: Features, items: Array) -> Features:
    """The rows in the order of these items, which may have grown at the end."""
    rows = places(items, features.ids)
    return features if ascending(rows) else features.rows(np.argsort(rows))


def _bytes(features: Features) -> bytes:
    return np.ascontiguousarray(features.values, "<f8").tobytes()


def _values(encoded: str, shape: tuple[int, int]) -> Array:
    """The values; no more is decompressed than the shape has room for."""
    size = 8 * math.prod(shape)
    try:
        packed = base64.b64decode(encoded, validate=True)
        raw = zlib.decompressobj().decompress(packed, size + 1)
    except (zlib.error, ValueError, TypeError) as error:
        raise DataError(f"the values of its features are damaged: {error}") from None
    require(len(raw) == size, f"its features should have {size:,} bytes", DataError)
    values = np.frombuffer(raw, "<f8").reshape(shape).astype(np.float64)
    require(bool(np.isfinite(values).all()), "its features hold numbers that are not finite", DataError)
    return values


def _feature(column: object, category: object, mean: object, scale: object) -> Feature:
    return Feature(
        _as_text(column),
        None if category is None else _as_text(category),
        number("the mean of a feature", mean, -1e16, 1e16),
        number("the scale of a feature", scale, 0, 1e16),
    )


def _as_text(value: object) -> str:
    require(isinstance(value, str), f"expected a text, got {value!r:.80}", DataError)
    return str(value)
