"""Compiled loops that draw the items of synthetic ratings, by popularity and without repeats."""

from __future__ import annotations

import numpy as np
from numba import prange

from fedmc.kernels.compiler import njit
from fedmc.types import Array


@njit(cache=True, nogil=True)
def _next(state: np.uint64) -> tuple[np.uint64, np.uint64]:
    """splitmix64: (new state, 64 random bits)"""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def alias_table(weights: Array) -> tuple[Array, Array]:
    """Walker's alias tables: draw an index k uniformly, keep it with probability keep[k], else take other[k]."""
    n = weights.size
    keep = weights * (n / weights.sum())
    other = np.arange(n).astype(np.int32)
    small = np.empty(n, np.int64)
    large = np.empty(n, np.int64)
    smalls = larges = 0
    for k in range(n):
        if keep[k] < 1:
            small[smalls] = k
            smalls += 1
        else:
            large[larges] = k
            larges += 1
    while smalls and larges:
        smalls -= 1
        low, high = small[smalls], large[larges - 1]
        other[low] = high
        keep[high] -= 1 - keep[low]
        if keep[high] < 1:
            larges -= 1
            small[smalls] = high
            smalls += 1
    for k in range(smalls):
        keep[small[k]] = 1
    for k in range(larges):
        keep[large[k]] = 1
    return keep, other


@njit(cache=True, nogil=True, parallel=True)
def draw_items(indptr: Array, weights: Array, keep: Array, other: Array, seeds: Array, indices: Array) -> None:
    """Fill each row with distinct items, drawn in proportion to `weights` and sorted. A row depends only on its seed.

    Short rows draw and reject repeats; long rows take the items with the smallest exponential keys E/weight.
    """
    n = weights.size
    for row in prange(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        count = stop - start
        state = seeds[row]
        if 8 * count < n:
            taken = np.zeros(n, np.bool_)
            filled = start
            while filled < stop:
                state, bits = _next(state)
                k = np.intp(bits % np.uint64(n))
                state, bits = _next(state)
                if (bits >> np.uint64(11)) * (1.0 / 9007199254740992.0) >= keep[k]:
                    k = np.intp(other[k])
                if not taken[k]:
                    taken[k] = True
                    indices[filled] = k
                    filled += 1
        else:
            keys = np.empty(n)
            for item in range(n):
                state, bits = _next(state)
                keys[item] = -np.log(((bits >> np.uint64(11)) + 1) * (1.0 / 9007199254740993.0)) / weights[item]
            order = np.argsort(keys)
            for place in range(count):
                indices[start + place] = order[place]
        indices[start:stop] = np.sort(indices[start:stop])
