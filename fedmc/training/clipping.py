"""Robustness in plain: a client's change counts up to a multiple of the median norm of the round's changes.

A client that sends a thousand times too much moves the sum no further than others do. What was left out of an honest
client's change is not lost: both sides know what was counted, in whole numbers and to the last one, so that the rest is
in the change of its next turn.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmc.training.fixed_point import Counted
from fedmc.types import Array


def factors(changes: Mapping[int, Array], times: float) -> dict[int, float]:
    """By client, how much of its change counts: all of it up to `times` the median norm, less beyond."""
    norms = {client: float(np.linalg.norm(np.asarray(change, np.float64))) for client, change in changes.items()}
    most = times * float(np.median(list(norms.values())))
    return {client: 1.0 if norm <= most else most / norm for client, norm in norms.items()}


def counted(change: Array, factor: float) -> Array:
    """The part of a change that counts, in whole steps; client and server work it out alike."""
    return change if factor == 1.0 else np.rint(factor * change.astype(np.float64)).astype(np.int64)


def settle(now: Counted, before: Counted | None, factor: float) -> Counted:
    """The state of a client that has heard how much of its change was counted."""
    if factor == 1.0:
        return now
    base = np.zeros_like(now.whole) if before is None else before.whole
    return now._replace(whole=base + counted(now.whole - base, factor))
