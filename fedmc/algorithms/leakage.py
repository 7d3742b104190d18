"""What a client's messages, or their sum, leak beyond what the server asked for: the algebra behind the audit.

Each algorithm describes what it leaks with a `Leakage`. The attacks in `fedmc.audit` are written against this protocol.

The message of the curvature update consists of the sums of z z' and m z themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.stats import rankdata

from fedmc.algorithms.messages import Broadcast
from fedmc.problem.penalties import coefficients
from fedmc.problem.subproblem import unpacked
from fedmc.types import Array

T = TypeVar("T")

CANDIDATES = 100  # rows that are tried to find the law that unrated rows obey
LAW_TOLERANCE = 1e-7  # a row obeys it up to this error, relative to its norm


class Observation(NamedTuple):
    """A broadcast, and what the server sees in return: one client's reply, or the sum over a cohort."""

    broadcast: Broadcast
    parts: dict[str, Array]
    accounted: Array | float = 0.0  # the part of the sum that does not depend on any rating

    @property
    def joined(self) -> float:
        return float(self.parts.get("joined", np.zeros(())))


class Pulls(NamedTuple):
    """Row j of `rows`: the sum of (m - u'w_j) u over the users who rated item j."""

    rows: Array
    W: Array


class Leakage(Protocol):
    """Inherit from this class and override what the algorithm leaks."""

    def evidence(self, seen: Sequence[Observation]) -> list[Array]:
        """For each message of a client: how far each item's row is from the row of an unrated item."""
        return [np.linalg.norm(rows, axis=1) for rows in self.deviations(seen)]

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        """For each message, rows that are 0 for unrated items and, with a single rater, parallel to its factors."""
        return [rows_of(one) for one in seen]

    def pulls(self, seen: Sequence[Observation]) -> list[Pulls]:
        """The gradients that messages contain, if any."""
        return []

    def grams(self, seen: Sequence[Observation]) -> tuple[Array, Array] | None:
        """(G, b) of each item after these messages, if messages contain them."""
        return None

    def user_bias(self, broadcast: Broadcast, u: Array, left: float) -> float | None:
        """The bias of a client's only user with factors u, if `left` is the sum of residuals without it."""
        settings = broadcast.settings
        penalty = coefficients(settings.penalty_at_entry, settings.width)
        weight = 0.0 if penalty is None else float(penalty.l2[settings.rank + 1])
        return left / weight if weight else None

    def clearest(self, seen: Sequence[Observation]) -> Sequence[Observation]:
        """The messages that distinguish users best: the first, unless noise has to be averaged out."""
        return seen[:1]

    def sum_size(self, one: Observation) -> Array:
        """How much the raters of each item changed a sum over a cohort."""
        return np.asarray(np.linalg.norm(rows_of(one) - one.accounted, axis=1))

    def blends(self, scores: Array, popularity: Array) -> dict[str, Array]:
        """Item scores to try, by name: the evidence alone or, if it is noisy, combined with popularity."""
        return {"alone": scores}

    def accounted(
        self, broadcast: Broadcast, cohort: Sequence[int], before: Mapping[int, Array], parts: Mapping[str, Array]
    ) -> Array | float:
        """The sum if nobody had rated anything; `before` holds the last V that each client was sent."""
        return 0.0


class RowNorms(Leakage):
    """The default: the row of an item that nobody rated is 0, or the same multiple of V's row for all such items."""

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        return [self._off_V(rows_of(one), one.broadcast) for one in seen]

    def _off_V(self, rows: Array, broadcast: Broadcast) -> Array:
        if rows.shape != broadcast.V.shape:
            return rows
        free = free_columns(broadcast)
        return linear_residual(np.asarray(rows[:, free], np.float64), broadcast.V[:, free, None])


class CurvatureLeakage(Leakage):
    """The curvature update: messages are second moments of user factors, item by item."""

    def grams(self, seen: Sequence[Observation]) -> tuple[Array, Array]:
        return unpacked(np.sum([np.asarray(one.parts["S"], np.float64) for one in seen], axis=0))

    def evidence(self, seen: Sequence[Observation]) -> list[Array]:
        return [self._raters(seen[: k + 1]) for k in range(len(seen))]

    def sum_size(self, one: Observation) -> Array:
        return self.evidence([one])[0]

    def _raters(self, seen: Sequence[Observation]) -> Array:
        """The size of each item's G; with biases its last diagonal entry is the number of ratings."""
        G, _ = self.grams(seen)
        biases = seen[0].broadcast.settings.biases
        size: Array = np.abs(G[:, -1, -1] if biases else np.trace(G, axis1=1, axis2=2))
        return size


class GradientLeakage(Leakage):
    """FedMGS: the message is the gradient."""

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        return [one.rows for one in self.pulls(seen)]

    def pulls(self, seen: Sequence[Observation]) -> list[Pulls]:
        return [Pulls(-one.broadcast.clients * one.parts["gradient"], one.broadcast.V) for one in seen]


class ChangeLeakage(Leakage):
    """W - V travels, as with SCAFFOLD: an unrated row only shrinks, (a - 1) V (+ k (own control - control)).

    `part` is the name of W - V in the reply, `weight` that of the number it is multiplied with, if there is one.
    """

    def __init__(self, part: str = "W", weight: str = "weight") -> None:
        self.part, self.weight = part, weight

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        found: list[Array] = []
        own: Array | float = 0.0
        for broadcast, parts in ((one.broadcast, one.parts) for one in seen):
            free = free_columns(broadcast)
            target = np.asarray(parts[self.part] / parts.get(self.weight, np.ones(())), np.float64)[:, free]
            known = [broadcast.V[:, free]]
            if "control" in parts and "control" in broadcast.shared.arrays:
                known.append(np.asarray(own - broadcast.shared.arrays["control"])[:, free])
            if "control" in parts:
                own = own + parts["control"]
            found.append(linear_residual(target, np.stack(known, axis=-1)))
        return found


class AveragingLeakage(ChangeLeakage):
    """W travels: an unrated row is W = a V, and the server can account for V in a sum."""

    def accounted(
        self, broadcast: Broadcast, cohort: Sequence[int], before: Mapping[int, Array], parts: Mapping[str, Array]
    ) -> Array | float:
        return np.asarray(parts.get(self.weight, len(cohort)) * broadcast.V)


class ReleaseLeakage(Leakage):
    """Differential privacy: noisy counts in the first message, then noisy rows whose norm is the only evidence."""

    def evidence(self, seen: Sequence[Observation]) -> list[Array]:
        first, *later = (rows_of(one) for one in seen)
        parts = [first[:, 0], *(np.square(rows).sum(axis=1) for rows in later)]
        total: Array = np.sum([(part - part.mean()) / max(float(part.std()), 1e-300) for part in parts], axis=0)
        return [total]

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        released = (rows_of(one) for one in seen)
        return [rows for rows in released if rows.shape[1] > 1]  # the first holds counts only

    def clearest(self, seen: Sequence[Observation]) -> Sequence[Observation]:
        return seen

    def blends(self, scores: Array, popularity: Array) -> dict[str, Array]:
        """One blend for each of several assumed noise levels."""
        own, known = rankdata(scores), rankdata(popularity)
        return {f"{weight:g}": weight * own + known for weight in (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 30.0)}

    def sum_size(self, one: Observation) -> Array:
        return self.evidence([one])[0]


def free_columns(broadcast: Broadcast) -> list[int]:
    """The columns of V that training changes: with biases, one is fixed to 1."""
    fixed = broadcast.settings.rank + 1 if broadcast.settings.biases else None
    return [k for k in range(broadcast.V.shape[1]) if k != fixed]


def rows_of(one: Observation) -> Array:
    """The part of a message that has a row per item (rows after those of the items are left out)."""
    items = len(one.broadcast.V)
    found = next(part for part in one.parts.values() if np.ndim(part) == 2 and len(part) >= items)
    return np.asarray(found)[:items]


def linear_residual(target: Array, known: Array) -> Array:
    """The residual of target_j = known_j c, with one c for all unrated rows j."""
    rows = some(np.arange(len(target)))
    candidates = [np.linalg.lstsq(known[row], target[row], rcond=None)[0] for row in rows]
    return residual(target, candidates, lambda c: np.asarray(known @ c))


def residual(target: Array, candidates: Iterable[T], law: Callable[[T], Array]) -> Array:
    """Each row's residual under the candidate law that most rows obey."""
    best, most = target, -1
    for candidate in candidates:
        predicted = law(candidate)
        left = np.asarray(target - predicted)
        count = int((np.linalg.norm(left, axis=1) <= LAW_TOLERANCE * np.linalg.norm(predicted, axis=1)).sum())
        if count > most:
            best, most = left, count
    return best


def some(values: Array) -> Array:
    chosen: Array = np.random.default_rng(0).permutation(values)[:CANDIDATES]
    return chosen
