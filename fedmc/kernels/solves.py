"""Compiled exact solves of the sub-problem; `reference.py` holds their numpy twins.

Row x with G = sum f f' and b = sum m f minimises

    1/2 x'G x - b'x + sum_a ( l1_a |x_a| + l2_a/2 x_a^2 + rho_a/2 (x_a - anchor_a)^2 ),     lo <= x <= hi

over its free coordinates: by one Cholesky factorisation if it is quadratic and unbounded, else by coordinate descent on
the Gram matrix until no coordinate moves. With `update="curvature"` a client sends G and b of an item, packed: the
lower triangle of G line by line, then b. The contribution of fixed coordinates is subtracted from b.

A system A x = b is stored in one array: A in its first `size` columns, b in the next, lines padded to whole packs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from fedmc.kernels import threads
from fedmc.kernels.compiler import inlined, njit
from fedmc.kernels.gram import BLOCK, add_gram, add_line, copy_first, gram, mirror, whole_packs
from fedmc.kernels.simd import fma, lanes, load, padded, splat, spread, static_length, store, times, total
from fedmc.types import Array, Scalar

MAX_SWEEPS = 2000  # of coordinate descent; usually a few are enough
FEW = 8  # rows of up to this many ratings are packed without forming their Gram matrix


@inlined
def _add_line(A: Array, source: int, target: int, weight: Scalar, start: int) -> None:
    """A[target] += weight A[source], starting with the pack that contains column `start`."""
    step = lanes(A)
    factor = splat(weight)
    for c in range(start // step * step, A.shape[1], step):
        store(A, (target, c), fma(factor, load(A, (source, c)), load(A, (target, c))))


@inlined
def factorise(A: Array, size: int, tiny: Scalar) -> None:
    """A <- R with A = R'R, on and right of the diagonal; a vanishing pivot makes its line 0."""
    step = lanes(A)
    for c in range(size):
        pivot = A[c, c]
        root = A.dtype.type(0) if pivot <= tiny else A.dtype.type(1) / np.sqrt(pivot)  # NaN stays NaN
        for k in range(c // step * step, A.shape[1], step):
            store(A, (c, k), times(splat(root), load(A, (c, k))))
        for a in range(c + 1, size):
            _add_line(A, c, a, -A[c, a], a)


@inlined
def cholesky_solve(A: Array, size: int, x: Array, tiny: Scalar) -> None:
    """x = A^-1 b by Cholesky, on and right of the diagonal; a coordinate with a vanishing pivot is set to 0."""
    step = lanes(A)
    x[:] = 0
    factorise(A, size, tiny)
    for c in range(size - 1, -1, -1):
        sum = splat(x.dtype.type(0))
        for k in range(c // step * step, A.shape[1], step):
            sum = fma(load(A, (c, k)), load(x, k), sum)  # x is still 0 up to column c and beyond the last
        solved = total(sum)
        x[c] = 0 if A[c, c] == 0 else (A[c, size] - solved) / A[c, c]


@inlined
def _descend(A: Array, size: int, x: Array, l1: Array, lo: Array, hi: Array, tolerance: Scalar) -> None:
    """x <- argmin 1/2 x'A x - b'x + l1|x| within the bounds, by coordinate descent from x.

    Line `size` of A is working space.
    """
    for a in range(size):
        A[size, a] = A[a, size]
    for a in range(size):
        _add_line(A, a, size, -x[a], 0)
    coordinate_descent(A, size, x, A[size], l1, lo, hi, tolerance)


@inlined
def coordinate_descent(
    A: Array, size: int, x: Array, rest: Array, l1: Array, lo: Array, hi: Array, tolerance: Scalar
) -> None:
    """x <- argmin 1/2 x'A x - b'x + l1|x| within the bounds, from x with the residual `rest` = b - A x."""
    step = lanes(A)
    for _ in range(MAX_SWEEPS):
        moved = largest = x.dtype.type(0)
        for a in range(size):
            z = rest[a] + A[a, a] * x[a]
            if z > l1[a]:
                z -= l1[a]
            elif z < -l1[a]:
                z += l1[a]
            else:
                z *= x.dtype.type(0)  # NaN stays NaN
            z = min(max(z / A[a, a] if A[a, a] > 0 else x.dtype.type(0), lo[a]), hi[a])
            change = z - x[a]
            factor = splat(-change)
            for c in range(0, A.shape[1], step):
                store(rest, c, fma(factor, load(A, (a, c)), load(rest, c)))
            x[a] = z
            moved, largest = max(moved, abs(change)), max(largest, abs(z))
        if not moved > tolerance * max(largest, x.dtype.type(1)):
            break


@inlined
def _fill(A: Array, G: Array, b: Array, x: Array, free: Array, l2: Array) -> Scalar:
    """Fill A with the system over the free coordinates, the others fixed at x; return the largest diagonal entry."""
    largest = b.dtype.type(0)
    for a in range(free.size):
        i = free[a]
        for c in range(free.size):
            A[a, c] = G[i, free[c]]
        A[a, a] += l2[a]
        largest = max(largest, A[a, a])
        rest = b[i]
        position = 0
        for c in range(x.size):
            if position < free.size and free[position] == c:
                position += 1
            else:
                rest -= G[i, c] * x[c]
        A[a, free.size] = rest
    return largest


@lru_cache
def _exact_rows(line: int, columns: int) -> Callable[..., None]:
    """The loop compiled for these row lengths of G and A; 0 means any length."""

    @njit(cache=True, nogil=True)
    def loop(
        first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
        out: Array, rho: Array, anchor: Array, l1: Array, l2: Array, lo: Array, hi: Array, free: Array, closed: bool,
    ) -> None:  # fmt: skip
        dtype, width, size = out.dtype, out.shape[1], free.size
        wide = line if line > 0 else whole_packs(width, lanes(out))
        long = columns if columns > 0 else whole_packs(size + 1, lanes(out))
        P, m = np.zeros((BLOCK, wide), dtype), np.zeros(BLOCK, dtype)
        G, b = np.zeros((wide, wide), dtype), np.zeros(wide, dtype)
        A, x = np.zeros((size + 1, long), dtype), np.zeros(long, dtype)
        eps = np.finfo(dtype).eps
        for row in range(first, last):
            gram(indptr[row], indptr[row + 1], indices, ratings, shift, inv, F, P, m, G, 0, b)
            if rho.shape[0] > 0:
                here = row if rho.shape[0] > 1 else 0
                for a in range(width):
                    G[a, a] += rho[here, a]
                    b[a] += rho[here, a] * anchor[row, a]
            largest = _fill(A, G, b, out[row], free, l2)
            if closed:
                cholesky_solve(A, size, x, largest * dtype.type(8 * eps))
            else:
                for a in range(size):
                    x[a] = out[row, free[a]]
                _descend(A, size, x, l1, lo, hi, dtype.type(eps ** (2 / 3)))
                A[size] = 0
            for a in range(size):
                out[row, free[a]] = x[a]

    return loop


def exact_rows(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, X: Array, rho: Array,
    anchor: Array, l1: Array, l2: Array, lo: Array, hi: Array, free: Array, closed: bool,
) -> Array:  # fmt: skip
    """The minimiser of each row over its `free` coordinates; the others keep their values in X.

    Penalties have one number per free coordinate. `closed`: no l1 and no bounds, so one Cholesky solves a row.
    """
    ratings_of = indptr, indices, ratings, shift, inv
    return solve_rows(*ratings_of, F, X.copy(), rho, anchor, l1, l2, lo, hi, free, closed)


def solve_rows(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, out: Array, rho: Array,
    anchor: Array, l1: Array, l2: Array, lo: Array, hi: Array, free: Array, closed: bool,
) -> Array:  # fmt: skip
    """`exact_rows`, in place."""
    dtype, line = out.dtype, padded(out.shape[1], out.dtype)
    effort = len(indices) * line * line / 2 + len(out) * len(free) ** 3 / 3
    loop = _exact_rows(static_length(line, dtype), static_length(padded(len(free) + 1, dtype), dtype))
    arguments = indptr, indices, ratings, shift, inv, F, out, rho, anchor, l1, l2, lo, hi, free, closed
    threads.over_rows(loop, indptr, effort, *arguments)
    return out


@inlined
def _gather_free(
    begin: int, end: int, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, fixed: Array,
    free: Array, leading: bool, P: Array, line: int,
) -> None:  # fmt: skip
    """Lines of the free coordinates, followed by the rating minus the prediction of the fixed coordinates."""
    size = free.size
    for k in range(begin, end):
        f, at = F[indices[k]], line + k - begin
        rest = F.dtype.type((ratings[k] - shift) * inv)
        for c in range(size if leading else 0, F.shape[1]):
            rest -= f[c] * fixed[c]
        if leading:
            copy_first(F, indices[k], size, P, at)
        else:
            for a in range(size):
                P[at, a] = f[free[a]]
        P[at, size] = rest


@inlined
def _few(P: Array, plus_lines: int, lines: int, table: Array, out: Array) -> None:
    """The packed Gram of a row with few ratings, from its lines; lines from `plus_lines` on are subtracted."""
    minus = splat(P.dtype.type(-1))
    if plus_lines == 1 and lines == 2:  # the most frequent case in small clients
        for t in range(table.shape[0]):
            a, c = table[t, 0], table[t, 1]
            old = times(spread(P, (1, a)), load(P, (1, c)))
            store(out, table[t, 2], fma(spread(P, (0, a)), load(P, (0, c)), times(minus, old)))
        return
    for t in range(table.shape[0]):
        a, c = table[t, 0], table[t, 1]
        even = odd = splat(P.dtype.type(0))
        for k in range(plus_lines):
            even = fma(spread(P, (k, a)), load(P, (k, c)), even)
        for k in range(plus_lines, lines):
            odd = fma(spread(P, (k, a)), load(P, (k, c)), odd)
        store(out, table[t, 2], fma(minus, odd, even))


@cache
def _table(size: int, pack: int) -> Array:
    """(line, column, place) of the packs that make up a packed row, in the order in which they are written.

    With the rating as one more coordinate, [lower triangle of G, b] is the lower triangle of the larger Gram matrix
    without its last entry. What a pack writes beyond its line is overwritten by the next pack.
    """
    lines = [(a, a * (a + 1) // 2, a + (a < size)) for a in range(size + 1)]
    found = [(a, c, first + c) for a, first, length in lines for c in range(0, length, pack)]
    return np.array(found, np.int64)


@lru_cache
def _packed_rows(line: int) -> Callable[..., None]:
    """As `_exact_rows`. With `targets`, row k is added to line targets[k] of `out`, for lines `first` to `last`."""

    @njit(cache=True, nogil=True)
    def loop(
        first: int, last: int, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
        previous: Array, had_previous: Array, fixed: Array, free: Array, table: Array, targets: Array, out: Array,
    ) -> None:  # fmt: skip
        dtype, size, adding = F.dtype, free.size, targets.size > 0
        leading = size == 0 or free[size - 1] == size - 1  # the free coordinates come first: copied in packs
        wide = line if line > 0 else whole_packs(size + 1, lanes(F))
        P, G = np.zeros((BLOCK, wide), dtype), np.zeros((wide, wide), dtype)
        packed = np.zeros((1, out.shape[1] + lanes(F)), dtype)  # room for the last pack, which may reach beyond the end
        for row in range(0 if adding else first, targets.size if adding else last):
            if adding and (targets[row] < first or targets[row] >= last):
                continue
            start, stop = indptr[row], indptr[row + 1]
            count = stop - start
            both = previous.shape[0] > 0 and count > 0 and had_previous[indices[start]]
            if count <= FEW:
                _gather_free(start, stop, indices, ratings, shift, inv, F, fixed, free, leading, P, 0)
                if both:
                    _gather_free(start, stop, indices, ratings, shift, inv, previous, fixed, free, leading, P, count)
                _few(P, count, 2 * count if both else count, table, packed[0])
            else:
                for begin in range(start, stop, BLOCK):
                    end = min(begin + BLOCK, stop)
                    _gather_free(begin, end, indices, ratings, shift, inv, F, fixed, free, leading, P, 0)
                    add_gram(P, end - begin, G, 0, False, begin == start, False)
                    if both:
                        _gather_free(begin, end, indices, ratings, shift, inv, previous, fixed, free, leading, P, 0)
                        add_gram(P, end - begin, G, 0, False, False, True)
                mirror(G, 0)
                for t in range(table.shape[0]):
                    store(packed[0], table[t, 2], load(G, (table[t, 0], table[t, 1])))
            if adding:
                add_line(packed, 0, out, targets[row])
            else:
                out[row] = packed[0, : out.shape[1]]

    return loop


def packed_grams(
    indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, fixed: Array, free: Array,
    previous: Array | None = None,
) -> Array:  # fmt: skip
    """[lower triangle of G, b] of each row over the `free` coordinates; `fixed` holds the others' values, else 0.

    With `previous` factors, their packed Gram matrices are subtracted.
    """
    out = np.empty((len(indptr) - 1, len(free) * (len(free) + 3) // 2), F.dtype)
    ratings_of = indptr, indices, ratings, shift, inv
    _packed(out, np.empty(0, np.int32), *ratings_of, F, fixed, free, previous, np.ones(len(F), np.bool_))
    return out


def add_packed_grams(
    sums: Array, targets: Array, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
    fixed: Array, free: Array, previous: Array | None, had_previous: Array,
) -> None:  # fmt: skip
    """sums[targets[k]] += the packed Gram of row k, one row after the other.

    `had_previous` marks the rows of F that have a row in `previous`; within a row of ratings, all of them do or none.
    """
    _packed(sums, targets, indptr, indices, ratings, shift, inv, F, fixed, free, previous, had_previous)


def _packed(
    out: Array, targets: Array, indptr: Array, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
    fixed: Array, free: Array, previous: Array | None, had_previous: Array,
) -> None:  # fmt: skip
    size, line = len(free), padded(len(free) + 1, F.dtype)
    others = np.empty((0, F.shape[1]), F.dtype) if previous is None else previous
    effort = len(indices) * line * line * (1 if previous is None else 2) / 2 + 2 * len(indptr) * out.shape[1]
    table = _table(size, padded(1, F.dtype))
    parts = indptr, indices, ratings, shift, inv, F, others, had_previous, fixed, free, table, targets, out
    work = threads.gathered(np.diff(indptr), targets, len(out)) if len(targets) else indptr
    threads.over_rows(_packed_rows(static_length(line, F.dtype)), work, effort, *parts)


@lru_cache
def _solve_packed(columns: int) -> Callable[..., None]:
    """As `_exact_rows`."""

    @njit(cache=True, nogil=True)
    def loop(
        first: int, last: int, S: Array, out: Array, l1: Array, l2: Array, lo: Array, hi: Array, closed: bool
    ) -> None:
        size = out.shape[1]
        long = columns if columns > 0 else whole_packs(size + 1, lanes(out))
        A, x = np.zeros((size + 1, long)), np.zeros(long)
        for row in range(first, last):
            place = 0
            largest = 0.0
            for a in range(size):
                for c in range(a + 1):
                    A[a, c] = A[c, a] = S[row, place]
                    place += 1
                A[a, a] += l2[a]
                largest = max(largest, A[a, a])
            for a in range(size):
                A[a, size] = S[row, place + a]
            if closed:
                cholesky_solve(A, size, x, largest * 1e-12)
            else:
                x[:size] = out[row]
                _descend(A, size, x, l1, lo, hi, 1e-11)
                A[size] = 0
            out[row] = x[:size]

    return loop


def solve_packed(S: Array, X: Array, l1: Array, l2: Array, lo: Array, hi: Array, closed: bool) -> Array:
    """The minimiser of each row from its packed sums, in float64; iterative solves start from X."""
    rows, size = X.shape
    out = X.astype(np.float64)
    effort = rows * (size + 4) ** 3 / 3
    loop = _solve_packed(static_length(padded(size + 1, out.dtype), out.dtype))
    threads.over_rows(loop, np.arange(rows + 1), effort, S, out, l1, l2, lo, hi, closed)
    return out
