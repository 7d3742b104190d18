"""Compiled building blocks of the kernels: gather the factors of a row's ratings, and compute their Gram matrix.

The factors of up to BLOCK ratings are gathered into lines that are padded to whole packs (`simd`). The Gram matrix
is summed in tiles of 4 lines and 2 packs that stay in registers over the block. Nothing here allocates memory.
"""

from __future__ import annotations

from fedmc.kernels.compiler import inlined
from fedmc.kernels.simd import fma, lanes, load, load_part, plus, splat, spread, store, times, total
from fedmc.types import Array, Scalar

ScaledRatings = tuple[Array, Array, Array, Scalar, Scalar]  # indptr, indices, ratings, shift, 1/scale

BLOCK = 64  # ratings whose factors are gathered at a time
WHOLE = 12  # below this many ratings, computing the whole Gram is faster than computing half of it and mirroring


@inlined
def whole_packs(count: int, pack: int) -> int:
    """`count` rounded up to whole packs."""
    return (count + pack - 1) // pack * pack


@inlined
def copy_first(F: Array, row: int, width: int, P: Array, line: int) -> None:
    """P[line] = the first `width` numbers of F[row], then zeros in the padding."""
    step = lanes(F)
    whole = width // step * step
    for c in range(0, whole, step):
        store(P, (line, c), load(F, (row, c)))
    if whole < width:
        store(P, (line, whole), load_part(F, (row, whole), width - whole))


@inlined
def copy_row(F: Array, row: int, P: Array, line: int) -> None:
    """P[line] = F[row], then zeros in the padding."""
    copy_first(F, row, F.shape[1], P, line)


@inlined
def add_line(values: Array, line: int, sums: Array, row: int) -> None:
    """sums[row] += values[line], without its padding"""
    source, target = values[line], sums[row]
    for c in range(target.size):
        target[c] += source[c]


@inlined
def gather(
    start: int, stop: int, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array, P: Array, m: Array
) -> None:
    """Gather the factors and the scaled ratings of one block."""
    for k in range(start, stop):
        copy_row(F, indices[k], P, k - start)
        m[k - start] = (ratings[k] - shift) * inv


@inlined
def add_gram(P: Array, count: int, G: Array, top: int, whole: bool, fresh: bool, minus: bool) -> None:
    """G += sum p p' (`minus`: -=) over the first lines of P: the `whole` G, or the packs on and right of the diagonal.

    G starts at line `top`; `fresh` overwrites it instead of adding.
    """
    width, step = P.shape[1], lanes(P)
    zero, sign = splat(P.dtype.type(0)), splat(P.dtype.type(-1 if minus else 1))
    for a in range(0, width, 4):
        c, t = 0 if whole else a // step * step, top + a
        while c + step < width:
            d = c + step
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            if not fresh:
                a0, a1, a2, a3 = load(G, (t, c)), load(G, (t + 1, c)), load(G, (t + 2, c)), load(G, (t + 3, c))
                b0, b1, b2, b3 = load(G, (t, d)), load(G, (t + 1, d)), load(G, (t + 2, d)), load(G, (t + 3, d))
            for k in range(count):
                p, q = times(sign, load(P, (k, c))), times(sign, load(P, (k, d)))
                x = spread(P, (k, a))
                a0, b0 = fma(x, p, a0), fma(x, q, b0)
                x = spread(P, (k, a + 1))
                a1, b1 = fma(x, p, a1), fma(x, q, b1)
                x = spread(P, (k, a + 2))
                a2, b2 = fma(x, p, a2), fma(x, q, b2)
                x = spread(P, (k, a + 3))
                a3, b3 = fma(x, p, a3), fma(x, q, b3)
            store(G, (t, c), a0)
            store(G, (t + 1, c), a1)
            store(G, (t + 2, c), a2)
            store(G, (t + 3, c), a3)
            store(G, (t, d), b0)
            store(G, (t + 1, d), b1)
            store(G, (t + 2, d), b2)
            store(G, (t + 3, d), b3)
            c += 2 * step
        if c < width:
            a0 = a1 = a2 = a3 = zero
            if not fresh:
                a0, a1, a2, a3 = load(G, (t, c)), load(G, (t + 1, c)), load(G, (t + 2, c)), load(G, (t + 3, c))
            for k in range(count):
                p = times(sign, load(P, (k, c)))
                a0 = fma(spread(P, (k, a)), p, a0)
                a1 = fma(spread(P, (k, a + 1)), p, a1)
                a2 = fma(spread(P, (k, a + 2)), p, a2)
                a3 = fma(spread(P, (k, a + 3)), p, a3)
            store(G, (t, c), a0)
            store(G, (t + 1, c), a1)
            store(G, (t + 2, c), a2)
            store(G, (t + 3, c), a3)


@inlined
def add_lines(P: Array, m: Array, count: int, b: Array, fresh: bool) -> None:
    """b += sum m p over the first lines of P."""
    for c in range(0, P.shape[1], lanes(P)):
        even = odd = splat(P.dtype.type(0))
        if not fresh:
            even = load(b, c)
        for k in range(0, count - 1, 2):
            even = fma(spread(m, k), load(P, (k, c)), even)
            odd = fma(spread(m, k + 1), load(P, (k + 1, c)), odd)
        if count % 2:
            even = fma(spread(m, count - 1), load(P, (count - 1, c)), even)
        store(b, c, plus(even, odd))


@inlined
def mirror(G: Array, top: int) -> None:
    """Fill the packs left of the diagonal from those on the right."""
    step = lanes(G)
    for a in range(step, G.shape[1]):
        for c in range(a // step * step):
            G[top + a, c] = G[top + c, a]


@inlined
def gram(
    start: int, stop: int, indices: Array, ratings: Array, shift: Scalar, inv: Scalar, F: Array,
    P: Array, m: Array, G: Array, top: int, b: Array,
) -> None:  # fmt: skip
    """G = sum f f' and b = sum m f over one row's ratings; P and m are working space, G starts at line `top`."""
    whole = stop - start < WHOLE
    end = min(start + BLOCK, stop)
    gather(start, end, indices, ratings, shift, inv, F, P, m)
    add_gram(P, end - start, G, top, whole, True, False)
    add_lines(P, m, end - start, b, True)
    for begin in range(start + BLOCK, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        gather(begin, end, indices, ratings, shift, inv, F, P, m)
        add_gram(P, end - begin, G, top, whole, False, False)
        add_lines(P, m, end - begin, b, False)
    if not whole:
        mirror(G, top)


@inlined
def dot(P: Array, line: int, x: Array) -> Scalar:
    """p'x"""
    sum = splat(P.dtype.type(0))
    for c in range(0, P.shape[1], lanes(P)):
        sum = fma(load(P, (line, c)), load(x, c), sum)
    return total(sum)


@inlined
def add_residuals(P: Array, m: Array, count: int, x: Array, g: Array) -> None:
    """g += sum (p'x - m) p over the first lines of P."""
    for k in range(count):
        e = splat(dot(P, k, x) - m[k])
        for c in range(0, P.shape[1], lanes(P)):
            store(g, c, fma(e, load(P, (k, c)), load(g, c)))
