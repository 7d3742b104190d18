"""The O(1/K) rate of the theory: the constant of its bound, the rate that a run shows, and a beta that has the bound.

With dist_k the bound on dist(0, dPhi) of round k (`Convergence.stationarity`), the second theorem says

    E min_k dist_k^2  <=  1/K sum_k E dist_k^2  <=  C (L^0 - alpha) / K

L^0 is the augmented Lagrangian at the start. For alpha, 0 is taken: losses and penalties are nowhere below it.
The derivation is in docs/explanation/algorithm.md.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

DECADE = 10  # the slope is fitted to the rounds from K / 10 to K
MARGIN = 2.0  # of a suggested beta over the threshold: C is smallest near 1.5, and constants differ between runs


class Constants(NamedTuple):
    """Bounds on the Lipschitz constants of all clients along a run."""

    L: float  # of grad_V f(., W), from U of a round to U of the next
    L_bar: float  # of grad_V f(., V), from U to U_bar of the same round
    kappa: float  # of grad_U f(U_bar, .), from W to V
    L_U: tuple[float, float]  # the smallest and the largest of grad_V f(U, .)
    L_V: tuple[float, float]  # the smallest and the largest of grad_U f(., W)


class Setting(NamedTuple):
    """The numbers of a run that the theorems name."""

    beta: float
    N: int  # inner steps
    p: int  # clients
    p_min: float  # the smallest probability of a client to take part


def threshold(known: Constants, run: Setting) -> float:
    """The condition on beta: both `decreases` are positive above it."""
    _, N, p, p_min = run
    users = 8 * N * known.L**2 / (p * known.L_V[0])
    items = 8 * (8 + N) * known.L_U[1] ** 2 / (p_min * p * known.L_U[0])
    return max(users, items)


def decreases(known: Constants, run: Setting) -> tuple[float, float]:
    """By how much the Lagrangian falls, in expectation, for a squared inner step of U and of W: (1216r)."""
    beta, N, p, p_min = run
    users = known.L_V[0] / (2 * p) - 4 * N * known.L**2 / (p**2 * beta)
    items = p_min * known.L_U[0] / (2 * p) - 4 * (8 + N) * known.L_U[1] ** 2 / (p**2 * beta)
    return users, items


def constant(known: Constants, run: Setting) -> float | None:
    """C; None unless beta is above the threshold.

    Each number is a bound on a sum over all rounds and clients, for L^0 - alpha = 1.
    """
    beta, N, p, p_min = run
    users, items = decreases(known, run)
    if not min(users, items) > 0:
        return None
    L_U, L_V = known.L_U[1], known.L_V[1]
    moved_U, moved_W = 1 / users, 1 / items  # squared inner steps: (1217c), (1217b)
    from_W = (2 * N * (p * beta) ** 2 + 8 * (8 + N) * L_U**2) * moved_W
    apart = (from_W + 8 * N * known.L**2 * moved_U) / (p_min * (p * beta) ** 2)  # ||W - V||^2: (1217d)
    ahead = moved_U / p_min  # ||U_bar - U||^2: (1217e)
    of_V = 3 / p * (known.L_bar**2 * ahead + (L_U + p * beta) ** 2 * apart + 4 * L_U**2 * moved_W)  # (1128b)
    of_U = (8 * L_V**2 * ahead + 2 * known.kappa**2 * apart) / p**2
    return of_V + of_U


def suggested(needed: float) -> float | None:
    """A beta above the threshold with a margin, in two digits.

    The constants are those of another beta. They hardly change between large ones, so that a second suggestion holds.
    """
    if not 0 < needed < math.inf:
        return None
    unit = 10.0 ** (math.floor(math.log10(MARGIN * needed)) - 1)
    return float(f"{math.ceil(MARGIN * needed / unit) * unit:.2g}")


def slope(numbers: Sequence[int], smallest: Sequence[float]) -> float | None:
    """Least squares of log(smallest so far) on log(K), over the last decade of K; None before round 10."""
    K = numbers[-1] if numbers else 0
    since = bisect_left(numbers, K / DECADE)
    if K < DECADE or len(numbers) - since < 2 or smallest[-1] <= 0:
        return None
    x, y = np.log(np.asarray(numbers[since:])), np.log(np.asarray(smallest[since:]))
    x -= x.mean()
    return float(x @ y / (x @ x))


class Rate(NamedTuple):
    """What is known after a round; None if it is not."""

    min_dist2: float | None = None
    dist2_bound: float | None = None
    dist2_slope: float | None = None


@dataclass
class Progress:
    """The measured rounds of a run so far, round 0 apart."""

    start: float | None = None  # L^0
    numbers: array[int] = field(default_factory=lambda: array("q"))
    smallest: array[float] = field(default_factory=lambda: array("d"))  # dist^2 so far

    def add(self, number: int, lagrangian: float | None, stationarity: float | None, C: float | None) -> Rate:
        """Add a measured round. If not all rounds are measured, K counts those that are: the sum holds for them too."""
        if number == 0:
            self.start = lagrangian
        if stationarity is None:
            return Rate()
        before = self.smallest[-1] if self.smallest else math.inf
        self.numbers.append(number)
        self.smallest.append(min(before, stationarity**2))
        known = C is not None and self.start is not None and math.isfinite(C * self.start)
        bound = C * self.start / len(self.numbers) if known else None  # type: ignore[operator]
        return Rate(self.smallest[-1], bound, slope(self.numbers, self.smallest))


def in_words(found: Mapping[str, object]) -> list[str]:
    """The rate of a run and, if the theorem could certify one with another beta, that beta."""
    smallest, bound, steep = (found.get(name) for name in Rate._fields)
    needed, beta = found.get("beta_needed"), found.get("beta_suggested")
    said = []
    if isinstance(smallest, float):
        said.append(f"The smallest dist(0, dPhi)^2 so far is {smallest:.3g}.")
    if isinstance(bound, float):
        said.append(f"The theorem bounds its expectation by C (L^0 - alpha)/K = {bound:.3g}.")
    if isinstance(steep, float):
        said.append(f"Over the last decade of K it falls as K^{steep:.2f}; the theorem's bound falls as K^-1.")
    if isinstance(beta, float) and not found.get("certified"):
        said.append(f"With this run's constants the theorem asks for a beta above {needed:.3g}: try --beta {beta:g}.")
    return said
