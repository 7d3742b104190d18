"""Indexes of item vectors for FAISS, by inner product: exact, or approximate by HNSW.

An item's vector is (factors, bias), and a user's query (factors, 1), so that the inner product is the score without
the user's own bias, which does not change the order of items. HNSW searches with the inner product itself. The
reduction to Euclidean distance by one more coordinate, sqrt(max |v|^2 - |v|^2), finds few of the best items if norms
differ much (benchmarks/export.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedmc.errors import InputError
from fedmc.exporting.content import Content
from fedmc.exporting.tables import write_parquet
from fedmc.types import Array

INDEX = "index.faiss"
LINKS = 32  # of an item in the graph of HNSW, on each level but the lowest, which has twice as many
BUILD, SEARCH = 200, 128  # candidates that HNSW keeps while it builds the graph, and while it searches


def write_exact(folder: Path, content: Content) -> dict[str, str]:
    """Write an index that compares a query with all items, and the tables of items and users."""
    return _write(folder, content, lambda faiss, width: faiss.IndexFlatIP(width), "exact")


def write_hnsw(folder: Path, content: Content) -> dict[str, str]:
    """Write an approximate index, and the tables of items and users."""
    return _write(folder, content, _graph, "HNSW")


def vectors_of(content: Content) -> Array:
    """The vectors of the items."""
    items = content.items
    if items.factors is None or items.bias is None:
        raise InputError(
            f"a model of {content.about['algorithm']} has weights from items to items, and no factors that an index "
            "could hold: choose to='npz', 'parquet' or 'onnx'"
        )
    return np.ascontiguousarray(np.hstack([items.factors, items.bias[:, None]]), np.float32)


def _write(folder: Path, content: Content, make: Callable[[Any, int], Any], kind: str) -> dict[str, str]:
    vectors = vectors_of(content)
    faiss = _library()
    index = make(faiss, vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(folder / INDEX))
    told = f"FAISS index ({kind}, inner product) of the vectors (factors, bias) of all items, in the order of the table"
    return {INDEX: told} | write_parquet(folder, content)


def _graph(faiss: Any, width: int) -> Any:
    index = faiss.IndexHNSWFlat(width, LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = BUILD, SEARCH
    return index


def _library() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError("an index needs the package faiss: pip install 'fedmc[faiss]'") from None
    return faiss
