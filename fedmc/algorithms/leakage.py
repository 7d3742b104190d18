"""What a client's messages, or their sum, show besides what the server asked for: the algebra behind the audit.

Each algorithm says what it leaks with a `Leakage`. The attacks in `fedmc.audit` are written against this protocol.

The message of the curvature update is the sum of z z' and m z itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.stats import rankdata

from fedmc.algorithms.messages import Broadcast
from fedmc.problem.subproblem import unpacked
from fedmc.types import Array

T = TypeVar("T")

CANDIDATES = 100  # rows that may reveal the law that unrated rows obey
LAW_TOLERANCE = 1e-7  # how exactly a row obeys it, relative to its norm


class Observation(NamedTuple):
    """What the server had sent, and what it sees come back: from one client, or the sum over a cohort."""

    broadcast: Broadcast
    parts: dict[str, Array]
    accounted: Array | float = 0.0  # of a sum of changes: what the server can account for without a single rating

    @property
    def joined(self) -> float:
        return float(self.parts.get("joined", np.zeros(())))


class Pulls(NamedTuple):
    """Row j of `rows`: the sum of (m - u'w_j) u over the users who rated item j."""

    rows: Array
    W: Array


class Leakage(Protocol):
    """Inherit from this class; what it does not override is not leaked."""

    def evidence(self, seen: Sequence[Observation]) -> list[Array]:
        """For each message of a client: how far each item's row is from that of an item which nobody there rated."""
        return [np.linalg.norm(rows, axis=1) for rows in self.deviations(seen)]

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        """Of each message, rows that are 0 for unrated items; where one person rated, along that person's factors."""
        return [rows_of(one) for one in seen]

    def pulls(self, seen: Sequence[Observation]) -> list[Pulls]:
        """The gradients that messages hold, if they do."""
        return []

    def grams(self, seen: Sequence[Observation]) -> tuple[Array, Array] | None:
        """(G, b) of each item as they are after these messages, if messages hold them."""
        return None

    def clearest(self, seen: Sequence[Observation]) -> Sequence[Observation]:
        """The messages that tell persons apart best: the first, unless noise has to be averaged out."""
        return seen[:1]

    def sum_size(self, one: Observation) -> Array:
        """How much the raters of each item moved a sum over a cohort."""
        return np.asarray(np.linalg.norm(rows_of(one) - one.accounted, axis=1))

    def blends(self, scores: Array, popularity: Array) -> dict[str, Array]:
        """Scores of items to try, by name: the evidence alone, or where it is noisy, beside popularity."""
        return {"alone": scores}

    def accounted(
        self, broadcast: Broadcast, cohort: Sequence[int], before: Mapping[int, Array], parts: Mapping[str, Array]
    ) -> Array | float:
        """What the sum would be had nobody rated anything; `before` holds the V that each client was sent last."""
        return 0.0


class RowNorms(Leakage):
    """The default: the row of an item that nobody rated is 0, or the same multiple of V's row for all such items."""

    def deviations(self, seen: Sequence[Observation]) -> list[Array]:
        return [self._off_V(rows_of(one), one.broadcast) for one in seen]

    def _off_V(self, rows: Array, broadcast: Broadcast) -> Array:
        if rows.shape != broadcast.V.shape:
            return rows
        free = free_columns(broadcast)
        return _linear(np.asarray(rows[:, free], np.float64), broadcast.V[:, free, None])


class CurvatureLeakage(Leakage):
    """The curvature update: messages are second moments of user factors, item by item."""

    def grams(self, seen: Sequence[Observation]) -> tuple[Array, Array]:
        return unpacked(np.sum([np.asarray(one.parts["S"], np.float64) for one in seen], axis=0))

    def evidence(self, seen: Sequence[Observation]) -> list[Array]:
        return [self._raters(seen[: k + 1]) for k in range(len(seen))]

    def sum_size(self, one: Observation) -> Array:
        return self.evidence([one])[0]

    def _raters(self, seen: Sequence[Observation]) -> Array:
        """With biases the last diagonal entry of G is the number of ratings itself."""
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


class AveragingLeakage(Leakage):
    """Averaging methods: an unrated row only shrinks, W = a V (with SCAFFOLD + k (own control - control)).

    `part` is the name of W in the reply, `weight` that of the number it is multiplied with, if there is one.
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
            found.append(_linear(target, np.stack(known, axis=-1)))
        return found

    def accounted(
        self, broadcast: Broadcast, cohort: Sequence[int], before: Mapping[int, Array], parts: Mapping[str, Array]
    ) -> Array | float:
        return np.asarray(parts.get(self.weight, len(cohort)) * broadcast.V)


class ChangeLeakage(AveragingLeakage):
    """W - V travels, as with SCAFFOLD: the server cannot account for anything of it beforehand."""

    def accounted(
        self, broadcast: Broadcast, cohort: Sequence[int], before: Mapping[int, Array], parts: Mapping[str, Array]
    ) -> Array | float:
        return 0.0


class ReleaseLeakage(Leakage):
    """Differential privacy: noisy counts in the first message, then noisy rows whose size alone tells."""

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
        """For several ideas of how noisy the evidence is."""
        own, known = rankdata(scores), rankdata(popularity)
        return {f"{weight:g}": weight * own + known for weight in (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 30.0)}

    def sum_size(self, one: Observation) -> Array:
        return self.evidence([one])[0]


def free_columns(broadcast: Broadcast) -> list[int]:
    """The columns of V that training changes: with biases, one is fixed to 1."""
    fixed = broadcast.settings.rank + 1 if broadcast.settings.biases else None
    return [k for k in range(broadcast.V.shape[1]) if k != fixed]


def rows_of(one: Observation) -> Array:
    """The part of a message that has a row for each item (rows below those of the items are left out)."""
    items = len(one.broadcast.V)
    found = next(part for part in one.parts.values() if np.ndim(part) == 2 and len(part) >= items)
    return np.asarray(found)[:items]


def _linear(target: Array, known: Array) -> Array:
    """target_j = known_j c with one c for all unrated rows j."""
    rows = some(np.arange(len(target)))
    candidates = [np.linalg.lstsq(known[row], target[row], rcond=None)[0] for row in rows]
    return residual(target, candidates, lambda c: np.asarray(known @ c))


def residual(target: Array, candidates: Iterable[T], law: Callable[[T], Array]) -> Array:
    """What the law that most rows obey leaves of each."""
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
