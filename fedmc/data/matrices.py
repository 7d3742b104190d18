"""Sparse matrices in the form that the kernels take: rows of sorted int32 column numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from fedmc.types import Array


def rated_rows(by_user: sparse.csr_array) -> tuple[Array, sparse.csr_array]:
    """The items that were rated, and the ratings of each."""
    items = by_user.shape[1]
    rated = np.flatnonzero(np.bincount(by_user.indices, minlength=items)).astype(np.int32)
    place = np.empty(items, np.int32)
    place[rated] = np.arange(len(rated))
    narrowed = as_csr(by_user.data, place[by_user.indices], by_user.indptr, len(rated))
    return rated, narrow(narrowed.T.tocsr())


def only(matrix: sparse.csr_array, chosen: Array) -> sparse.csr_array:
    """The chosen entries of a matrix, in its shape."""
    before = np.concatenate([[0], np.cumsum(chosen)])
    parts = matrix.data[chosen], matrix.indices[chosen], before[matrix.indptr]
    return narrow(sparse.csr_array(parts, shape=matrix.shape))


def random_entries(matrix: sparse.csr_array, numbers: Array, seed: int) -> Array:
    """A mask of as many random entries of each row."""
    rng, length = np.random.default_rng(seed), np.diff(matrix.indptr)
    order = np.argsort(np.repeat(np.arange(len(length)), length) + rng.random(matrix.nnz))  # by row, then at random
    place = np.empty(matrix.nnz, np.int64)  # of an entry in a random order of its row
    place[order] = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], length)
    return np.asarray(place < np.repeat(numbers, length))


def narrow(matrix: sparse.csr_array) -> sparse.csr_array:
    """Sorted int32 indices, so that each kernel is compiled once and every sum has a fixed order."""
    matrix.sort_indices()
    matrix.indices = matrix.indices.astype(np.int32, copy=False)
    matrix.indptr = matrix.indptr.astype(np.int32, copy=False)
    return matrix


def rows_of(matrix: sparse.csr_array, rows: slice) -> sparse.csr_array:
    """A range of rows, without a copy of the data."""
    indptr = matrix.indptr[rows.start : rows.stop + 1]
    here = slice(indptr[0], indptr[-1])
    return as_csr(matrix.data[here], matrix.indices[here], indptr - indptr[0], matrix.shape[1])


def as_csr(data: Array, indices: Array, indptr: Array, columns: int) -> sparse.csr_array:
    """A CSR matrix from arrays that are already sorted."""
    matrix = sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns), copy=False)
    matrix.has_sorted_indices = True
    return matrix


def without(pattern: sparse.csr_array, *others: sparse.csr_array | None) -> sparse.csr_array:
    """The entries of a pattern that are not stored in any of the other matrices; a stored 0 counts as stored."""
    width = pattern.shape[1]
    keys = _keys(pattern, width)
    chosen = np.ones(pattern.nnz, bool)
    for other in others:
        if other is not None:
            chosen &= ~np.isin(keys, _keys(other, width))
    return only(pattern, chosen)


def _keys(matrix: sparse.csr_array, width: int) -> Array:
    """A number for each stored entry, by its row and column."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return np.asarray(rows * width + matrix.indices)


def stacked(parts: Sequence[sparse.csr_array], moved: Array, columns: int) -> sparse.csr_array:
    """The rows of all parts stacked, with the column numbers of each part increased by `moved`."""
    counts = [len(part.indices) for part in parts]
    starts = np.cumsum([0, *counts[:-1]], dtype=np.int32)
    indptr = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=True)]
    indices = np.concatenate([part.indices for part in parts])
    if moved.any():
        indices += np.repeat(moved, counts)
    data = np.concatenate([part.data for part in parts])
    return as_csr(data, indices, np.concatenate([np.zeros(1, np.int32), *indptr]), columns)
