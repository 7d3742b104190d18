"""Compiled steps of majorise-minimise, the solver for losses other than square; `reference.py` holds their numpy twin.

A step from y replaces the loss, divided by its curvature, by a quadratic that lies above it and touches it at y. With
the pulls g (the gradients at y, divided by the curvature) its minimiser x over one row is

    argmin  1/2 (x - y)'G (x - y) + sum_k g_k f_k'x + sum_a ( l1_a |x_a| + D_a/2 x_a^2 - q_a x_a ),    lo <= x <= hi

with G = sum f f' over the row's ratings. D and q hold the l2 penalty and the coupling. G + D does not change between
steps, so it is factorised once. A row with few ratings is solved by the identity of Woodbury, in as many numbers as it
has ratings:  (G + D)^-1 = D^-1 - D^-1 P' (1 + P D^-1 P')^-1 P D^-1  with the lines f of P. After a step, y moves on by
Nesterov's momentum, which starts again wherever it overshoots.

All arrays of coordinates hold the free ones only, in lines padded to whole packs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.gram import BLOCK, dot, gram
from fedmc.kernels.passes import add_pulls, add_weighted
from fedmc.kernels.simd import fma, lanes, load, splat, store, total
from fedmc.kernels.solves import coordinate_descent, factorise
from fedmc.types import Array, Scalar


class Quadratics(NamedTuple):
    """The quadratic part of each row, which is the same at every step."""

    F: Array  # a line per column of the ratings
    D: Array  # a line per row, or one for all
    q: Array  # a line per row, or none
    l1: Array
    lo: Array
    hi: Array
    size: int  # how many free coordinates there are
    few: int  # rows of up to this many ratings are solved by Woodbury; -1: none
    closed: bool  # neither l1 nor bounds
    A: Array  # per row the Cholesky factor; unless `closed`, G + D itself


class Iterates(NamedTuple):
    """Where the rows are; changed in place."""

    X: Array
    Y: Array
    momentum: Array
    moving: Array  # whether a row's last step was longer than the tolerance


def factorised(indptr: Array, indices: Array, quadratics: Quadratics) -> Quadratics:
    """With A for these ratings."""
    F, D = quadratics.F, quadratics.D
    wide = F.shape[1]
    A = np.zeros((len(indptr) - 1, wide, wide), F.dtype)
    effort = len(indices) * wide * wide / 2 + len(A) * wide**3 / 6
    size, few, closed = quadratics.size, quadratics.few, quadratics.closed
    threads.over_rows(_factorise_rows, indptr, effort, indptr, indices, F, D, size, few, closed, A)
    return quadratics._replace(A=A)


@njit(cache=True, nogil=True)
def _factorise_rows(
    first: int, last: int, indptr: Array, indices: Array, F: Array, D: Array, size: int, few: int, closed: bool,
    A: Array,
) -> None:  # fmt: skip
    dtype, wide = F.dtype, F.shape[1]
    P, m, b, z = np.zeros((BLOCK, wide), dtype), np.zeros(BLOCK, dtype), np.zeros(wide, dtype), np.zeros(wide, dtype)
    nothing = np.zeros(indices.size, dtype)
    for row in range(first, last):
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        diagonal, G = D[row if D.shape[0] > 1 else 0], A[row]
        if count <= few:
            for i in range(count):
                for a in range(size):
                    z[a] = F[indices[start + i], a] / diagonal[a]
                for j in range(i, count):
                    G[i, j] = dot(F, indices[start + j], z)
                G[i, i] += dtype.type(1)
            _cholesky(G, count, dtype.type(0))
            continue
        gram(start, start + count, indices, nothing, dtype.type(0), dtype.type(1), F, P, m, G, 0, b)
        largest = dtype.type(0)
        for a in range(size):
            G[a, a] += diagonal[a]
            largest = max(largest, G[a, a])
        if closed:
            _cholesky(G, size, largest * dtype.type(8 * np.finfo(dtype).eps))


@inlined
def _cholesky(A: Array, size: int, tiny: Scalar) -> None:
    """`factorise`, with the inverse of the pivots on the diagonal and zeros left of it in its packs."""
    factorise(A, size, tiny)
    step = lanes(A)
    for c in range(size):
        A[c, c // step * step : c] = 0
        if A[c, c] != 0:
            A[c, c] = 1 / A[c, c]


def step(
    rows: Array, indptr: Array, indices: Array, pulls: Array, at_X: Array, at_Y: Array, quadratics: Quadratics,
    iterates: Iterates, tolerance: float,
) -> None:  # fmt: skip
    """A step of some rows, which have these ratings; their predictions at X and Y are updated. Overwrites `pulls`."""
    wide, number = quadratics.F.shape[1], quadratics.F.dtype.type
    effort = 2 * len(indices) * wide + len(rows) * wide * wide
    F, D, q, l1, lo, hi, size, few, closed, A = quadratics
    fixed = F, D, q, l1, lo, hi, size, few, closed, A
    given = rows, indptr, indices, pulls, at_X, at_Y
    threads.over_rows(_step_rows, indptr, effort, *given, *fixed, *iterates, number(tolerance))


@njit(cache=True, nogil=True)
def _step_rows(
    first: int, last: int, rows: Array, indptr: Array, indices: Array, pulls: Array, at_X: Array, at_Y: Array,
    F: Array, D: Array, q: Array, l1: Array, lo: Array, hi: Array, size: int, few: int, closed: bool, A: Array,
    X: Array, Y: Array, momentum: Array, moving: Array, tolerance: Scalar,
) -> None:  # fmt: skip
    dtype, wide = F.dtype, F.shape[1]
    s, new, v = np.zeros(wide, dtype), np.zeros(wide, dtype), np.zeros(wide, dtype)
    eps = dtype.type(np.finfo(dtype).eps ** (2 / 3))
    for k in range(first, last):
        row, start, stop = rows[k], indptr[k], indptr[k + 1]
        if not moving[row]:
            continue
        x, y, diagonal = X[row], Y[row], D[row if D.shape[0] > 1 else 0]
        for a in range(size):  # s: the slope at y, downwards
            s[a] = diagonal[a] * y[a]
            if q.shape[0] > 0:
                s[a] -= q[row, a]
        add_pulls(start, stop, indices, pulls, F, s)
        for a in range(size):
            s[a] = -s[a]
        if not closed:
            for a in range(size):
                new[a] = y[a]
            coordinate_descent(A[row], size, new, s, l1, lo, hi, eps)
            for a in range(size):
                s[a] = new[a] - y[a]
        elif stop - start <= few:
            _by_woodbury(start, stop - start, indices, F, diagonal, A[row], s, new, v, size)
        else:
            _substitute(A[row], size, s)
        for j in range(start, stop):  # the predictions at the new x
            pulls[j] = at_Y[j] + dot(F, indices[j], s)
        _move_on(x, y, s, size, start, stop, pulls, at_X, at_Y, momentum, moving, row, tolerance)


@inlined
def _by_woodbury(
    start: int, count: int, indices: Array, F: Array, diagonal: Array, K: Array, s: Array, t: Array, v: Array,
    size: int,
) -> None:  # fmt: skip
    """s <- (G + D)^-1 s; t and v are working space."""
    for a in range(size):
        t[a] = s[a] / diagonal[a]
    v[:] = 0
    for k in range(count):
        v[k] = dot(F, indices[start + k], t)
    _substitute(K, count, v)
    for k in range(count):
        add_weighted(-v[k], F, indices[start + k], s)
    for a in range(size):
        s[a] /= diagonal[a]


@inlined
def _substitute(R: Array, size: int, s: Array) -> None:
    """s <- (R'R)^-1 s; a coordinate with a vanishing pivot becomes 0."""
    step = lanes(R)
    for c in range(size):
        value = s[c] * R[c, c]
        factor = splat(-value)
        for k in range(c // step * step, s.size, step):
            store(s, k, fma(factor, load(R, (c, k)), load(s, k)))
        s[c] = value
    for c in range(size - 1, -1, -1):
        value, s[c] = s[c], 0
        rest = splat(s.dtype.type(0))
        for k in range(c // step * step, s.size, step):
            rest = fma(load(R, (c, k)), load(s, k), rest)
        s[c] = (value - total(rest)) * R[c, c]


@inlined
def _move_on(
    x: Array, y: Array, s: Array, size: int, start: int, stop: int, at_new: Array, at_X: Array, at_Y: Array,
    momentum: Array, moving: Array, row: int, tolerance: Scalar,
) -> None:  # fmt: skip
    """x <- y + s, and y beyond it by the momentum; the same for the predictions."""
    overshot = moved = norm = x.dtype.type(0)
    for a in range(size):
        new = y[a] + s[a]
        moved += (new - x[a]) ** 2
        norm += new**2
    for j in range(start, stop):
        overshot += (at_Y[j] - at_new[j]) * (at_new[j] - at_X[j])
    moving[row] = moved > tolerance**2 * max(norm, x.dtype.type(1e-24))  # a NaN has ended
    before = 1.0 if overshot > 0 else momentum[row]
    after = (1 + np.sqrt(1 + 4 * before**2)) / 2
    further, momentum[row] = x.dtype.type((before - 1) / after), after
    for a in range(size):
        new = y[a] + s[a]
        y[a], x[a] = new + further * (new - x[a]), new
    for j in range(start, stop):
        new = at_new[j]
        at_Y[j], at_X[j] = new + further * (new - at_X[j]), new
