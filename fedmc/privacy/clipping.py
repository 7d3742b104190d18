"""Norm clipping: the server scales an update down to a multiple of the median update norm of its round.

A client that sends a far too large update moves the sum by no more than this bound. An honest client loses nothing:
client and server both know, to the last integer, what was counted, so the rest is part of the client's next update.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmc.types import Array


def factors(updates: Mapping[int, Array], clip: float) -> dict[int, float]:
    """Each client's clipping factor: 1 up to `clip` times the median norm, less for a larger norm."""
    norms = {client: float(np.linalg.norm(np.asarray(update, np.float64))) for client, update in updates.items()}
    bound = clip * float(np.median(list(norms.values())))
    return {client: 1.0 if norm <= bound else bound / norm for client, norm in norms.items()}


def counted(update: Array, factor: float) -> Array:
    """The counted part of an update, in integers; client and server compute the same one."""
    return update if factor == 1.0 else np.rint(factor * update.astype(np.float64)).astype(np.int64)


def committed(now: Array, before: Array | None, factor: float) -> Array:
    """A client's whole contribution, once it knows the clipping factor of its update."""
    base = np.zeros_like(now) if before is None else before
    return base + counted(now - base, factor)
