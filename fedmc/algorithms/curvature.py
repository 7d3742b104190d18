"""update="curvature": the penalty beta of FedMC-ADMM taken as a client's own curvature, a matrix for each item.

With beta_i = grad^2_V f_i / p the W half has nothing left to do (W = V, Y = -grad_V f_i(U, V)/p), and what the server
needs of an item is the sum of beta_i W + Y and of beta_i itself over the clients, that is

    G = sum z z'        b = sum m z            over the ratings m of the item, z the factors of the user who gave it.

A round:
    client   U <- argmin f_i(U, V) + R_i(U)          Z <- U + theta (U - U of its last turn)
             and sends the change of (G, b) since its last turn, packed
    server   V <- argmin 1/2 v'G v - b'v + seen R(v)     for each item

With theta = 0 each round is a step of block coordinate descent on the objective of the clients seen so far, which
therefore never goes up; when all clients take part it is alternating least squares on the pooled data. theta > 0 is
over-relaxation. A client remembers its users' factors and V, and works the old (G, b) out anew from the old Z: its
memory does not grow with items x rank^2.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fedmc.algorithms.messages import Sparse
from fedmc.kernels import solves
from fedmc.problem import subproblem
from fedmc.problem.penalties import Coefficients, Penalty, coefficients
from fedmc.problem.subproblem import Problem
from fedmc.types import Array


def columns(width: int, items: Penalty) -> int:
    """Numbers an item: the lower triangle of G, and b, over the coordinates that are not fixed."""
    free = len(_numbers(items, width).free)
    return free * (free + 3) // 2


def packed(by_item: Problem, Z: Array, items: Penalty, less: Array | None = None) -> Array:
    """(G, b) of each item over one client's ratings, the lower triangle of G, then b; minus those of `less`."""
    numbers = _numbers(items, Z.shape[1])
    return solves.packed_grams(*subproblem.raw(by_item), Z, numbers.values.astype(Z.dtype), numbers.free, less)


class Change(Sparse):
    """What clients send: (G, b) of each item they rated, packed, less the same of the factors they last sent it of.

    Users that never `had` any are 0 there.

    It is worked out when it is looked at, and added to sums without being looked at.
    """

    def __init__(
        self, rated: Array, height: int, by_rated: Problem, Z: Array, items: Penalty, less: Array | None, had: Array
    ) -> None:
        self.rows, self.height = rated, height
        self._by_rated, self._Z, self._items, self._less, self._had = by_rated, Z, items, less, had

    @cached_property
    def values(self) -> Array:
        return packed(self._by_rated, self._Z, self._items, self._less)

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, columns(self._Z.shape[1], self._items)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + len(self.rows) * self.shape[1] * self._Z.itemsize)

    def add_to(self, sums: Array) -> None:
        numbers = _numbers(self._items, self._Z.shape[1])
        fixed = numbers.values.astype(self._Z.dtype)
        ratings = subproblem.raw(self._by_rated)
        solves.add_packed_grams(sums, self.rows, *ratings, self._Z, fixed, numbers.free, self._less, self._had)


def next_items(S: Array, V: Array, items: Penalty, seen: int) -> Array:
    """V = argmin 1/2 v'G v - b'v + seen R(v) for each item."""
    numbers = _numbers(items, V.shape[1])
    l1, l2, lo, hi = numbers.of_free(np.float64)
    start = np.ascontiguousarray(V[:, numbers.free], np.float64)
    new = V.copy()
    new[:, numbers.free] = solves.solve_packed(S, start, seen * l1, seen * l2, lo, hi, numbers.closed)
    return new


def subgradient(S: Array, V: Array, items: Penalty, seen: int) -> tuple[Array, Array]:
    """The free coordinates, and (b - G v)/seen: in R's subdifferential at V once V came out of `next_items`."""
    free = _numbers(items, V.shape[1]).free
    G, b = subproblem.unpacked(S)
    return free, (b - np.einsum("jab,jb->ja", G, V[:, free])) / seen


def _numbers(items: Penalty, width: int) -> Coefficients:
    numbers = coefficients(items, width)
    assert numbers is not None  # Settings made sure
    return numbers
