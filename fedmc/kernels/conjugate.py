"""Compiled conjugate gradients for the systems of `weighted`: approximate, but much faster at large ranks.

With D = shift + ridge, the lines m f D^-1/2 of a row's n events as P, and x = D^-1/2 y, the system of a row is

    (1 + P'P) y = P'm

The diagonal D makes its condition small, so few steps are enough; a step takes 2 n d multiplications. Rows of few
events are solved exactly, by Woodbury's identity, and rows of very many by one factorisation.
"""

from __future__ import annotations

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.gram import BLOCK, add_lines, whole_packs
from fedmc.kernels.simd import fma, lanes, load, plus, splat, store, times, total
from fedmc.kernels.weighted import AFTER, few_events, gather_scaled, many_events
from fedmc.types import Array, Scalar

EXACT = 16  # rows of fewer events are solved exactly
MAX_LINES = 4096  # rows of more are, too
MAX_STEPS = 12


@inlined
def _normal(P: Array, n: int, x: Array, out: Array) -> None:
    """out = x + P'P x, four lines at a time; the lines after the n first are 0."""
    step, wide = lanes(P), P.shape[1]
    for c in range(0, wide, step):
        store(out, c, load(x, c))
    for k in range(0, n, 4):
        s0 = s1 = s2 = s3 = splat(P.dtype.type(0))
        for c in range(0, wide, step):
            y = load(x, c)
            s0, s1 = fma(load(P, (k, c)), y, s0), fma(load(P, (k + 1, c)), y, s1)
            s2, s3 = fma(load(P, (k + 2, c)), y, s2), fma(load(P, (k + 3, c)), y, s3)
        t0, t1, t2, t3 = splat(total(s0)), splat(total(s1)), splat(total(s2)), splat(total(s3))
        for c in range(0, wide, step):
            even = fma(t0, load(P, (k, c)), fma(t1, load(P, (k + 1, c)), load(out, c)))
            odd = fma(t2, load(P, (k + 2, c)), times(t3, load(P, (k + 3, c))))
            store(out, c, plus(even, odd))


@inlined
def _inner(x: Array, y: Array) -> Scalar:
    found = splat(x.dtype.type(0))
    for c in range(0, x.size, lanes(x)):
        found = fma(load(x, c), load(y, c), found)
    return total(found)


@inlined
def _add(x: Array, factor: Scalar, y: Array, out: Array) -> None:
    """out = x + factor y"""
    for c in range(0, x.size, lanes(x)):
        store(out, c, fma(splat(factor), load(y, c), load(x, c)))


@inlined
def _descend(P: Array, n: int, y: Array, r: Array, p: Array, q: Array, tolerance: Scalar) -> None:
    """y solves (1 + P'P) y = r, up to `tolerance` times the norm of r; r, p and q are working space."""
    y[:] = 0
    _add(r, P.dtype.type(0), y, p)
    square = _inner(r, r)
    enough = tolerance * tolerance * square
    for _ in range(MAX_STEPS):
        if not square > enough:
            break
        _normal(P, n, p, q)
        factor = square / _inner(p, q)
        _add(y, factor, p, y)
        _add(r, -factor, q, r)
        before, square = square, _inner(r, r)
        _add(r, square / before, p, p)


@njit(cache=True, nogil=True)
def _rows(
    first: int, last: int, indptr: Array, indices: Array, roots: Array, F: Array, shift: Array, ridge: Array,
    tolerance: Scalar, longest: int, out: Array,
) -> None:  # fmt: skip
    dtype, size = out.dtype, F.shape[1]
    wide, long = whole_packs(size + 1, lanes(out)), whole_packs(size + 1 + AFTER, lanes(out))
    P, space = np.zeros((max(longest, BLOCK) + AFTER, wide), dtype), np.zeros(long * long, dtype)
    y, r, p, q = np.zeros(wide, dtype), np.zeros(wide, dtype), np.zeros(wide, dtype), np.zeros(long, dtype)
    inverse, ones = np.zeros(wide, dtype), np.ones(wide, dtype)
    for row in range(first, last):
        start, n = indptr[row], indptr[row + 1] - indptr[row]
        for c in range(size):
            inverse[c] = dtype.type(1) / np.sqrt(shift[c] + ridge[row])
        if n == 0:
            y[:] = 0
        elif n < min(EXACT, size):
            line = whole_packs(n + AFTER, lanes(out))
            few_events(start, n, indices, roots, F, inverse, P, space[: line * line].reshape(line, line), q[:line], y)
        elif n > longest:
            G = space[: wide * wide].reshape(wide, wide)
            many_events(start, start + n, indices, roots, F, shift, ridge[row], ones, P, G, r, y)
        else:
            P[n : n + AFTER] = 0
            gather_scaled(start, n, indices, roots, F, inverse, P)
            add_lines(P, roots[start : start + n], n, r, True)
            _descend(P, n, y, r, p, q, tolerance)
            for c in range(0, wide, lanes(out)):
                store(y, c, times(load(y, c), load(inverse, c)))
        out[row] = y[:size]


def descend_events(
    indptr: Array, indices: Array, roots: Array, F: Array, shift: Array, ridge: Array, tolerance: float
) -> Array:
    """The solution of each row, up to `tolerance` times the norm of its right hand side; as `solve_events` else."""
    dtype, size, number = F.dtype, F.shape[1], np.diff(indptr)
    found = np.empty((len(number), size), dtype)
    longest = int(min(number.max(initial=0), MAX_LINES))
    numbers = np.ascontiguousarray(shift, dtype), np.ascontiguousarray(ridge, dtype), dtype.type(tolerance), longest
    threads.over_rows(_rows, indptr, 8.0 * len(indices) * size, indptr, indices, roots, F, *numbers, found)
    return found
