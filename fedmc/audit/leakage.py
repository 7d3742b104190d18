"""What a client's messages, or their sum, hold besides what the server asked for: the algebra behind the attacks.

Whoever sees the messages of FedMC-ADMM knows W and Y. The server knows V, beta, p and the dual step d, and from
S+ = beta W+ + Y+ and Y+ = Y + d beta (W+ - V) it has

    Y+ = ( Y + d (S+ - beta V) ) / (1 + d)        W+ = ( S+ - Y+ ) / beta

so that sending the change of S only is cheaper, not more private. Then p (Y + beta (W+ - V)) is, row by row, minus the
gradient: the sum of (m - u'w_j) u over the users who rated item j, and 0 where nobody did ("pulls" below).
With `update="curvature"` the message is the sum of z z' and m z itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmc.algorithms.client import only_rated
from fedmc.algorithms.messages import Broadcast
from fedmc.problem.subproblem import unpacked
from fedmc.types import Array

TRIES = 100  # rows that may give the law that unrated rows keep to
KEEPS_TO = 1e-7  # how exactly, as a share of the row


class Seen(NamedTuple):
    """What the server had sent, and what it sees come back: of one client, or the sum over a cohort."""

    cast: Broadcast
    parts: dict[str, Array]
    known: Array | float = 0.0  # of a sum of changes: what the server can account for without a single rating

    @property
    def joined(self) -> float:
        return float(self.parts.get("joined", np.zeros(())))


class Turn(NamedTuple):
    """One message of FedMC-ADMM: W and Y before and after it; at the first one they are the same."""

    cast: Broadcast
    W: Array
    Y: Array
    W_after: Array
    Y_after: Array

    @property
    def pulls(self) -> Array:
        pulls: Array = self.cast.clients * (self.Y + self.cast.beta * (self.W_after - self.cast.V))
        return pulls


class Pulls(NamedTuple):
    """Row j of `rows`: the sum of (m - u'w_j) u over the users who rated item j."""

    rows: Array
    W: Array


def turns(seen: Sequence[Seen]) -> list[Turn]:
    """W and Y, tracked through the messages of a client from its first on (of a cohort: its first message only)."""
    tracked: list[Turn] = []
    S: Any = 0.0
    for cast, parts in ((one.cast, one.parts) for one in seen):
        S = S + np.asarray(parts["S"], np.float64)
        if not tracked:
            Y = S - max(seen[0].joined, 1.0) * cast.beta * cast.V
            tracked.append(Turn(cast, cast.V, Y, cast.V, Y))
            continue
        W, Y, d = tracked[-1].W_after, tracked[-1].Y_after, cast.settings.dual_step
        Y_after = (Y + d * (S - cast.beta * cast.V)) / (1 + d)
        tracked.append(Turn(cast, W, Y, (S - Y_after) / cast.beta, Y_after))
    return tracked


def pulls(seen: Sequence[Seen]) -> list[Pulls]:
    """Of each message, where it is one that holds a gradient."""
    settings = seen[0].cast.settings
    if settings.make_method() is not None:
        held = [one for one in seen if "gradient" in one.parts]
        return [Pulls(-one.cast.clients * one.parts["gradient"], one.cast.V) for one in held]
    if settings.update == "curvature":
        return []
    return [Pulls(turn.pulls, turn.W_after) for turn in turns(seen)]


def grams(seen: Sequence[Seen]) -> tuple[Array, Array]:
    """With `update="curvature"`: (G, b) of each item, as they are after these messages."""
    return unpacked(np.sum([np.asarray(one.parts["S"], np.float64) for one in seen], axis=0))


def evidence(seen: Sequence[Seen]) -> list[Array]:
    """For each message of a client: how far each item's row is from that of an item which nobody there rated."""
    settings = seen[0].cast.settings
    if "release" in seen[0].parts:
        return [_released(seen)]
    if settings.make_method() is None and settings.update == "curvature":
        return [_raters(seen[: k + 1]) for k in range(len(seen))]
    return [np.linalg.norm(rows, axis=1) for rows in deviations(seen)]


def deviations(seen: Sequence[Seen]) -> list[Array]:
    """Of each message, rows that are 0 for items which nobody rated; where one person did, along that one's factors."""
    if "release" in seen[0].parts:
        released = (np.asarray(one.parts["release"])[: len(one.cast.V)] for one in seen)
        return [rows for rows in released if rows.shape[1] > 1]  # the first holds counts only
    if seen[0].cast.settings.make_method() is not None:
        return [one.rows for one in pulls(seen)] or _off_a_common_law(seen)
    first, *later = turns(seen)
    if only_rated(first.cast):
        return [first.pulls, *(turn.pulls for turn in later)]
    return [first.pulls, *map(_off_the_steps, later)]


def _released(seen: Sequence[Seen]) -> Array:
    """Under differential privacy: noisy counts in the first message, then noisy rows whose size alone tells."""
    first, *later = (np.asarray(one.parts["release"])[: len(one.cast.V)] for one in seen)
    parts = [first[:, 0], *(np.square(rows).sum(axis=1) for rows in later)]
    total: Array = np.sum([(part - part.mean()) / max(float(part.std()), 1e-300) for part in parts], axis=0)
    return total


def _raters(seen: Sequence[Seen]) -> Array:
    """With biases the last diagonal entry of G is the number of ratings itself."""
    G, _ = grams(seen)
    size: Array = np.abs(G[:, -1, -1] if seen[0].cast.settings.biases else np.trace(G, axis1=1, axis2=2))
    return size


def _off_the_steps(turn: Turn) -> Array:
    """N linearised steps leave an unrated row at  W+ - A = c^N (W - A),  A = V - Y/beta,  c = L / (L + p beta).

    L = ||U'U||_F is one number for the whole client; any unrated row gives it away.
    """
    (V, beta, p), N = (turn.cast.V, turn.cast.beta, turn.cast.clients), turn.cast.settings.inner_steps
    A = V - turn.Y / beta
    before, after, rho = turn.W - A, turn.W_after - A, np.broadcast_to(p * beta, V.shape)
    column = np.abs(before).argmax(axis=1)[:, None]
    start, end, weight = (np.take_along_axis(part, column, 1)[:, 0] for part in (before, after, rho))
    ratio = np.divide(end, start, out=np.zeros_like(end), where=start != 0)
    root = np.clip(ratio, 0.0, 1 - 1e-9) ** (1 / N)
    found = weight * root / (1 - root)
    return _left_over(after, _some(found), lambda L: (L / (L + rho)) ** N * before)


def _off_a_common_law(seen: Sequence[Seen]) -> list[Array]:
    """Averaging methods: an unrated row only shrinks, W = a V (with SCAFFOLD + k (own control - control))."""
    found: list[Array] = []
    own: Array | float = 0.0
    for cast, parts in ((one.cast, one.parts) for one in seen):
        free = [k for k in range(cast.V.shape[1]) if not (cast.settings.biases and k == cast.settings.rank + 1)]
        target = np.asarray(parts["W"] / parts.get("weight", 1.0), np.float64)[:, free]
        known = [cast.V[:, free]]
        if "control" in parts and cast.memory is not None:
            known.append(np.asarray(own - cast.memory)[:, free])
        if "control" in parts:
            own = own + parts["control"]
        found.append(_linear(target, np.stack(known, axis=-1)))
    return found


def _linear(target: Array, known: Array) -> Array:
    """target_j = known_j c with one c for all unrated rows j."""
    rows = _some(np.arange(len(target)))
    candidates = [np.linalg.lstsq(known[row], target[row], rcond=None)[0] for row in rows]
    return _left_over(target, candidates, lambda c: np.asarray(known @ c))


def _left_over(target: Array, candidates: Iterable[Any], law: Callable[[Any], Array]) -> Array:
    """What the law that most rows keep to leaves of each."""
    best, most = target, -1
    for candidate in candidates:
        said = law(candidate)
        left = np.asarray(target - said)
        count = int((np.linalg.norm(left, axis=1) <= KEEPS_TO * np.linalg.norm(said, axis=1)).sum())
        if count > most:
            best, most = left, count
    return best


def _some(values: Array) -> Array:
    chosen: Array = np.random.default_rng(0).permutation(values)[:TRIES]
    return chosen
