"""What the messages of FedMC-ADMM leak: W and Y can be tracked, and with them the gradient.

Whoever sees the messages of FedMC-ADMM can compute W and Y. The server knows V, beta, p and the dual step d, and from
S+ = beta W+ + Y+ and Y+ = Y + d beta (W+ - V) it gets

    Y+ = ( Y + d (S+ - beta V) ) / (1 + d)        W+ = ( S+ - Y+ ) / beta

so that sending only the change of S is cheaper, but not more private. Then p (Y + beta (W+ - V)) is, row by row, minus
the gradient ("pulls" below): the sum of (m - u'w_j) u over the users who rated item j, and 0 if nobody did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmc.algorithms.beta import beta_of
from fedmc.algorithms.leakage import Leakage, Observation, Pulls, residual, some
from fedmc.algorithms.messages import Broadcast
from fedmc.problem.losses import Square
from fedmc.types import Array


class ADMMLeakage(Leakage):
    """Linearised FedMC-ADMM: W and Y can be tracked, and unrated rows follow one law."""

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        first, *later = track(seen)
        return [first.pulls, *map(self.off_the_law, later)]

    def off_the_law(self, update: Tracked) -> Array:
        return _off_the_steps(update)

    def pulls(self, seen: Sequence[Observation]) -> list[Pulls]:
        return [Pulls(update.pulls, update.W_after) for update in track(seen)]

    def accounted(
        self, broadcast: Broadcast, cohort: Sequence[int], before: Mapping[int, Array], parts: Mapping[str, Array]
    ) -> Array | float:
        moved = sum(broadcast.V - before[client] if client in before else broadcast.V for client in cohort)
        return np.asarray(beta_of(broadcast) * moved)


class ExactLeakage(ADMMLeakage):
    """Exact W updates: an unrated row of W equals that of V."""

    def off_the_law(self, update: Tracked) -> Array:
        exact = isinstance(update.broadcast.settings.make_loss(), Square)
        return update.pulls if exact else _off_the_steps(update)


class ExplicitLeakage(ADMMLeakage):
    """The explicit W step: Y + beta (W - V) is minus the gradient at the W before, over p, and 0 in an unrated row."""

    def off_the_law(self, update: Tracked) -> Array:
        return update.pulls

    def pulls(self, seen: Sequence[Observation]) -> list[Pulls]:
        return [Pulls(update.pulls, update.W) for update in track(seen)]


class Tracked(NamedTuple):
    """One message of FedMC-ADMM with W and Y before and after it; at the first message both are the same."""

    broadcast: Broadcast
    W: Array
    Y: Array
    W_after: Array
    Y_after: Array

    @property
    def pulls(self) -> Array:
        beta = beta_of(self.broadcast)
        pulls: Array = self.broadcast.clients * (self.Y + beta * (self.W_after - self.broadcast.V))
        return pulls


def track(seen: Sequence[Observation]) -> list[Tracked]:
    """W and Y, tracked through a client's messages from the first one on (for a cohort: the first message only)."""
    tracked: list[Tracked] = []
    S: Array | float = 0.0
    for broadcast, parts in ((one.broadcast, one.parts) for one in seen):
        beta = beta_of(broadcast)
        S = S + np.asarray(parts["S"], np.float64)
        if not tracked:
            Y = np.asarray(S - max(seen[0].joined, 1.0) * beta * broadcast.V)
            tracked.append(Tracked(broadcast, broadcast.V, Y, broadcast.V, Y))
            continue
        W, Y, d = tracked[-1].W_after, tracked[-1].Y_after, broadcast.settings.dual_step
        Y_after = np.asarray((Y + d * (S - beta * broadcast.V)) / (1 + d))
        tracked.append(Tracked(broadcast, W, Y, np.asarray((S - Y_after) / beta), Y_after))
    return tracked


def _off_the_steps(update: Tracked) -> Array:
    """The residual of  W+ - A = c^N (W - A),  A = V - Y/beta,  c = L / (L + p beta),  the law of unrated rows.

    N linearised steps have this effect on an unrated row. L = ||U'U||_F is one number per client; any unrated row
    reveals it.
    """
    broadcast, beta = update.broadcast, beta_of(update.broadcast)
    N = broadcast.settings.inner_steps
    A = broadcast.V - update.Y / beta
    rho = np.broadcast_to(broadcast.clients * beta, broadcast.V.shape)
    before, after = update.W - A, update.W_after - A
    column = np.abs(before).argmax(axis=1)[:, None]
    start, end, weight = (np.take_along_axis(part, column, 1)[:, 0] for part in (before, after, rho))
    ratio = np.divide(end, start, out=np.zeros_like(end), where=start != 0)
    root = np.clip(ratio, 0.0, 1 - 1e-9) ** (1 / N)
    found = weight * root / (1 - root)
    return residual(after, some(found).tolist(), lambda L: (L / (L + rho)) ** N * before)
