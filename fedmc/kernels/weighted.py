"""Compiled solves of weighted least squares with a common quadratic term; their numpy twins: `tests/test_weighted.py`.

Row x with the factors f and the weights c of its events solves

    (shift + ridge + sum c f f') x = sum c f            shift: a diagonal that all rows share; ridge: a number a row

With n events and m = sqrt(c), let A have the lines m f. A row of few events is solved by the identity of Woodbury, in
n instead of d coordinates: with D = shift + ridge,

    x = D^-1 A' (1 + A D^-1 A')^-1 m

which takes n^2 d instead of n d^2 + d^3 / 3 multiplications. A shift that is not diagonal is made so by a rotation
(`times`): a quadratic term of all pairs, such as V'V, costs one eigendecomposition for all rows.
"""

from __future__ import annotations

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.gram import BLOCK, WHOLE, add_gram, add_lines, mirror, whole_packs
from fedmc.kernels.simd import fma, lanes, load, load_part, padded, splat, spread, store, total
from fedmc.kernels.simd import times as product
from fedmc.kernels.solves import cholesky_solve
from fedmc.types import Array, Scalar

PART = 2048  # rows whose Gram matrix is summed in one go
AFTER = 4  # lines and columns after those of a row's events, which tiles may reach
TINY = 1e-12  # pivots below this share of the largest are taken for 0


@inlined
def gather_scaled(start: int, count: int, indices: Array, roots: Array, F: Array, scale: Array, P: Array) -> None:
    """Lines m f scale of some events, padded with zeros."""
    size, step = F.shape[1], lanes(F)
    whole = size // step * step
    for k in range(count):
        row, root = indices[start + k], splat(roots[start + k])
        for c in range(0, whole, step):
            store(P, (k, c), product(product(root, load(F, (row, c))), load(scale, c)))
        if whole < size:
            part = load_part(F, (row, whole), size - whole)
            store(P, (k, whole), product(product(root, part), load(scale, whole)))


@inlined
def _inner_products(P: Array, n: int, K: Array) -> None:
    """K = P P' on and right of the diagonal, 2 x 4 numbers at a time; P has zeros in the lines after the n first."""
    for a in range(0, n, 2):
        for b in range(a, n, 4):
            p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = splat(P.dtype.type(0))
            for c in range(0, P.shape[1], lanes(P)):
                x, y = load(P, (a, c)), load(P, (a + 1, c))
                z = load(P, (b, c))
                p0, q0 = fma(x, z, p0), fma(y, z, q0)
                z = load(P, (b + 1, c))
                p1, q1 = fma(x, z, p1), fma(y, z, q1)
                z = load(P, (b + 2, c))
                p2, q2 = fma(x, z, p2), fma(y, z, q2)
                z = load(P, (b + 3, c))
                p3, q3 = fma(x, z, p3), fma(y, z, q3)
            K[a, b], K[a, b + 1], K[a, b + 2], K[a, b + 3] = total(p0), total(p1), total(p2), total(p3)
            K[a + 1, b], K[a + 1, b + 1], K[a + 1, b + 2], K[a + 1, b + 3] = total(q0), total(q1), total(q2), total(q3)


@inlined
def few_events(
    start: int, n: int, indices: Array, roots: Array, F: Array, inverse: Array, P: Array, K: Array, y: Array, x: Array
) -> None:
    """The identity of Woodbury; `inverse` is D^-1/2, and P is to hold the lines of A D^-1/2."""
    P[n : n + AFTER] = 0
    K[:] = 0
    gather_scaled(start, n, indices, roots, F, inverse, P)
    _inner_products(P, n, K)
    for k in range(n):
        K[k, n : n + AFTER] = 0
        K[k, k] += x.dtype.type(1)
        K[k, n] = roots[start + k]
    cholesky_solve(K, n, y, x.dtype.type(0))
    add_lines(P, y, n, x, True)
    for c in range(0, x.size, lanes(x)):
        store(x, c, product(load(x, c), load(inverse, c)))


@inlined
def many_events(
    start: int, stop: int, indices: Array, roots: Array, F: Array, shift: Array, ridge: Scalar, ones: Array, P: Array,
    G: Array, b: Array, x: Array,
) -> None:  # fmt: skip
    """One Cholesky factorisation of the whole system."""
    size = F.shape[1]
    for begin in range(start, stop, BLOCK):
        count = min(BLOCK, stop - begin)
        gather_scaled(begin, count, indices, roots, F, ones, P)
        add_gram(P[:BLOCK], count, G, 0, False, begin == start, False)
        add_lines(P, roots[begin : begin + count], count, b, begin == start)
    largest = x.dtype.type(0)
    for c in range(size):
        G[c, c] += shift[c] + ridge
        G[c, size] = b[c]
        largest = max(largest, G[c, c])
    cholesky_solve(G, size, x, largest * x.dtype.type(TINY))


@njit(cache=True, nogil=True)
def _rows(
    first: int, last: int, indptr: Array, indices: Array, roots: Array, F: Array, shift: Array, ridge: Array, out: Array
) -> None:
    dtype, size = out.dtype, F.shape[1]
    wide, long = whole_packs(size + 1, lanes(out)), whole_packs(size + 1 + AFTER, lanes(out))
    P, space = np.zeros((max(size, BLOCK) + AFTER, wide), dtype), np.zeros(long * long, dtype)
    y, b, x = np.zeros(long, dtype), np.zeros(wide, dtype), np.zeros(wide, dtype)
    inverse, ones = np.zeros(wide, dtype), np.ones(wide, dtype)
    for row in range(first, last):
        start, n = indptr[row], indptr[row + 1] - indptr[row]
        if n == 0:
            out[row] = 0
            continue
        if n < size:
            for c in range(size):
                inverse[c] = dtype.type(1) / np.sqrt(shift[c] + ridge[row])
            line = whole_packs(n + AFTER, lanes(out))
            K = space[: line * line].reshape(line, line)
            few_events(start, n, indices, roots, F, inverse, P, K, y[:line], x)
        else:
            G = space[: wide * wide].reshape(wide, wide)
            many_events(start, start + n, indices, roots, F, shift, ridge[row], ones, P, G, b, x)
        out[row] = x[:size]


def solve_events(
    indptr: Array, indices: Array, roots: Array, F: Array, shift: Array, ridge: Array, out: Array | None = None
) -> Array:
    """The solution of each row; `roots` are the square roots of its events' weights."""
    dtype, size = F.dtype, F.shape[1]
    found = np.empty((len(indptr) - 1, size), dtype) if out is None else out
    short = np.minimum(np.diff(indptr).astype(np.float64), size)
    effort = float((short * np.diff(indptr)).sum()) * size
    numbers = np.ascontiguousarray(shift, dtype), np.ascontiguousarray(ridge, dtype)
    threads.over_rows(_rows, indptr, effort, indptr, indices, roots, F, *numbers, found)
    return found


# --- products, with the same bits whatever other rows there are


@njit(cache=True, nogil=True)
def _product(first: int, last: int, X: Array, B: Array, out: Array) -> None:
    """out = X B, each number summed in the order of B's lines; these are padded to pairs of packs, as those of out."""
    inner, step = X.shape[1], lanes(B)
    for row in range(first, last, 4):
        r1, r2, r3 = min(row + 1, last - 1), min(row + 2, last - 1), min(row + 3, last - 1)
        for c in range(0, B.shape[1], 2 * step):
            d = c + step
            p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = splat(out.dtype.type(0))
            for k in range(inner):
                y, z = load(B, (k, c)), load(B, (k, d))
                x = spread(X, (row, k))
                p0, q0 = fma(x, y, p0), fma(x, z, q0)
                x = spread(X, (r1, k))
                p1, q1 = fma(x, y, p1), fma(x, z, q1)
                x = spread(X, (r2, k))
                p2, q2 = fma(x, y, p2), fma(x, z, q2)
                x = spread(X, (r3, k))
                p3, q3 = fma(x, y, p3), fma(x, z, q3)
            store(out, (row, c), p0)
            store(out, (row, d), q0)
            store(out, (r1, c), p1)
            store(out, (r1, d), q1)
            store(out, (r2, c), p2)
            store(out, (r2, d), q2)
            store(out, (r3, c), p3)
            store(out, (r3, d), q3)


def times(X: Array, B: Array) -> Array:
    """X B, row by row: BLAS would round a row in a way that depends on how many others there are."""
    wide = padded(2 * padded(-(-B.shape[1] // 2), X.dtype), X.dtype)
    lines, out = np.zeros((len(B), wide), X.dtype), np.empty((len(X), wide), X.dtype)
    lines[:, : B.shape[1]] = B
    threads.over_rows(_product, np.arange(len(X) + 1), X.size * B.shape[1], np.ascontiguousarray(X), lines, out)
    return np.ascontiguousarray(out[:, : B.shape[1]])


@njit(cache=True, nogil=True)
def _grams(first: int, last: int, X: Array, out: Array) -> None:
    size = X.shape[1]
    P, G = np.zeros((BLOCK, out.shape[1]), X.dtype), np.zeros((out.shape[1], out.shape[1]), X.dtype)
    for part in range(first, last):
        begin, end = part * PART, min((part + 1) * PART, len(X))
        for start in range(begin, end, BLOCK):
            count = min(BLOCK, end - start)
            for k in range(count):
                for c in range(size):
                    P[k, c] = X[start + k, c]
            add_gram(P, count, G, 0, False, start == begin, False)
        mirror(G, 0)
        out[part] = G


def gram_of(X: Array) -> Array:
    """X'X in float64, from parts of so many rows in the type of X, whatever the number of threads."""
    size, parts = X.shape[1], -(-len(X) // PART)
    wide = padded(size, X.dtype)
    found = np.zeros((parts, wide, wide))
    threads.over_rows(_grams, np.arange(parts + 1), X.size * size, np.ascontiguousarray(X), found)
    return np.ascontiguousarray(found.sum(axis=0)[:size, :size])


# --- the sums of a client over its users, item by item


@inlined
def _weighted_lines(start: int, stop: int, indices: Array, roots: Array, F: Array, P: Array) -> None:
    """Lines [m f, m] of some events, padded with zeros."""
    size = F.shape[1]
    for k in range(start, stop):
        f, root = F[indices[k]], roots[k]
        for c in range(size):
            P[k - start, c] = root * f[c]
        P[k - start, size] = root


@inlined
def _add_packed(G: Array, size: int, events: int, line: Array) -> None:
    """line += the lower triangle of G, line by line, with the last number replaced by the number of events."""
    place = 0
    for a in range(size + 1):
        length = min(a + 1, size)
        for c in range(length):
            line[place + c] += G[a, c]
        place += length
    line[place] += events


@njit(cache=True, nogil=True)
def _add_rows(
    first: int, last: int, indptr: Array, indices: Array, roots: Array, F: Array, previous: Array, had_previous: Array,
    targets: Array, sums: Array,
) -> None:  # fmt: skip
    size = F.shape[1]
    wide = whole_packs(size + 1, lanes(F))
    P, G = np.zeros((BLOCK, wide), F.dtype), np.zeros((wide, wide), F.dtype)
    for row in range(targets.size):
        if targets[row] < first or targets[row] >= last:
            continue
        start, stop = indptr[row], indptr[row + 1]
        if stop == start:
            continue
        both = had_previous[indices[start]]
        whole = stop - start < WHOLE
        for begin in range(start, stop, BLOCK):
            end = min(begin + BLOCK, stop)
            _weighted_lines(begin, end, indices, roots, F, P)
            add_gram(P, end - begin, G, 0, whole, begin == start, False)
            if both:
                _weighted_lines(begin, end, indices, roots, previous, P)
                add_gram(P, end - begin, G, 0, whole, False, True)
        if not whole:
            mirror(G, 0)
        _add_packed(G, size, 0 if both else stop - start, sums[targets[row]])


def add_event_sums(
    sums: Array, targets: Array, indptr: Array, indices: Array, roots: Array, F: Array, previous: Array,
    had_previous: Array,
) -> None:  # fmt: skip
    """sums[targets[k]] += [sum c f f' (its lower triangle), sum c f, number of events] of row k, minus what it was.

    `had_previous` marks the rows of F whose part in `sums` was computed from `previous`; within a row of events, all
    of them are or none.
    """
    effort = len(indices) * F.shape[1] ** 2 + len(indptr) * sums.shape[1]
    work = threads.gathered(np.diff(indptr), targets, len(sums))
    threads.over_rows(_add_rows, work, effort, indptr, indices, roots, F, previous, had_previous, targets, sums)


# --- the server's solve


@njit(cache=True, nogil=True)
def _solve_rows(first: int, last: int, sums: Array, common: Array, ridge: Array, out: Array) -> None:
    size = out.shape[1]
    long = whole_packs(size + 1, lanes(out))
    A, x = np.zeros((size, long)), np.zeros(long)
    for row in range(first, last):
        place, largest = 0, 0.0
        for a in range(size):
            for c in range(a + 1):
                A[a, c] = A[c, a] = sums[row, place] + common[a, c]  # both: a pack may begin left of the diagonal
                place += 1
            A[a, a] += ridge[row]
            largest = max(largest, A[a, a])
        for a in range(size):
            A[a, size] = sums[row, place + a]
        cholesky_solve(A, size, x, largest * TINY)
        out[row] = x[:size]


def solve_event_sums(sums: Array, common: Array, ridge: Array) -> Array:
    """(common + ridge + sum c f f') x = sum c f of each row of sums, in float64."""
    out = np.empty((len(sums), len(common)))
    effort = len(sums) * (len(common) + 4) ** 3 / 3
    threads.over_rows(_solve_rows, np.arange(len(sums) + 1), effort, sums, common, ridge, out)
    return out


# --- blocks of coordinates


@njit(cache=True, nogil=True)
def _add_block_rows(
    first: int, last: int, indptr: Array, indices: Array, roots: Array, U: Array, V: Array, begin: int, end: int,
    targets: Array, items: Array, sums: Array,
) -> None:  # fmt: skip
    size = end - begin
    wide = whole_packs(size + 1, lanes(U))
    P, G = np.zeros((BLOCK, wide), U.dtype), np.zeros((wide, wide), U.dtype)
    for row in range(targets.size):
        if targets[row] < first or targets[row] >= last:
            continue
        start, stop = indptr[row], indptr[row + 1]
        if stop == start:
            continue
        whole, v = stop - start < WHOLE, V[items[row]]
        for at in range(start, stop, BLOCK):
            count = min(BLOCK, stop - at)
            for k in range(count):
                u, root = U[indices[at + k]], roots[at + k]
                error = U.dtype.type(1)
                for c in range(u.size):
                    error -= u[c] * v[c]
                for c in range(size):
                    P[k, c] = root * u[begin + c]
                P[k, size] = root * error
            add_gram(P, count, G, 0, whole, at == start, False)
        if not whole:
            mirror(G, 0)
        _add_packed(G, size, stop - start, sums[targets[row]])


def add_block_sums(
    sums: Array, targets: Array, items: Array, events: tuple[Array, Array, Array], U: Array, V: Array,
    block: tuple[int, int],
) -> None:  # fmt: skip
    """sums[targets[k]] += [sum c u_B u_B' (its lower triangle), sum c (1 - u'v) u_B, number of events] of row k.

    `events` are (indptr, indices, square roots of c); B are the coordinates of the block (first, end), and v is line
    items[k] of V.
    """
    indptr, indices, roots = events
    size = block[1] - block[0]
    effort = len(indices) * (size**2 + U.shape[1]) + len(indptr) * sums.shape[1]
    work = threads.gathered(np.diff(indptr), targets, len(sums))
    threads.over_rows(_add_block_rows, work, effort, indptr, indices, roots, U, V, *block, targets, items, sums)
