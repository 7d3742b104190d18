"""The compiled inner loops; `reference.py` holds a plain numpy twin of each, which is its oracle.

Rows of U are independent given W, and rows of W given U, so one kernel serves both halves. Row x with ratings
m_k of the columns k needs of the other side's factors F only

    G = sum_k f_k f_k'        b = sum_k m_k f_k        gradient = G x - b

after which a step costs r^2 instead of a pass over the ratings. `rho` and `anchor` hold the coupling
rho/2 (x - anchor)^2 of the W-half; rho has a row for each row of X, or one for all, or none (the U-half, not coupled).
Ratings are read as (m - shift) * inv, so that centring and scaling need no copy of the data.

How it is fast: the factors of up to BLOCK ratings are gathered into lines that are padded to whole packs (`lanes`), and
the Gram grows by tiles of 4 lines and 2 packs that stay in registers over the block. Each loop works on the rows from
`first` to `last`; `threads.over_rows` shares them out. A row's arithmetic never depends on how: same seed, same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit as _njit
from numpy.typing import NDArray

from fedmc import threads
from fedmc.lanes import BYTES, clip, fma, load, padded, plus, soft, splat, store, times, total

Array = NDArray[Any]

njit: Callable[..., Any] = _njit  # its own type hints describe another class

BLOCK = 64  # ratings whose factors are gathered at a time


@njit(cache=True, nogil=True, forceinline=True)
def copy_row(F: Array, row: int, P: Array, line: int) -> None:
    """P[line, :width] = F[row]; the padding of P stays as it is."""
    width, step = F.shape[1], BYTES // F.itemsize
    if width < step:
        for c in range(width):
            P[line, c] = F[row, c]
        return
    for c in range(0, width - step, step):
        store(P, (line, c), load(F, (row, c)))
    store(P, (line, width - step), load(F, (row, width - step)))  # may overlap what was just written


@njit(cache=True, nogil=True, forceinline=True)
def gather(
    start: int, stop: int, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, P: Array, m: Array
) -> None:
    """The factors and the scaled ratings of one block."""
    for k in range(start, stop):
        copy_row(F, indices[k], P, k - start)
        m[k - start] = (ratings[k] - shift) * inv


@njit(cache=True, nogil=True, forceinline=True)
def add_gram(P: Array, count: int, G: Array) -> None:
    """G += sum p p' over the first lines of P: the packs on and right of the diagonal."""
    width, step = P.shape[1], BYTES // P.itemsize
    for a in range(0, width, 4):
        c = a // step * step
        while c + step < width:
            d = c + step
            a0, a1, a2, a3 = load(G, (a, c)), load(G, (a + 1, c)), load(G, (a + 2, c)), load(G, (a + 3, c))
            b0, b1, b2, b3 = load(G, (a, d)), load(G, (a + 1, d)), load(G, (a + 2, d)), load(G, (a + 3, d))
            for k in range(count):
                p, q = load(P, (k, c)), load(P, (k, d))
                x = splat(P[k, a])
                a0, b0 = fma(x, p, a0), fma(x, q, b0)
                x = splat(P[k, a + 1])
                a1, b1 = fma(x, p, a1), fma(x, q, b1)
                x = splat(P[k, a + 2])
                a2, b2 = fma(x, p, a2), fma(x, q, b2)
                x = splat(P[k, a + 3])
                a3, b3 = fma(x, p, a3), fma(x, q, b3)
            store(G, (a, c), a0)
            store(G, (a + 1, c), a1)
            store(G, (a + 2, c), a2)
            store(G, (a + 3, c), a3)
            store(G, (a, d), b0)
            store(G, (a + 1, d), b1)
            store(G, (a + 2, d), b2)
            store(G, (a + 3, d), b3)
            c += 2 * step
        if c < width:
            a0, a1, a2, a3 = load(G, (a, c)), load(G, (a + 1, c)), load(G, (a + 2, c)), load(G, (a + 3, c))
            for k in range(count):
                p = load(P, (k, c))
                a0 = fma(splat(P[k, a]), p, a0)
                a1 = fma(splat(P[k, a + 1]), p, a1)
                a2 = fma(splat(P[k, a + 2]), p, a2)
                a3 = fma(splat(P[k, a + 3]), p, a3)
            store(G, (a, c), a0)
            store(G, (a + 1, c), a1)
            store(G, (a + 2, c), a2)
            store(G, (a + 3, c), a3)


@njit(cache=True, nogil=True, forceinline=True)
def add_lines(P: Array, m: Array, count: int, b: Array) -> None:
    """b += sum m p over the first lines of P."""
    for c in range(0, P.shape[1], BYTES // P.itemsize):
        even = load(b, c)
        odd = splat(P.dtype.type(0))
        for k in range(0, count - 1, 2):
            even = fma(splat(m[k]), load(P, (k, c)), even)
            odd = fma(splat(m[k + 1]), load(P, (k + 1, c)), odd)
        if count % 2:
            even = fma(splat(m[count - 1]), load(P, (count - 1, c)), even)
        store(b, c, plus(even, odd))


@njit(cache=True, nogil=True, forceinline=True)
def mirror(G: Array) -> None:
    """The packs left of the diagonal, from those on the right."""
    step = BYTES // G.itemsize
    for a in range(step, G.shape[0]):
        for c in range(a // step * step):
            G[a, c] = G[c, a]


@njit(cache=True, nogil=True, forceinline=True)
def gram(
    start: int, stop: int, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array,
    P: Array, m: Array, G: Array, b: Array,
) -> None:  # fmt: skip
    """G = sum f f' and b = sum m f over one row's ratings; P and m are working space."""
    G[:] = 0
    b[:] = 0
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        gather(begin, end, indices, ratings, shift, inv, F, P, m)
        add_gram(P, end - begin, G)
        add_lines(P, m, end - begin, b)
    mirror(G)


@njit(cache=True, nogil=True, forceinline=True)
def affine(M: Array, q: Array, x: Array, now: int) -> None:
    """The other line of x = q + M'(line `now` of x)."""
    width = M.shape[0]
    for c in range(0, width, BYTES // M.itemsize):
        z0 = load(q, c)
        z1 = z2 = z3 = splat(M.dtype.type(0))
        for k in range(0, width, 4):
            z0 = fma(splat(x[now, k]), load(M, (k, c)), z0)
            z1 = fma(splat(x[now, k + 1]), load(M, (k + 1, c)), z1)
            z2 = fma(splat(x[now, k + 2]), load(M, (k + 2, c)), z2)
            z3 = fma(splat(x[now, k + 3]), load(M, (k + 3, c)), z3)
        store(x, (1 - now, c), plus(plus(z0, z1), plus(z2, z3)))


@njit(cache=True, nogil=True, forceinline=True)
def dot(P: Array, line: int, x: Array) -> Any:
    """p'x"""
    sum = splat(P.dtype.type(0))
    for c in range(0, P.shape[1], BYTES // P.itemsize):
        sum = fma(load(P, (line, c)), load(x, c), sum)
    return total(sum)


@njit(cache=True, nogil=True, forceinline=True)
def add_residuals(P: Array, m: Array, count: int, x: Array, g: Array) -> None:
    """g += sum (p'x - m) p over the first lines of P."""
    for k in range(count):
        e = splat(dot(P, k, x) - m[k])
        for c in range(0, P.shape[1], BYTES // P.itemsize):
            store(g, c, fma(e, load(P, (k, c)), load(g, c)))


@njit(cache=True, nogil=True, forceinline=True)
def by_gram(count: int, width: int, N: int) -> bool:
    """Whether N steps by the Gram cost less than N passes over a row's ratings, in nanoseconds or so."""
    gram = count * (6 + width * width // 25) + N * (10 + width * width // 8)
    again = 7 + width // 4 if count > BLOCK else 0
    return gram < N * (count * (8 + width * 2 // 5 + again) + 10 + width // 4)


@njit(cache=True, nogil=True, forceinline=True)
def _prox(x: Array, line: int, l1: Array, scale: Array, lo: Array, hi: Array) -> None:
    """One line of x <- clip( soft(x, l1) scale, lo, hi )"""
    for c in range(0, x.shape[1], BYTES // x.itemsize):
        z = times(soft(load(x, (line, c)), load(l1, c)), load(scale, c))
        store(x, (line, c), clip(z, load(lo, c), load(hi, c)))


@njit(cache=True, nogil=True)
def _prox_rows(
    first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, out: Array,
    rho: Array, anchor: Array, keep: Array, numbers: Array, step: Any, N: int, passes: bool, free: bool, smooth: bool,
) -> None:  # fmt: skip
    """rho, l1 and l2 come times the step. A step by the Gram is x <- prox(q + M x), M = I - step G, q = step b + pull;
    where there is neither l1 nor a bound (`smooth`) the rest of the prox goes into M and q.
    """
    width, dtype = out.shape[1], out.dtype
    size, pack = numbers.shape[1], BYTES // out.itemsize
    P, M = np.zeros((BLOCK, size), dtype), np.zeros((size, size), dtype)
    m, q, g, x = np.zeros(BLOCK, dtype), np.zeros(size, dtype), np.zeros(size, dtype), np.zeros((2, size), dtype)
    pull, scale = np.zeros(size, dtype), np.ones(size, dtype)
    one = dtype.type(1)
    l1, l2, lo, hi = numbers[0], numbers[1], numbers[2], numbers[3]
    for a in range(width):
        scale[a] = one / (one + l2[a] + (rho[0, a] if rho.shape[0] == 1 else dtype.type(0)))
    for row in range(first, last):
        start, stop = indptr[row], indptr[row + 1]
        here = row if rho.shape[0] > 1 else 0
        if start == stop and free:
            for a in range(width):
                out[row, a] = keep[here, a] * out[row, a] + (one - keep[here, a]) * anchor[row, a]
            continue
        if rho.shape[0] > 0:
            for a in range(width):
                pull[a] = rho[here, a] * anchor[row, a]
        if rho.shape[0] > 1:
            for a in range(width):
                scale[a] = one / (one + l2[a] + rho[here, a])
        copy_row(out, row, x, 0)
        count = stop - start
        if not passes and by_gram(count, width, N):
            gram(start, stop, indices, ratings, shift, inv, F, P, m, M, q)
            for k in range(width):
                for c in range(0, size, pack):
                    z = times(splat(-step), load(M, (k, c)))
                    store(M, (k, c), times(z, load(scale, c)) if smooth else z)
                M[k, k] += scale[k] if smooth else one
            for c in range(0, size, pack):
                z = fma(splat(step), load(q, c), load(pull, c))
                store(q, c, times(z, load(scale, c)) if smooth else z)
            for n in range(N):
                affine(M, q, x, n % 2)
                if not smooth:
                    _prox(x, 1 - n % 2, l1, scale, lo, hi)
        else:
            for n in range(N):
                g[:] = 0
                for begin in range(start, stop, BLOCK):
                    end = min(begin + BLOCK, stop)
                    if n == 0 or count > BLOCK:
                        gather(begin, end, indices, ratings, shift, inv, F, P, m)
                    add_residuals(P, m, end - begin, x[n % 2], g)
                for c in range(0, size, pack):
                    store(x, (1 - n % 2, c), plus(fma(splat(-step), load(g, c), load(x, (n % 2, c))), load(pull, c)))
                _prox(x, 1 - n % 2, l1, scale, lo, hi)
        for a in range(width):
            out[row, a] = x[N % 2, a]


def prox_steps(
    indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array, rho: Array, anchor: Array,
    l1: Array, l2: Array, lo: Array, hi: Array, L: Any, N: int, passes: bool,
) -> Array:  # fmt: skip
    """N times  x <- prox_{R/L}( x - (G x - b)/L )  for each row x of X; returns the new rows.

    A row without ratings that is coupled and otherwise free has a closed form: x = k x + (1 - k) anchor with
    k = (L/(L + rho))^N. `passes`: never by the Gram, but with a pass over the ratings for each step.
    """
    out, (rows, width) = X.copy(), X.shape
    step = 1 / L
    smooth = not (l1.any() or np.isfinite(lo).any() or np.isfinite(hi).any())
    free = bool(len(rho)) and smooth and not l2.any()
    keep = (L / (L + rho)) ** N if free else rho
    numbers = np.zeros((4, padded(width, X.dtype)), X.dtype)
    numbers[2], numbers[3] = -np.inf, np.inf
    numbers[:, :width] = step * l1, step * l2, lo, hi
    effort = len(indices) * width * (2 * N if passes else width / 2) + rows * N * width * 4
    arguments = (
        indptr, indices, ratings, shift, inv, F, out, rho * step, anchor, keep, numbers, X.dtype.type(step), N, passes,
        free, smooth,
    )  # fmt: skip
    threads.over_rows(_prox_rows, indptr, effort, *arguments)
    return out


@njit(cache=True, nogil=True)
def _gradient_rows(
    first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array,
    out: Array, size: int,
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


def gradient_rows(indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array) -> Array:
    """G x - b for each row x of X, in residual form."""
    out, size = np.empty_like(X), padded(X.shape[1], X.dtype)
    effort = len(indices) * size * 4
    threads.over_rows(_gradient_rows, indptr, effort, indptr, indices, ratings, shift, inv, F, X, out, size)
    return out


@njit(cache=True, nogil=True)
def _squared_errors(
    first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array,
    out: Array, size: int,
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


def squared_errors(indptr: Array, indices: Array, ratings: Array, shift: Any, inv: Any, F: Array, X: Array) -> Array:
    """sum_k (x'f_k - m_k)^2 for each row x of X, in float64."""
    out, size = np.zeros(len(X)), padded(X.shape[1], X.dtype)
    effort = len(indices) * size * 3
    threads.over_rows(_squared_errors, indptr, effort, indptr, indices, ratings, shift, inv, F, X, out, size)
    return out


@njit(cache=True, nogil=True)
def square(F: Array, size: int) -> Array:
    """F'F, on and right of the diagonal, in lines padded to `size`."""
    P, G = np.zeros((BLOCK, size), F.dtype), np.zeros((size, size), F.dtype)
    for begin in range(0, F.shape[0], BLOCK):
        end = min(begin + BLOCK, F.shape[0])
        for k in range(begin, end):
            copy_row(F, k, P, k - begin)
        add_gram(P, end - begin, G)
    return G


def frobenius(F: Array) -> float:
    """||F'F||_F"""
    G = square(F, padded(F.shape[1], F.dtype)).astype(np.float64)
    upper = np.triu(G, 1)
    return float(np.sqrt(2 * np.vdot(upper, upper) + np.square(np.diag(G)).sum()))


def warm_up(dtype: Any, ratings_dtype: Any) -> None:
    """Compile (or load from the disk cache) the kernels of this file, so that no round pays for it."""
    number = np.dtype(dtype).type
    shift = np.dtype(ratings_dtype).type(0)
    ratings = np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, ratings_dtype), shift, shift
    F = X = np.zeros((0, 1), dtype)
    zeros = [np.zeros(1, dtype)] * 4
    prox_steps(*ratings, F, X, F, F, *zeros, number(1), 1, False)
    gradient_rows(*ratings, F, X)
    squared_errors(*ratings, F, X)
    square(F, padded(1, dtype))
