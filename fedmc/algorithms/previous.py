"""The item side of a trained model, from which another run goes on: a warm start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmc.algorithms.posterior import Posterior
from fedmc.problem.scaling import Scaling
from fedmc.types import Array


class Previous(NamedTuple):
    """A trained model on the items of a new run: a row for each, of which only the `known` ones mean something."""

    V: Array
    known: Array  # a mask: items that the model was trained with
    scaling: Scaling  # V belongs to ratings that are scaled like this
    posterior: Posterior | None = None  # of a Bayesian model, with rows like those of V

    def onto(self, V: Array) -> Array:
        """V with the rows of known items as in the trained model."""
        return np.ascontiguousarray(np.where(self.known[:, None], self.V, V), V.dtype)
