"""Norm clipping: an update counts up to a multiple of the median update norm of its round.

A client that sends a thousand times too much moves the sum no further than others do. What is cut off an honest
client's update is not lost: client and server both know, to the last integer, what was counted, so the rest is part of
the client's next update.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmc.types import Array


def factors(updates: Mapping[int, Array], clip: float) -> dict[int, float]:
    """By client, the share of its update that counts: all of it up to `clip` times the median norm, less beyond."""
    norms = {client: float(np.linalg.norm(np.asarray(update, np.float64))) for client, update in updates.items()}
    bound = clip * float(np.median(list(norms.values())))
    return {client: 1.0 if norm <= bound else bound / norm for client, norm in norms.items()}


def counted(update: Array, factor: float) -> Array:
    """The integers that count of an update; client and server compute them alike."""
    return update if factor == 1.0 else np.rint(factor * update.astype(np.float64)).astype(np.int64)


def committed(now: Array, before: Array | None, factor: float) -> Array:
    """A client's whole contribution once it knows how much of its update was counted."""
    base = np.zeros_like(now) if before is None else before
    return base + counted(now - base, factor)
