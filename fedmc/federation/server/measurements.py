"""The running totals of measurements under secure aggregation, where nodes send their changes.

A total has the last measurement of every node that has joined, in whole steps. A node that was absent keeps its part.
"""

from __future__ import annotations

import numpy as np

from fedmc.algorithms.messages import Broadcast, Schema
from fedmc.algorithms.schema import MEASURED
from fedmc.types import Array


class Measurements:
    """The totals in whole steps, as one vector; empty before the first measurement."""

    def __init__(self, totals: Array | None = None) -> None:
        self.totals = np.empty(0, np.int64) if totals is None else totals

    def added(self, words: Array, broadcast: Broadcast, schema: Schema) -> Array:
        """The words of a sum, with the totals in the place of the changes of measurements."""
        alone = broadcast.task == "measure"
        size = sum(part.size for name, part in schema.items() if alone or name.startswith(MEASURED))
        if size == 0:
            return words
        changes = words[len(words) - size :]  # they come last
        self.totals = self.totals + changes if len(self.totals) == size else changes.copy()
        return np.concatenate([words[: len(words) - size], self.totals])
