"""Compiled proximal gradient steps; `reference.py` holds a plain numpy twin of each, its oracle in tests.

Rows of U are independent given W, and rows of W given U, so one kernel serves both halves. Row x with ratings
m_k of the columns k depends on the other side's factors F only through

    G = sum_k f_k f_k'        b = sum_k m_k f_k        gradient = G x - b

so that, once G and b are known, a step costs r^2 operations instead of a pass over the ratings. `rho` and `anchor` hold
the coupling rho/2 (x - anchor)^2 of the W half; rho has a row for each row of X, or one for all, or none (the U half,
which is not coupled). Ratings are read as (m - shift) * inv, so that centring and scaling need no copy of the data.

Each loop works on the rows from `first` to `last`; `threads.over_rows` divides the rows among threads. A row's
arithmetic does not depend on that division: the same seed gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.gram import (
    BLOCK,
    ScaledRatings,
    add_gram,
    add_line,
    add_residuals,
    copy_row,
    dot,
    gather,
    gram,
    whole_packs,
)
from fedmc.kernels.simd import (
    SHORT,
    clip,
    fma,
    lanes,
    load,
    padded,
    plus,
    soft,
    splat,
    spread,
    static_length,
    store,
    times,
    total,
)
from fedmc.types import Array, Scalar

ADDED = 4  # cost of adding a number to memory, in multiply-adds
GROUP = 4  # number of short rows whose steps are interleaved, which hides the latency of the arithmetic


@inlined
def affine(M: Array, q: Array, x: Array, place: int, now: int, width: int) -> None:
    """x <- q + M'x for one row of the group: reads line `now` of the row's two lines and writes the other."""
    size, step = M.shape[1], lanes(M)
    top, old, new = place * size, 2 * place + now, 2 * place + 1 - now
    zero = splat(M.dtype.type(0))
    for c in range(0, size - step, 2 * step):
        d = c + step
        y0, z0, y1, z1 = load(q, (place, c)), load(q, (place, d)), zero, zero
        for k in range(0, width, 2):
            u, v = spread(x, (old, k)), spread(x, (old, k + 1))
            y0, z0 = fma(u, load(M, (top + k, c)), y0), fma(u, load(M, (top + k, d)), z0)
            y1, z1 = fma(v, load(M, (top + k + 1, c)), y1), fma(v, load(M, (top + k + 1, d)), z1)
        store(x, (new, c), plus(y0, y1))
        store(x, (new, d), plus(z0, z1))
    if size // step % 2:
        c = size - step
        y0, y1 = load(q, (place, c)), zero
        for k in range(0, width, 2):
            y0 = fma(spread(x, (old, k)), load(M, (top + k, c)), y0)
            y1 = fma(spread(x, (old, k + 1)), load(M, (top + k + 1, c)), y1)
        store(x, (new, c), plus(y0, y1))


@inlined
def by_gram(count: int, width: int, N: int) -> bool:
    """Whether N steps by the Gram matrix cost less than N passes over a row's ratings (in rough nanoseconds)."""
    square = width * width
    gram = count * (4 + square // 28) + 50 + square // 6 + N * (3 + square // 14)
    again = 7 + width // 4 if count > BLOCK else 0
    return gram < N * (count * (7 + width // 7 + again) + 10 + width * 4 // 5)


@inlined
def _prox(x: Array, line: int, l1: Array, scale: Array, lo: Array, hi: Array) -> None:
    """x <- clip( soft(x, l1) scale, lo, hi )  in one line."""
    for c in range(0, x.shape[1], lanes(x)):
        z = times(soft(load(x, (line, c)), load(l1, c)), load(scale, c))
        store(x, (line, c), clip(z, load(lo, c), load(hi, c)))


@inlined
def _take_steps(
    M: Array, q: Array, x: Array, rows: Array, held: int, l1: Array, scale: Array, lo: Array, hi: Array, N: int,
    smooth: bool, out: Array,
) -> None:  # fmt: skip
    """N steps of each row in the group, written to `out`."""
    for n in range(N):
        for place in range(held):
            affine(M, q, x, place, n % 2, out.shape[1])
            if not smooth:
                _prox(x, 2 * place + 1 - n % 2, l1, scale, lo, hi)
    for place in range(held):
        for a in range(out.shape[1]):
            out[rows[place], a] = x[2 * place + N % 2, a]


@inlined
def _step_map(
    M: Array, q: Array, place: int, width: int, step: Scalar, scale: Array, E: Array, tie: Array, line: Array,
    smooth: bool,
) -> None:  # fmt: skip
    """Turn G and b into the map of one step, x <- prox(q + M x): M = I - step G, q = step b + pull.

    Without l1 and bounds (`smooth`), the rest of the prox is part of M and q.
    """
    one, top = M.dtype.type(1), place * M.shape[1]
    for c in range(0, M.shape[1], lanes(M)):
        factor = load(scale, c) if smooth else splat(one)
        negative = times(splat(-step), factor)
        for k in range(width):
            store(M, (top + k, c), fma(negative, load(M, (top + k, c)), load(E, (k, c))))
        pull = times(load(tie, (0, c)), load(line, (0, c)))
        store(q, (place, c), times(factor, fma(splat(step), load(q, (place, c)), pull)))


@inlined
def _pass_steps(
    start: int, stop: int, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, P: Array, m: Array,
    x: Array, g: Array, tie: Array, line: Array, l1: Array, scale: Array, lo: Array, hi: Array, step: Scalar, N: int,
) -> None:  # fmt: skip
    """N steps of a row, each with a pass over its ratings; it uses the last two lines of x."""
    zero, pack, first = splat(g.dtype.type(0)), lanes(g), x.shape[0] - 2
    for n in range(N):
        old, new = first + n % 2, first + 1 - n % 2
        for c in range(0, g.size, pack):
            store(g, c, zero)
        for begin in range(start, stop, BLOCK):
            end = min(begin + BLOCK, stop)
            if n == 0 or stop - start > BLOCK:
                gather(begin, end, indices, ratings, shift, inv, F, P, m)
            add_residuals(P, m, end - begin, x[old], g)
        for c in range(0, g.size, pack):
            z = fma(splat(-step), load(g, c), load(x, (old, c)))
            store(x, (new, c), fma(load(tie, (0, c)), load(line, (0, c)), z))
        _prox(x, new, l1, scale, lo, hi)


@inlined
def _all_rows(
    first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
    out: Array, rho: Array, anchor: Array, keep: Array, numbers: Array, step: Scalar, N: int, passes: bool, free: bool,
    smooth: bool, M: Array, q: Array, x: Array, rows: Array, P: Array, m: Array, tie: Array, line: Array, E: Array,
    g: Array, scale: Array,
) -> None:  # fmt: skip
    width, one, held, last_lines = out.shape[1], out.dtype.type(1), 0, x.shape[0] - 2
    scaled = False
    l1, l2, lo, hi = numbers[0], numbers[1], numbers[2], numbers[3]
    for row in range(first, last):
        start, stop = indptr[row], indptr[row + 1]
        here = row if rho.shape[0] > 1 else 0
        if start == stop and free:
            for a in range(width):
                out[row, a] = keep[here, a] * out[row, a] + (one - keep[here, a]) * anchor[row, a]
            continue
        if not scaled or rho.shape[0] > 1:
            scaled = True
            if rho.shape[0] > 0:
                copy_row(rho, here, tie, 0)
            for a in range(width):
                scale[a] = one / (one + l2[a] + tie[0, a])
                E[a, a] = scale[a] if smooth else one
        if rho.shape[0] > 0:
            copy_row(anchor, row, line, 0)
        if passes or not by_gram(stop - start, width, N):
            copy_row(out, row, x, last_lines)
            _pass_steps(start, stop, indices, ratings, shift, inv, F, P, m, x, g, tie, line, l1, scale, lo, hi, step, N)
            for a in range(width):
                out[row, a] = x[last_lines + N % 2, a]
            continue
        copy_row(out, row, x, 2 * held)
        gram(start, stop, indices, ratings, shift, inv, F, P, m, M, held * M.shape[1], q[held])
        _step_map(M, q, held, width, step, scale, E, tie, line, smooth)
        rows[held] = row
        held += 1
        if held == rows.size:
            _take_steps(M, q, x, rows, held, l1, scale, lo, hi, N, smooth, out)
            held = 0
    _take_steps(M, q, x, rows, held, l1, scale, lo, hi, N, smooth, out)


@inlined
def anchor_range(first: int, last: int, V: Array, Y: Array, beta: Array, out: Array) -> None:
    """V - Y/beta, on flat arrays; beta holds one number, or one for each entry."""
    if beta.size == 1:
        only = beta[0]
        for k in range(first, last):
            out[k] = V[k] - Y[k] / only
        return
    for k in range(first, last):
        out[k] = V[k] - Y[k] / beta[k]


@inlined
def dual_range(
    first: int, last: int, V: Array, W_old: Array, Y_old: Array, W: Array, beta: Array, step: Scalar, Y: Array,
    change: Array,
) -> bool:  # fmt: skip
    """Y = Y_old + step beta (W - V) and the change of beta W + Y, on flat arrays; returns whether both are finite."""
    zero, minus, one = splat(V.dtype.type(0)), splat(V.dtype.type(-1)), beta.size == 1
    pack, bad, rest = lanes(V), splat(V.dtype.type(0)), V.dtype.type(0)
    whole = first + (last - first) // pack * pack
    for k in range(first, whole, pack):
        weight, w = splat(beta[0]) if one else load(beta, k), load(W, k)
        move = times(times(splat(step), weight), fma(minus, load(V, k), w))
        store(Y, k, plus(load(Y_old, k), move))
        grown = fma(weight, fma(minus, load(W_old, k), w), move)
        store(change, k, grown)
        bad = fma(grown, zero, bad)  # 0, or NaN
    for k in range(whole, last):
        weight = beta[0] if one else beta[k]
        moved = step * weight * (W[k] - V[k])
        Y[k] = Y_old[k] + moved
        change[k] = weight * (W[k] - W_old[k]) + moved
        rest += change[k] * V.dtype.type(0)
    return bool(total(bad) + rest == 0)


@lru_cache
def _prox_rows(line: int) -> Callable[..., None]:
    """The loop compiled for this row length; 0 means any length.

    `tied` holds V, the old W, the old Y and beta on flat arrays, or nothing. With it the loop computes the
    anchors first and takes the dual step last; `anchor` then holds the change of beta W + Y.
    """

    @njit(cache=True, nogil=True)
    def loop(
        first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
        X: Array, out: Array, rho: Array, anchor: Array, keep: Array, numbers: Array, step: Scalar, N: int,
        passes: bool, free: bool, smooth: bool, tied: tuple[Array, ...], dual: Scalar, Y: Array, finite: Array,
    ) -> None:  # fmt: skip
        dtype, width = out.dtype, out.shape[1]
        size = line if line > 0 else numbers.shape[1]
        group = GROUP if smooth and size <= SHORT else 1
        M, q = np.zeros((group * size, size), dtype), np.zeros((group, size), dtype)
        x, rows = np.zeros((2 * group + 2, size), dtype), np.zeros(group, np.int64)
        P, m = np.zeros((BLOCK, size), dtype), np.zeros(BLOCK, dtype)
        tie, target, E = np.zeros((1, size), dtype), np.zeros((1, size), dtype), np.zeros((size, size), dtype)
        g, scale = np.zeros(size, dtype), np.ones(size, dtype)
        V, W_old, Y_old, beta = tied
        begin, end, change = first * width, last * width, anchor.reshape(-1)
        if V.size > 0:
            anchor_range(begin, end, V, Y_old, beta, change)
        out[first:last] = X[first:last]
        _all_rows(
            first, last, indptr, indices, ratings, shift, inv, F, out, rho, anchor, keep, numbers, step, N, passes,
            free, smooth, M, q, x, rows, P, m, tie, target, E, g, scale,
        )  # fmt: skip
        if V.size > 0 and not dual_range(begin, end, V, W_old, Y_old, out.reshape(-1), beta, dual, Y, change):
            finite[0] = False

    return loop


class Lines(NamedTuple):
    """A separable penalty for the loops: l1, l2, lo and hi, one padded line each."""

    numbers: Array
    smooth: bool  # no l1 and no bounds
    free: bool  # no penalty at all

    @classmethod
    def of(cls, l1: Array, l2: Array, lo: Array, hi: Array) -> Lines:
        numbers = np.zeros((4, padded(len(l1), l1.dtype)), l1.dtype)
        numbers[2], numbers[3] = -np.inf, np.inf
        numbers[:, : len(l1)] = l1, l2, lo, hi
        smooth = not (l1.any() or np.isfinite(lo).any() or np.isfinite(hi).any())
        return cls(numbers, smooth, smooth and not l2.any())


def prox_steps(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array, rho: Array,
    anchor: Array, l1: Array, l2: Array, lo: Array, hi: Array, L: Scalar, N: int, passes: bool,
) -> Array:  # fmt: skip
    """N times  x <- prox_{R/L}( x - (G x - b)/L )  for each row x of X; returns the new rows.

    A row without ratings that is coupled and otherwise free has a closed form: x = k x + (1 - k) anchor with
    k = (L/(L + rho))^N. `passes`: a pass over the ratings for each step, without the Gram matrix.
    """
    return steps((indptr, indices, ratings, shift, inv), F, X, rho, anchor, Lines.of(l1, l2, lo, hi), L, N, passes)


def steps(
    ratings_of: ScaledRatings, F: Array, X: Array, rho: Array, anchor: Array, lines: Lines, L: Scalar, N: int,
    passes: bool,
) -> Array:  # fmt: skip
    """`prox_steps` with the penalty as `Lines`."""
    nothing, out = np.empty(0, X.dtype), np.empty_like(X)
    untied = (nothing, nothing, nothing, nothing), X.dtype.type(0), nothing, np.empty(0, np.bool_)
    _steps(out, ratings_of, F, X, rho, anchor, lines, L, N, passes, *untied)
    return out


def item_steps(
    ratings_of: ScaledRatings, U: Array, W: Array, V: Array, Y: Array, beta: Array, clients: int, lines: Lines,
    L: Scalar, N: int, passes: bool, dual: float,
) -> tuple[Array, Array, Array, bool]:  # fmt: skip
    """`steps` of W towards V - Y/beta and `dual_step` fused: W, Y, the change of beta W + Y, and whether it is finite.

    beta has a row for each item, or one for all.
    """
    W_new, Y_new, change, finite = np.empty_like(Y), np.empty_like(Y), np.empty_like(Y), np.ones(1, np.bool_)
    one = beta[:1, :1] if len(beta) == 1 else beta
    tied = V.reshape(-1), W.reshape(-1), Y.reshape(-1), one.reshape(-1)
    more = tied, W.dtype.type(dual), Y_new.reshape(-1), finite
    _steps(W_new, ratings_of, U, W, clients * beta, change, lines, L, N, passes, *more)
    return W_new, Y_new, change, bool(finite[0])


def _steps(
    out: Array, ratings_of: ScaledRatings, F: Array, X: Array, rho: Array, anchor: Array, lines: Lines, L: Scalar,
    N: int, passes: bool, tied: tuple[Array, ...], dual: Scalar, Y: Array, finite: Array,
) -> None:  # fmt: skip
    (rows, width), (indptr, indices, *_) = X.shape, ratings_of
    step = X.dtype.type(1 / L)
    free = lines.free and len(rho) > 0
    keep = (L / (L + rho)) ** N if free else rho
    numbers = lines.numbers * np.array([[step], [step], [1], [1]], X.dtype)
    effort = len(indices) * width * (2 * N if passes else width / 2) + rows * N * width * 4
    loop = _prox_rows(static_length(numbers.shape[1], X.dtype))
    threads.over_rows(
        loop, indptr, effort, *ratings_of, F, X, out, rho * step, anchor, keep, numbers, step, N, passes, free,
        lines.smooth, tied, dual, Y, finite,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _gradient_rows(
    first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
    X: Array, out: Array, size: int,
) -> None:  # fmt: skip
    P, m = np.zeros((BLOCK, size), X.dtype), np.zeros(BLOCK, X.dtype)
    line, g = np.zeros((1, size), X.dtype), np.zeros(size, X.dtype)
    for row in range(first, last):
        copy_row(X, row, line, 0)
        g[:] = 0
        for begin in range(indptr[row], indptr[row + 1], BLOCK):
            end = min(begin + BLOCK, indptr[row + 1])
            gather(begin, end, indices, ratings, shift, inv, F, P, m)
            add_residuals(P, m, end - begin, line[0], g)
        for a in range(X.shape[1]):
            out[row, a] = g[a]


def gradient_rows(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array
) -> Array:
    """G x - b for each row x of X, in residual form."""
    out, size = np.empty_like(X), padded(X.shape[1], X.dtype)
    effort = len(indices) * size * 4
    threads.over_rows(_gradient_rows, indptr, effort, indptr, indices, ratings, shift, inv, F, X, out, size)
    return out


@njit(cache=True, nogil=True)
def _squared_errors(
    first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
    X: Array, out: Array, size: int,
) -> None:  # fmt: skip
    P, m, line = np.zeros((BLOCK, size), X.dtype), np.zeros(BLOCK, X.dtype), np.zeros((1, size), X.dtype)
    for row in range(first, last):
        copy_row(X, row, line, 0)
        for begin in range(indptr[row], indptr[row + 1], BLOCK):
            end = min(begin + BLOCK, indptr[row + 1])
            gather(begin, end, indices, ratings, shift, inv, F, P, m)
            for k in range(end - begin):
                e = np.float64(dot(P, k, line[0]) - m[k])
                out[row] += e * e


def squared_errors(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array
) -> Array:
    """sum_k (x'f_k - m_k)^2 for each row x of X, in float64."""
    out, size = np.zeros(len(X)), padded(X.shape[1], X.dtype)
    effort = len(indices) * size * 3
    threads.over_rows(_squared_errors, indptr, effort, indptr, indices, ratings, shift, inv, F, X, out, size)
    return out


@njit(cache=True)
def frobenius(F: Array) -> Scalar:
    """||F'F||_F"""
    size = whole_packs(F.shape[1], lanes(F))
    P, G = np.zeros((BLOCK, size), F.dtype), np.zeros((size, size), F.dtype)
    for begin in range(0, F.shape[0], BLOCK):
        end = min(begin + BLOCK, F.shape[0])
        for k in range(begin, end):
            copy_row(F, k, P, k - begin)
        add_gram(P, end - begin, G, 0, False, begin == 0, False)
    squares = 0.0
    for a in range(F.shape[1]):
        squares += np.float64(G[a, a]) ** 2
        for c in range(a + 1, F.shape[1]):
            squares += 2 * np.float64(G[a, c]) ** 2
    return np.sqrt(squares)


# Short loops hold the GIL: releasing and reacquiring it takes longer than the loops.


@njit(cache=True)
def _anchors(V: Array, Y: Array, beta: Array, out: Array) -> None:
    anchor_range(0, V.size, V, Y, beta, out)


def anchors(V: Array, Y: Array, beta: float | Array) -> Array:
    """V - Y/beta"""
    out = np.empty_like(V)
    _anchors(V.reshape(-1), Y.reshape(-1), np.asarray(beta, V.dtype).reshape(-1), out.reshape(-1))
    return out


@njit(cache=True)
def _dual_step(
    V: Array, W_old: Array, Y_old: Array, W: Array, beta: Array, step: Scalar, Y: Array, change: Array
) -> bool:
    return bool(dual_range(0, V.size, V, W_old, Y_old, W, beta, step, Y, change))


def dual_step(
    V: Array, W_old: Array, Y_old: Array, W: Array, beta: float | Array, step: float
) -> tuple[Array, Array, bool]:
    """Y = Y_old + step beta (W - V), the change of beta W + Y, and whether both are finite."""
    Y, change = np.empty_like(W), np.empty_like(W)
    flat = [array.reshape(-1) for array in (V, W_old, Y_old, W, np.asarray(beta, W.dtype))]
    finite = _dual_step(*flat, W.dtype.type(step), Y.reshape(-1), change.reshape(-1))
    return Y, change, bool(finite)


@njit(cache=True, nogil=True)
def _add_rows(first: int, last: int, sums: Array, rows: Array, values: Array) -> None:
    for k in range(rows.size):
        if first <= rows[k] < last:
            add_line(values, k, sums, rows[k])


def add_rows(sums: Array, rows: Array, values: Array) -> None:
    """sums[rows] += values, one row after the other."""
    if values.ndim == 1:
        np.add.at(sums, rows, values)
        return
    effort = values.size * ADDED
    threads.over_rows(_add_rows, threads.gathered(np.ones(len(rows)), rows, len(sums)), effort, sums, rows, values)
