"""Users who leave: a model without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from fedmc.algorithms.posterior import KnownDays, Posterior
from fedmc.model.model import Model
from fedmc.types import Array


def model_without(model: Model, gone: Array) -> Model:
    """The model without the users of this mask. What it says about items and about all users together stays."""
    keep = ~gone
    known = None if model.posterior is None else _posterior(model.posterior, keep)
    seen = sparse.csr_array(model.seen[np.flatnonzero(keep)])
    return replace(model, users=model.users[keep], U=model.U[keep], seen=seen, posterior=known)


def _posterior(known: Posterior, keep: Array) -> Posterior:
    assert known.user_covariances is not None
    days = None if known.days is None else _days(known.days, keep)
    return replace(known, user_covariances=known.user_covariances[keep], days=days)


def _days(days: KnownDays, keep: Array) -> KnownDays:
    stay, rows = keep[days.users], np.cumsum(keep) - 1
    return KnownDays(rows[days.users[stay]], days.numbers[stay], days.biases[stay])
